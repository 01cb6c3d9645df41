"""Extended attributes, POSIX ACLs and inode flags: as the kernel has them, as a tar member has them.

ACLs travel as text with numeric ids (``SCHILY.acl.*``, star's and GNU tar's convention), because GNU tar
restores nothing else. Source of the kernel's binary form: ``linux/posix_acl_xattr.h``.

Inode flags, as ``lsattr`` shows and ``chattr`` sets them. Source: ``<linux/fs.h>`` (FS_IOC_GETFLAGS, FS_*_FL),
ioctl_iflags(2), chattr(1) for the letters.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from blake3 import blake3

from nightferry.errors import IntegrityError
from nightferry.image.pax import pax_record
from nightferry.model.text import safe

_LONG: Final = struct.calcsize("l")
_GETFLAGS: Final = 2 << 30 | _LONG << 16 | ord("f") << 8 | 1
_SETFLAGS: Final = 1 << 30 | _LONG << 16 | ord("f") << 8 | 2

APPEND: Final = 0x20
IMMUTABLE: Final = 0x10
_LETTERS: Final = {
    "s": 0x1, "u": 0x2, "S": 0x8, "D": 0x1_0000, "i": IMMUTABLE, "a": APPEND, "d": 0x40, "A": 0x80, "c": 0x4,
    "j": 0x4000, "t": 0x8000, "T": 0x2_0000, "m": 0x400, "C": 0x80_0000, "x": 0x200_0000, "P": 0x2000_0000,
    "F": 0x4000_0000,
}  # fmt: skip
"""The flags an operator sets. Those that say how a file system stores a file (extents, inline data, encryption,
verity) are its own affair."""
_KEPT: Final = sum(_LETTERS.values())

FREEZING: Final = APPEND | IMMUTABLE
"""Nothing can be written, renamed or linked any more where these are set, and only root may set them."""

_NO_FLAGS: Final = {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES}


XATTR_PREFIX = b"SCHILY.xattr."
PAX_ACL_ACCESS = b"SCHILY.acl.access"
PAX_ACL_DEFAULT = b"SCHILY.acl.default"
_ACL_VERSION = 2
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_TAGS = {0x01: b"user", 0x02: b"user", 0x04: b"group", 0x08: b"group", 0x10: b"mask", 0x20: b"other"}
_NAMED_TAGS = {0x02, 0x08}
_NO_ID = 0xFFFFFFFF
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.ENODATA, errno.ENOSYS}
_NO_SUCH_PATH = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def read_flags(fd: int) -> int:
    """The flags of an open file or directory that ``chattr`` can set; 0 where the file system has none.

    Raises:
        OSError: they cannot be read.
    """
    return _get(fd) & _KEPT


def add_flags(fd: int, flags: int) -> int:
    """Sets flags as far as the file system and the caller's rights go; those that are set stay.

    Returns:
        The flags that are not set afterwards.

    Raises:
        OSError: they cannot be read.
    """
    now = _get(fd)
    missing = flags & ~now
    if missing and not _set(fd, now | missing):
        # One flag that this file system does not know must not cost the others.
        for flag in _LETTERS.values():
            if flag & missing and _set(fd, now | flag):
                now |= flag
    return flags & ~_get(fd) if missing else 0


def letters(flags: int) -> str:
    """As ``lsattr`` writes them, without the dashes."""
    return "".join(letter for letter, flag in _LETTERS.items() if flags & flag)


def _get(fd: int) -> int:
    try:
        found = fcntl.ioctl(fd, _GETFLAGS, bytes(_LONG))
    except OSError as error:
        if error.errno in _NO_FLAGS:
            return 0
        raise
    return int(struct.unpack_from("=I", found)[0])  # the kernel fills an int, whatever the call's name says


def _set(fd: int, flags: int) -> bool:
    try:
        fcntl.ioctl(fd, _SETFLAGS, struct.pack("=I", flags).ljust(_LONG, b"\0"))
    except OSError:
        return False  # what came of it is read back
    return True


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a file carries beyond its mode.

    ``xattrs`` are (name, value) pairs sorted by name, without ``system.*``; the ACLs are text, one entry a
    line, empty when the mode says everything. ``flags`` are inode flags, which no tar member carries; ``lost`` says
    what could not be read, and why.
    """

    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    acl_access: bytes = b""
    acl_default: bytes = b""
    flags: int = 0
    lost: tuple[str, ...] = ()

    def records(self) -> list[tuple[bytes, bytes]]:
        """The ``SCHILY.*`` records of a tar member, ordered by keyword."""
        records = [(XATTR_PREFIX + encode_keyword(name), value) for name, value in self.xattrs]
        if self.acl_access:
            records.append((PAX_ACL_ACCESS, self.acl_access))
        if self.acl_default:
            records.append((PAX_ACL_DEFAULT, self.acl_default))
        return sorted(records)

    def digest(self) -> bytes | None:
        """BLAKE3 of the pax records; None when there are none."""
        records = self.records()
        return blake3(b"".join(pax_record(k, v) for k, v in records)).digest() if records else None


