"""`nightferry restore`: files, a store, in place or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from nightferry.cli.session import Session, current
from nightferry.errors import ConfigError

if TYPE_CHECKING:
    from nightferry.model.records import ImageRecord
    from nightferry.restore.restore import Restored, RestorePlan
    from nightferry.restore.tree import RestoreReport, Writing
    from nightferry.site.opened import OpenSite

app = App(name="restore", help="Restores files, a store or a storage group.")

CopyName = Annotated[str | None, Parameter(name=("--copy", "--from"))]
_LISTED = 40
"""Paths that a table names; --json lists all."""
OneImage = Annotated[str | None, Parameter(help="Exactly this image.")]
AsOf = Annotated[
    str | None,
    Parameter(help="The newest image whose start is not later; without an offset, site time."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class RestoreOptions:
    """From where, and how what comes back is written: options that all restores have.

    Parameters
    ----------
    copy
        Only from this destination, or `staging`.
    overwrite
        `never` leaves what is there, `older` replaces what is older, `always` replaces.
    dry_run
        Says which copy, how much and how long; writes nothing.
    privileged
        Also devices, setuid bits and privileged attributes.
    map_owner
        OLD=NEW for users and groups; may be repeated.
    """

    copy: CopyName = None
    overwrite: Literal["never", "older", "always"] = "never"
    dry_run: bool = False
    privileged: bool = False
    map_owner: tuple[str, ...] = ()

    def writing(self) -> Writing:
        """As the restore itself wants it.

        Raises:
            ConfigError: ``map_owner`` is not well-formed.
        """
        from nightferry.restore.tree import Writing

        owners = {}
        for pair in self.map_owner:
            old, equals, new = pair.partition("=")
            if not (old and equals and new):
                raise ConfigError(
                    f"not a mapping of owners: {pair!r}", hint="write OLD=NEW", subject="--map-owner"
                )
            owners[old] = new
        return Writing(self.overwrite, self.privileged, owners)


@dataclass(frozen=True)
class GroupOptions(RestoreOptions):
    """The same of several images."""

    dry_run: Annotated[
        bool,
        Parameter(help="Says which copies, how much and how long; writes nothing."),
    ] = False


_DEFAULTS = RestoreOptions()
_GROUP_DEFAULTS = GroupOptions()


@app.command
def files(
    store: str,
    patterns: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=False)] = (),
    /,
    *,
    to: Path,
    as_of: AsOf = None,
    image: OneImage = None,
    options: RestoreOptions = _DEFAULTS,
) -> int:
    """Restores files to DIR/path-inside-the-store. What is there already stays, unless --overwrite says else.

    Exit code 3 when something was left out; it is listed.

    Parameters
    ----------
    store
        GROUP/STORE.
    patterns
        As in .gitignore; a directory means all below it.
    to
        The folder to restore into.
    """
    if not patterns:
        raise ConfigError(
            "no file was named",
            hint="name files or patterns; `nightferry restore store` restores all",
            subject=store,
        )
    return _run(store, patterns, to, as_of, image, options)


@app.command
def store(
    store: str,
    /,
    *,
    to: Path | None = None,
    in_place: bool = False,
    yes: bool = False,
    as_of: AsOf = None,
    image: OneImage = None,
    options: RestoreOptions = _DEFAULTS,
) -> int:
    """Restores a whole store, to a folder or in place.

    In place the store is restored beside itself, verified, then exchanged by rename; the old content stays
    as PATH.before-RUN.

    Parameters
    ----------
    store
        GROUP/STORE.
    to
        The folder to restore into.
    in_place
        Into the store's own place; needs --yes.
    yes
        The store's place may be taken.
    """
    if (to is None) == (not in_place):
        raise ConfigError(
            "a store is restored either --to DIR or --in-place", hint="use one of the two", subject=store
        )
    if to is not None:
        return _run(store, (), to, as_of, image, options)
    if not yes and not options.dry_run:
        raise ConfigError(
            f"restoring {store} in place replaces what is there",
            hint="add --yes; the old content stays beside it as PATH.before-RUN",
            subject=store,
        )
    return _in_place(store, as_of, image, options)


@app.command
def group(
    group: str,
    /,
    *,
    to: Path,
    as_of: str | None = None,
    until: str | None = None,
    options: GroupOptions = _GROUP_DEFAULTS,
) -> int:
    """Restores every store of a storage group, each to DIR/STORE.

    Cartridges are mounted once and read forward, the drives in parallel. A store that fails stops no other one.

    Parameters
    ----------
    group
        The storage group.
    to
        The folder to restore into.
    as_of
        The newest images whose start is not later; without an offset, site time.
    until
        Replays the log up to here. Not in this release.
    """
    from nightferry.cli.output import table
    from nightferry.errors import NotInThisRelease, worst_exit_code
    from nightferry.restore.restore_group import plan_group, restore_group
    from nightferry.site.opened import OpenSite
    from nightferry.units import format_duration, format_size

    if until is not None:
        raise NotInThisRelease(
            "replaying a log (`--until`) is not in this release", hint="leave --until out", subject=group
        )
    writing = options.writing()
    session = current()
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        when = parse_moment(as_of, site) if as_of else None
        plans = plan_group(site, group, to.resolve(), as_of=when, copy=options.copy)
        if options.dry_run:
            documents = [plan.as_json() for plan in plans]
            shown = [
                [
                    d["image"],
                    d["copy"],
                    ", ".join(d["cartridges"]) or None,
                    format_size(d["bytes"]),
                    format_duration(d["predicted_s"]),
                    d["to"],
                ]
                for d in documents
            ]
            heads = ["image", "from", "cartridges", "bytes", "about", "to"]
            session.out.result({"stores": documents, "dry_run": True, "as_of": when}, table(heads, shown))
            return 0
        done = restore_group(
            site, plans, writing=writing, progress=session.out.progress, cancel=session.cancel
        )
    rows = [
        [
            one.store,
            one.done.copy if one.done else None,
            one.done.report.files if one.done else None,
            format_size(one.done.report.size_bytes) if one.done else None,
            str(one.done.plan.target) if one.done else None,
            one.error.message if one.error else (None if one.exit_code == 0 else "something was left out"),
        ]
        for one in done
    ]
    session.out.result(
        {"stores": [one.as_json() for one in done], "as_of": when},
        table(["store", "from", "files", "bytes", "to", "error"], rows),
    )
    return worst_exit_code(one.exit_code for one in done)


def _run(
    store: str,
    patterns: tuple[str, ...],
    to: Path,
    as_of: str | None,
    image: str | None,
    options: RestoreOptions,
) -> int:
    from nightferry.restore import restore as ops
    from nightferry.site.opened import OpenSite

    session, writing = current(), options.writing()
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        found, moment = chosen_image(session, site, store, as_of, image)
        plan = ops.plan_restore(site, found, patterns, to.resolve(), copy=options.copy)
        if options.dry_run:
            plan = ops.look_for_recalls(site, plan)
            report = ops.forecast(site, plan, writing=writing, cancel=session.cancel)
            _show_plan(session, plan, moment, report)
            return 0 if report.complete else 3
        done = ops.restore(site, plan, writing=writing, progress=session.out.progress, cancel=session.cancel)
    return _show(session, store, done, moment)


def _in_place(
    store: str,
    as_of: str | None,
    image: str | None,
    options: RestoreOptions,
) -> int:
    from nightferry.restore import in_place as ops
    from nightferry.restore.in_place import store_in_use
    from nightferry.restore.restore import look_for_recalls
    from nightferry.site.opened import OpenSite

    session, writing = current(), options.writing()
    with OpenSite(session.load_site(), progress=session.out.progress, cancel=session.cancel) as site:
        found, moment = chosen_image(session, site, store, as_of, image)
        if options.dry_run:
            plan = look_for_recalls(site, ops.plan_in_place(site, found, copy=options.copy))
            path = ops.store_path_of(site, found)
            use = store_in_use(path)
            _show_plan(session, replace(plan, target=path), moment, in_use=use.processes)
            return 10 if use.processes else 0
        done = ops.restore_in_place(
            site,
            found,
            copy=options.copy,
            writing=writing,
            progress=session.out.progress,
            cancel=session.cancel,
        )
    return _show(session, store, done, moment)


def chosen_image(
    session: Session, site: OpenSite, store: str, as_of: str | None, image: str | None
) -> tuple[ImageRecord, datetime | None]:
    """The image, and the moment that ``--as-of`` came to."""
    from nightferry.model.names import split_store
    from nightferry.restore.restore import find_image

    if as_of is not None and image is not None:
        raise ConfigError("--as-of and --image both name an image", hint="use one of them")
    group, name = split_store(store)
    when = parse_moment(as_of, site) if as_of else None
    if when is not None:
        session.out.say(f"as of {when.isoformat()}")
    return find_image(site, group, name, as_of=when, image=image), when


def parse_moment(text: str, site: OpenSite) -> datetime:
    """A time as people write it; without an offset it is site time.

    Raises:
        ConfigError: not a time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"not a time: {text!r}", hint="write for example 2026-11-30T06:00 or 2026-11-30T06:00-06:00"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=site.file.tz)


