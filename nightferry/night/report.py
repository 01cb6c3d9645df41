"""What a night came to, from our own records: the result document, the exit code and the report to read, and
how the drives did, with what that lets the next night expect.

Nothing here asks Prefect. The flow takes its state from this, the command line its exit code.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nightferry.errors import IntegrityError, worst_exit_code
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import OUTLIVED, AwayRecord, CopyRecord, FailureRecord, ImageRecord, RunRecord
from nightferry.model.text import safe_markdown
from nightferry.night.gate import GateView, look_past
from nightferry.night.run import due_stores
from nightferry.plan.balance import LaneSpeed, predict_finish
from nightferry.plan.restore_order import TAPE_SPEED
from nightferry.site.destinations import destination_of
from nightferry.site.nodes import has_disk
from nightferry.site.opened import OpenSite
from nightferry.staging.images import back_group_of, lost_images
from nightferry.staging.owed import is_lost, owed, policy_of
from nightferry.units import counted, format_duration, format_size

NightOutcome = Literal["Completed", "Partial", "GateHeld", "CopyMissing"]


_LAST = 200
"""Copies whose rates tell what is to be expected."""


@dataclass(frozen=True, slots=True)
class Why:
    """What the last try to make a copy ended with, and what to do about it; empty: not on record."""

    text: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class NightResult:
    """A run and everything that belongs to it."""

    run: RunRecord
    images: tuple[ImageRecord, ...]
    copies: dict[str, tuple[CopyRecord, ...]]
    """Image → its newest copy at each destination."""
    failures: tuple[FailureRecord, ...]
    gate: GateView
    owner: str
    missing_copies: tuple[tuple[str, str], ...]
    """(image, destination) that the policy wants and that are not verified there."""
    owed_before: tuple[tuple[str, str], ...]
    """(image, destination) that older runs still owe."""
    lost: tuple[str, ...]
    """Images that staging lost, or that were found damaged there, before they had a copy: of this run, or of one that
    still owes them."""
    notes: dict[tuple[str, str], Why]
    """(image, destination) of a copy that is missing → what its last try ended with, as far as it is on record."""
    accepted: frozenset[str]
    """Images that are not whole, and that an operator approved."""
    whole: frozenset[str]
    """Images that are whole, and suspect ones that an operator approved."""
    given_up: frozenset[str]
    """Images whose copies an operator gave up before they were verified."""
    staged_only: bool

    @property
    def outcome(self) -> NightOutcome:
        """The name of the flow's final state."""
        if self.staged_only:
            return "Partial" if self._is_partial else "Completed"
        if self.gate.state != "open":
            return "GateHeld"
        if self.missing_copies or self.owed_before:
            return "CopyMissing"
        return "Partial" if self._is_partial or self._given_up else "Completed"

    @property
    def _is_partial(self) -> bool:
        return bool(self._lacking) or any(i.image not in self.whole for i in self.images)

    @property
    def _lacking(self) -> list[str]:
        """Due stores without an image. One whose task died left no failure to tell of it either."""
        there = {(i.group, i.store) for i in self.images} - {(f.group, f.store) for f in self.failures}
        return [f"{group}/{store}" for group, store in due_stores(self.run) if (group, store) not in there]

    @property
    def exit_code(self) -> int:
        """The contract's code; of several the gravest."""
        codes = {"Completed": 0, "Partial": 3, "GateHeld": 50, "CopyMissing": 20}
        return worst_exit_code(
            [codes[self.outcome], 3 if self._is_partial else 0, IntegrityError.exit_code if self.lost else 0]
        )

    @property
    def drives(self) -> tuple[DriveWork, ...]:
        """What each tape drive did for the run's images."""
        return work_of(copy for copies in self.copies.values() for copy in copies)

    @property
    def reasons(self) -> list[str]:
        """What went wrong where copies are missing, each once."""
        owed = self.missing_copies + self.owed_before
        known = [(at, self.notes[image, at].text) for image, at in owed if (image, at) in self.notes]
        return list(dict.fromkeys(why if why.startswith(f"{at}: ") else f"{at}: {why}" for at, why in known))

    @property
    def hints(self) -> list[str]:
        """What to do about these reasons, each once."""
        owed = self.missing_copies + self.owed_before
        return list(dict.fromkeys(w.hint for pair in owed if (w := self.notes.get(pair)) and w.hint))

    @property
    def is_whole(self) -> bool:
        return self.outcome == "Completed"

    @property
    def run_result(self) -> Literal["whole", "partial"]:
        """What is recorded of the run itself, whatever older ones owe."""
        whole = self.gate.state == "open" and not self.missing_copies and not self._is_partial
        return "whole" if whole else "partial"

    def sentence(self) -> str:
        """One line for a state's message and a terminal."""
        size = format_size(sum(i.size_bytes for i in self.images))
        whole = len(self.whole)
        due = sum(1 for _ in due_stores(self.run))
        text = f"run {self.run.run}: {whole} of {counted(due, 'store')} whole, {size}"
        match self.outcome:
            case "GateHeld":
                named = ", ".join(f"{m.name} ({m.reason})" for m in self.gate.missing)
                return f"{text}; the gate is held: {named or self.gate.reason}"
            case "CopyMissing":
                missing = self.missing_copies + self.owed_before
                named = ", ".join(f"{image} at {at}" for image, at in missing[:4])
                more = len(missing) - 4
                text += f"; owed copies: {named}" + (f" and {more} more" if more > 0 else "")
                return text + self._lost_words()
            case "Partial":
                named = ", ".join(
                    self._lacking + [f"{i.group}/{i.store}" for i in self.images if i.image not in self.whole]
                )
                text += f"; partial: {named}" if named else ""
                return text + (f"; given up: {', '.join(self._given_up)}" if self._given_up else "")
        return f"{text}; staged" if self.staged_only else f"{text}, every copy verified"

    @property
    def _given_up(self) -> list[str]:
        """Images of the run whose copies an operator gave up, so that they are not all there."""
        return [image.image for image in self.images if image.image in self.given_up]

    def _lost_words(self) -> str:
        of_run = {image.image for image in self.images}
        again = [image for image in self.lost if image in of_run]
        gone = [image for image in self.lost if image not in of_run]
        text = (
            f"; lost on staging: {', '.join(again)}: `nightferry backup --new` stages them again"
            if again
            else ""
        )
        return text + (f"; lost: {', '.join(gone)}: no copy of it can be read" if gone else "")

    def as_json(self) -> dict[str, Any]:
        """The contract's document of ``backup``."""
        state = "closed" if self.staged_only and self.gate.state == "closed" else self.gate.state
        return {
            "run": self.run.run,
            "state": self.outcome,
            "result": self.run.result or None,
            "images": [
                image_json(i, self.copies.get(i.image, ()), accepted=i.image in self.accepted)
                for i in self.images
            ],
            "gate": state,
            "gates": [
                {
                    "back_group": self.run.back_group,
                    "state": state,
                    "missing": [m.name for m in self.gate.missing],
                    "moved_to": self.owner if self.owner != self.run.node else None,
                }
            ],
            "failed": [
                {"store": f"{f.group}/{f.store}", "error": f.error, "hint": f.hint, "exit_code": f.exit_code}
                for f in self.failures
            ],
            "missing_copies": [
                {"image": i, "destination": d, "why": why.text or None, "hint": why.hint or None}
                for i, d in self.missing_copies + self.owed_before
                for why in (self.notes.get((i, d), Why()),)
            ],
            "lost_images": list(self.lost),
            "drives": [work.as_json() for work in self.drives],
        }


