"""What the site file says of programs that run before and after a stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nightferry.model.fields import Argv, BackGroupName, Duration, SafeName, Section

HookStage = Literal["stage-one", "move", "stage-two"]
HookWhen = Literal["before", "after"]


class Hook(Section):
    """``[[hooks]]``: a program that runs before or after a stage, on the node where the stage runs.

    A stage fails with its hook: a ``before`` hook keeps it from beginning. An ``after`` hook runs also when the
    stage failed.
    """

    name: SafeName
    description: str = ""
    stage: HookStage
    """``move`` is every move of the disk, to the active node as well as through the gate."""
    when: HookWhen
    command: Argv
    deadline: Annotated[Duration, Field(gt=0)] = 300.0
    """After this time the program is killed with its children, and has failed."""
    back_groups: tuple[BackGroupName, ...] = ()
    """Only for these; empty: for all."""

    def is_for(self, back_group: str) -> bool:
        return not self.back_groups or back_group in self.back_groups
