"""`nightferry backup`: the night by hand, through the same flow that the schedule runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from nightferry.cli.prefect_server import Server, state_folder, use_server
from nightferry.cli.session import Session, current
from nightferry.errors import (
    Cancelled,
    ConfigError,
    NightferryError,
    NotInThisRelease,
    PrefectRequired,
    worst_exit_code,
)

if TYPE_CHECKING:
    from prefect import State
    from rich.console import RenderableType

    from nightferry.model.load import LoadedSite
    from nightferry.model.records import RunRecord
    from nightferry.night.report import NightResult
    from nightferry.site.opened import OpenSite


def backup(
    *,
    group: tuple[str, ...] = (),
    store: tuple[str, ...] = (),
    back_group: str | None = None,
    level: int | None = None,
    stage: Literal["one", "two", "both"] = "both",
    new: bool = False,
    accept_partial: tuple[str, ...] = (),
    reason: str = "",
    clock_is_right: str = "",
) -> int:
    """Runs the night now: continues the window's unfinished run, or starts one.

    Parameters
    ----------
    group
        Only this storage group; may be repeated.
    store
        Only this store, as GROUP/STORE; may be repeated.
    back_group
        Only this BACK group; without it every one that the named groups and stores lie on.
    level
        The dump level; only 0 in this release.
    stage
        `one` ends after the seal; `two` delivers what the newest sealed run owes.
    new
        Starts another run although this window's is finished.
    accept_partial
        This store, as GROUP/STORE, may be partial or missing, not suspect; may be repeated, needs --reason.
    reason
        Why that is accepted; kept with the approval.
    clock_is_right
        Why this clock is to be believed although runs are stamped later than now; those count as stamped wrongly
        from then on.
    """
    session = current()
    if level not in (None, 0):
        raise NotInThisRelease(
            f"level {level} is not in this release: every image is level 0", subject="--level"
        )
    if accept_partial and not reason.strip():
        raise ConfigError("--accept-partial needs a reason", hint="add --reason TEXT")
    loaded = session.load_site()
    loaded.site.require_delivered()
    for name in (*store, *accept_partial):
        loaded.site.store(name)
    plan = split(loaded, group, store, back_group)
    if stage != "two":
        _require_paths(session, loaded, plan)
    options = {
        "level": level,
        "stage": stage,
        "new": new,
        "reason": reason,
        "stagger": False,
        "clock_is_right": clock_is_right,
    }
    nights = [
        Night(name, groups, stores, [s for s in accept_partial if _is_on(loaded, s, name)])
        for name, (groups, stores) in plan.items()
    ]
    return run_nights(session, loaded, nights, options)


class Night:
    """One BACK group's share of a command. ``run``: exactly this run."""

    def __init__(
        self,
        back_group: str,
        groups: Sequence[str] = (),
        stores: Sequence[str] = (),
        accept: Sequence[str] = (),
        run: str | None = None,
    ) -> None:
        self.back_group = back_group
        self.arguments: dict[str, Any] = {
            "back_group": back_group,
            "groups": list(groups) or None,
            "stores": list(stores) or None,
            "accept_partial": list(accept) or None,
            "run": run,
        }


def split(
    loaded: LoadedSite, groups: Sequence[str], stores: Sequence[str], back_group: str | None
) -> dict[str, tuple[list[str], list[str]]]:
    """BACK group → the storage groups and stores asked for on it.

    Raises:
        ConfigError: an unknown name, or one that is not on the named BACK group.
    """
    site = loaded.site
    plan: dict[str, tuple[list[str], list[str]]] = {}
    for name in groups:
        plan.setdefault(site.group(name).back_group, ([], []))[0].append(name)
    for name in stores:
        plan.setdefault(site.store(name).group.back_group, ([], []))[1].append(name)
    if back_group is not None:
        wanted = site.back_group(back_group).name
        wrong = [n for other, (g, s) in plan.items() if other != wanted for n in (*g, *s)]
        if wrong:
            raise ConfigError(
                f"not on {wanted}: {', '.join(wrong)}",
                hint="leave --back-group out, or name what is staged on it",
                subject=wanted,
            )
        plan.setdefault(wanted, ([], []))
    if not plan:
        plan = {b.name: ([], []) for b in site.back_groups if site.groups_of(b.name)}
    return plan


