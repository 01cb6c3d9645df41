"""The gate between the stages: it opens on proof, never because time passed.

The seal is written to the BACK disk first and to the catalog second. The gate compares both: a seal that only
one of them knows, or that they tell differently, keeps it shut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from blake3 import blake3

from nightferry.cluster.disk import BackDisk, OwnerToken
from nightferry.errors import ClusterError, ConfigError, GateClosed
from nightferry.model.claim_records import OwnerRecord
from nightferry.model.records import ApprovalRecord, ImageRecord, RunRecord, SealedStore, SealRecord
from nightferry.night.run import due_stores, set_state
from nightferry.night.stage import require_owner
from nightferry.site.nodes import has_disk, require_disk, require_here
from nightferry.site.opened import OpenSite, operator
from nightferry.site.stamps import require_plausible_clock
from nightferry.staging.images import is_kept
from nightferry.units import counted

GateState = Literal["open", "held", "closed"]


@dataclass(frozen=True, slots=True)
class GateView:
    """What the gate says. ``closed``: stage one is not complete; ``held``: it is, and stores are missing."""

    run: str
    back_group: str
    state: GateState
    seal: SealRecord | None
    missing: tuple[SealedStore, ...]
    """Stores neither whole nor approved."""
    approvals: tuple[ApprovalRecord, ...]
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "run": self.run,
            "back_group": self.back_group,
            "state": self.state,
            "seal": self.seal.digest if self.seal else None,
            "missing": [{"store": m.name, "state": m.state, "reason": m.reason} for m in self.missing],
            "approvals": [
                {"stores": list(a.stores), "reason": a.reason, "who": a.who, "at": a.at}
                for a in self.approvals
            ],
            "reason": self.reason,
        }


def seal_digest(seal: SealRecord) -> str:
    """BLAKE3 of the seal's canonical JSON with an empty digest field."""
    return blake3(seal.model_copy(update={"digest": ""}).model_dump_json().encode()).hexdigest()


def write_seal(site: OpenSite, run: RunRecord) -> SealRecord:
    """Ends stage one: lists every due store with its image, size and digest, or why it is missing.

    Returns the seal of before when nothing changed, so that an approval of it keeps its meaning.

    Raises:
        NotOwner: the disk went to another node meanwhile.
    """
    site.catalog.refresh()
    disk = site.disk(run.back_group)
    token = require_owner(site, run)
    failures = {(f.group, f.store): f for f in site.catalog.failures(run.run)}
    lines = []
    for group, store in due_stores(run):
        image = next(iter(site.catalog.images(group, store, run=run.run)), None)
        failure = failures.get((group, store))
        if image is not None and is_kept(site, image):
            lines.append(_line(image))
        else:
            reason = failure.error if failure else "not staged yet"
            lines.append(SealedStore(group=group, store=store, state="missing", reason=reason))
    before = site.catalog.seal(run.run)
    on_disk = disk.read_seal(run.run)
    seal = SealRecord(
        run=run.run,
        back_group=run.back_group,
        # A crash between disk and catalog leaves a seal that only the disk knows: its number is used up.
        number=max(s.number if s else 0 for s in (before, on_disk)) + 1,
        epoch=token.epoch,
        node=run.node,
        at=site.clock.now(),
        stores=tuple(lines),
    )
    if (
        before is not None
        and before == on_disk
        and (before.stores, before.epoch) == (seal.stores, seal.epoch)
    ):
        return before
    seal = seal.model_copy(update={"digest": seal_digest(seal)})
    disk.write_seal(seal)
    site.catalog.append(seal)
    return seal


def _line(image: ImageRecord) -> SealedStore:
    counts = image.outcomes
    reason = image.suspect
    if image.state == "partial":
        came_out = (
            f"{counted(counts.vanished, 'file')} vanished, {counts.changed} changed, "
            f"{counts.unreadable} unreadable"
        )
        if counts.unlisted:
            came_out += f", {counted(counts.unlisted, 'directory', 'directories')} not listed"
        reason = "; ".join(filter(None, (came_out, reason)))
    return SealedStore(
        group=image.group,
        store=image.store,
        state=image.state,
        image=image.image,
        size_bytes=image.size_bytes,
        digest=image.digest,
        reason=reason,
    )


def evaluate(site: OpenSite, run: RunRecord) -> GateView:
    """What the gate says now. Changes nothing.

    Seal, approvals and owner token must stand on the disk *and* in the catalog; what only one of them knows
    does not count. On a node that does not have the disk this is what the catalog says; the gate itself opens only
    where the disk is.
    """
    site.catalog.refresh()
    seal = site.catalog.seal(run.run)
    try:
        if has_disk(site, run.back_group):
            disk = site.disk(run.back_group)
            reason = _why_closed(site, run, disk, seal)
            kept = disk.read_approvals(run.run)
        else:
            reason = "stage one is not sealed" if seal is None else _unsealed(site, run, seal)
            kept = site.catalog.approvals(run.run)
    except ClusterError as error:
        reason, kept = error.message, []
    if seal is None or reason:
        return GateView(run.run, run.back_group, "closed", seal, (), (), reason)
    approvals = tuple(
        a for a in site.catalog.approvals(run.run) if a.seal_digest == seal.digest and a in kept
    )
    approved = {store for a in approvals for store in a.stores}
    missing = tuple(line for line in seal.missing if line.name not in approved)
    state: GateState = "held" if missing else "open"
    return GateView(run.run, run.back_group, state, seal, missing, approvals)


