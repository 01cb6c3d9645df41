"""`nightferry catalog`: the catalog from media alone."""

from __future__ import annotations

from dataclasses import asdict

from cyclopts import App

from nightferry.cli.session import current

app = App(name="catalog", help="Makes the catalog anew.")

PARTIAL = 3


@app.command
def rebuild(*, copy: str, to: str) -> int:
    """Makes a catalog from what lies at a destination: its newest copy of the catalog, and its copies of images.

    The site's own catalog is neither read nor touched. Exit code 3 when a copy is lost or something was left out;
    it is listed.

    Parameters
    ----------
    copy
        The destination.
    to
        An empty or absent folder, or s3://bucket/prefix with nothing below it.
    """
    from nightferry.ops.rebuild import rebuild as make_anew
    from nightferry.units import counted

    session = current()
    loaded = session.load_site()
    done = make_anew(loaded, copy, to, progress=session.out.progress, cancel=session.cancel)
    words = [
        f"{done.place}: {counted(done.images, 'image')}, {counted(done.events, 'event')}, from "
        + (done.begun_from or f"the images' own records at {copy}: there is no copy of the catalog")
    ]
    for images, what in (
        (done.added, "found there, and not in the copy of the catalog"),
        (done.lost, "on record there, and lost"),
        (done.elsewhere, "on cartridges that are not in the library"),
    ):
        if images:
            words.append(f"{counted(len(images), 'copy', 'copies')} {what}: {_shown(images)}")
    if done.cartridges:
        words.append(f"{counted(len(done.cartridges), 'cartridge')} made known: {_shown(done.cartridges)}")
    words += done.notes
    if loaded.site.site.catalog.rstrip("/") != to.rstrip("/"):
        words.append(f'put catalog = "{to}" into the site file to use it')
    session.out.result(asdict(done), *words)
    return 0 if done.is_complete else PARTIAL


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