def image_json(
    image: ImageRecord,
    copies: tuple[CopyRecord, ...] | list[CopyRecord],
    *,
    accepted: bool,
    is_lost: bool = False,
) -> dict[str, Any]:
    """The contract's line of ``images``; ``accepted``: an operator approved it as it is."""
    return {
        "image": image.image,
        "group": image.group,
        "store": image.store,
        "run": image.run,
        "level": image.level,
        "state": "lost" if is_lost else image.state,
        "size_bytes": image.size_bytes,
        "files": image.files,
        "started": image.started,
        "ended": image.ended,
        "digest": image.digest,
        "degraded": image.degraded,
        "outcomes": image.outcomes.model_dump(),
        "suspect": image.suspect or None,
        "accepted": accepted,
        "notes": list(image.notes),
        "copies": [{"destination": c.destination, "state": c.state} for c in copies],
    }


def night_result(site: OpenSite, run: RunRecord, *, staged_only: bool = False) -> NightResult:
    """Everything the records say of a run, now."""
    site.catalog.refresh()
    run = site.catalog.run(run.run)
    due = set(due_stores(run))
    images = tuple(i for i in reversed(site.catalog.images(run=run.run)) if (i.group, i.store) in due)
    copies = {i.image: tuple(site.catalog.copies(i.image)) for i in images}
    missing, before, reasons, gone = [], [], {}, []
    disks = {back_group.name for back_group in site.file.back_groups}
    for each in owed(site):
        pair = (each.image.image, each.destination)
        if each.image in images:
            missing.append(pair)
        elif (home := back_group_of(site, each.image)) == run.back_group or home not in disks:
            before.append(pair)
        else:
            continue
        if each.undeliverable:
            reasons[pair] = Why(each.undeliverable)
        if each.image.image not in gone and is_lost(site, each.image):
            gone.append(each.image.image)
    sees = has_disk(site, run.back_group)
    owner = site.disk(run.back_group).owner() if sees else site.catalog.owner(run.back_group)
    of_run = [i.image for i in lost_images(site, run) if i in images] if sees else []
    return NightResult(
        run=run,
        images=images,
        copies=copies,
        failures=tuple(f for f in site.catalog.failures(run.run) if (f.group, f.store) in due),
        gate=look_past(site, run),
        owner=owner.node if owner else "",
        missing_copies=tuple(missing),
        owed_before=tuple(before),
        # Of a disk on another node the catalog cannot say what it lost.
        lost=tuple(dict.fromkeys([*of_run, *gone])),
        notes=_notes(site, run, [*missing, *before]) | reasons,
        accepted=frozenset(i.image for i in images if i.state != "whole" and site.catalog.accepted(i)),
        whole=frozenset(i.image for i in images if site.catalog.is_whole(i)),
        given_up=frozenset(i.image for i in images if _is_given_up(site, i, copies[i.image])),
        staged_only=staged_only,
    )