def run_nights(session: Session, loaded: LoadedSite, nights: Sequence[Night], options: dict[str, Any]) -> int:
    """Runs each BACK group's night in this process, shown in Prefect; prints the result document.

    Raises:
        PrefectRequired: no server is there and none could be started.
    """
    cancel = session.cancel  # from here on the first signal stops at the next chunk
    server = use_prefect(session, loaded)
    from prefect.exceptions import Abort, TerminationSignal

    from blocks.site import Site
    from flows.two_stage import two_stage_backup
    from nightferry.night.report import night_result
    from tasks.bridge import CANCEL, opened, serve
    from tasks.part import SERVER_AWAY

    serve(session.out.progress, session.stop)
    block = Site(text=loaded.text)
    results: list[NightResult] = []
    errors: list[NightferryError] = []
    for night in nights:
        cancel.check()
        site = opened(block)
        before = _newest(site, night)
        flow_run = ""
        try:
            with _heartbeats(server):
                state = two_stage_backup(block, **night.arguments, **options, return_state=True)
        except (TerminationSignal, Abort) as stopped:
            # Between two flows' bodies a signal is Prefect's, and it raises at once; so does the server's word that the
            # run was cancelled there.
            CANCEL.check()
            raise Cancelled("stopped") from stopped
        except SERVER_AWAY as away:
            session.server_is_gone = True
            cancel.check()
            _require_progress(before, _newest(site, night), away)
            session.out.say(
                "the Prefect server is gone: its UI does not show how this ended; nightferry's records do"
            )
        else:
            cancel.check()
            CANCEL.check()
            error = None if state.is_completed() else _own_error(state)
            if error is not None:
                errors.append(error)
                continue
            flow_run = str(state.state_details.flow_run_id)
        run = _run_of(site, night, flow_run)
        results.append(night_result(site, run, staged_only=options["stage"] == "one"))
    if errors and not results:
        raise errors[0]
    for error in errors:
        session.out.say(f"{error.subject or 'a BACK group'}: {error.message}")
    show_results(session, results, errors)
    return worst_exit_code([*(r.exit_code for r in results), *(e.exit_code for e in errors)])


def _run_of(site: OpenSite, night: Night, flow_run: str) -> RunRecord:
    """The run that a flow run worked on; when it found nothing to do, the newest whose stamps nobody declared wrong."""
    from nightferry.site.stamps import wrong_runs

    site.catalog.refresh()
    if night.arguments["run"]:
        return site.catalog.run(night.arguments["run"])
    runs = site.catalog.runs(night.back_group)
    worked_on = next((run for run in runs if flow_run and run.flow_run == flow_run), None)
    wrong = wrong_runs(site)
    return worked_on or next((run for run in runs if run.run not in wrong), runs[0])


def _newest(site: OpenSite, night: Night) -> RunRecord | None:
    site.catalog.refresh()
    return next(iter(site.catalog.runs(night.back_group)), None)


def _require_progress(before: RunRecord | None, after: RunRecord | None, away: Exception) -> None:
    """Raises:
    PrefectRequired: the flow got nowhere, or not past stage one, before its server went away.
    """
    if after is None or after == before or after.state == "staging":
        raise PrefectRequired(
            f"the Prefect server is not reachable: {away}",
            hint="run it again: without PREFECT_API_URL the site's own server is used",
        ) from away


def _own_error(state: State[Any]) -> NightferryError | None:
    """The error a flow ended with; None when it ended with a named outcome, which the records tell better."""
    from tasks.part import unexpected

    if state.name in ("GateHeld", "Partial", "CopyMissing"):
        return None
    if state.is_cancelled():
        return Cancelled(state.message or "stopped")
    try:
        state.result(raise_on_failure=True)
    except NightferryError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a fault, or Prefect's own: named, with its type
        kind = type(error).__name__
        return unexpected(kind, f"the flow ended {state.name}: {kind}: {error}")
    return None


def use_prefect(session: Session, loaded: LoadedSite) -> Server:
    """The server that this command's flows are shown on, found or started; before Prefect is imported."""
    folder = state_folder(loaded.site.name, loaded.path)
    server = use_server(folder, session.out.say)
    if server.own:
        os.environ.setdefault("PREFECT_HOME", str(folder / "prefect"))
    if not os.environ.get("NIGHTFERRY_DEBUG"):
        # The terminal shows our own progress; Prefect's log goes to its server.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
        # What Prefect cannot send (its server is away) is said once, by us.
        logging.raiseExceptions = False
    return server


