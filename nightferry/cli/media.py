"""`nightferry media`: the cartridges of tape libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import App, Parameter

from nightferry.cli.session import current
from nightferry.errors import ConfigError, NotInThisRelease

if TYPE_CHECKING:
    from nightferry.destination.tape.library import TapeDestination
    from nightferry.ops.opened import OpenSite

app = App(name="media", help="Cartridges.")
LibraryName = Annotated[str | None, Parameter(name="--library")]
Anything = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]


def tapes(here: OpenSite, name: str | None) -> list[TapeDestination]:
    """The named tape destination, or all of them.

    Raises:
        ConfigError: there is none of that name, or none at all.
    """
    from nightferry.destination.tape.library import TapeDestination
    from nightferry.model.destinations import TapeSettings

    names = [d.name for d in here.site.destinations if isinstance(d, TapeSettings)]
    if name is not None:
        here.site.destination(name)
        if name not in names:
            raise ConfigError(
                f"destination {name} is no tape library",
                hint="media are the cartridges of tape libraries",
                subject=name,
            )
        names = [name]
    if not names:
        raise ConfigError("the site has no tape library", hint="media are the cartridges of tape libraries")
    opened = [here.destination(n) for n in names]
    return [d for d in opened if isinstance(d, TapeDestination)]


@app.command(name="list")
def list_(*, library: LibraryName = None) -> None:
    """Lists the cartridges: where each is, its state, pool, and what it holds.

    Parameters
    ----------
    library
        Only this destination's.
    """
    from nightferry.cli.output import Column, table
    from nightferry.ops.opened import OpenSite
    from nightferry.units import format_size

    session = current()
    with OpenSite(session.load_site()) as here:
        views = [(d.name, view) for d in tapes(here, library) for view in d.inventory()]
    rows = [
        (
            v.barcode,
            v.element or "not in the library",
            v.state,
            v.pool or None,
            format_size(v.used_bytes),
            len(v.images),
            v.note or None,
        )
        for _, v in views
    ]
    columns: list[Column | str] = ["barcode", "where", "state", "pool", Column("used", right=True)]
    session.out.result(
        {"cartridges": [{"destination": name, **_view_json(v)} for name, v in views]},
        table([*columns, Column("images", right=True), "note"], rows),
    )


@app.command
def inventory(*, library: LibraryName = None) -> None:
    """Asks the library itself what is where.

    Parameters
    ----------
    library
        Only this destination's.
    """
    list_(library=library)


@app.command
def show(barcode: str, /, *, library: LibraryName = None) -> None:
    """Reads a cartridge: its label and every tape file behind it.

    Parameters
    ----------
    barcode
        The cartridge.
    library
        The destination, when several have one of that barcode.
    """
    from nightferry.cli.output import Column, table
    from nightferry.ops.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as here:
        view = _holding(here, barcode, library).show(barcode)
        zone = here.site.tz
    label = view.on_medium
    rows = [
        [f.file, f.kind, f.image or None, f.epoch or None, f.part or None, f.size_bytes] for f in view.files
    ]
    words = [
        f"{barcode}: {view.medium.state}, pool {view.medium.pool or '-'}, "
        f"{view.medium.element or 'not here'}",
        f"label {label.label} of pool {label.pool}, written {label.created.astimezone(zone):%Y-%m-%d %H:%M}"
        if label
        else "no label",
    ]
    if view.problem:
        words.append(f"problem: {view.problem}")
    columns: list[Column | str] = [Column("file", right=True), "kind", "image"]
    columns += [Column(name, right=True) for name in ("epoch", "part", "bytes")]
    document = {
        **_view_json(view.medium),
        "on_medium": label,
        "files": view.files,
        "problem": view.problem or None,
    }
    session.out.result(document, *words, table(columns, rows))


@app.command
def label(barcode: str, /, *, pool: str | None = None, library: LibraryName = None) -> None:
    """Labels a blank cartridge for the pool. One that is not blank is refused.

    Parameters
    ----------
    barcode
        The cartridge.
    pool
        The pool; by default the destination's own.
    library
        The destination, when several have one of that barcode.
    """
    from nightferry.ops.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as here:
        destination = _holding(here, barcode, library)
        view = destination.label(barcode, pool or destination.pool.name)
    session.out.result(_view_json(view), f"{barcode} is labelled for pool {view.pool}")


def _later(verb: str) -> Any:
    def refuse(*_: Anything) -> NoReturn:
        raise NotInThisRelease(f"`nightferry media {verb}` is not in this release", subject=verb)

    refuse.__doc__ = "Not in this release."
    return refuse


for _verb in ("erase", "retire", "move", "import", "export"):
    app.command(_later(_verb), name=_verb)


def _holding(here: OpenSite, barcode: str, library: str | None) -> TapeDestination:
    found = [d for d in tapes(here, library) if any(v.barcode == barcode for v in d.inventory())]
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(d.name for d in found)
        raise ConfigError(
            f"several libraries have a cartridge {barcode}: {named}", hint="say which with --library"
        )
    raise ConfigError(
        f"no cartridge {barcode}", hint="`nightferry media list` shows what there is", subject=barcode
    )


def _view_json(view: Any) -> dict[str, Any]:
    return {
        "barcode": view.barcode,
        "element": view.element or None,
        "state": view.state,
        "pool": view.pool or None,
        "used_bytes": view.used_bytes,
        "tape_files": view.tape_files,
        "images": list(view.images),
        "note": view.note or None,
    }
