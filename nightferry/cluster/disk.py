"""What a BACK group's disk itself says: who owns it, what was sealed and approved on it.

Everything lies in ``.nightferry`` at the disk's top, so that it moves with the disk. Owner tokens *detect* a
second owner, they do not keep one away: that is the cluster's fencing.
"""

from __future__ import annotations

import hashlib
import json
import os
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
from nightferry.transfer.below import LINK, open_folder
from nightferry.transfer.durable import DRAFT_PREFIX, create_file, remove_dead_drafts
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


@contextmanager
def disk_errors(disk: Path) -> Iterator[None]:
    """Raises:
    FileExistsError: as it is.
    ClusterError: the disk is full, or fails, or a link stands in the place of one of its folders.
    """
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise _unusable(error, disk) from error


def _unusable(error: OSError, disk: Path) -> ClusterError:
    if error.errno == LINK:
        return ClusterError(
            f"{error.filename} on the BACK group's disk is a symbolic link, not a folder",
            hint="find out who made it, and replace it with the folder itself: symbolic links are not followed",
            subject=str(disk),
        )
    return ClusterError(
        f"cannot write to the BACK group's disk {disk}: {error.strerror}",
        hint="check the disk (free space, kernel log), then run again",
        subject=str(disk),
    )


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
        ClusterError: the path is not there, or is not a folder: the disk is not on this node.
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
        """Where the disk keeps what it says, for people; nothing is opened by it."""
        return self.path / FOLDER

    @contextmanager
    def _at(self, *names: str, make: bool = False) -> Iterator[Path]:
        """A folder below ``.nightferry``, under a path that leads to its descriptor; a missing one is made durably,
        never the disk's own mount point.

        Raises:
            FileNotFoundError: it is not there, and not to be made.
            ClusterError: a symbolic link stands in its place; the disk cannot be written.
        """
        self._require_disk()
        try:
            fd = open_folder(self.path, (FOLDER, *names), mode=0o700 if make else None)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unusable(error, self.path) from error
        try:
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    @_leased
    def owner(self) -> OwnerToken | None:
        """The owner of record; None on a disk that nobody took yet.

        Raises:
            ClusterError: the disk is away, or its newest token cannot be read.
        """
        try:
            with self._at() as folder:
                epochs = _epochs(folder)
                return self._load(folder / f"owner.{epochs[-1]}", OwnerToken) if epochs else None
        except FileNotFoundError:
            return None

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
            with self._at(make=True) as folder:
                try:
                    self._create(folder / f"owner.{token.epoch}", token)
                except FileExistsError:
                    present = self.owner()
                else:
                    for old in _epochs(folder)[:-TOKENS_KEPT]:
                        (folder / f"owner.{old}").unlink(missing_ok=True)
                    return token
        holder = f"{present.node} with epoch {present.epoch}" if present is not None else "nobody"
        raise NotOwner(
            f"the disk {self.path} belongs to {holder}, no longer to epoch {expected_epoch}",
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
        self._write_once(seal.run, f"seal.{seal.number}.json", seal)

    @_leased
    def read_seal(self, run: str) -> SealRecord | None:
        """The run's newest seal; None when it was not sealed here."""
        try:
            with self._at(*_seals_of(run)) as folder:
                numbers = sorted(int(m[1]) for name in os.listdir(folder) if (m := _SEAL.fullmatch(name)))
                return self._load(folder / f"seal.{numbers[-1]}.json", SealRecord) if numbers else None
        except FileNotFoundError:
            return None

    @_leased
    def write_approval(self, approval: ApprovalRecord) -> None:
        """Keeps an approval; durable on return. The same approval again changes nothing."""
        digest = hashlib.sha256(_dump(approval)).hexdigest()[:24]
        self._write_once(approval.run, f"approval.{digest}.json", approval)

    @_leased
    def read_approvals(self, run: str) -> list[ApprovalRecord]:
        """The run's approvals, the oldest first."""
        try:
            with self._at(*_seals_of(run)) as folder:
                found = [
                    self._load(folder / name, ApprovalRecord)
                    for name in sorted(os.listdir(folder))
                    if name.startswith("approval.") and name.endswith(".json")
                ]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda approval: approval.at)

    @_leased
    def clear(self, expired: Collection[str]) -> None:
        """Removes the seals and approvals of runs that have expired, and what writers that died left unfinished.

        Raises:
            ClusterError: the disk is away, or cannot be written.
        """
        try:
            with self._at() as top, disk_errors(self.path):
                for run in self._runs_with_seals():
                    self._clear_run(run, expired)
                remove_dead_drafts(top)
        except FileNotFoundError:
            return

    def _runs_with_seals(self) -> list[str]:
        try:
            with self._at("seals") as seals, os.scandir(seals) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def _clear_run(self, run: str, expired: Collection[str]) -> None:
        with self._at("seals", run) as folder:
            if run not in expired:
                remove_dead_drafts(folder)
                return
            for name in os.listdir(folder):
                if _SEAL.fullmatch(name) or name.startswith(("approval.", DRAFT_PREFIX)):
                    (folder / name).unlink(missing_ok=True)
            empty = not os.listdir(folder)
        if empty:
            with self._at("seals") as seals:
                (seals / run).rmdir()

    def _require_disk(self) -> None:
        if not self.path.is_dir():
            raise ClusterError(
                f"the BACK group's disk is not here: {self.path}",
                hint="mount it, or run on the node that owns it; `nightferry cluster view` names that node",
                subject=str(self.path),
            )

    def _create(self, path: Path, record: BaseModel) -> None:
        """Raises:
        FileExistsError: the name is taken.
        ClusterError: the disk is full, or fails.
        """
        with disk_errors(self.path):
            create_file(path, _dump(record))

    def _write_once(self, run: str, name: str, record: BaseModel) -> None:
        with self._at(*_seals_of(run), make=True) as folder:
            try:
                self._create(folder / name, record)
            except FileExistsError:
                if self._load(folder / name, type(record)) != record:
                    path = self.folder.joinpath(*_seals_of(run), name)
                    raise IntegrityError(
                        f"{path} already has other content",
                        hint="nothing was changed; compare both with `nightferry gate show`",
                        subject=str(path),
                    ) from None

    def _load(self, path: Path, model: type[_M]) -> _M:
        try:
            return model.model_validate_json(read_regular(path, _MOST_BYTES))
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not have the expected content"
            shown = os.readlink(path.parent) + f"/{path.name}"
            raise ClusterError(
                f"cannot read {shown}: {reason}",
                hint="compare the BACK disk with the catalog before anything is written to it",
                subject=shown,
            ) from error


def _seals_of(run: str) -> tuple[str, str]:
    return "seals", str(parse_run(run))


def _epochs(folder: Path) -> list[int]:
    return sorted(int(m[1]) for name in os.listdir(folder) if (m := _TOKEN.fullmatch(name)))


def _dump(record: BaseModel) -> bytes:
    return (json.dumps(record.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()
