"""The whole tree of errors.

Every error a user can meet is a class here. The class says what the command line exits with, whether a retry
can help, and what to do about it; the instance says what failed, and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class NightferryError(Exception):
    """Base of every error nightferry raises on purpose.

    Args:
        message: What went wrong, lower case, without a full stop, naming the thing.
        hint: What to do, one sentence; the class's own hint when empty.
        subject: The thing it was done to (a store, an image, a cartridge).
    """

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = "run again with --json and report the error with `nightferry support`"

    def __init__(self, message: str, *, hint: str = "", subject: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.subject = subject

    def as_json(self) -> dict[str, object]:
        """The contract's error document (docs/cli-json.md)."""
        return {
            "error": {
                "exit_code": self.exit_code,
                "message": self.message,
                "hint": self.hint,
                "subject": self.subject,
            }
        }


class ConfigError(NightferryError):
    """The site file, the command line or the machine is not as it must be."""

    exit_code = 2
    default_hint = "correct the site file or the command, then run `nightferry check`"


class NotInThisRelease(ConfigError):
    """Something the contract names and a later release delivers."""

    default_hint = "leave it out; CHANGELOG.md says what each release can do"


class ImplausibleExpiry(ConfigError):
    """The retention would take so much at once that a mistake is more likely than a wish."""

    default_hint = "check `nightferry expire --dry-run`; if this is intended, add --yes --reason TEXT"


class ClockAhead(ConfigError):
    """A record is stamped later than now: this node's clock is behind, or another's was ahead."""

    default_hint = (
        "set the clock of this node; if it is right and the stamp is wrong, "
        "run `nightferry backup --clock-is-right REASON`"
    )


class NotAccepted(ConfigError):
    """The catalog was rebuilt, and nobody has said yet that it is complete enough to remove by it."""

    default_hint = (
        "check `nightferry images`; if the catalog is right, run `nightferry catalog accept --reason TEXT`"
    )


class OtherSite(ConfigError):
    """A catalog or a destination that another site has to itself."""

    default_hint = 'give each site its own location; docs/operations.md, "Whose place it is"'


class SourceError(NightferryError):
    """A store could not be read as it should; what could be read was kept."""

    exit_code = 3
    default_hint = "check the store's per-file outcomes with `nightferry files`, then rerun the backup"


class StoreUnreadable(SourceError):
    """A store could not be read at all, perhaps only for now."""

    retryable = True
    default_hint = "check that the store is mounted and readable on this node, then rerun the backup"


class StagingFull(SourceError):
    """A store does not fit on the staging disk. Waiting does not make room."""

    default_hint = (
        "free space on staging (`nightferry status` lists what waits for copies) or enlarge the disk"
    )


class PartialResult(SourceError):
    """Everything ran, and something is partial: never green, never silently accepted."""

    default_hint = "check what was left out; rerun, or approve it"


class BusyError(NightferryError):
    """Another run of the same BACK group, or another user of the same thing, is at work."""

    exit_code = 10
    default_hint = "wait for the other run to end; `nightferry runs` shows it"


class DestinationError(NightferryError):
    """A destination refused, failed or is short of something."""

    exit_code = 20
    default_hint = "check the destination, then run `nightferry copy --missing --to` with its name"


class MediumFull(DestinationError):
    """The cartridge or folder has no room left."""

    default_hint = "add scratch cartridges, or free space at the destination"


class WrongCartridge(DestinationError):
    """The label, the barcode and the catalog do not agree on a cartridge."""

    default_hint = "nothing was written; `nightferry media show BARCODE` lists what is on it"


class WriteProtected(DestinationError):
    """The cartridge refuses to be written to: its switch, or WORM media that would be written over."""

    default_hint = (
        "clear the cartridge's write-protect switch; one that is written once (WORM) stays as it is: "
        "take it out of the pool, or `nightferry media retire` it"
    )


class NoScratch(DestinationError):
    """No cartridge of the pool may be written."""

    default_hint = "put blank cartridges of the pool into the library"


class PositionLost(DestinationError):
    """Where the tape stands is not known any more."""

    retryable = True
    default_hint = "nightferry loads the cartridge again and reads its label; rerun if this repeats"


class MediumDamaged(DestinationError):
    """A cartridge or object cannot be read or written where it should be."""

    default_hint = (
        "`nightferry verify --copy` finds what else is damaged there; `nightferry copy` makes it again"
    )


class NotACartridge(MediumDamaged):
    """What lies in a cartridge's place is none of ours, whatever drive looks: no drive is judged by it."""


