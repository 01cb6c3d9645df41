"""``ftp://``: fsspec's driver with listings that are whole, or an error."""

from __future__ import annotations

from ftplib import Error, error_perm, error_temp
from typing import Any

from fsspec.implementations.ftp import FTPFileSystem, _mlsd2

from nightferry.destination.drivers import Driver, Opened
from nightferry.errors import DestinationError, Unavailable

_NO_COMMAND = ("500", "501", "502", "504")
"""A server that does not know MLSD, or not for this path. Source: RFC 959 §4.2.1."""
_NOT_THERE = "550"


class WholeFtp(FTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """fsspec's own takes every error of a listing for an empty folder, or for one that is not there."""

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The entries of a folder.

        Raises:
            FileNotFoundError: there is no such folder.
            ftplib.Error: it could not be listed to its end.
        """
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = [self._entry(path, name, facts) for name, facts in self._listed(path)]
        found = self.dircache[path]
        return found if detail else sorted(entry["name"] for entry in found)

    def _listed(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        try:
            try:
                found = [(n, f) for n, f in self.ftp.mlsd(path) if f["type"] not in ("pdir", "cdir")]
            except error_perm as error:
                if not str(error).startswith(_NO_COMMAND):
                    raise
                found = _mlsd2(self.ftp, path)
        except error_perm as error:
            if str(error).startswith(_NOT_THERE):
                raise FileNotFoundError(path) from error
            raise
        return [(name, facts) for name, facts in found if name not in (".", "..")]

    @staticmethod
    def _entry(path: str, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        folder = facts["type"] == "dir"
        return {
            **facts,
            "name": "/".join(["" if path == "/" else path, name.lstrip("/")]),
            "size": 0 if folder else int(facts["size"]),
            "type": "directory" if folder else facts["type"],
        }


class FtpDriver(Driver):
    """See ``Driver``."""

    def open(self) -> Opened:
        options = {**WholeFtp._get_kwargs_from_urls(self.url), **self.options}
        try:
            return Opened(WholeFtp(**options, skip_instance_cache=True))
        except TypeError as error:
            raise self.refused(error) from None

    def meaning(self, error: Exception, opened: Opened | None) -> DestinationError | None:
        if isinstance(error, error_temp):
            return Unavailable(f"{self.name}: {self.shown(error)}", subject=self.name)
        if isinstance(error, Error):
            return DestinationError(f"{self.name}: {self.shown(error)}", subject=self.name)
        return super().meaning(error, opened)

    def _class(self) -> Any:
        return WholeFtp