def _show_plan(
    session: Session,
    plan: RestorePlan,
    as_of: datetime | None,
    report: RestoreReport | None = None,
    in_use: tuple[str, ...] | None = None,
) -> None:
    """``in_use`` is given for an in-place restore: who has the store open now."""
    from nightferry.units import counted, format_duration, format_size

    document = plan.as_json()
    others = [
        f"{source['copy']} about {format_duration(source['predicted_s'])}"
        for source in document["sources"][1:]
    ]
    lines = [
        f"image {document['image']} from {document['copy']}"
        + (f" (then {', '.join(others)})" if others else ""),
        f"{counted(document['files'], 'entry', 'entries')}, {format_size(document['bytes'])}"
        + (f", about {format_duration(document['predicted_s'])}" if document["predicted_s"] else ""),
    ]
    if document["cartridges"]:
        away = document["sources"][0]["offsite"]
        lines.insert(
            1,
            f"cartridges {', '.join(document['cartridges'])}"
            + (f"; {', '.join(away)} must be brought back and imported first" if away else ""),
        )
    if document["needs_recall"]:
        lines.append(f"needs recall from an archive: {', '.join(document['needs_recall'])}; used last")
    document |= {"dry_run": True, "as_of": as_of}
    if in_use is None:
        lines.append(f"to {document['to']}")
    else:
        document["in_use"] = list(in_use)
        lines.append(f"in the place of {document['to']}; what is there stays beside it")
        lines += [f"  in use by {user}: the restore would be refused" for user in in_use]
    if report is not None:
        document["report"] = report.as_json()
        lines += _left_out(report)
    session.out.result(document, *lines)


