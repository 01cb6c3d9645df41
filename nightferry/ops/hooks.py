"""Programs of the site that run before and after a stage."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from nightferry.cluster.run import run_program
from nightferry.errors import Cancelled, HookFailed, NightferryError
from nightferry.model.hooks import Hook, HookStage, HookWhen
from nightferry.model.redact import without_secrets
from nightferry.ops.opened import OpenSite
from nightferry.progress import Cancel, Progress

log = logging.getLogger(__name__)

LAST_LINES = 5
"""Lines of a failed hook's stderr that its error tells."""


@dataclass(slots=True)
class Stage:
    """A stage with hooks around it, while it runs."""

    result: Literal["whole", "partial", "failed"] = "whole"
    """What ``after`` hooks are told; an error makes it ``failed``."""


@contextmanager
def hooked(
    opened: OpenSite,
    stage: HookStage,
    back_group: str,
    *,
    run: str,
    node: str,
    progress: Progress,
    cancel: Cancel,
) -> Iterator[Stage]:
    """Runs the site's hooks around the block.

    ``before`` hooks run one after the other, in the order of the site file, and the first that fails keeps the
    block from running. Then every ``after`` hook runs, also when the block or a ``before`` hook failed or was
    cancelled; the block's own error is the one that is raised.

    Args:
        opened: The site.
        stage: Around what.
        back_group: Whose stage.
        run: The run, told to the programs.
        node: Where the stage works, told to the programs; of a move, where the disk goes.
        progress: Is told of every hook.
        cancel: Ends a ``before`` hook; ``after`` hooks end at their deadlines.

    Raises:
        HookFailed: a hook did not end with 0 within its deadline; names it with its last words.
    """
    hooks = [h for h in opened.site.hooks if h.stage == stage and h.is_for(back_group)]
    told = {
        "NIGHTFERRY_SITE_NAME": opened.site.name,
        "NIGHTFERRY_RUN": run,
        "NIGHTFERRY_STAGE": stage,
        "NIGHTFERRY_BACK_GROUP": back_group,
        "NIGHTFERRY_GROUP": ",".join(group.name for group in opened.site.groups_of(back_group)),
        "NIGHTFERRY_NODE": node,
        "NIGHTFERRY_PATH": str(opened.site.back_group(back_group).path),
    }
    state = Stage()
    try:
        for hook in _of(hooks, "before"):
            _run(hook, told | {"NIGHTFERRY_WHEN": "before"}, progress, cancel)
        yield state
    except BaseException:
        for failed in _after(hooks, told, "failed", progress):
            log.error("%s", failed)
        raise
    for failed in _after(hooks, told, state.result, progress):
        raise failed


def _of(hooks: list[Hook], when: HookWhen) -> list[Hook]:
    return [hook for hook in hooks if hook.when == when]


def _after(hooks: list[Hook], told: dict[str, str], result: str, progress: Progress) -> list[HookFailed]:
    """Runs every ``after`` hook, whatever becomes of the others; returns those that failed."""
    failed = []
    for hook in _of(hooks, "after"):
        try:
            # A stop was perhaps asked for already: what puts things back in order runs all the same.
            _run(hook, told | {"NIGHTFERRY_WHEN": "after", "NIGHTFERRY_RESULT": result}, progress, Cancel())
        except HookFailed as error:
            failed.append(error)
    return failed


def _run(hook: Hook, told: dict[str, str], progress: Progress, cancel: Cancel) -> None:
    named = f"hook {hook.name} {hook.when} {hook.stage}"
    progress.say(f"{named}: runs", subject=told["NIGHTFERRY_BACK_GROUP"])
    try:
        ended = run_program(hook.command, deadline_s=hook.deadline, env=told, cancel=cancel)
    except Cancelled:
        raise
    except NightferryError as error:
        raise HookFailed(f"{named} failed: {error.message}", subject=hook.name) from error
    if ended.code != 0:
        lines = [line.strip() for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
        last = " | ".join(without_secrets(line) for line in lines[-LAST_LINES:])
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        raise HookFailed(f"{named} failed with {how}: {last or 'it said nothing'}", subject=hook.name)
