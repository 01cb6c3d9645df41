"""Which site files a node's workers may run: a short list of digests that root wrote on that node.

A flow's parameters come from whoever can write to the Prefect API. The text of the site is one of them, and with it
come hooks, commands, paths and restore roots. So a worker runs a site only when its text is known on the node: its
SHA-256 stands in a list, or it is the text of the node's own site file.

The list of a site is ``/etc/nightferry/allowed/<site>``; a user other than root may also keep one of its own, for its
own workers, below ``$XDG_CONFIG_HOME/nightferry/allowed``. A line is a digest, and after ``#`` who allowed it and when.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from nightferry.errors import ConfigError
from nightferry.model.load import SYSTEM_SITE, read_trusted, site_digest

log = logging.getLogger(__name__)

SYSTEM_FOLDER = Path("/etc/nightferry/allowed")
KEPT = 2
"""Digests in a list: while a site file changes, some nodes still run the one before."""

_LINE = re.compile(r"([0-9a-f]{64})\s*(?:#.*)?")


def require_allowed(text: str) -> None:
    """Lets a site's text pass that this node knows. Call it before the text is parsed.

    Raises:
        ConfigError: no list on this node has its digest, and it is not the node's site file.
    """
    digest = site_digest(text)
    if any(digest in read_list(path) for folder in folders() for path in lists(folder)):
        return
    # Not the current folder's, which `find_site` knows, too: a worker may be started anywhere.
    own = Path(os.environ.get("NIGHTFERRY_SITE") or SYSTEM_SITE)
    try:
        if own.exists() and site_digest(read_trusted(own)) == digest:
            return
    except ConfigError as error:
        log.warning("the node's own site file is not used: %s", error.message)
    raise ConfigError(
        f"this node does not allow the site file with SHA-256 {digest}",
        hint="read that site file, then run `nightferry deploy --allow` with it on this node",
        subject=digest,
    )


def allow(site: str, digest: str, who: str, at: datetime) -> Path:
    """Puts a digest at the top of the site's list on this node; the one before stays allowed.

    Returns:
        The list's path.

    Raises:
        ConfigError: the list cannot be written, or others can write it.
    """
    folder = folders()[-1]
    path = folder / site
    kept = [line for line in _lines(path) if not line.startswith(digest)] if path.exists() else []
    lines = [f"{digest}  # {at:%Y-%m-%d %H:%M:%S}Z by {who}", *kept[: KEPT - 1]]
    partial = path.with_name(f".{site}.partial")
    try:
        for level in (folder.parent, folder):
            if not level.is_dir():
                level.mkdir(parents=True)
                # Whatever the umask: workers that are not root read it, too.
                level.chmod(0o755)
        partial.unlink(missing_ok=True)
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            os.fchmod(fd, 0o644)
            file.write("".join(f"{line}\n" for line in lines))
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}",
            hint="run `nightferry deploy --allow` as the user that owns the folder",
            subject=str(path),
        ) from error
    return path


def read_list(path: Path) -> set[str]:
    """The digests of one list.

    Raises:
        ConfigError: others than root and this user can write it, or a line is not a digest.
    """
    return {line[:64] for line in _lines(path)}


def lists(folder: Path) -> Iterator[Path]:
    """The lists in a folder; hidden files are not yet lists."""
    if folder.is_dir():
        yield from sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.is_file())


def folders() -> tuple[Path, ...]:
    """Where lists may lie for this user; the last is where `allow` writes."""
    if os.geteuid() == 0:
        return (SYSTEM_FOLDER,)
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return (SYSTEM_FOLDER, Path(home) / "nightferry" / "allowed")


def _lines(path: Path) -> list[str]:
    lines = [line.strip() for line in read_trusted(path, "the list of allowed site files").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    wrong = next((line for line in lines if not _LINE.fullmatch(line)), None)
    if wrong is not None:
        raise ConfigError(
            f"{path} has a line that is not a SHA-256 digest",
            hint="remove the file, then run `nightferry deploy --allow` on this node",
            subject=str(path),
        )
    return lines
