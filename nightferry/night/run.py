"""A run from its beginning to its end: which window, which stores, what is continued."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from nightferry.claims.base import Claim
from nightferry.claims.drain import clear_drain, drain_requested, request_drain
from nightferry.clock import CLOCKS_APART
from nightferry.copies.accept import reconcile_accepted
from nightferry.errors import BusyError, Cancelled, CatalogError, ConfigError
from nightferry.model.records import RunRecord, SelectionRecord
from nightferry.plan.window import next_run_name, night_start, window_of, window_start
from nightferry.progress import Cancel, Progress
from nightferry.site.nodes import active_node, has_disk
from nightferry.site.opened import OpenSite, operator
from nightferry.site.stamps import accept_clock, require_plausible_clock, wrong_runs
from nightferry.staging.images import is_kept
from nightferry.staging.orphans import clear_killed, clear_orphans, forget_expired
from nightferry.staging.ownership import require_own_disk

log = logging.getLogger(__name__)

_MISSED = 2
_SAME_NIGHT = timedelta(hours=12)
"""How much earlier than this window an unfinished run's may have begun and still be the same night, whose start was
moved meanwhile."""
_DAY = timedelta(days=1)

_GIVEN_UP = "unfinished, and given up for a newer run"


@dataclass(frozen=True, slots=True)
class Begun:
    """What ``begin_run`` decided. ``how`` is what the operator is told."""

    run: RunRecord
    how: str
    finished: bool = False


def window_now(site: OpenSite, back_group: str, moment: datetime | None = None) -> str:
    """The window that is running (or ran last) on a BACK group: it begins with its first storage group.

    Args:
        site: The site.
        back_group: Whose window.
        moment: Now; a schedule hands in its own time when the node's clock is behind it.

    Raises:
        ConfigError: no storage group is staged on it.
    """
    groups = site.file.groups_of(back_group)
    if not groups:
        raise ConfigError(f"no storage group is staged on {back_group}", subject=back_group)
    return window_of(moment or site.clock.now(), night_start(g.start for g in groups), site.file.tz)


def window_begins(site: OpenSite, back_group: str, moment: datetime | None = None) -> datetime:
    """The instant, UTC, at which `window_now` began.

    Raises:
        ConfigError: no storage group is staged on it.
    """
    window = window_now(site, back_group, moment)
    start = night_start(g.start for g in site.file.groups_of(back_group))
    return window_start(window, start, site.file.tz)


class HeldLocks(dict[str, "Claim | BorrowedLock"]):
    """BACK group → the run lock that this process holds of it, or works under."""


@contextmanager
def run_lock(
    site: OpenSite,
    back_group: str,
    *,
    moment: datetime | None = None,
    progress: Progress,
    cancel: Cancel,
    under: str | None = None,
) -> Iterator[Claim | BorrowedLock]:
    """Holds the BACK group for this process; it is given back when the process dies (``claims/flock.py``).

    Inside itself (a subflow of the night) it gives the lock that is held already. A part of the night on another
    node works ``under`` the lock of the process that sent it there, named by its key, and is told to stop by
    ``cancel`` when that one does not hold it any more.

    A run of the same window that is at work elsewhere is busy. One of an *older* window (its stage two
    overran) is treated as ``on_overrun`` says: asked to drain at an image boundary, waited for, or left
    alone.

    Raises:
        BusyError: another process runs this window, or ``on_overrun = "skip"``, or the night that this is a part
            of has ended; or this one sent no heartbeat for so long that another took the BACK group over.
    """
    held = site.part(HeldLocks)
    if back_group in held:
        yield held[back_group]
        return
    if under is not None:
        with _borrowed(site, back_group, under, cancel) as borrowed:
            yield borrowed
        return
    window = f"{window_begins(site, back_group, moment):%Y%m%dT%H%M%SZ}"
    lock = site.claims.exclusive(back_group)

    def acquire() -> None:
        lock.acquire(
            run="",
            window=window,
            say=lambda text: progress.say(text, subject=back_group),
            lost=cancel.set,
            cancel=cancel,
        )

    try:
        acquire()
    except BusyError:
        holder = lock.holder()
        policy = site.file.back_group(back_group).on_overrun
        if holder is None or holder.window >= window or policy == "skip":
            raise
        if policy == "drain":
            request_drain(site.catalog.storage, back_group, f"window {window}", holder.since)
            progress.say(f"asked run {holder.run} of {back_group} to drain", subject=back_group)
        progress.say(f"waiting for run {holder.run} of {back_group} to release the disk", subject=back_group)
        _wait_for(acquire, lock, site, cancel)
    held[back_group] = lock
    try:
        yield lock
    except Cancelled:
        lock.require()  # a run that was overtaken stops for that reason, not because somebody asked it to
        raise
    finally:
        del held[back_group]
        lock.release()


def lock_key(site: OpenSite, back_group: str) -> str:
    """What a process on another node, sent there by the holder of the run lock, knows the lock by.

    Raises:
        BusyError: nobody holds it.
    """
    holder = site.claims.exclusive(back_group).holder()
    if holder is None:
        raise _night_ended(back_group)
    return holder.key


@dataclass(frozen=True, slots=True)
class BorrowedLock:
    """A lock that another process holds, for the work that it sent here."""

    key: str
    since: datetime

    def name_run(self, run: str) -> None:
        """Its holder has named it."""


@contextmanager
def _borrowed(site: OpenSite, back_group: str, key: str, cancel: Cancel) -> Iterator[BorrowedLock]:
    since = _since(site, back_group, key)
    if since is None:
        raise _night_ended(back_group)
    ended = threading.Event()

    def watch() -> None:
        missed = 0
        while not ended.wait(site.recheck_s):
            missed = 0 if _since(site, back_group, key) is not None else missed + 1
            # Once is not enough: while its holder writes its name into it, the lock is nobody's for a moment.
            if missed == _MISSED:
                cancel.set(str(_night_ended(back_group)))
                return

    watcher = threading.Thread(target=watch, name=f"night of {back_group}", daemon=True)
    site.part(HeldLocks)[back_group] = lock = BorrowedLock(key, since)
    watcher.start()
    try:
        yield lock
    finally:
        ended.set()
        watcher.join()
        del site.part(HeldLocks)[back_group]


def _since(site: OpenSite, back_group: str, key: str) -> datetime | None:
    """Since when the lock is held by the process that the key names; None when it is not, or cannot be seen."""
    try:
        holder = site.claims.exclusive(back_group).holder()
    except CatalogError as error:
        log.warning("cannot find out whether the night of %s still runs: %s", back_group, error.message)
        return None
    return holder.since if holder is not None and holder.key == key else None


def _night_ended(back_group: str) -> BusyError:
    return BusyError(
        f"the night of {back_group} that this part belongs to has ended",
        hint="rerun the night: it continues where it stopped",
        subject=back_group,
    )


def _wait_for(acquire: Callable[[], None], lock: Claim, site: OpenSite, cancel: Cancel) -> None:
    while True:
        cancel.check()
        try:
            acquire()
        except BusyError:
            site.clock.sleep(1.0)
        else:
            clear_drain(site.catalog.storage, lock.back_group)
            return


def begin_run(
    site: OpenSite,
    back_group: str,
    *,
    groups: Sequence[str] | None = None,
    stores: Sequence[str] | None = None,
    level: int | None = None,
    run: str | None = None,
    new: bool = False,
    moment: datetime | None = None,
    flow_run: str = "",
    clock_is_right: str = "",
) -> Begun:
    """Continues the window's unfinished run of a BACK group, or starts one. Call it under ``run_lock``.

    Args:
        site: The site.
        back_group: The unit of run, lock, seal, gate and move.
        groups: Only these storage groups, else all; a run that is continued is extended by what it lacks of
            them: a run begun for one storage group is never taken for the whole night.
        stores: Only these stores, as ``GROUP/STORE``.
        level: Only 0 in this release.
        run: Continue exactly this run.
        new: Start another run although this window's is finished.
        moment: See ``window_now``.
        flow_run: The Prefect flow run, kept for the report.
        clock_is_right: An operator's reason to believe this clock, where runs are stamped later than now.

    Raises:
        ConfigError: an unknown name, or a storage group of another BACK group.
        OtherSite: it is another site's catalog.
        CatalogError: it is not the catalog of the BACK group's disk.
        ClockAhead: a run is stamped later than now, and nobody says which clock is right.
    """
    if level not in (None, 0):
        raise ConfigError(f"level {level} is not in this release: every image is level 0")
    site.catalog.refresh()
    require_own_disk(site, back_group)
    site.mark()
    # What was stamped wrongly is the newest on record: the true night that is newer than it begins now.
    must_follow = bool(clock_is_right) and accept_clock(site, clock_is_right) is not None
    # By this node's own clock, not by ``moment``: what is stamped from here on is stamped by it.
    require_plausible_clock(site, "no night begins")
    for image in reconcile_accepted(site):
        site.warn(
            f"{image} is given up: the catalog was rebuilt and accepted without it, and its disk no longer has it"
        )
    clear_killed(site, back_group)
    forget_expired(site)
    if has_disk(site, back_group):
        clear_orphans(site, back_group, cancel=site.cancel)
    wanted = _selection(site, back_group, groups, stores)
    if run is not None:
        found = site.catalog.run(run)
        if found.back_group != back_group:
            raise ConfigError(f"run {run} belongs to {found.back_group}, not to {back_group}", subject=run)
        return Begun(_extend(site, found, None, flow_run), f"continuing run {run}")
    window = window_now(site, back_group, moment)
    begins = window_begins(site, back_group, moment)
    runs = site.catalog.runs(back_group)
    wrong = wrong_runs(site)
    of_window = [r for r in runs if r.state == "ended" and r.run not in wrong and _is_of(r, window, begins)]
    if not new:
        lacking = _without(wanted, _finished(site, of_window))
        unfinished = next(
            (r for r in runs if r.state != "ended" and _may_continue(r, begins, r.run in wrong)), None
        )
        if unfinished is not None:
            extended = _extend(site, unfinished, lacking, flow_run)
            return Begun(extended, f"continuing run {unfinished.run} of this window")
        if of_window and not lacking and must_follow:
            lacking = wanted
        elif of_window and not lacking:
            how = f"run {of_window[0].run} of this window is finished; repeat it with --new"
            return Begun(of_window[0], how, True)
        wanted = lacking
    for old in runs:
        if old.state != "ended":
            ended = {"state": "ended", "ended": site.clock.now(), "result": "partial", "note": _GIVEN_UP}
            site.catalog.append(old.model_copy(update=ended))
    name = next_run_name(window, back_group, {r.run for r in site.catalog.runs(back_group)})
    record = RunRecord(
        run=name,
        back_group=back_group,
        window=window,
        state="staging",
        groups=tuple(wanted),
        selection=wanted,
        node=active_node(site, back_group),
        started=site.clock.now(),
        flow_run=flow_run,
        window_start=begins,
    )
    site.catalog.append(record)
    return Begun(record, f"started run {name}")


def _is_of(run: RunRecord, window: str, begins: datetime) -> bool:
    """Whether the run was that of the window: an instant, since a start may be moved within a date.

    Of a run that does not say when its window began, it began no later than the run.
    """
    if run.window_start is not None:
        return run.window_start == begins
    return run.window == window and run.started + CLOCKS_APART >= begins


def _may_continue(run: RunRecord, begins: datetime, wrong: bool) -> bool:
    """Whether an unfinished run is this night's, or the next one's: the clock may have been set back meanwhile.

    One whose gate has been passed waits only for copies, which every night delivers: it takes the place of no night
    that began after it.

    Args:
        run: Unfinished.
        begins: When this night's window began.
        wrong: An operator said that the run's stamps are wrong.
    """
    began = run.window_start or run.started + CLOCKS_APART
    let_by = run.state not in ("staging", "held")
    if began < begins:
        return not let_by and began > begins - _SAME_NIGHT
    return began <= begins + _DAY and not (wrong and let_by and began == begins)


def _finished(site: OpenSite, runs: Sequence[RunRecord]) -> set[tuple[str, str]]:
    """Storage group and store of what ended runs need not do again; of one that was given up, what is staged whole."""
    found: set[tuple[str, str]] = set()
    for run in runs:
        if run.note != _GIVEN_UP:
            found.update(due_stores(run))
            continue
        images = site.catalog.images(run=run.run)
        found.update((i.group, i.store) for i in images if site.catalog.is_whole(i) and is_kept(site, i))
    return found


def _without(
    wanted: dict[str, tuple[str, ...]], finished: set[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    """What is wanted and not finished."""
    lacking = {
        group: tuple(store for store in stores if (group, store) not in finished)
        for group, stores in wanted.items()
    }
    return {group: stores for group, stores in lacking.items() if stores}


def _extend(
    site: OpenSite, run: RunRecord, wanted: dict[str, tuple[str, ...]] | None, flow_run: str
) -> RunRecord:
    selection = dict(run.selection)
    for group, stores in (wanted or {}).items():
        had = selection.get(group, ())
        selection[group] = had + tuple(s for s in stores if s not in had)
    changed = run.model_copy(
        update={
            "selection": selection,
            "groups": tuple(selection),
            "state": "staging" if selection != run.selection else run.state,
            "flow_run": flow_run or run.flow_run,
            "ended": None,
            "result": "",
        }
    )
    if run.state == "ended":
        note = "" if run.note == _GIVEN_UP else run.note
        changed = changed.model_copy(update={"state": "staging", "note": note})
    if changed != run:
        site.catalog.append(changed)
    return changed


def _selection(
    site: OpenSite, back_group: str, groups: Sequence[str] | None, stores: Sequence[str] | None
) -> dict[str, tuple[str, ...]]:
    """Storage group → stores that are asked for, out of the fixed selections."""
    due = [g.name for g in site.file.groups_of(back_group)]
    for name in groups or ():
        if site.file.group(name).back_group != back_group:
            raise ConfigError(f"storage group {name} is not on {back_group}", subject=name)
    chosen = list(groups) if groups else due
    if stores and not groups:
        chosen = list(dict.fromkeys(s.split("/", 1)[0] for s in stores))
    selection = {}
    for name in chosen:
        fixed = fixed_selection(site, name).stores
        if stores:
            named = [s.split("/", 1)[1] for s in stores if s.split("/", 1)[0] == name and "/" in s]
            for store in named:
                site.file.store(f"{name}/{store}")
                if store not in fixed:
                    raise ConfigError(
                        f"store {name}/{store} is not in the fixed selection of {name}",
                        hint=f"see `nightferry selection diff {name}`, "
                        f"then `nightferry selection fix {name}`",
                    )
            if not named:
                continue
            fixed = tuple(named)
        selection[name] = fixed
    return selection


def fixed_selection(site: OpenSite, group: str) -> SelectionRecord:
    """The storage group's fixed list; the first backup fixes it."""
    known = site.catalog.selection(group)
    return known if known is not None else fix_selection(site, group)


