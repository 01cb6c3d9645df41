"""Owner, attributes, ACL, mode and times of one restored file: set by descriptor, then read back."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from nightferry.errors import ConfigError
from nightferry.image.attributes import add_flags, letters

ACL_ACCESS = "system.posix_acl_access"
ACL_DEFAULT = "system.posix_acl_default"
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_NO_ID = (1 << 32) - 1

_CANNOT = frozenset(
    {
        errno.EPERM,
        errno.EACCES,
        errno.EINVAL,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.E2BIG,
        errno.ERANGE,
        errno.ENODATA,
        errno.EOVERFLOW,
    }
)
"""What a file system or a caller without rights answers: a loss, not the restore's end."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What an image says about one file beside its content.

    ``mode`` is the permission bits (0o7777); names may be empty; ``xattrs`` are by full name
    (``user.x``), POSIX ACLs among them in the kernel's own form (``system.posix_acl_access``). ``flags`` are inode
    flags, which ``apply_metadata`` leaves alone: see ``give_flags``.
    """

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    uname: str = ""
    gname: str = ""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    flags: int = 0


class Owners:
    """Names of an image → numbers of this machine.

    A name that this machine knows wins over the number, as with tar. ``mapping`` goes before both:
    ``{"alice": "bob", "1000": "2000", ":staff": ":users"}``; users plain, groups with a colon, each a
    name or a number. Numbers inside ACLs are kept as they are.

    Raises:
        ConfigError: a mapping's right side is neither a number nor known here, or the sides are not of
            one kind.
    """

    def __init__(self, mapping: Mapping[str, str] | None = None) -> None:
        self._mapping: dict[str, int] = {}
        for old, new in (mapping or {}).items():
            if old.startswith(":") != new.startswith(":") or not old.strip(":") or not new.strip(":"):
                raise ConfigError(
                    f"cannot map owner {old!r} to {new!r}",
                    hint="write OLD=NEW for users and :OLD=:NEW for groups, each a name or a number",
                )
            number = _number(new)
            if number is None:
                raise ConfigError(
                    f"cannot map owner {old!r}: {new!r} is not known on this node",
                    hint="create it first, or give a number",
                )
            self._mapping[old] = number

    def uid(self, metadata: Metadata) -> int:
        """The user who is to own the file here."""
        return self._resolve("", metadata.uname, metadata.uid)

    def gid(self, metadata: Metadata) -> int:
        """The group that is to own the file here."""
        return self._resolve(":", metadata.gname, metadata.gid)

    def _resolve(self, kind: str, name: str, number: int) -> int:
        for key in (name, str(number)):
            mapped = self._mapping.get(kind + key) if key else None
            if mapped is not None:
                return mapped
        known = _number(kind + name) if name and not name.isdecimal() else None
        return number if known is None else known


@lru_cache(maxsize=4096)
def _number(text: str) -> int | None:
    """``alice``, ``1000``, ``:staff`` → a number of this machine; None when it is not known."""
    name = text.removeprefix(":")
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid if text.startswith(":") else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def xattr_is_privileged(name: str) -> bool:
    """Whether an attribute can give rights (file capabilities, labels) and so needs ``--privileged``."""
    return not name.startswith("user.") and name not in (ACL_ACCESS, ACL_DEFAULT)


def apply_metadata(target: int | str, wanted: Metadata, owners: Owners, *, privileged: bool) -> list[str]:
    """Gives a file its owner, attributes and ACL, mode and time, in this order.

    The order is what makes it right: changing the owner clears setuid bits and capabilities, an ACL
    rewrites the group bits, and the mode is final only when the owner is. At the end the file is read
    back; what the file system took differently is a loss too.

    Args:
        target: A descriptor; or ``/proc/self/fd/N`` of an O_PATH descriptor for what cannot be opened
            (symbolic links, FIFOs, devices). Never a plain path.
        wanted: From the image.
        owners: How names become numbers.
        privileged: Whether setuid, setgid and privileged attributes may be set.

    Returns:
        What could not be carried over, in words.
    """
    losses: list[str] = []
    uid, gid = owners.uid(wanted), owners.gid(wanted)
    _chown(target, uid, gid)
    now = os.stat(target)
    owned = (now.st_uid, now.st_gid) == (uid, gid)
    if not owned:
        losses.append(f"owner {uid}:{gid}, is {now.st_uid}:{now.st_gid}")

    _set_xattrs(target, wanted.xattrs, privileged, losses)

    mode = wanted.mode & 0o7777
    if mode & _SPECIAL_BITS and not (privileged and owned):
        why = "needs --privileged" if not privileged else "not without its owner"
        losses.append(f"{_special_words(mode)}: {why}")
        mode &= ~_SPECIAL_BITS
    is_symlink = stat.S_ISLNK(now.st_mode)
    if not is_symlink:
        with _tolerated():
            os.chmod(target, mode)
    with _tolerated():
        os.utime(target, ns=(time.time_ns(), wanted.mtime_ns))

    after = os.stat(target)
    if not is_symlink and stat.S_IMODE(after.st_mode) != mode:
        losses.append(f"mode {mode:04o}, is {stat.S_IMODE(after.st_mode):04o}")
    if after.st_mtime_ns != wanted.mtime_ns:
        losses.append(f"mtime {_seconds(wanted.mtime_ns)}, is {_seconds(after.st_mtime_ns)}")
    return losses


def give_flags(fd: int, flags: int) -> list[str]:
    """Sets inode flags; returns what could not be set, in words."""
    try:
        missing = add_flags(fd, flags)
    except OSError as error:
        return [f"inode flags {letters(flags)}: {os.strerror(error.errno or 0)}"]
    return [f"inode flags {letters(missing)}"] if missing else []


class _tolerated:
    """Lets pass what a file system cannot do; the read-back in ``apply_metadata`` says so."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        # A time that the machine's own clock type cannot hold.
        return (isinstance(error, OSError) and error.errno in _CANNOT) or isinstance(error, OverflowError)


