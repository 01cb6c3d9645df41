"""What a BACK group's disk itself says: who owns it, what was sealed and approved on it.

Everything lies in ``.nightferry`` at the disk's top, so that it moves with the disk. Owner tokens *detect* a
second owner, they do not keep one away: that is the cluster's fencing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import ClusterError, IntegrityError, NotOwner
from nightferry.model.names import parse_run
from nightferry.model.records import ApprovalRecord, SealRecord
from nightferry.transfer.durable import DRAFT_PREFIX, create_file, remove_dead_drafts, sync_folder
from nightferry.transfer.regular import read_regular

FOLDER = ".nightferry"
TOKENS_KEPT = 8
_MOST_BYTES = 64 << 20
"""No token, seal or approval is longer."""

_TOKEN = re.compile(r"owner\.([0-9]{1,12})")
_SEAL = re.compile(r"seal\.([0-9]{1,6})\.json")
_M = TypeVar("_M", bound=BaseModel)


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _leased(
    method: Callable[Concatenate[BackDisk, _P], _R],
) -> Callable[Concatenate[BackDisk, _P], _R]:
    """A method that opens files on the disk: it holds a lease meanwhile."""

    @wraps(method)
    def call(disk: BackDisk, /, *arguments: _P.args, **more: _P.kwargs) -> _R:
        with disk.leased():
            return method(disk, *arguments, **more)

    return call


class OwnerToken(BaseModel):
    """Which node owns the disk. The highest epoch wins."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    epoch: int
    node: str
    run: str
    at: AwareDatetime