def _why_closed(site: OpenSite, run: RunRecord, disk: BackDisk, seal: SealRecord | None) -> str:
    """Why no approval could open the gate; empty when stage one is complete.

    Raises:
        ClusterError: what stands on the disk cannot be read.
    """
    if seal is None:
        return "stage one is not sealed"
    on_disk = disk.read_seal(run.run)
    if on_disk is None or on_disk.digest != seal.digest or seal_digest(on_disk) != seal.digest:
        return "the seal on the disk differs from the catalog's"
    token, known = disk.owner(), site.catalog.owner(run.back_group)
    # A newer token on the disk is one whose writer did not live to record it.
    if token is None or (known is not None and not _follows(token, known)):
        return "the owner token on the disk differs from the catalog's: this is another disk"
    return _unsealed(site, run, seal)


def _unsealed(site: OpenSite, run: RunRecord, seal: SealRecord) -> str:
    sealed = {line.name for line in seal.stores if not _is_outdated(site, line)}
    unsealed = {f"{group}/{store}" for group, store in due_stores(run)} - sealed
    return f"not sealed yet: {', '.join(sorted(unsealed))}" if unsealed else ""


def _is_outdated(site: OpenSite, line: SealedStore) -> bool:
    """Whether the image was made again since it was sealed, and a crash came before the next seal."""
    if not line.image:
        return False
    known = site.catalog.latest(ImageRecord, line.image)
    return known is None or (known.digest, known.state) != (line.digest, line.state)


def _follows(token: OwnerToken, known: OwnerRecord) -> bool:
    return token.epoch > known.epoch or (token.epoch, token.node) == (known.epoch, known.node)


def newer_behind_gate(site: OpenSite, run: RunRecord) -> GateView | None:
    """The gate of a newer run of the BACK group that has neither been let by nor ended; None when there is none.

    A disk that is handed over for an older run takes the newer one's images along, past its gate.
    """
    for newer in takewhile(lambda other: other.run != run.run, site.catalog.runs(run.back_group)):
        if newer.state != "ended":
            view = evaluate(site, newer)
            if view.state != "open":
                return view
    return None


def look_past(site: OpenSite, run: RunRecord) -> GateView:
    """As ``evaluate``, and closed while a newer run of the BACK group is behind its own gate."""
    view = evaluate(site, run)
    newer = newer_behind_gate(site, run)
    return view if newer is None else replace(view, state="closed", missing=(), reason=_behind(newer))


def require_newest(site: OpenSite, run: RunRecord) -> None:
    """Raises:
    GateClosed: a newer run of the BACK group has neither been let by nor ended.
    """
    site.catalog.refresh()
    newer = newer_behind_gate(site, run)
    if newer is not None:
        raise GateClosed(
            f"the gate of {run.back_group} is held for run {run.run}: {_behind(newer)}",
            hint=f"see `nightferry gate show {newer.run}`; retry or approve run {newer.run}, which is on the same disk",
            subject=newer.run,
        )


def _behind(newer: GateView) -> str:
    return f"the newer run {newer.run} has not passed its gate, which is {newer.state}"


def require_open(site: OpenSite, run: RunRecord) -> GateView:
    """Passes only an open gate, and none past a newer run's; a shut one marks the run ``held``.

    Raises:
        GateClosed: naming what is missing, or the newer run.
        NotOwner: the disk is on another node than this one.
    """
    require_here(site, site.cluster.where(run.back_group), f"the gate of {run.back_group}")
    require_newest(site, run)
    view = evaluate(site, run)
    if view.state == "open":
        return view
    set_state(site, run, state="held")
    named = "; ".join(f"{m.name} is {m.state} ({m.reason})" for m in view.missing)
    raise GateClosed(
        f"the gate of {run.back_group} is held for run {run.run}: {named or view.reason}",
        subject=run.run,
    )


def approve(site: OpenSite, run: RunRecord, stores: Sequence[str], reason: str) -> ApprovalRecord:
    """Records an operator's word for the named stores of the run's newest seal.

    Raises:
        ConfigError: no reason, no seal yet, or a store that the seal does not miss.
        ClockAhead: a run is stamped later than now, and nobody says which clock is right.
        GateClosed: a newer run of the BACK group has neither been let by nor ended.
        NotOwner: the disk, on which it is written down too, is on another node than this one.
    """
    if not reason.strip():
        raise ConfigError("an approval needs a reason", hint="add --reason TEXT")
    require_disk(site, run.back_group, f"an approval for {run.back_group}")
    require_newest(site, run)
    require_plausible_clock(site, "no approval without a reason")
    view = evaluate(site, run)
    if view.seal is None:
        raise ConfigError(
            f"run {run.run} has no seal to approve", hint="stage one must end first; see `nightferry runs`"
        )
    lacking = [line.name for line in view.seal.missing]
    wrong = [s for s in stores if s not in lacking]
    if wrong or not stores:
        raise ConfigError(
            f"nothing to approve for {', '.join(wrong) or 'no store'}; "
            f"the seal lacks: {', '.join(lacking) or 'nothing'}",
            hint="name stores that the seal lacks with --store; `nightferry gate show` lists them",
            subject=run.run,
        )
    record = ApprovalRecord(
        run=run.run,
        seal_digest=view.seal.digest,
        stores=tuple(stores),
        reason=reason,
        who=operator(),
        at=site.clock.now(),
    )
    site.disk(run.back_group).write_approval(record)
    site.catalog.append(record)
    return record