def _show(session: Session, store: str, done: Restored, as_of: datetime | None) -> int:
    from nightferry.units import counted, format_size

    report = done.report
    counts = [
        counted(report.files, "file"),
        counted(report.directories, "directory", "directories"),
        counted(report.links, "link"),
        format_size(report.size_bytes),
    ]
    lines: list[str] = [f"{store} from {done.copy}: {', '.join(counts)} to {done.plan.target}"]
    if done.previous:
        lines.append(f"what was there before: {done.previous}")
    if done.damaged:
        lines.append(
            f"not usable: {', '.join(done.damaged)} (see `nightferry copies {done.plan.image.image}`)"
        )
    lines += _left_out(report)
    session.out.result({**done.as_json(), "as_of": as_of}, *lines)
    return 0 if done.is_complete else 3


def _left_out(report: RestoreReport) -> list[str]:
    from nightferry.model.text import safe

    lines = [f"  is already there, kept: {safe(path)}" for path in report.skipped]
    lines += [f"  is there and not older, kept: {safe(path)}" for path in report.kept]
    lines += [f"  refused: {safe(path)}: {reason}" for path, reason in report.refused]
    lines += [f"  not kept: {safe(path)}: {what}" for path, what in report.losses]
    more = len(lines) - _LISTED
    return lines[:_LISTED] + ([f"  and {more} more (--json lists all)"] if more > 0 else [])
