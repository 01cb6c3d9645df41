"""Pieces of site files, as an operator writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def group(
    name: str, copies: Iterable[str], *, start: str = "00:00", mail_group: str = "TEX-MAIL-1", more: str = ""
) -> str:
    """A storage group without its stores; they follow it. ``more``: further keys, each with its line's end."""
    return f"""
[[groups]]
name = "{name}"
mail_group = "{mail_group}"
start = "{start}"
copies = [{", ".join(f'"{copy}"' for copy in copies)}]
{more}"""


def store(name: str, path: Path, kind: str = "files", more: str = "") -> str:
    """One of the stores of the group before it."""
    return f"""
  [[groups.stores]]
  name = "{name}"
  kind = "{kind}"
  path = "{path}"
{more}"""


def tape(library: str) -> str:
    """The destination ``tape``."""
    return f"""
[[destinations]]
name = "tape"
kind = "tape"
library = {library}
pool = {{ name = "daily", barcodes = ["*"], autolabel = "blank", wait_for_media = "1s" }}
"""


def virtual(path: Path, *, drives: int = 1, slots: int = 4, cartridge: str = "256 MiB") -> str:
    """A virtual tape library."""
    return (
        f'{{ kind = "virtual", path = "{path}", drives = {drives}, slots = {slots}, '
        f'cartridge_bytes = "{cartridge}" }}'
    )


def folder(path: Path, name: str = "objects", more: str = "") -> str:
    """A destination that is a folder of this machine."""
    return fsspec(name, f"file://{path}", more)


def fsspec(name: str, url: str, more: str = "") -> str:
    """A destination at whatever URL."""
    return f"""
[[destinations]]
name = "{name}"
kind = "fsspec"
url = "{url}"
{more}"""


def bucket(
    url: str,
    endpoint: str,
    more: str = "",
    keys: tuple[str, str] = ("env:NF_TEST_ACCESS", "env:NF_TEST_SECRET"),
) -> str:
    """The destination ``cloud``, a bucket of a server on this machine."""
    return f"""
[[destinations]]
name = "cloud"
kind = "s3"
url = "{url}"
endpoint = "{endpoint}"
access_key = "{keys[0]}"
secret_key = "{keys[1]}"
{more}
"""
