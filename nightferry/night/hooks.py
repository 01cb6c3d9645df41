"""Programs of the site that run before and after a stage."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from nightferry.cluster.reader_agent import program_on, registered_work
from nightferry.cluster.run import Finished, run_program
from nightferry.errors import Cancelled, GroupStopping, HookFailed, NightferryError
from nightferry.model.hooks import Hook, HookStage, HookWhen
from nightferry.model.redact import without
from nightferry.model.secrets import known_secrets
from nightferry.progress import Cancel, Progress
from nightferry.site.nodes import resource_groups
from nightferry.site.opened import OpenSite
from nightferry.site.state import make_private_folder, state_home, write_private
from nightferry.units import format_size

log = logging.getLogger(__name__)

MOST_HOOK_OUTPUT_BYTES = 256 << 10
"""What is kept of each of a failed hook's outputs: its end."""


@dataclass(slots=True)
class HookedStage:
    """A stage with hooks around it, while it runs."""

    result: Literal["whole", "partial", "failed"] = "whole"
    """What ``after`` hooks are told; an error makes it ``failed``."""


@contextmanager
def hooked(
    site: OpenSite,
    stage: HookStage,
    back_group: str,
    *,
    run: str,
    node: str,
    progress: Progress,
    cancel: Cancel,
) -> Iterator[HookedStage]:
    """Runs the site's hooks around the block.

    ``before`` hooks run one after the other, in the order of the site file, and the first that fails keeps the
    block from running. Then every ``after`` hook runs, also when the block or a ``before`` hook failed or was
    cancelled; the block's own error is the one that is raised.

    Args:
        site: The site.
        stage: Around what.
        back_group: Whose stage.
        run: The run, told to the programs.
        node: Where the stage works, told to the programs; of a move, where the disk goes.
        progress: Is told of every hook.
        cancel: Ends a ``before`` hook; ``after`` hooks end at their deadlines.

    Raises:
        GroupStopping: the cluster took a group of the night away from this node while a hook ran; it was ended.
        HookFailed: a hook did not end with 0 within its deadline; names it, and the file with what it wrote.
    """
    hooks = [h for h in site.file.hooks if h.stage == stage and h.is_for(back_group)]
    environment = {
        "NIGHTFERRY_SITE_NAME": site.file.name,
        "NIGHTFERRY_RUN": run,
        "NIGHTFERRY_STAGE": stage,
        "NIGHTFERRY_BACK_GROUP": back_group,
        "NIGHTFERRY_GROUP": ",".join(group.name for group in site.file.groups_of(back_group)),
        "NIGHTFERRY_NODE": node,
        "NIGHTFERRY_PATH": str(site.file.back_group(back_group).path),
    }
    state = HookedStage()
    try:
        for hook in _of(hooks, "before"):
            _run(site, hook, environment | {"NIGHTFERRY_WHEN": "before"}, progress, cancel)
        yield state
    except BaseException:
        for failed in _after(site, hooks, environment, "failed", progress):
            log.error("%s", failed)
        raise
    for failed in _after(site, hooks, environment, state.result, progress):
        raise failed


def _of(hooks: list[Hook], when: HookWhen) -> list[Hook]:
    return [hook for hook in hooks if hook.when == when]


def _after(
    site: OpenSite, hooks: list[Hook], environment: dict[str, str], result: str, progress: Progress
) -> list[NightferryError]:
    """Runs every ``after`` hook, whatever becomes of the others; returns those that failed."""
    failed: list[NightferryError] = []
    for hook in _of(hooks, "after"):
        try:
            # A stop was perhaps asked for already: what puts things back in order runs all the same.
            _run(
                site,
                hook,
                environment | {"NIGHTFERRY_WHEN": "after", "NIGHTFERRY_RESULT": result},
                progress,
                Cancel(),
            )
        except (HookFailed, GroupStopping) as error:
            failed.append(error)
    return failed


def _run(site: OpenSite, hook: Hook, environment: dict[str, str], progress: Progress, cancel: Cancel) -> None:
    named = f"hook {hook.name} {hook.when} {hook.stage}"
    progress.say(f"{named}: runs", subject=environment["NIGHTFERRY_BACK_GROUP"])
    # It may open files on any disk of the night's that is here: its session is known to the reader agents.
    groups = resource_groups(site, environment["NIGHTFERRY_BACK_GROUP"])
    try:
        with registered_work(groups, cancel, if_here=True) as stop:
            ended = run_program(
                hook.command,
                deadline_s=hook.deadline,
                env=environment,
                cancel=stop,
                registers=partial(program_on, groups),
                keep_end_bytes=MOST_HOOK_OUTPUT_BYTES,
            )
    except (Cancelled, GroupStopping):
        raise
    except NightferryError as error:
        raise HookFailed(f"{named} failed: {error.message}", subject=hook.name) from error
    if ended.code != 0:
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        kept = _keep_output(site, hook, environment, how, ended)
        raise HookFailed(f"{named} failed with {how}; what it wrote: {kept}", subject=hook.name)


def _keep_output(site: OpenSite, hook: Hook, environment: dict[str, str], how: str, ended: Finished) -> str:
    """Keeps what a failed hook wrote on this node, where only this user reads it.

    It may say anything, secrets too, and no pattern finds them all: so none of it goes to a terminal, a log or
    Prefect. The secrets that this node knows of are taken out of the file as well. There is one file for each hook,
    stage and BACK group; the next failure replaces it.

    Returns:
        Where it lies; or why it could not be kept.
    """
    name = f"{hook.name}.{hook.when}-{hook.stage}.{environment['NIGHTFERRY_BACK_GROUP']}.txt"
    head = f"{site.clock.now():%Y-%m-%d %H:%M:%S}Z  run {environment['NIGHTFERRY_RUN']}  {how}\n"
    parts = [head.encode()]
    for title, output in (("stdout", ended.stdout), ("stderr", ended.stderr)):
        cut = (
            f", its last {format_size(MOST_HOOK_OUTPUT_BYTES)}"
            if len(output) > MOST_HOOK_OUTPUT_BYTES
            else ""
        )
        parts += [f"--- {title}{cut}\n".encode(), output[-MOST_HOOK_OUTPUT_BYTES:]]
    try:
        folder = make_private_folder(state_home() / f"{site.file.name}-hooks")
        write_private(folder / name, without(b"".join(parts), known_secrets(site.file)))
    except OSError as error:
        return f"not kept: {error.strerror}"
    return f"{site.local_node or site.host}:{folder / name}"
