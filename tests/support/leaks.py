"""Where a secret was left: in plain, in base64 wherever it stands in a longer text, in hexadecimal digits, in a URL."""

from __future__ import annotations

import base64
import sqlite3
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, quote_plus

import pyarrow.parquet


def forms(secret: str) -> set[bytes]:
    """As other programs write it. Of base64 the part that is the same whatever stands around the secret."""
    plain = secret.encode()
    found = {plain, plain.hex().encode(), plain.hex().upper().encode()}
    found |= {quote(secret, safe="").encode(), quote_plus(secret).encode()}
    for before in range(3):
        first, other = (
            base64.b64encode(filler * before + plain + filler * 3) for filler in (b"\x00", b"\xff")
        )
        same = [one if one == two else 0 for one, two in zip(first, other, strict=True)]
        core = max(bytes(same).split(b"\0"), key=len)
        found |= {core, core.translate(bytes.maketrans(b"+/", b"-_"))}
    return found


class Search:
    """Looks for secrets by name.

    Args:
        secrets: Name → secret.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._forms = {name: forms(secret) for name, secret in secrets.items()}

    def names_in(self, content: bytes | str) -> list[str]:
        """Which of them it holds."""
        data = content.encode() if isinstance(content, str) else content
        return [name for name, some in self._forms.items() if any(form in data for form in some)]

    def below(self, *folders: Path, but: Iterable[Path] = ()) -> list[str]:
        """``NAME in PATH`` for every regular file below the folders: its name, its bytes, and what is packed in it."""
        left_out = {*but}
        found = []
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if any(each == path or each in path.parents for each in left_out):
                    continue
                found += [f"{name} in the name {path}" for name in self.names_in(str(path))]
                if path.is_file() and not path.is_symlink():
                    texts = [path.read_bytes(), *_unpacked(path)]
                    found += [f"{name} in {path}" for text in texts for name in self.names_in(text)]
        return found


def _unpacked(path: Path) -> Iterator[bytes]:
    if path.suffix == ".parquet":
        yield str(pyarrow.parquet.read_table(path).to_pylist()).encode()
    elif path.suffix == ".db":
        # A long text lies in pieces in the file; and what was written last may be in its log alone.
        with closing(sqlite3.connect(path, timeout=60)) as database:
            for line in database.iterdump():
                yield line.encode()
    elif path.name.endswith(".tar.gz"):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                yield b"" if file is None else file.read()


class CommandLines:
    """Every command line of this machine while the block lasts, as everybody can read them in ``/proc``."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    self.seen.add((process / "cmdline").read_bytes())
                except OSError:
                    continue  # it has ended
