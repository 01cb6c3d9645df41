"""`nightferry verify` and `nightferry copy`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from nightferry.cli.session import current
from nightferry.errors import ConfigError, worst_exit_code


def verify(
    *,
    copy: Annotated[str | None, Parameter(name=("--copy", "--from"))] = None,
    sample: float = 100.0,
    recall: bool = False,
) -> int:
    """Reads copies back and compares them with their chunk tables. A damaged one is marked.

    Parameters
    ----------
    copy
        Only the copies at this destination.
    sample
        Percent of each copy to read; only 100 makes a copy verified.
    recall
        Also copies in archived storage classes: asks for each and waits for it, hours and for money.
    """
    from nightferry.cli.output import table
    from nightferry.copies.verify import verify_copies
    from nightferry.site.opened import OpenSite
    from nightferry.units import counted

    session = current()
    if not 0 < sample <= 100:
        raise ConfigError(
            f"cannot read {sample:g} percent of a copy",
            hint="more than 0 and at most 100; only 100 makes a copy verified",
            subject="--sample",
        )
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        checked = list(
            verify_copies(
                site,
                copy,
                sample=sample / 100,
                recalling=recall,
                progress=session.out.progress,
                cancel=session.cancel,
            )
        )
    checked.sort(key=lambda c: (c.copy.image, c.copy.destination))
    rows = [[c.copy.image, c.copy.destination, c.copy.state, c.error or c.note or None] for c in checked]
    bad = sum(1 for c in checked if c.error)
    left_out = sum(1 for c in checked if c.note)
    shown = (
        [
            table(["image", "at", "state", "note"], rows),
            f"{len(checked) - bad - left_out} of {counted(len(checked), 'copy', 'copies')} right"
            + (f", {left_out} out of reach and not read" if left_out else ""),
        ]
        if checked
        else ["there are no copies to read"]
    )
    session.out.result({"copies": [c.as_json() for c in checked]}, *shown)
    return worst_exit_code(c.exit_code for c in checked)


def copy(images: tuple[str, ...] = (), /, *, missing: bool = False, to: str) -> int:
    """Makes copies again at a destination, from staging or from any other copy.

    Parameters
    ----------
    images
        These images.
    missing
        Every image whose policy wants a copy there that is not there or not to be trusted.
    to
        The destination.
    """
    from nightferry.cli.output import table
    from nightferry.copies.verify import missing_copies, remake_copy
    from nightferry.errors import BusyError, DestinationError, IntegrityError, StagingFull
    from nightferry.site.opened import OpenSite

    if bool(images) == missing:
        raise ConfigError(
            "give either image names or --missing",
            hint=f"`nightferry copy IMAGE --to {to}`, or `nightferry copy --missing --to {to}`",
            subject="copy",
        )
    session = current()
    rows: list[list[object]] = []
    documents: list[dict[str, object]] = []
    codes = []
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        site.file.destination(to)
        site.catalog.refresh()
        wanted = missing_copies(site, to) if missing else [site.catalog.image(name) for name in images]
        for image in wanted:
            error, state = "", "missing"
            try:
                made = remake_copy(site, image, to, progress=session.out.progress, cancel=session.cancel)
                state = made.state
            except (DestinationError, IntegrityError, StagingFull, BusyError) as failure:
                error = failure.message
                codes.append(failure.exit_code)
            rows.append([image.image, to, state, error or None])
            documents.append(
                {"image": image.image, "destination": to, "state": state, "error": error or None}
            )
    session.out.result(
        {"copies": documents},
        *([table(["image", "at", "state", "error"], rows)] if rows else ["no copy is missing there"]),
    )
    return worst_exit_code(codes)