@contextmanager
def _heartbeats(server: Server) -> Iterator[None]:
    """On the site's own server nobody listens to heartbeats, and each flow waits a second for its last."""
    if not server.own:
        yield
        return
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _require_paths(
    session: Session, loaded: LoadedSite, plan: dict[str, tuple[list[str], list[str]]]
) -> None:
    """An operator is at hand to fix a path; the schedule would stage the others and hold the gate."""
    from nightferry.health.check import missing_stores, serves
    from nightferry.site.opened import OpenSite

    with OpenSite(loaded) as site:
        wanted = []
        for name, (groups, stores) in plan.items():
            if not serves(site, name):
                continue  # they are another node's, and so is looking for them
            of_groups = groups or ([] if stores else [g.name for g in loaded.site.groups_of(name)])
            wanted += stores
            wanted += [f"{g}/{s.name}" for g in of_groups for s in loaded.site.group(g).stores]
        missing = missing_stores(site, wanted)
    if missing:
        raise ConfigError(
            f"not there: {', '.join(missing)}",
            hint="mount it, or correct the path; --store or --group backs up the others",
            subject=missing[0].split(" ")[0],
        )


def _is_on(loaded: LoadedSite, store: str, back_group: str) -> bool:
    return loaded.site.store(store).group.back_group == back_group


def show_results(
    session: Session, results: Sequence[NightResult], errors: Sequence[NightferryError] = ()
) -> None:
    """The result document, or a table and a sentence for each night.

    With several BACK groups ``run``, ``state`` and ``result`` are those of the night that came out worst.
    """
    from nightferry.cli.output import Column, table
    from nightferry.units import format_duration, format_size

    worst_code = worst_exit_code(r.exit_code for r in results)
    worst = next(r for r in results if r.exit_code == worst_code)
    documents = [r.as_json() for r in results]
    document: dict[str, Any] = worst.as_json()
    for key in ("images", "gates", "failed", "missing_copies", "lost_images", "drives"):
        document[key] = [entry for each in documents for entry in each[key]]
    gates = {d["gate"] for d in documents}
    document["gate"] = next(state for state in ("held", "closed", "open") if state in gates)
    document["runs"] = [d["run"] for d in documents]
    document["errors"] = [e.as_json()["error"] for e in errors]
    shown: list[RenderableType] = []
    for result in results:
        rows: list[list[object]] = []
        for image in result.images:
            seconds = (image.ended - image.started).total_seconds()
            rows.append(
                [
                    f"{image.group}/{image.store}",
                    image.state
                    + (", approved" if image.image in result.accepted else "")
                    + (", degraded" if image.degraded else ""),
                    format_size(image.size_bytes),
                    f"{format_size(image.rate_bytes_per_s)}/s",
                    format_duration(seconds),
                    ", ".join(f"{c.destination} {c.state}" for c in result.copies[image.image]) or "none",
                ]
            )
        rows += [[f"{f.group}/{f.store}", "failed", None, None, None, f.error] for f in result.failures]
        figures = [Column(name, right=True) for name in ("size", "rate", "took")]
        shown.append(table(["store", "image", *figures, "copies"], rows, title=f"run {result.run.run}"))
        shown.append(result.sentence())
        shown += [f"  {reason}" for reason in result.reasons]
        for hint in _hints(result):
            shown.append(f"  hint: {hint}")
    session.out.result(document, *shown)


def _hints(result: NightResult) -> list[str]:
    run = result.run.run
    match result.outcome:
        case "GateHeld":
            return [
                f"fix it, then `nightferry gate retry {run}`; or accept it as it is: "
                f"`nightferry gate approve {run} --store G/S --reason TEXT`"
            ]
        case "CopyMissing":
            return [
                *result.hints,
                "fix it, then `nightferry backup --stage two` delivers what is owed; "
                "`nightferry forget IMAGE --reason TEXT` gives up what can no longer be delivered",
            ]
        case "Partial":
            hints = []
            if any(image.image not in result.whole for image in result.images):
                hints.append("`nightferry files IMAGE --outcome` names the files that did not come out whole")
            if result.given_up:
                hints.append(
                    "`nightferry copy IMAGE --to DESTINATION` makes a copy all the same that was given up"
                )
            return hints
    return []