NO_ATTRIBUTES = Attributes()


def encode_keyword(name: bytes) -> bytes:
    """An attribute's name as it may stand before the ``=`` of a pax record (GNU tar's escapes)."""
    return name.replace(b"%", b"%25").replace(b"=", b"%3D")


def decode_keyword(name: bytes) -> bytes:
    """The inverse of :func:`encode_keyword`."""
    return name.replace(b"%3D", b"=").replace(b"%25", b"%")


def read_attributes(target: int | bytes) -> Attributes:
    """Reads what a file carries. What cannot be read is lost, and said; it does not cost the file's content.

    Args:
        target: A descriptor, or a path whose last component is not followed. Only a descriptor has flags.

    Raises:
        OSError: the path is not there any more.
    """
    found: dict[bytes, bytes] = {}
    lost: list[str] = []
    flags = 0
    follow = isinstance(target, int)
    try:
        if isinstance(target, int):
            flags = read_flags(target)
    except OSError as error:
        lost.append(f"flags: {error.strerror}")
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NO_SUCH_PATH:
            raise
        if error.errno not in _NO_ATTRIBUTES:
            lost.append(f"attributes: {error.strerror}")
        names = []
    for name in names:
        raw_name = os.fsencode(name)
        is_acl = raw_name in (b"system.posix_acl_access", b"system.posix_acl_default")
        if raw_name.startswith(b"system.") and not is_acl:
            continue
        try:
            value = os.getxattr(target, name, follow_symlinks=follow)
            found[raw_name] = acl_to_text(value) if is_acl else value
        except OSError as error:
            if error.errno in _NO_SUCH_PATH:
                raise
            if error.errno != errno.ENODATA:  # removed since it was listed
                lost.append(f"attribute {safe(raw_name)}: {error.strerror}")
        except IntegrityError as error:
            lost.append(f"attribute {safe(raw_name)}: {error}")
    access = found.pop(b"system.posix_acl_access", b"")
    default = found.pop(b"system.posix_acl_default", b"")
    if not (found or access or default or flags or lost):
        return NO_ATTRIBUTES
    return Attributes(tuple(sorted(found.items())), access, default, flags, tuple(lost))


def acl_to_text(value: bytes) -> bytes:
    """A kernel ACL (the value of ``system.posix_acl_*``) → text.

    Raises:
        IntegrityError: not an ACL of version 2.
    """
    if (
        len(value) < 4
        or (len(value) - 4) % _ACL_ENTRY.size
        or struct.unpack_from("<I", value)[0] != _ACL_VERSION
    ):
        raise IntegrityError("not a POSIX ACL of version 2")
    lines = []
    for tag, permissions, who in _ACL_ENTRY.iter_unpack(value[4:]):
        if tag not in _ACL_TAGS or permissions > 7:
            raise IntegrityError(f"not a POSIX ACL: an entry with tag {tag} and permissions {permissions}")
        name = b"%d" % who if tag in _NAMED_TAGS else b""
        bits = bytes(
            letter if permissions & bit else 0x2D for letter, bit in ((0x72, 4), (0x77, 2), (0x78, 1))
        )
        lines.append(b"%s:%s:%s\n" % (_ACL_TAGS[tag], name, bits))
    return b"".join(lines)


def acl_from_text(text: bytes) -> bytes:
    """Text with numeric ids → the value of ``system.posix_acl_*``; the inverse of :func:`acl_to_text`.

    Raises:
        IntegrityError: not such a text.
    """
    entries = []
    for line in text.replace(b",", b"\n").split():
        fields = line.split(b":")
        if len(fields) < 3 or len(fields[2]) != 3:
            raise IntegrityError(f"not an ACL entry: {line[:80]!r}")
        word, who, bits = fields[:3]
        tags = {tag for tag, name in _ACL_TAGS.items() if name == word and (tag in _NAMED_TAGS) == bool(who)}
        valid = all(bit in (ord("-"), letter) for bit, letter in zip(bits, b"rwx", strict=True))
        if not tags or not valid or (who and not (who.isdigit() and int(who) < _NO_ID)):
            raise IntegrityError(f"not an ACL entry: {line[:80]!r}")
        permissions = sum(value for bit, value in zip(bits, (4, 2, 1), strict=True) if bit != ord("-"))
        entries.append((tags.pop(), permissions, int(who) if who else _NO_ID))
    return struct.pack("<I", _ACL_VERSION) + b"".join(
        _ACL_ENTRY.pack(*entry) for entry in sorted(entries, key=itemgetter(0, 2))
    )
