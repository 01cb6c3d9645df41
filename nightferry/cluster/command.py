"""Any cluster whose own programs can be run: a command for each verb, and how to read what it prints.

That a move's command ended well proves nothing. A move is made when the group's state and its owner, read
together from one output, are *started* and the target. Nor does a program that failed once, or said nothing that can be
read: it is run again, and only what gives no answer for ``SILENT_S`` counts as an answer that will not come.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.cluster.base import SILENT_S, ClusterView, GroupView, MovePlan, NodeView
from nightferry.cluster.run import Finished, OutputWithoutEnd, run_program
from nightferry.cluster.verbs import ClusterVerb, Verbs, read
from nightferry.errors import ClusterError, MoveFailed
from nightferry.model.findings import Finding
from nightferry.model.names import choose
from nightferry.model.nodes import NodeSpec
from nightferry.model.text import safe
from nightferry.progress import Cancel

LOOK_DEADLINE_S = 30.0
"""How long a program that only looks may take."""

POLL_S = 1.0
REFUSED_AFTER_POLLS = 5
"""Looks at an unmoved group after which the move's failed command is believed."""


_T = TypeVar("_T")


class NoAnswer(ClusterError):
    """A program of the cluster failed, or said nothing that can be read."""

    default_hint = "run the command by hand; correct it, or the way its output is read, under [cluster]"