def _is_given_up(site: OpenSite, image: ImageRecord, copies: tuple[CopyRecord, ...]) -> bool:
    done = {copy.destination for copy in copies if copy.state in (*OUTLIVED, "verified")}
    return site.catalog.forgotten(image.image) and not done.issuperset(policy_of(site, image).destinations)


def _notes(site: OpenSite, run: RunRecord, missing: list[tuple[str, str]]) -> dict[tuple[str, str], Why]:
    wanted = set(missing)
    away = {r.destination: r for r in site.catalog.all(AwayRecord) if r.error and r.at >= run.started}
    notes = {pair: Why(away[pair[1]].error, away[pair[1]].hint) for pair in wanted if pair[1] in away}
    for image in {image for image, _ in missing}:
        for copy in site.catalog.copies(image):
            if copy.note and (copy.image, copy.destination) in wanted:
                notes[copy.image, copy.destination] = Why(copy.note, copy.hint)
    return notes


def report_markdown(result: NightResult) -> str:
    """The night's report, for a Prefect artifact or a mail."""
    run = result.run
    lines = [
        f"# Run {run.run}",
        "",
        f"**{result.outcome}** — {safe_markdown(result.sentence())}",
        "",
        f"BACK group {run.back_group}, window {run.window}, staged on {run.node}"
        + (f", streamed from {result.owner}." if result.owner != run.node else "."),
        "",
        "| store | result | size | rate | took | files | copies |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for image in result.images:
        took = (image.ended - image.started).total_seconds()
        copies = ", ".join(f"{c.destination}: {c.state}" for c in result.copies[image.image]) or "none"
        state = image.state + (", degraded" if image.degraded else "")
        lines.append(
            f"| {image.group}/{image.store} | {state} | {format_size(image.size_bytes)} "
            f"| {format_size(image.rate_bytes_per_s)}/s | {format_duration(took)} | {image.files} "
            f"| {copies} |"
        )
    for failure in result.failures:
        lines.append(
            f"| {failure.group}/{failure.store} | **failed** | | | | | {safe_markdown(failure.error)} |"
        )
    if result.gate.approvals:
        lines += ["", "Approved by an operator:"]
        for approval in result.gate.approvals:
            named = ", ".join(approval.stores)
            lines.append(f"- {named} — {safe_markdown(approval.reason)} ({safe_markdown(approval.who)})")
    noted = [
        f"- {i.group}/{i.store}: {safe_markdown(note)}"
        for i in result.images
        for note in (*i.notes, *([f"suspect: {i.suspect}"] if i.suspect else []))
    ]
    lines += ["", *noted] if noted else []
    lines += [""] if result.reasons else []
    lines += [f"- {safe_markdown(reason)}" for reason in result.reasons]
    lines += _drives(result.drives)
    lines += ["", f"What to do: {_what_to_do(result)}", ""]
    return "\n".join(lines)


def _drives(drives: tuple[DriveWork, ...]) -> list[str]:
    """How the drives streamed: one that waits for its source stops and turns back."""
    if not drives:
        return []
    lines = [
        "",
        "| drive | copies | size | rate | waits | waited | backhitches |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    return lines + [
        f"| {safe_markdown(d.destination)} {d.drive} | {d.copies} | {format_size(d.size_bytes)} "
        f"| {format_size(d.rate_bytes_per_s)}/s | {d.waits} | {format_duration(d.waited_s)} | {d.repositions} |"
        for d in drives
    ]


def _what_to_do(result: NightResult) -> str:
    match result.outcome:
        case "GateHeld":
            return (
                f"fix what is named above and run `nightferry gate retry {result.run.run}`, "
                f"or accept it as it is: `nightferry gate approve {result.run.run} --store G/S --reason TEXT`."
            )
        case "CopyMissing":
            if any(image not in {i.image for i in result.images} for image in result.lost):
                return (
                    "restore what you need from older images, then `nightferry forget IMAGE --reason TEXT`."
                )
            return "".join(f"{safe_markdown(hint)}; " for hint in result.hints) + (
                "fix what is named above; then `nightferry backup --stage two` delivers what is owed. Give up what can "
                "no longer be delivered with `nightferry forget IMAGE --reason TEXT`."
            )
        case "Partial":
            return "check the partial stores with `nightferry files IMAGE`, then rerun them."
        case "Completed":
            return "nothing; `nightferry status` says what can be restored."


def throughput_png(site: OpenSite, result: NightResult) -> bytes | None:
    """The night's throughput, one line per store, as a PNG; None when no samples were kept."""
    curves: list[tuple[str, list[float], list[float]]] = []
    for image in result.images:
        samples = [json.loads(line) for line in site.catalog.samples(image.image).splitlines()]
        if len(samples) > 1:
            began = (image.started - result.run.started).total_seconds()
            seconds = [began + s["at_s"] for s in samples]
            rates = [s["rate_bytes_per_s"] / 1e6 for s in samples]
            curves.append((f"{image.group}/{image.store}", seconds, rates))
    if not curves:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    unit, unit_s = ("minutes", 60) if max(s[-1] for _, s, _ in curves) > 180 else ("seconds", 1)
    for name, seconds, rates in curves:
        axes.plot([s / unit_s for s in seconds], rates, label=name, linewidth=1.4)
    axes.set_ylabel("MB/s to staging")
    axes.set_xlabel(f"{unit} since the run began")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper right")
    axes.set_title(f"Stage one of {result.run.run}", fontsize="medium")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class DriveWork:
    """What one drive did in one run."""

    destination: str
    drive: str
    copies: int
    size_bytes: int
    rate_bytes_per_s: float
    """While an image was on its way: without mounts and reading back."""
    waits: int
    waited_s: float
    repositions: int

    def as_json(self) -> dict[str, Any]:
        return {
            "destination": self.destination,
            "drive": self.drive,
            "copies": self.copies,
            "size_bytes": self.size_bytes,
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "waits": self.waits,
            "waited_s": self.waited_s,
            "backhitches": self.repositions,
        }


def work_of(copies: Iterable[CopyRecord]) -> tuple[DriveWork, ...]:
    """What each drive did for these copies, by destination and drive; nothing of copies that no drive wrote."""
    by_drive: dict[tuple[str, str], list[CopyRecord]] = {}
    for copy in copies:
        if copy.streamed is not None:
            by_drive.setdefault((copy.destination, copy.lane), []).append(copy)
    found = []
    for (destination, drive), of_drive in sorted(by_drive.items()):
        streamed = [copy.streamed for copy in of_drive if copy.streamed is not None]
        size, seconds = sum(s.size_bytes for s in streamed), sum(s.seconds for s in streamed)
        found.append(
            DriveWork(
                destination,
                drive,
                len(of_drive),
                size,
                round(size / seconds, 1) if seconds else 0.0,
                sum(s.waits for s in streamed),
                round(sum(s.waited_s for s in streamed), 3),
                sum(s.repositions for s in streamed),
            )
        )
    return tuple(found)


def expectation(site: OpenSite, images: Sequence[ImageRecord], destination: str) -> str:
    """When the drives of a tape library will be done with these images, in this order; empty for other kinds.

    By the median rate of what was written there last, else by the plan's figure for tape. Every image is read back
    at that rate too.
    """
    settings = site.file.destination(destination)
    if not images or not isinstance(settings, TapeSettings):
        return ""
    rates = [
        c.streamed.size_bytes / c.streamed.seconds
        for c in site.catalog.all(CopyRecord)[-_LAST:]
        if c.destination == destination and c.streamed is not None and c.streamed.seconds > 0
    ]
    rate = statistics.median(rates) if rates else TAPE_SPEED.bytes_per_s
    count = destination_of(site, destination).lanes
    lanes = LaneSpeed(count, rate / 2)
    sizes = {image.image: image.size_bytes for image in images}
    forecast = predict_finish([image.image for image in images], sizes, lanes)
    return (
        f"{counted(len(images), 'image')}, {format_size(sum(sizes.values()))} to {destination}: "
        f"about {format_duration(forecast.seconds)} on {counted(count, 'drive')}, read back included"
    )