def fix_selection(site: OpenSite, group: str) -> SelectionRecord:
    """Fixes the list to what the site file names now."""
    record = SelectionRecord(
        group=group,
        stores=tuple(s.name for s in site.file.group(group).stores),
        at=site.clock.now(),
        who=operator(),
    )
    site.catalog.append(record)
    return record


def due_stores(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Every (storage group, store) of the run, in the order of the site file."""
    for group in run.groups:
        for store in run.selection[group]:
            yield group, store


def set_state(site: OpenSite, run: RunRecord, **changes: object) -> RunRecord:
    """Records a new state of the run; returns the newer record."""
    changed = run.model_copy(update=changes)
    if changed != run:
        site.catalog.append(changed)
    return changed


def end_run(site: OpenSite, run: RunRecord, result: str) -> RunRecord:
    """The run's last record. The night's events then become one segment that any Parquet tool reads."""
    ended = set_state(site, run, state="ended", result=result, ended=site.clock.now())
    site.catalog.compact()
    return ended


def must_drain(site: OpenSite, back_group: str) -> bool:
    """Whether another process asked the run that this process holds to end at the next image boundary."""
    lock = site.part(HeldLocks).get(back_group)
    return lock is not None and drain_requested(site.catalog.storage, back_group, lock.since) is not None
