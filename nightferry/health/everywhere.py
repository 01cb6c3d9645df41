"""`check` on every node: what each one sees, and whether they agree.

What a node sees travels as text, because a node whose catalog is away has no other way to tell.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass, replace
from datetime import datetime

import nightferry
from nightferry.clock import CLOCKS_APART, SYSTEM_CLOCK, Clock
from nightferry.errors import IntegrityError, NightferryError
from nightferry.health.check import check
from nightferry.model.findings import Finding
from nightferry.model.load import LoadedSite
from nightferry.site.opened import OpenSite
from nightferry.units import format_duration

log = logging.getLogger(__name__)

_LONGEST = 60
"""Findings of one node that are told; more say nothing new."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What one node sees."""

    version: str
    python: str
    site_digest: str
    at: datetime
    """By the node's own clock."""
    catalog: str
    """The oldest run in the catalog that the node sees, which tells one catalog from another; empty where it cannot be
    read."""
    findings: tuple[Finding, ...]

    def dump(self) -> str:
        """One line of JSON; a node with very many findings tells the first of them."""
        document = asdict(self) | {
            "at": self.at.isoformat(),
            "findings": [asdict(each) for each in self.findings[:_LONGEST]],
        }
        return json.dumps(document)

    @classmethod
    def load(cls, text: str) -> NodeState:
        """The opposite of ``dump``.

        Raises:
            IntegrityError: the text is something else.
        """
        try:
            document = json.loads(text)
            findings = tuple(Finding(**each) for each in document.pop("findings"))
            return cls(**document | {"at": datetime.fromisoformat(document["at"]), "findings": findings})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IntegrityError(
                f"a node returned something other than its findings: {text[:80]!r}",
                hint="install the same release of nightferry on every node",
            ) from error

    def findings_of(self, node: str) -> list[Finding]:
        """The node's findings, each beginning with its name."""
        return [replace(each, text=f"{node}: {each.text}" if node else each.text) for each in self.findings]


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What came back from a node. ``requested`` and ``answered`` are by the asking node's clock."""

    node: str
    state: NodeState | None
    requested: datetime
    answered: datetime
    why: str = ""
    """Why nothing came back."""


def inspect_here(loaded: LoadedSite, clock: Clock = SYSTEM_CLOCK) -> NodeState:
    """What this node sees now."""
    catalog = ""
    try:
        with OpenSite(loaded, clock=clock) as site:
            runs = site.catalog.runs()
            catalog = f"{runs[-1].run} of {runs[-1].started.isoformat()}" if runs else "new"
    except NightferryError as error:
        log.warning("the catalog cannot be read here: %s", error.message)
    return NodeState(
        version=nightferry.__version__,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        site_digest=loaded.digest,
        at=clock.now(),
        catalog=catalog,
        findings=tuple(check(loaded)),
    )


def compare(answers: list[NodeAnswer]) -> list[Finding]:
    """All findings of all nodes, and where the nodes do not agree. Pure."""
    findings: list[Finding] = []
    there = [(a, a.state) for a in answers if a.state is not None]
    for answer in answers:
        if answer.state is None:
            findings.append(
                Finding(
                    "NF-NODE-001",
                    "fail",
                    f"{answer.node} does not answer: {answer.why}",
                    "start its worker: `prefect worker start --pool … --work-queue NODE`",
                )
            )
    findings += _differ("NF-NODE-002", "run different releases", {a.node: s.version for a, s in there})
    findings += _differ(
        "NF-NODE-003", "use different site files", {a.node: s.site_digest[:12] for a, s in there}
    )
    for answer, state in there:
        apart = max(answer.requested - state.at, state.at - answer.answered)
        if apart > CLOCKS_APART:
            findings.append(
                Finding(
                    "NF-NODE-004",
                    "fail",
                    f"the clock of {answer.node} is {format_duration(apart.total_seconds())} off",
                    "synchronize all nodes with the same time servers",
                )
            )
        if not state.catalog:
            findings.append(
                Finding(
                    "NF-NODE-005",
                    "fail",
                    f"{answer.node} cannot reach the catalog",
                    "mount the catalog's folder on every node",
                )
            )
        findings += state.findings_of(answer.node)
    findings += _differ(
        "NF-NODE-006", "see different catalogs", {a.node: s.catalog for a, s in there if s.catalog}
    )
    return findings


def _differ(id: str, what: str, values: dict[str, str]) -> list[Finding]:
    if len(set(values.values())) <= 1:
        return []
    listed = ", ".join(f"{node}: {value}" for node, value in sorted(values.items()))
    return [Finding(id, "fail", f"the nodes {what} ({listed})", "make them the same on every node")]


def dump_findings(findings: list[Finding]) -> str:
    """For a state's message."""
    return json.dumps([asdict(each) for each in findings])


def load_findings(text: str) -> list[Finding]:
    """The opposite of ``dump_findings``.

    Raises:
        IntegrityError: the text is something else.
    """
    try:
        return [Finding(**each) for each in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"not a list of findings: {text[:80]!r}") from error