class Unavailable(DestinationError):
    """The destination does not answer for now."""

    retryable = True
    default_hint = "check the destination's mount or network; the next run makes the missing copies"


class DriveTaken(DestinationError):
    """A drive is another host's by now; nothing of ours was written to it since."""

    default_hint = "this host sent no heartbeat for too long; the next run makes the missing copies"


class NeedsRecall(DestinationError):
    """The copy lies in an archive: it is there, and cannot be read before it was recalled."""

    default_hint = "a restore asks for the recall when no other copy can be read; `verify --recall` does too"


class CopyMissing(DestinationError):
    """A copy that the policy asks for is not there."""

    default_hint = "`nightferry backup --stage two` delivers what is owed once the cause is fixed"


class NotRemoved(DestinationError):
    """The destination removed nothing of a copy: all of it is still there."""

    default_hint = "give the key that expires the right to remove; docs/s3.md lists which are needed"


class Retained(NotRemoved):
    """The destination itself keeps a copy from being removed. That is not a failure: it was asked to."""

    default_hint = "the next `nightferry expire` tries again"


class NotVisible(DestinationError):
    """The key may not see what is there."""

    default_hint = "give the key the right to read; docs/s3.md lists which are needed"


class NotOurs(NotRemoved):
    """Nothing proves that what lies there was written by this site: it is left alone."""

    default_hint = "check it; remove by hand what is not needed, then run the command again"


class IntegrityError(NightferryError):
    """Bytes are not what the digests say. Nothing wrong was left looking whole."""

    exit_code = 30
    default_hint = "restore from another copy with --copy; `nightferry verify` finds every damaged copy"


class ProtocolError(NightferryError):
    """A peer broke the protocol."""

    exit_code = 40
    default_hint = "run `nightferry support` and check the peer's log"


class ClusterError(NightferryError):
    """The cluster is not in a state to go on."""

    exit_code = 50
    default_hint = "check `nightferry cluster view`"


class GateClosed(ClusterError):
    """The gate does not open: not every store is proven staged."""

    default_hint = "see `nightferry gate show`; then `gate retry`, or `gate approve` with a reason"


class MoveFailed(ClusterError):
    """A group did not arrive where it was sent."""

    default_hint = "check `nightferry cluster view`, fix the cluster, then rerun the backup"


class NotOwner(ClusterError):
    """This node does not own the disk (any more); nothing was written to it."""

    default_hint = "run on the node that owns the BACK group; `nightferry cluster view` names it"


class GroupStopping(ClusterError):
    """The cluster takes a group away from this node; our files on its disks were closed."""

    default_hint = "rerun when the cluster has started it elsewhere; `nightferry cluster view` shows where"


class NodeAway(ClusterError):
    """A node does not do the work that is its own."""

    default_hint = "start the node and its worker again, then rerun: the night continues where it stopped"


class PartFailed(ClusterError):
    """A part of the work failed on another node."""

    default_hint = "check its flow run in the Prefect UI, fix what it names, then rerun"


class HookFailed(ClusterError):
    """A program that runs before or after a stage failed, and the stage with it."""

    default_hint = "fix what the hook reports, then rerun: the night continues where it stopped"


class CatalogError(NightferryError):
    """The catalog cannot be read or written."""

    exit_code = 60
    default_hint = "check that the catalog's folder is mounted and writable on this node"


class PrefectRequired(NightferryError):
    """The Prefect server is needed here, and away."""

    exit_code = 70
    default_hint = "start the server (`prefect server start`) or unset PREFECT_API_URL to use the site's own"


class Cancelled(NightferryError):
    """An operator or a signal asked to stop."""

    exit_code = 130
    default_hint = "rerun: finished stores are kept, and nothing half-written counts as whole"


def in_tree(error: NightferryError) -> NightferryError:
    """The error as one of this module's classes, by whose name another process knows it again: itself, or the
    nearest class above its own, with all that it says."""
    known = next(kind for kind in type(error).__mro__ if kind.__module__ == __name__)
    if known is type(error):
        return error
    named: NightferryError = known(error.message, hint=error.hint, subject=error.subject)
    return named


_PRECEDENCE = (130, 143, 30, 60, 50, 20, 40, 70, 10, 2, 1, 3)


def worst_exit_code(codes: Iterable[int]) -> int:
    """The one exit code for several outcomes; 0 when there is none.

    The order is the contract's: 130, 30, 60, 50, 20, 40, 10, 3; what it does not name comes where it does
    least harm.
    """
    present = set(codes) - {0}
    for code in _PRECEDENCE:
        if code in present:
            return code
    return max(present, default=0)