def _chown(target: int | str, uid: int, gid: int) -> None:
    now = os.stat(target)
    # 2^32-1 would mean "leave as it is", and an image may say any number.
    if (now.st_uid, now.st_gid) == (uid, gid) or not (0 <= uid < _NO_ID and 0 <= gid < _NO_ID):
        return
    try:
        os.chown(target, uid, gid)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        # Without root a file can still be given to another of the caller's own groups.
        with _tolerated():
            os.chown(target, -1, gid)


def _set_xattrs(target: int | str, wanted: Mapping[str, bytes], privileged: bool, losses: list[str]) -> None:
    _drop_inherited_acl(target, wanted)
    for name, value in wanted.items():
        what = "ACL" if name in (ACL_ACCESS, ACL_DEFAULT) else f"attribute {name}"
        if xattr_is_privileged(name) and not privileged:
            losses.append(f"{what}: needs --privileged")
            continue
        if "\0" in name:
            losses.append(f"{what}: not a name")
            continue
        try:
            os.setxattr(target, name, value)
        except OSError as error:
            # ext4 answers ENOSPC for an attribute that is larger than it can hold.
            if error.errno not in _CANNOT and error.errno != errno.ENOSPC:
                raise
            losses.append(f"{what}: {os.strerror(error.errno)}")


def _drop_inherited_acl(target: int | str, wanted: Mapping[str, bytes]) -> None:
    """Takes away an ACL that a directory's default ACL gave to a new file, or that an older restore left."""
    try:
        present = os.listxattr(target)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return
    for name in (ACL_ACCESS, ACL_DEFAULT):
        if name in present and name not in wanted:
            with _tolerated():
                os.removexattr(target, name)


def _special_words(mode: int) -> str:
    return " and ".join(
        word for bit, word in ((stat.S_ISUID, "setuid"), (stat.S_ISGID, "setgid")) if mode & bit
    )


def _seconds(time_ns: int) -> str:
    sign = "-" if time_ns < 0 else ""
    whole, rest = divmod(abs(time_ns), 10**9)
    return f"{sign}{whole}.{rest:09d}"