class CommandCluster:
    """A cluster behind programs.

    Args:
        verbs: What is run, and how it is read.
        nodes: All nodes, as the cluster calls them; upper and lower case are the same.
        groups: The resource groups, MAIL and BACK.
        deadline_s: How long a move may take until the group is started on its target.
        preset: The preset's name, for `check`.
        host: This machine's name; asked of the system when empty.
        silent_s: How long no answer is looked for again until that is believed.
        clock: Waits between two looks.
        cancel: Ends a program that hangs, and the waiting for an answer.
    """

    def __init__(
        self,
        verbs: Verbs,
        nodes: Sequence[NodeSpec],
        groups: Sequence[str],
        *,
        deadline_s: float,
        preset: str = "",
        host: str = "",
        silent_s: float = SILENT_S,
        clock: Clock = SYSTEM_CLOCK,
        cancel: Cancel | None = None,
    ) -> None:
        self._verbs = verbs
        self._nodes = tuple(nodes)
        self._groups = tuple(dict.fromkeys(groups))
        self._deadline_s = deadline_s
        self._preset = preset
        self._host = host or socket.gethostname()
        self._silent_s = silent_s
        self._clock = clock
        self._cancel = cancel or Cancel()

    @property
    def local_node(self) -> str:
        names = {self._host.casefold(), self._host.partition(".")[0].casefold()}
        for node in self._nodes:
            if names & _names_of(node):
                return node.name
        raise ClusterError(
            f"this machine, {self._host}, is not a node of the cluster",
            hint="name its node in NIGHTFERRY_NODE, or give [[nodes]] their host",
            subject=self._host,
        )

    def view(self) -> ClusterView:
        """A look at every node and group, one after the other: no two of them are of the same moment.

        What gives no answer is looked at again, until that is believed. Nobody is asked for the quorum: a cluster's own
        programs answer only where it has one.

        Raises:
            OutputWithoutEnd: a program does not stop writing.
            ClusterError: no group can be read.
        """
        nodes: dict[str, NodeView] = {}
        groups: dict[str, GroupView] = {}
        began = self._clock.monotonic()
        while True:
            dark = _ask({spec.name: partial(self._node, spec) for spec in self._nodes}, nodes)
            silent = _ask({name: partial(self._group, name) for name in self._groups}, groups)
            if not (dark or silent) or self._clock.monotonic() - began >= self._silent_s:
                break
            self._cancel.check()
            self._clock.sleep(POLL_S)
        if silent and not groups:
            raise next(iter(silent.values()))
        for spec in self._nodes:
            if spec.name in dark:
                note = dark[spec.name].message
                nodes[spec.name] = NodeView(spec.name, spec.role, online=False, usable=False, note=note)
        for name, error in silent.items():
            groups[name] = GroupView(name, "", "unknown", error.message, unread=True)
        return ClusterView(
            "command",
            True,
            tuple(nodes[spec.name] for spec in self._nodes),
            tuple(groups[name] for name in self._groups),
        )

    def where(self, group: str) -> str:
        view = self._known_group(group)
        if view.state != "started":
            raise ClusterError(
                f"{group} is {view.state} on {view.owner or 'no node'}: {view.note}", subject=group
            )
        return view.owner

    def plan(self, group: str, target: str) -> MovePlan:
        here = self._known_group(group)
        spec = next((node for node in self._nodes if node.name == target), None)
        if spec is None:
            raise choose(target, [node.name for node in self._nodes], "node")
        there = self._patiently(lambda: self._node(spec))
        problems = []
        if here.state != "started":
            problems.append(f"{group} is {here.state} on {here.owner or 'no node'}: {here.note}")
        if not there.usable:
            problems.append(f"{target} cannot take it: {there.note}")
        verb = self._verbs.plan
        if not problems and verb is not None and here.owner != target:
            values = {"group": group, "node": target, "source": here.owner}
            thought = self._patiently(lambda: self._run(verb, values))
            if thought.code != 0:
                problems.append(f"the cluster's own plan refuses it: {safe(thought.error_line())}")
        return MovePlan(group, here.owner, target, tuple(problems))

    def move(self, plan: MovePlan, *, run: str, cancel: Cancel) -> None:
        cancel.check()
        fresh = self.plan(plan.group, plan.target)
        plan.require_still(fresh)
        if fresh.is_noop:
            return
        try:
            self._carry(plan, cancel)
        except BaseException as error:
            try:
                # A stop was perhaps what ended the move: it does not end this.
                self._take_back(plan.group, Cancel())
            except ClusterError as second:
                raise MoveFailed(f"{error}; and {second.message}", subject=plan.group) from error
            raise

    def _carry(self, plan: MovePlan, cancel: Cancel) -> None:
        values = {"group": plan.group, "node": plan.target, "source": plan.source}
        ended = self._clock.monotonic() + self._deadline_s
        reason = ""
        try:
            command = run_program(self._verbs.move.argv(values), deadline_s=self._deadline_s, cancel=cancel)
        except ClusterError as error:
            reason = f"; {error.message}"
        else:
            if command.code != 0:
                reason = f"; its command printed: {safe(command.error_line())}"
        unmoved = 0
        while True:
            try:
                view = self._group(plan.group, cancel)
            except NoAnswer as error:
                view = GroupView(plan.group, "", "unknown", error.message)
            if view.state == "started" and view.owner == plan.target:
                return
            if view.state == "failed":
                raise plan.failed(f"failed on {view.owner} on its way to {plan.target}{reason}")
            if view.state == "started" and view.owner not in ("", plan.source):
                raise plan.failed(f"is on {view.owner} instead of {plan.target}{reason}")
            unmoved += view.state == "started"
            if reason and unmoved >= REFUSED_AFTER_POLLS:
                raise plan.failed(f"stays on {plan.source}{reason}")
            if self._clock.monotonic() >= ended:
                raise plan.failed(
                    f"is {view.state} on {view.owner or 'no node'} ({view.note or 'no reason given'}) "
                    f"{self._deadline_s:.0f} s after it was sent to {plan.target}{reason}"
                )
            cancel.check()
            self._clock.sleep(POLL_S)

    def release(self, group: str) -> None:
        self._known_name(group)
        self._take_back(group, self._cancel)

    def _take_back(self, group: str, cancel: Cancel) -> None:
        verb = self._verbs.release
        if verb is None:
            return
        ended = self._patiently(lambda: self._run(verb, {"group": group}, cancel), cancel)
        if ended.code != 0:
            raise ClusterError(
                f"what the move of {group} left in the cluster was not removed: {safe(ended.error_line())}",
                subject=group,
            )

    def check(self) -> list[Finding]:
        findings = list(self._unproven())
        try:
            view = self.view()
        except ClusterError as error:
            text = f"the cluster does not answer: {error.message}"
            fix = (
                error.hint
                or "run the command by hand; correct it, or the way its output is read, under [cluster]"
            )
            return [*findings, Finding("NF-CLUSTER-001", "fail", text, fix)]
        for node in view.nodes:
            if not node.usable:
                findings.append(
                    Finding("NF-CLUSTER-003", "warn", f"{node.name}: {node.note}", "bring the node back")
                )
        for group in view.groups:
            if group.state != "started":
                text = f"{group.name} is {group.state} on {group.owner or 'no node'}: {group.note}"
                cure = (
                    "check the group with the cluster's own programs; compare owner and state under [cluster]"
                )
                findings.append(Finding("NF-CLUSTER-004", "fail", text, cure))
        return findings

    def _unproven(self) -> Iterator[Finding]:
        if self._preset:
            yield Finding(
                "NF-CLUSTER-050",
                "note",
                f"the preset {self._preset} follows Microsoft's documentation and has not been tested on Windows",
                "make a maintenance move there and back before the first night (docs/cluster-commands.md)",
            )
        if self._verbs.view is None:
            yield Finding(
                "NF-CLUSTER-051",
                "warn",
                "no command says whether a node is up: every node counts as up",
                "give [cluster] a view command and up",
            )

    def _node(self, spec: NodeSpec, cancel: Cancel | None = None) -> NodeView:
        """Raises:
        NoAnswer: its state cannot be read.
        """
        if self._verbs.view is None or self._verbs.up is None:
            return NodeView(spec.name, spec.role, online=True, usable=True, note="")
        values = {"node": spec.name}
        ended = self._run(self._verbs.view, values, cancel)
        word = read(self._verbs.up, _text(ended), values) if ended.code == 0 else None
        if word is None:
            raise NoAnswer(f"its state cannot be read: {safe(ended.error_line())}", subject=spec.name)
        usable = _is_among(word, self._verbs.up_words)
        online = usable or _is_among(word, self._verbs.paused_words)
        return NodeView(spec.name, spec.role, online, usable, note="" if usable else f"it is {safe(word)}")

    def _known_group(self, name: str) -> GroupView:
        """Raises:
        ClusterError: no answer for ``SILENT_S``.
        """
        self._known_name(name)
        return self._patiently(lambda: self._group(name))

    def _known_name(self, name: str) -> None:
        if name not in self._groups:
            raise choose(name, self._groups, "resource group")

    def _patiently(self, look: Callable[[], _T], cancel: Cancel | None = None) -> _T:
        """Looks until there is an answer; that there is none is raised when it is believed."""
        cancel = cancel or self._cancel
        began = self._clock.monotonic()
        while True:
            try:
                return look()
            except NoAnswer:
                if self._clock.monotonic() - began >= self._silent_s:
                    raise
            cancel.check()
            self._clock.sleep(POLL_S)

    def _group(self, name: str, cancel: Cancel | None = None) -> GroupView:
        """Owner and state out of one output.

        Raises:
            NoAnswer: they cannot be read.
        """
        values = {"group": name}
        ended = self._run(self._verbs.where, values, cancel)
        owner = read(self._verbs.owner, _text(ended), values)
        word = read(self._verbs.state, _text(ended), values)
        if ended.code != 0 or owner is None or word is None:
            lacking = "owner" if owner is None else "state"
            why = f"exit code {ended.code}" if ended.code != 0 else f"no {lacking} in its output"
            raise NoAnswer(f"cannot read where {name} is: {why}: {safe(ended.error_line())}", subject=name)
        known = next((n.name for n in self._nodes if owner.casefold() in _names_of(n)), None)
        if known is None:
            return GroupView(name, safe(owner), "unknown", "no such node in the site file", unread=True)
        words = {key.casefold(): state for key, state in self._verbs.states.items()}
        state = words.get(word.casefold())
        if state is None:
            note = f"the cluster says {safe(word)}; known are {', '.join(self._verbs.states)}"
            return GroupView(name, known, "unknown", note, unread=True)
        note = "" if state == "started" else f"the cluster says {safe(word)}"
        if state == "started" and self._verbs.view is not None:
            # What runs on a node that is gone is only what was last known of it.
            node = self._node(next(n for n in self._nodes if n.name == known), cancel)
            if not node.online:
                return GroupView(name, known, "unknown", f"{known}: {node.note}")
        return GroupView(name, known, state, note)

    def _run(self, verb: ClusterVerb, values: Mapping[str, str], cancel: Cancel | None = None) -> Finished:
        """Raises:
        OutputWithoutEnd: the program wrote more than an answer has.
        NoAnswer: the program cannot be run, or does not end in time.
        """
        try:
            return run_program(verb.argv(values), deadline_s=LOOK_DEADLINE_S, cancel=cancel or self._cancel)
        except OutputWithoutEnd:
            raise  # it would write as much again
        except ClusterError as error:
            raise NoAnswer(error.message, hint=error.hint, subject=error.subject) from error


def _ask(looks: Mapping[str, Callable[[], _T]], seen: dict[str, _T]) -> dict[str, NoAnswer]:
    """Looks at what was not seen yet and adds what it sees; returns what gave no answer."""
    silent: dict[str, NoAnswer] = {}
    for name, look in looks.items():
        if name in seen:
            continue
        try:
            seen[name] = look()
        except NoAnswer as error:
            silent[name] = error
    return silent


def _is_among(word: str, words: Sequence[str]) -> bool:
    return word.casefold() in {known.casefold() for known in words}


def _names_of(node: NodeSpec) -> set[str]:
    return {node.name.casefold(), node.host.casefold()}


def _text(ended: Finished) -> str:
    return ended.stdout.decode(errors="replace")
