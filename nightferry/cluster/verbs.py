"""The programs of a command cluster: what is run for each verb, and how its output is read.

The presets for Windows follow Microsoft's documentation of ``cluster.exe`` and of the FailoverClusters module.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from nightferry.errors import ConfigError
from nightferry.model.nodes import CommandClusterSettings, GroupState, Reading, fill_placeholders

_QUOTES = "'\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}" + (
    "\N{SINGLE LOW-9 QUOTATION MARK}\N{SINGLE HIGH-REVERSED-9 QUOTATION MARK}"
)
"""PowerShell ends a single-quoted string at any of these; doubled they stand for themselves."""

_WINDOWS_STATES: dict[str, GroupState] = {
    "Online": "started",
    "Offline": "stopped",
    "Failed": "failed",
    "Pending": "moving",
    "PartialOnline": "stopped",
    "Partially Online": "stopped",
    "Unknown": "unknown",
}


class ClusterVerb(Protocol):
    """What is run for a verb."""

    def argv(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The command with its placeholders filled.

        Raises:
            ConfigError: a value must not be put into a command.
        """
        ...


@dataclass(frozen=True, slots=True)
class WordList:
    """A list of words; placeholders in them are filled."""

    template: tuple[str, ...]

    def argv(self, values: Mapping[str, str]) -> tuple[str, ...]:
        for name, value in values.items():
            _require_harmless(name, value)
        return tuple(fill_placeholders(word, values) for word in self.template)


@dataclass(frozen=True, slots=True)
class PowerShell:
    """A script for ``powershell``; its placeholders become quoted strings."""

    program: tuple[str, ...]
    script: str

    def argv(self, values: Mapping[str, str]) -> tuple[str, ...]:
        script = _PROLOGUE + fill_placeholders(
            self.script, {name: quoted(name, value) for name, value in values.items()}
        )
        encoded = base64.b64encode(script.encode("utf-16-le")).decode()
        return (*self.program, "-NoProfile", "-NonInteractive", "-EncodedCommand", encoded)


_PROLOGUE = "$ErrorActionPreference='Stop'; $ProgressPreference='SilentlyContinue'; "
"""Any failure ends the script with an exit code other than 0; nothing but the result is printed."""


def quoted(name: str, value: str) -> str:
    """A value as a PowerShell string that holds exactly it.

    Raises:
        ConfigError: it holds a control character, or begins like an option.
    """
    _require_harmless(name, value)
    return "'" + "".join(char * 2 if char in _QUOTES else char for char in value) + "'"


def _require_harmless(name: str, value: str) -> None:
    if value and not value.startswith("-") and not any(unicodedata.category(c) == "Cc" for c in value):
        return
    raise ConfigError(
        f"{value!r} cannot be put into a command as {name}",
        hint="names begin with a letter or digit and hold no control character",
        subject=name,
    )


@dataclass(frozen=True, slots=True)
class Verbs:
    """Everything a command cluster runs and reads."""

    where: ClusterVerb
    move: ClusterVerb
    owner: Reading
    state: Reading
    states: Mapping[str, GroupState] = field(default_factory=lambda: dict(_WINDOWS_STATES))
    up_words: tuple[str, ...] = ("Up",)
    paused_words: tuple[str, ...] = ("Paused",)
    up: Reading | None = None
    view: ClusterVerb | None = None
    plan: ClusterVerb | None = None
    release: ClusterVerb | None = None


def read(reading: Reading, output: str, values: Mapping[str, str]) -> str | None:
    """What a program's output says; None where it does not."""
    if reading.regex is not None:
        escaped = {name: re.escape(value) for name, value in values.items()}
        match = re.search(fill_placeholders(reading.regex, escaped), output, re.MULTILINE | re.IGNORECASE)
        return match[1].strip() if match is not None and match[1] is not None else None
    try:
        found = json.loads(output)
    except ValueError:
        return None
    for key in (reading.json_field or "").split("."):
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found.strip() if isinstance(found, str) else None


def verbs(settings: CommandClusterSettings) -> Verbs:
    """The preset's verbs, with what the site file says itself in their place.

    Raises:
        ConfigError: the preset's program is not on this machine.
    """
    base = _preset(settings)

    def own(argv: tuple[str, ...] | None, preset: ClusterVerb | None) -> ClusterVerb | None:
        return WordList(argv) if argv is not None else preset

    where = own(settings.where, base.where if base else None)
    move = own(settings.move, base.move if base else None)
    owner = settings.owner or (base.owner if base else None)
    state = settings.state or (base.state if base else None)
    if where is None or move is None or owner is None or state is None:
        raise ConfigError("cluster: where, move, owner and state are needed", subject="cluster")
    return Verbs(
        where=where,
        move=move,
        owner=owner,
        state=state,
        states=settings.states if settings.states is not None else _WINDOWS_STATES,
        up_words=settings.up_words,
        paused_words=settings.paused_words,
        up=settings.up or (base.up if base else None),
        view=own(settings.view, base.view if base else None),
        plan=own(settings.plan, None),
        release=own(settings.release, None),
    )


def _preset(settings: CommandClusterSettings) -> Verbs | None:
    match settings.preset:
        case None:
            return None
        case "windows-cluster-exe":
            return cluster_exe(_program("cluster.exe", settings.via))
        case "windows-powershell":
            return powershell(_program("powershell.exe", settings.via))
        case _:
            assert_never(settings.preset)


def _program(name: str, via: tuple[str, ...] | None) -> tuple[str, ...]:
    """The preset's program where it runs: by ``via``, or by its whole path on this machine."""
    if via is not None:
        return (*via, name)
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"the program {name} is not on this machine",
            hint='run it elsewhere with via under [cluster], for example ["/usr/bin/ssh", "backup@TEX-ACTV-1"]',
            subject="cluster.preset",
        )
    return (found,)


def cluster_exe(program: tuple[str, ...]) -> Verbs:
    """The tool of Windows Server 2003 and 2008. What its exit codes mean is documented nowhere: nothing is read
    from them but that something went wrong.

    Its listing is a table, a line for each thing::

        Group                Node            Status
        -------------------- --------------- ------
        TEX-BACK-1           TEX-ACTV-1      Online
    """
    return Verbs(
        view=WordList((*program, "node", "{node}", "/status")),
        where=WordList((*program, "group", "{group}")),
        move=WordList((*program, "group", "{group}", "/move:{node}")),
        owner=Reading(regex=r"^{group}[ \t]+(\S+)[ \t]+\S"),
        state=Reading(regex=r"^{group}[ \t]+\S+[ \t]+(\S.*?)[ \t\r]*$"),
        up=Reading(regex=r"^{node}[ \t]+\d+[ \t]+(\S.*?)[ \t\r]*$"),
    )


def powershell(program: tuple[str, ...]) -> Verbs:
    """The FailoverClusters module. ``-Wait 0`` returns at once; names are asked for, never numbers, and locks
    that somebody put on a group are kept."""
    return Verbs(
        view=PowerShell(
            program,
            "Get-ClusterNode -Name {node} | Select-Object @{n='state';e={$_.State.ToString()}}"
            " | ConvertTo-Json -Compress",
        ),
        where=PowerShell(
            program,
            "Get-ClusterGroup -Name {group} | Select-Object @{n='owner';e={$_.OwnerNode.Name}},"
            "@{n='state';e={$_.State.ToString()}} | ConvertTo-Json -Compress",
        ),
        move=PowerShell(program, "Move-ClusterGroup -Name {group} -Node {node} -Wait 0 | Out-Null"),
        owner=Reading(json="owner"),
        state=Reading(json="state"),
        up=Reading(json="state"),
    )
