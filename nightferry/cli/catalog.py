"""`nightferry catalog`: the catalog from media alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from cyclopts import App

from nightferry.cli.session import current

if TYPE_CHECKING:
    from nightferry.copies.rebuild import Rebuilt

app = App(name="catalog", help="Rebuilds the catalog.")

PARTIAL_EXIT_CODE = 3


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
    from nightferry.copies.rebuild import rebuild as make_anew
    from nightferry.units import counted

    session = current()
    loaded = session.load_site()
    done = make_anew(loaded, copy, to, progress=session.out.progress, cancel=session.cancel)
    words = [
        f"{done.place}: {counted(done.images, 'image')}, {counted(done.events, 'event')}, from "
        + (_begun_from(done) or f"the images' own records at {copy}: there is no copy of the catalog")
    ]
    for images, what in (
        (done.added, "found there, and not in the copy of the catalog"),
        (done.lost, "on record there, and lost"),
        (done.lost_elsewhere, "on record at other destinations, and lost"),
        (done.elsewhere, "on cartridges that are not in the library"),
    ):
        if images:
            words.append(f"{counted(len(images), 'copy', 'copies')} {what}: {_shown(images)}")
    if done.cartridges:
        words.append(f"{counted(len(done.cartridges), 'cartridge')} added: {_shown(done.cartridges)}")
    for paths, what in (
        (done.recovered, "without its record, which was recreated"),
        (done.left_out, "left out"),
        (done.foreign, "not ours, and not touched"),
    ):
        words += [f"{what}: {path}" for path in paths]
    if done.foreign_count > len(done.foreign):
        words.append(f"not ours, and not touched: {done.foreign_count - len(done.foreign)} more")
    words += [f"its copies were not checked: {why}" for why in done.unseen]
    words += [f"owes copies, but was not found: {image}" for image in done.missing]
    words += done.notes
    if done.missing:
        words.append(
            "`nightferry catalog accept` gives up the images that were not found; those still on staging are kept"
        )
    words.append("nothing expires before `nightferry catalog accept`")
    if loaded.site.site.catalog.rstrip("/") != to.rstrip("/"):
        words.append(f'put catalog = "{to}" into the site file to use it')
    session.out.result(asdict(done), *words)
    return 0 if done.is_complete else PARTIAL_EXIT_CODE


@app.command
def accept(
    *,
    yes: bool = False,
    reason: str = "",
    renamed_from: str = "",
    dry_run: bool = False,
) -> None:
    """Says that a rebuilt catalog is right: until then nothing expires. It is kept in the log.

    What the rebuild could not take is listed. Folders of ours among it then count as what an interrupted copy left, and
    go with the next expire. Images that owe copies and lie nowhere any more are listed, and given up.

    Parameters
    ----------
    yes
        It was looked at.
    reason
        Why it is right; enough without --yes.
    renamed_from
        The site's name as the catalog knows it: the site file's name takes its place, and the id stays.
    dry_run
        Only say what there is to accept.
    """
    from nightferry.copies import accept as ops
    from nightferry.errors import ConfigError
    from nightferry.site.opened import OpenSite

    session = current()
    if not (yes or reason.strip() or dry_run):
        raise ConfigError(
            "accepting needs a confirmation",
            hint="check --dry-run, then add --yes, or --reason TEXT",
            subject="--yes",
        )
    with OpenSite(session.load_site(), renaming=bool(renamed_from)) as site:
        done = ops.accept(site, reason=reason, renamed_from=renamed_from, dry_run=dry_run)
        name = site.file.site.name
    words = [f"left out, so unusable: {path}" for path in (done.rebuild.left_out if done.rebuild else ())]
    verb = "would be" if dry_run else "is"
    words += [f"lost, and {verb} given up: {image}" for image in done.given_up]
    words += [
        f"{verb} given up unless the disk that it was staged on, which this node cannot see, still has it: {image}"
        for image in done.undecided
    ]
    if done.rebuild is not None:
        words.append(f"the catalog rebuilt from {done.rebuild.copy_from} {verb} accepted")
    if done.renamed_from:
        words.append(f"site {done.renamed_from} {verb} called {name}")
    session.out.result({**done.as_json(), "dry_run": dry_run}, *words)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _begun_from(done: Rebuilt) -> str:
    if not done.unproved:
        return done.begun_from
    return f"{done.begun_from}, which has no digest: it is of an older release"
