"""What `check` looks at around the site: the machine's clock, the packages Python finds, the hooks' programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import nightferry
from nightferry.errors import ClockAhead
from nightferry.model.findings import Finding
from nightferry.site.opened import OpenSite
from nightferry.site.stamps import describe, future_runs

PACKAGES = ("blocks", "tasks", "flows", "deployments")
"""Our packages whose names others may bear, too."""


def clock(opened: OpenSite) -> Iterator[Finding]:
    """A clock behind our own records would begin last night's window again."""
    found = future_runs(opened)
    if found:
        yield Finding("NF-CLOCK-001", "fail", describe(opened, found), ClockAhead.default_hint)


def packages(find: Callable[[str], ModuleSpec | None] = find_spec) -> Iterator[Finding]:
    """Python takes the first package of a name on its path; a foreign ``flows`` would run instead of ours."""
    ours = Path(nightferry.__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = find(name)
        place = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
        if place != ours / name:
            yield Finding(
                "NF-SITE-002",
                "fail",
                f"the package {name} is {place or 'not there'}, not nightferry's",
                "remove the other package, or install nightferry into its own virtual environment",
            )


def hooks(opened: OpenSite) -> Iterator[Finding]:
    """Hooks run with our rights: a program that others can write is theirs to command."""
    for hook in opened.site.hooks:
        program = Path(hook.command[0])
        try:
            status = program.stat()
        except OSError as error:
            text = f"hook {hook.name}: {program}: {error.strerror}"
            yield Finding("NF-HOOK-001", "fail", text, "install the program, or correct its path")
            continue
        if not os.access(program, os.X_OK, effective_ids=True):
            text = f"hook {hook.name}: {program} cannot be run by this user"
            yield Finding("NF-HOOK-001", "fail", text, f"`chmod +x {program}`")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002:
            text = f"hook {hook.name}: other users can write {program}"
            yield Finding("NF-HOOK-002", "fail", text, f"`chown root {program}`, `chmod o-w {program}`")
