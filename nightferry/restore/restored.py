"""What a restore says afterwards: what is there, what was left alone, refused, or lost on the way."""

from __future__ import annotations

from dataclasses import dataclass

from nightferry.model.text import path_fields


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The outcome of one restore. Paths are bytes, relative to the target.

    ``files`` counts regular files, FIFOs and devices, ``links`` symbolic and hard links, ``size_bytes``
    the data that was written (holes are not). ``skipped`` is what was there already and may not be
    overwritten (collisions); ``kept`` what was there, is not older and so stays when only older things are
    replaced; ``refused`` was not restored, with the reason; ``losses`` are things that could not be
    carried over (an owner, an attribute, a socket), with what. A dry run's report has the same shape and
    says what would happen.
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    size_bytes: int = 0
    skipped: tuple[bytes, ...] = ()
    kept: tuple[bytes, ...] = ()
    refused: tuple[tuple[bytes, str], ...] = ()
    losses: tuple[tuple[bytes, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Everything asked for is there now; ``kept`` and ``losses`` do not count."""
        return not self.skipped and not self.refused

    def as_json(self) -> dict[str, object]:
        """Plain JSON; ``path_b64`` beside ``path`` where the name is not UTF-8."""
        return {
            "files": self.files,
            "directories": self.directories,
            "links": self.links,
            "size_bytes": self.size_bytes,
            "skipped": [path_fields(path) for path in self.skipped],
            "kept": [path_fields(path) for path in self.kept],
            "refused": [{**path_fields(path), "reason": reason} for path, reason in self.refused],
            "losses": [{**path_fields(path), "what": what} for path, what in self.losses],
        }
