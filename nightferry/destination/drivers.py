"""The fsspec driver behind a URL, and the few words that fsspec's drivers do not have in common."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from nightferry.errors import ConfigError, DestinationError, Unavailable
from nightferry.model.redact import scrubbed


class Opened:
    """A file system that a driver opened, connected where it connects. Verbs raise what the library raises.

    Args:
        fs: fsspec's object.
    """

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    @property
    def renames(self) -> bool:
        """Whether an object gets another name without its bytes being copied."""
        from fsspec import AbstractFileSystem

        # What a driver does not bring itself is done by copying.
        return getattr(self.fs.mv, "__func__", None) is not AbstractFileSystem.mv

    def rename(self, old: str, new: str) -> None:
        """Gives an object a name that no other has. Who ``renames`` not, does not this either."""
        self.fs.mv(old, new)

    def make_folder(self, path: str) -> None:
        """A folder and those above it; one that is there is fine."""
        self.fs.makedirs(path, exist_ok=True)

    def open_new(self, path: str) -> Any:
        """A file to write in order."""
        return self.fs.open(path, "wb")

    def sync(self, file: Any) -> bool:
        """Asks for a file's bytes to be on the disk; False where that cannot be asked."""
        return False

    def free_bytes(self, path: str) -> int | None:
        """Bytes that may still be written; None where that is not said."""
        return None

    def close(self) -> None:
        """Gives up the connection; errors of one that is broken are of no interest."""


class Driver:
    """One kind of URL: how it is opened, and what its errors mean.

    Args:
        name: The destination's name, for messages.
        url: Its URL.
        options: Given to the file system, secrets resolved.
        secrets: Never shown.

    Raises:
        ConfigError: the scheme is not known, or the package that serves it is missing.
    """

    shared = False
    """Whether all threads may use one connection."""

    def __init__(self, name: str, url: str, options: Mapping[str, Any], secrets: tuple[str, ...]) -> None:
        self.name = name
        self.url = url
        self.options = dict(options)
        self._secrets = secrets
        kind = self._class()
        self.root = str(kind._strip_protocol(url)).rstrip("/")
        self.shared = bool(getattr(kind, "async_impl", False)) or self.scheme == "memory"

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    def open(self) -> Opened:
        """A connection of its own.

        Raises:
            ConfigError: the driver does not take these options.
        """
        from fsspec.core import url_to_fs

        try:
            return Opened(url_to_fs(self.url, skip_instance_cache=True, **self.options)[0])
        except (TypeError, ValueError) as error:
            raise self.refused(error) from None

    def meaning(self, error: Exception, opened: Opened | None) -> DestinationError | None:
        """What an error that is no ``OSError`` means; None when only the library knows."""
        if isinstance(error, EOFError):  # how ftplib says that the peer hung up
            return Unavailable(f"{self.name}: the connection was closed", subject=self.name)
        return None

    def shown(self, error: Exception) -> str:
        """A library's words without our secrets."""
        return self.scrub(str(error) or type(error).__name__)

    def scrub(self, text: str) -> str:
        """The text without our secrets."""
        return scrubbed(text, self._secrets)

    def refused(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"destination {self.name}: {self.scheme}:// cannot be opened: {self.shown(error)}",
            hint="correct url and options; docs/fsspec.md lists them",
            subject=self.name,
        )

    def _class(self) -> Any:
        from fsspec.registry import get_filesystem_class, known_implementations

        try:
            return get_filesystem_class(self.scheme)
        except ValueError:
            raise ConfigError(
                f"destination {self.name}: no driver knows {self.scheme}://",
                hint="correct the scheme, or install the package whose fsspec driver serves it",
                subject=self.name,
            ) from None
        except ImportError as error:
            package = known_implementations.get(self.scheme, {}).get("err") or str(error)
            raise ConfigError(
                f"destination {self.name}: {self.scheme}:// needs a package that is not installed: {package}",
                hint="install it with nightferry, on every node that streams or restores",
                subject=self.name,
            ) from error


class Connections:
    """A driver's connections: one for all threads where it may be shared, else one for each; made when first
    asked for, and again after one was lost."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._opened: dict[int, Opened] = {}

    def get(self) -> Opened:
        """This thread's connection.

        Raises:
            Exception: the library's, or ours, when it cannot be made.
        """
        if not self._driver.shared:
            key = threading.get_ident()
            if key not in self._opened:
                self._opened[key] = self._driver.open()
            return self._opened[key]
        with self._lock:
            if 0 not in self._opened:
                self._opened[0] = self._driver.open()
            return self._opened[0]

    def current(self) -> Opened | None:
        """This thread's connection, if there is one."""
        return self._opened.get(0 if self._driver.shared else threading.get_ident())

    def drop(self, lost: Opened | None) -> None:
        """Gives up a connection that was lost; the next ``get`` makes another."""
        with self._lock:
            for key, opened in list(self._opened.items()):
                if opened is lost:
                    del self._opened[key]
        if lost is not None:
            lost.close()

    def close(self) -> None:
        """Closes all. May be called twice."""
        with self._lock:
            opened, self._opened = list(self._opened.values()), {}
        for each in opened:
            each.close()
