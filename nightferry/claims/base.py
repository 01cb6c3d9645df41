"""Claims: the right to use something, alone or together with others of one kind, on all nodes.

Two things are claimed by name. A BACK group is claimed **exclusively** by the one process that runs it. Its disk is
**shared** by whoever reads from it, and held alone by whoever moves it. Where every node reaches a folder the operating
system keeps the claims (``claims/flock.py``), else the log of the catalog does (``claims/log.py``); a claim ends with
its process, or when its holder has been silent for too long.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict

from nightferry.errors import BusyError
from nightferry.progress import Cancel

Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Says nothing."""


class Holder(BaseModel):
    """Who holds a BACK group."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str
    window: str
    node: str
    pid: int
    since: AwareDatetime

    @property
    def key(self) -> str:
        """Tells this holding from every other."""
        return f"{self.node}/{self.pid}/{self.since.isoformat()}"

    def __str__(self) -> str:
        called = f"run {self.run}" if self.run else "a run"
        return f"{called} on node {self.node} (process {self.pid}) since {self.since:%F %H:%M} UTC"


class Reader(BaseModel):
    """Somebody who reads from a disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    who: str
    host: str
    pid: int
    since: AwareDatetime


class Claim(Protocol):
    """The right to run a BACK group: at most one process on all nodes has it."""

    back_group: str

    @property
    def held(self) -> bool:
        """Whether this object holds it."""

    @property
    def since(self) -> datetime:
        """When this object took it.

        Raises:
            BusyError: it has not.
        """

    def acquire(
        self, run: str, window: str, *, say: Say = quiet, lost: Say = quiet, cancel: Cancel | None = None
    ) -> Self:
        """Takes it, or says who has it.

        Args:
            run: The run it is for, if that is known yet.
            window: Its window.
            say: Is told what is waited for.
            lost: Is called, from another thread, when somebody else took it over.
            cancel: Ends the waiting.

        Raises:
            BusyError: another run holds it; names the run, the node and the process.
            CatalogError: it cannot be taken.
        """

    def name_run(self, run: str) -> None:
        """Says which run holds it, to whoever finds it taken.

        Raises:
            BusyError: this object has not taken it.
        """

    def require(self) -> None:
        """Raises:
        BusyError: somebody else took it over.
        """

    def release(self) -> None:
        """Gives it back; may be called twice."""

    def holder(self) -> Holder | None:
        """Who holds it now; None when nobody does.

        Raises:
            CatalogError: that cannot be seen.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Shared(Protocol):
    """The use of one BACK group's disk."""

    def read(self, who: str, *, warn: Say | None = None) -> AbstractContextManager[Reader]:
        """Keeps the disk where it is while the block runs.

        Args:
            who: What reads, for people: ``stage two of 20261130-TEX-BACK-1``.
            warn: Is told when the claim cannot be written down, and the block runs all the same. For restores; None:
                that is an error.

        Raises:
            BusyError: the disk is about to move.
            ClusterError, CatalogError: it cannot be written down.
        """

    def exclusive(self) -> AbstractContextManager[None]:
        """Keeps readers out while the block runs: for the move.

        Raises:
            BusyError: somebody reads; the message names them.
            ClusterError, CatalogError: it cannot be written down.
        """

    def readers(self) -> list[Reader]:
        """Who reads from the disk now, the oldest first."""

    def clear(self) -> None:
        """Removes what readers that were killed left.

        Raises:
            ClusterError: it cannot be removed.
        """


class Claims(Protocol):
    """Where claims are made."""

    def exclusive(self, back_group: str) -> Claim:
        """The right to run a BACK group, not yet taken."""

    def shared(self, back_group: str) -> Shared:
        """The use of its disk."""


def busy(back_group: str, holder: Holder | None) -> BusyError:
    """What whoever comes second is told."""
    return BusyError(f"{back_group} is busy: {holder or 'another process'}", subject=back_group)


def held_here(back_group: str) -> BusyError:
    return BusyError(f"{back_group} is already locked by this process", subject=back_group)


def not_held(back_group: str) -> BusyError:
    return BusyError(f"{back_group} is not locked by this object", subject=back_group)
