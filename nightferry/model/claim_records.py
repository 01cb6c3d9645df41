"""Records of who has what: a BACK group's disk, the place of a group in the cluster, a run, a drive."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AwareDatetime

from nightferry.model.fields import (
    BackGroupName,
    Count,
    NodeText,
    SafeName,
)
from nightferry.model.record import Record


class OwnerRecord(Record):
    """Which node owns a BACK group's disk. The highest epoch wins."""

    kind: ClassVar[str] = "owner"
    back_group: BackGroupName
    epoch: Count
    node: NodeText
    run: str
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.back_group


class ConstraintRecord(Record):
    """What a move of ours put into the cluster to keep a group where it sent it.

    Recorded before it is put there, and again when it is taken back, so that any node knows it as ours.
    """

    kind: ClassVar[str] = "constraint"
    group: SafeName
    """The resource group."""
    node: NodeText
    """Where it pins the group, as the site calls the node."""
    before: str = ""
    """Where the constraint of ours that it replaces pinned the group."""
    state: Literal["placed", "taken back"]
    run: str
    at: AwareDatetime
    without_fencing: bool = False
    """The cluster had no fencing, and the site file allows a move all the same."""
    reason: str = ""
    """Why it was taken back."""

    @property
    def subject(self) -> str:
        return self.group


class LeaseRecord(Record):
    """Who may run a BACK group, reads from its disk or moves it, where no lock of an operating system reaches
    every node.

    The newest one counts: what is in the log after it was written under it, and by nobody before it.
    """

    kind: ClassVar[str] = "lease"
    back_group: BackGroupName
    what: str = ""
    """Empty: the run lock; ``move``; ``reader-`` and a word of its own for each reader."""
    state: Literal["held", "free"]
    run: str
    """Which run; for readers and movers what they are called."""
    window: str
    node: NodeText
    pid: Count
    since: AwareDatetime

    @property
    def subject(self) -> str:
        return f"{self.back_group}.{self.what}" if self.what else self.back_group


class DriveLeaseRecord(Record):
    """Which process may use a drive of a tape library, where no lock of an operating system reaches every host."""

    kind: ClassVar[str] = "drive-lease"
    serial: str
    state: Literal["held", "free"]
    holder: str
    """A random word for the process that has it, or had it last."""
    node: NodeText
    pid: Count
    since: AwareDatetime

    @property
    def subject(self) -> str:
        return self.serial
