"""`nightferry support`: a redacted bundle for whoever helps."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from nightferry import __version__
from nightferry.cli.session import current
from nightferry.errors import ConfigError
from nightferry.site.nodes import working_on

LISTED_PACKAGES = (
    "prefect",
    "pyarrow",
    "fsspec",
    "sshfs",
    "asyncssh",
    "blake3",
    "xxhash",
    "pydantic",
    "cyclopts",
    "uring-api",
)


def support(*, to: Path = Path("nightferry-support.tar.gz")) -> None:
    """Writes a bundle: versions, the redacted site file, findings, runs, failures; no file names.

    Parameters
    ----------
    to
        The bundle; it must not exist.
    """
    from nightferry.cli.output import dump_json
    from nightferry.health.check import check
    from nightferry.model.redact import redacted
    from nightferry.site.opened import OpenSite

    session = current()
    loaded = session.load_site()
    entries = {
        "versions.json": json.dumps(_versions(), indent=1),
        "site.toml": redacted(loaded.text),
        "findings.json": dump_json({"findings": check(loaded)}),
    }
    with OpenSite(loaded) as site:
        site.catalog.refresh()
        runs = site.catalog.runs()[:50]
        entries["runs.json"] = dump_json({"runs": runs})
        entries["failures.json"] = dump_json(
            {"failures": [f for r in runs for f in site.catalog.failures(r.run)]}
        )
        entries["cluster.json"] = dump_json({"cluster": site.cluster.view()})
        # It may be asked for on a disk of the night's.
        with working_on(site, at=to.absolute(), cancel=site.cancel):
            _write(to, entries)
    document = {"bundle": to.resolve(), "entries": sorted(entries)}
    session.out.result(document, f"{to}: {', '.join(sorted(entries))}. Read it before you send it.")


def _write(to: Path, entries: Mapping[str, str]) -> None:
    with _create(to) as out, tarfile.open(fileobj=out, mode="w:gz") as bundle:
        for name, text in entries.items():
            data = text.encode()
            info = tarfile.TarInfo(f"nightferry-support/{name}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            bundle.addfile(info, io.BytesIO(data))


def _create(path: Path) -> BinaryIO:
    """A new file for its owner alone.

    Raises:
        ConfigError: something is there, or it cannot be written.
    """
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except OSError as error:
        raise ConfigError(
            f"cannot write the bundle {path}: {(error.strerror or str(error)).lower()}",
            hint="name a new file in a folder you may write with --to",
            subject=str(path),
        ) from error


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"nightferry": __version__, "python": platform.python_version()}
    found["system"] = f"{platform.system()} {platform.release()}"
    for package in LISTED_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
