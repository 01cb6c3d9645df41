"""Names of users and groups, asked for once each: a directory service may be slow."""

from __future__ import annotations

import grp
import pwd


class OwnerNames:
    """Numbers → names as this machine knows them; empty for unknown numbers."""

    def __init__(self) -> None:
        self._users: dict[int, bytes] = {}
        self._groups: dict[int, bytes] = {}

    def user(self, uid: int) -> bytes:
        """The user's name in UTF-8."""
        name = self._users.get(uid)
        if name is None:
            try:
                name = pwd.getpwuid(uid).pw_name.encode("utf-8", "surrogateescape")
            except KeyError:
                name = b""
            self._users[uid] = name
        return name

    def group(self, gid: int) -> bytes:
        """The group's name in UTF-8."""
        name = self._groups.get(gid)
        if name is None:
            try:
                name = grp.getgrgid(gid).gr_name.encode("utf-8", "surrogateescape")
            except KeyError:
                name = b""
            self._groups[gid] = name
        return name