class BackDisk:
    """The disk of one BACK group, mounted at ``path`` on this node.

    Args:
        path: The mount point.
        clock: Dates tokens.
        leased: Held while a file on the disk is open; may refuse with a ``ClusterError``.

    Raises:
        ClusterError: the path is not there, or is no folder: the disk is not on this node.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock = SYSTEM_CLOCK,
        *,
        leased: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.path = path
        self._clock = clock
        self.leased = leased
        self._require_disk()

    @property
    def folder(self) -> Path:
        """Where the disk keeps what it says, ``.nightferry``."""
        return self.path / FOLDER

    @_leased
    def owner(self) -> OwnerToken | None:
        """The owner of record; None on a disk that nobody took yet.

        Raises:
            ClusterError: the disk is away, or its newest token cannot be read.
        """
        self._require_disk()
        epochs = self._epochs()
        return _load(self.folder / f"owner.{epochs[-1]}", OwnerToken) if epochs else None

    @_leased
    def take(self, node: str, run: str, expected_epoch: int, *, above: int = 0) -> OwnerToken:
        """Makes ``node`` the owner, with the next epoch; durable on return.

        Args:
            node: The new owner.
            run: For which run.
            expected_epoch: The epoch the caller saw; 0 for a disk that nobody took yet.
            above: The new epoch is above this one too: a disk that takes another's place goes on counting.

        Raises:
            NotOwner: somebody else took the disk since then; their token stands.
            ClusterError: the disk cannot be written.
        """
        present = self.owner()
        epoch = present.epoch if present is not None else 0
        if epoch == expected_epoch:
            token = OwnerToken(epoch=max(epoch, above) + 1, node=node, run=run, at=self._clock.now())
            try:
                self._create(self._made(self.folder) / f"owner.{token.epoch}", token)
            except FileExistsError:
                present = self.owner()
            else:
                self._prune()
                return token
        holder = f"{present.node} with epoch {present.epoch}" if present is not None else "nobody"
        raise NotOwner(
            f"the disk {self.path} belongs to {holder}, not to epoch {expected_epoch} any more",
            operation="take",
            subject=str(self.path),
        )

    @_leased
    def confirm(self, token: OwnerToken) -> None:
        """Raises:
        NotOwner: ``token`` is not the newest any more; its holder must not write.
        """
        present = self.owner()
        if present != token:
            holder = f"{present.node} with epoch {present.epoch}" if present is not None else "nobody"
            raise NotOwner(
                f"the disk {self.path} belongs to {holder}, not to {token.node} with epoch {token.epoch}",
                subject=str(self.path),
            )

    @_leased
    def write_seal(self, seal: SealRecord) -> None:
        """Keeps a seal; durable on return. The same seal again changes nothing.

        Raises:
            IntegrityError: another seal of this run already has the number.
            ClusterError: the disk cannot be written.
        """
        path = self._made(self._run_folder(seal.run)) / f"seal.{seal.number}.json"
        self._write_once(path, seal, lambda: _load(path, SealRecord))

    @_leased
    def read_seal(self, run: str) -> SealRecord | None:
        """The run's newest seal; None when it was not sealed here."""
        self._require_disk()
        folder = self._run_folder(run)
        numbers = sorted(int(m[1]) for path in _entries(folder) if (m := _SEAL.fullmatch(path.name)))
        return _load(folder / f"seal.{numbers[-1]}.json", SealRecord) if numbers else None

    @_leased
    def write_approval(self, approval: ApprovalRecord) -> None:
        """Keeps an approval; durable on return. The same approval again changes nothing."""
        digest = hashlib.sha256(_dump(approval)).hexdigest()[:24]
        path = self._made(self._run_folder(approval.run)) / f"approval.{digest}.json"
        self._write_once(path, approval, lambda: _load(path, ApprovalRecord))

    @_leased
    def read_approvals(self, run: str) -> list[ApprovalRecord]:
        """The run's approvals, the oldest first."""
        self._require_disk()
        found = [
            _load(path, ApprovalRecord)
            for path in _entries(self._run_folder(run))
            if path.name.startswith("approval.") and path.suffix == ".json"
        ]
        return sorted(found, key=lambda approval: approval.at)

    @_leased
    def clear(self, expired: Collection[str]) -> None:
        """Removes the seals and approvals of runs that have expired, and what writers that died left unfinished.

        Raises:
            ClusterError: the disk is away, or cannot be written.
        """
        self._require_disk()
        with self._written():
            for folder in _entries(self.folder / "seals"):
                if folder.is_symlink() or not folder.is_dir():
                    continue
                if folder.name not in expired:
                    remove_dead_drafts(folder)
                    continue
                for path in _entries(folder):
                    if _SEAL.fullmatch(path.name) or path.name.startswith(("approval.", DRAFT_PREFIX)):
                        path.unlink(missing_ok=True)
                if not _entries(folder):
                    folder.rmdir()
            remove_dead_drafts(self.folder)

    def _require_disk(self) -> None:
        if not self.path.is_dir():
            raise ClusterError(
                f"the BACK group's disk is not here: {self.path}",
                hint="mount it, or run on the node that owns it; `nightferry cluster view` names that node",
                subject=str(self.path),
            )

    def _made(self, folder: Path) -> Path:
        """The folder, created durably below ``.nightferry``, never the disk's own mount point."""
        self._require_disk()
        missing = [level for level in (folder, *folder.parents) if level != self.path and not level.exists()]
        with self._written():
            for level in reversed(missing):
                level.mkdir(mode=0o700, exist_ok=True)
                sync_folder(level.parent)
        return folder

    def _create(self, path: Path, record: BaseModel) -> None:
        """Raises:
        FileExistsError: the name is taken.
        ClusterError: the disk is full, or fails.
        """
        with self._written():
            create_file(path, _dump(record))

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise ClusterError(
                f"cannot write to the BACK group's disk {self.path}: {error.strerror}",
                hint="look at the disk (its free room, the kernel's log), then run again",
                subject=str(self.path),
            ) from error

    def _run_folder(self, run: str) -> Path:
        return self.folder / "seals" / str(parse_run(run))

    def _epochs(self) -> list[int]:
        return sorted(int(m[1]) for path in _entries(self.folder) if (m := _TOKEN.fullmatch(path.name)))

    def _prune(self) -> None:
        for epoch in self._epochs()[:-TOKENS_KEPT]:
            (self.folder / f"owner.{epoch}").unlink(missing_ok=True)

    def _write_once(self, path: Path, record: _M, present: Callable[[], _M]) -> None:
        try:
            self._create(path, record)
        except FileExistsError:
            if present() != record:
                raise IntegrityError(
                    f"{path} already says something else",
                    hint="nothing was changed; look at both with `nightferry gate show`",
                    subject=str(path),
                ) from None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _dump(record: BaseModel) -> bytes:
    return (json.dumps(record.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()


def _load(path: Path, model: type[_M]) -> _M:
    try:
        return model.model_validate_json(read_regular(path, _MOST_BYTES))
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not what it should be"
        raise ClusterError(
            f"cannot read {path}: {reason}",
            hint="compare the BACK disk with the catalog before anything is written to it",
            subject=str(path),
        ) from error
