"""`nightferry media`: the cartridges of tape libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from nightferry.cli.session import current
from nightferry.errors import ConfigError

if TYPE_CHECKING:
    from nightferry.destination.tape.library.media import MediumView

app = App(name="media", help="Cartridges.")
LibraryName = Annotated[str | None, Parameter(name="--library")]


@app.command(name="list")
def list_(*, library: LibraryName = None) -> None:
    """Lists the cartridges: where each is, its state and pool, what it holds and how it has worn.

    Parameters
    ----------
    library
        Only this destination's.
    """
    from nightferry.cli.output import Column, table
    from nightferry.copies.media import tapes, view_json
    from nightferry.site.opened import OpenSite
    from nightferry.units import format_size

    session = current()
    with OpenSite(session.load_site()) as site:
        views = [(d.name, view) for d in tapes(site, library) for view in d.inventory()]
        zone = site.file.tz
    rows = [
        (
            v.barcode,
            v.element or "not in the library",
            v.state,
            v.pool or None,
            format_size(v.used_bytes),
            len(v.images),
            v.mounts,
            v.errors,
            v.written.astimezone(zone).strftime("%Y-%m-%d %H:%M") if v.written else None,
            "; ".join([*(["WORM"] if v.worm else []), *v.alerts, *([v.note] if v.note else [])]) or None,
        )
        for _, v in views
    ]
    columns: list[Column | str] = ["barcode", "where", "state", "pool"]
    columns += [Column(name, right=True) for name in ("used", "images", "mounts", "errors")]
    session.out.result(
        {"cartridges": [{"destination": name, **view_json(v)} for name, v in views]},
        table([*columns, "written", "note"], rows),
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
    from nightferry.copies.media import holding, view_json
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        view = holding(site, barcode, library).show(barcode)
        zone = site.file.tz
    label = view.on_medium
    rows = [
        [f.file, f.kind, f.image or None, f.epoch or None, f.part or None, f.size_bytes] for f in view.files
    ]
    words = [
        f"{barcode}: {view.medium.state}, pool {view.medium.pool or '-'}, "
        f"{view.medium.element or 'not site'}",
        f"label {label.label} of pool {label.pool}, written {label.created.astimezone(zone):%Y-%m-%d %H:%M}"
        if label
        else "no label",
    ]
    if view.problem:
        words.append(f"problem: {view.problem}")
    columns: list[Column | str] = [Column("file", right=True), "kind", "image"]
    columns += [Column(name, right=True) for name in ("epoch", "part", "bytes")]
    document = {
        **view_json(view.medium),
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
    from nightferry.copies.media import holding, view_json
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        destination = holding(site, barcode, library)
        view = destination.label(barcode, pool or destination.pool.name)
    session.out.result(view_json(view), f"{barcode} is labelled for pool {view.pool}")


@app.command
def erase(
    barcode: str,
    /,
    *,
    yes: bool = False,
    reason: str = "",
    dry_run: bool = False,
    library: LibraryName = None,
) -> int:
    """Writes a fresh label over whatever is on a cartridge. One that holds a living copy is refused.

    Parameters
    ----------
    barcode
        The cartridge.
    yes
        Its contents may be written over.
    reason
        Why; kept in the catalog.
    dry_run
        Says what would be lost; writes nothing.
    library
        The destination, when several have one of that barcode.
    """
    from nightferry.copies import media
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        tape = media.holding(site, barcode, library)
        plan = media.plan_erasure(site, tape, barcode)
        description = media.describe_erasure(plan)
        if dry_run:
            session.out.result({**plan.as_json(), "dry_run": True}, description)
            return 0
        if not yes:
            which = f" --library {library}" if library else ""
            raise ConfigError(
                description,
                hint=f"to do it: `nightferry media erase --yes {barcode}{which}`",
                subject=barcode,
            )
        view = media.erase(site, tape, plan, reason)
    words = [f"{barcode} is erased: {_now(view)}"]
    if view.state == "retired":
        words += [f"it stays out of use; `nightferry media label {barcode}` puts it back"]
    again = [copy.image for copy in plan.unfinished]
    session.out.result({**media.view_json(view), "lost": list(plan.lost), "unfinished": again}, *words)
    return 0


@app.command
def retire(barcode: str, /, *, reason: str, library: LibraryName = None) -> int:
    """Takes a cartridge out of use: its copies are lost from now on. What has one copy or none left is listed.

    Exit code 20 when an image cannot be read anywhere any more.

    Parameters
    ----------
    barcode
        The cartridge; it need not be in the library.
    reason
        Why; kept in the catalog.
    library
        The destination, when several have one of that barcode.
    """
    from nightferry.cli.output import table
    from nightferry.copies import media
    from nightferry.errors import CopyMissing
    from nightferry.site.opened import OpenSite
    from nightferry.units import counted

    session = current()
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        tape = media.holding(site, barcode, library)
        done = media.retire(site, tape, barcode, reason)
    rows = [[loss.image, ", ".join(loss.left) or "nowhere"] for loss in done.endangered]
    words = [f"{barcode} is retired; {counted(len(done.losses), 'copy', 'copies')} on it lost"]
    if rows:
        words += ["what has one copy or none left:"]
    again = (
        [f"`nightferry copy --missing --to {tape.name}` makes the copies again"]
        if any(x.left for x in done.losses)
        else []
    )
    document = {
        **media.view_json(done.medium),
        "lost": [loss.as_json() for loss in done.losses],
        "endangered": [loss.image for loss in done.endangered],
    }
    shown = [table(["image", "can still be read from"], rows)] if rows else []
    session.out.result(document, *words, *shown, *again)
    return CopyMissing.exit_code if any(not loss.left for loss in done.losses) else 0


@app.command
def move(barcode: str, /, *, to: tuple[str, int], reason: str = "", library: LibraryName = None) -> None:
    """Carries a cartridge to a slot.

    Parameters
    ----------
    barcode
        The cartridge.
    to
        `slot N`.
    reason
        Why; kept in the catalog.
    library
        The destination, when several have one of that barcode.
    """
    from nightferry.copies import media
    from nightferry.site.opened import OpenSite

    session = current()
    if to[0] != "slot":
        raise ConfigError(
            f"a cartridge is moved to a slot, not to {to[0]} {to[1]}",
            hint="`--to slot N`; `nightferry media export` carries it to a port",
            subject=barcode,
        )
    with OpenSite(session.load_site()) as site:
        view = media.holding(site, barcode, library).handling.move(barcode, to[1], media.why(reason))
    session.out.result(media.view_json(view), f"{barcode} is in {view.element}")


@app.command(name="import")
def import_(*, reason: str = "", library: LibraryName = None) -> None:
    """Takes in what lies in the import/export ports, and what somebody put into a slot by hand.

    A cartridge that was offsite takes up the state again that it had before.

    Parameters
    ----------
    reason
        Why; kept in the catalog.
    library
        Only this destination's ports.
    """
    from nightferry.copies import media
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        taken = [
            (tape.name, view)
            for tape in media.tapes(site, library)
            for view in tape.handling.take_in(media.why(reason))
        ]
    words = [f"{view.barcode} is in {view.element}: {_now(view)}" for _, view in taken]
    session.out.result(
        {"cartridges": [{"destination": name, **media.view_json(view)} for name, view in taken]},
        *(words or ["no port holds a cartridge"]),
    )


@app.command
def export(barcode: str, /, *, reason: str = "", library: LibraryName = None) -> None:
    """Carries a cartridge to a port, to be taken out. It is offsite until it is imported.

    Parameters
    ----------
    barcode
        The cartridge.
    reason
        Where it goes, and why; kept in the catalog.
    library
        The destination, when several have one of that barcode.
    """
    from nightferry.copies import media
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        view = media.holding(site, barcode, library).handling.export(barcode, media.why(reason))
    session.out.result(
        media.view_json(view), f"{barcode} is in {view.element}, to be taken out; it is offsite"
    )


def _now(view: MediumView) -> str:
    return f"{view.state}, pool {view.pool}" if view.pool else view.state
