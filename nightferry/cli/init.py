"""`nightferry init`: a commented site file after looking at this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from nightferry.cli.machine import Machine, inspect_machine, likely_stores
from nightferry.cli.session import current
from nightferry.errors import ConfigError
from nightferry.model.load import parse_site
from nightferry.model.names import is_safe
from nightferry.units import format_size

FILE_NAME = "nightferry.toml"


def init(
    folder: Annotated[Path, Parameter(name="DIR")] = Path("."),
    /,
    *,
    name: str | None = None,
    store: Sequence[Path] = (),
    staging: Path | None = None,
) -> None:
    """Writes a commented site file after looking at this machine. Nothing else is changed.

    Parameters
    ----------
    folder
        Where `nightferry.toml` is written; catalog, staging and copies are proposed below it unless this
        machine has a better disk.
    name
        The site's name; by default from the host name.
    store
        A folder, a file or an SQLite database to back up; may be repeated.
    staging
        The BACK group's disk.
    """
    target = folder.resolve() / FILE_NAME
    if target.exists():
        raise _exists(target)
    machine = inspect_machine()
    site_name = name or _site_name(machine.hostname)
    if not is_safe(site_name):
        raise ConfigError(f"not a name for a site: {site_name!r}", hint="use letters, digits, '_' and '-'")
    places = _Places(machine, target.parent, staging.resolve() if staging else None)
    stores = _stores(machine, places, [path.resolve() for path in store])
    text = compose(machine, site_name, places, stores)
    parse_site(text, str(target))
    _write(target, text)
    missing = [path for path in (places.staging, places.catalog, places.copies) if not path.is_dir()]
    _tell(target, places, stores, missing)


class _Places:
    """Where catalog, staging and copies go: on disks of their own where the machine has them."""

    def __init__(self, machine: Machine, folder: Path, staging: Path | None) -> None:
        others = [mount for mount in machine.mounts if mount.path != Path("/")]
        here = _device(folder)
        roomy = [mount for mount in others if mount.device != here]
        if staging is None:
            staging = roomy.pop(0).path / "nightferry-staging" if roomy else folder / "staging"
        else:
            roomy = [mount for mount in roomy if mount.device != _device(staging)]
        self.staging = staging
        self.copies = roomy[0].path / "nightferry-copies" if roomy else folder / "copies"
        self.catalog = folder / "catalog"

    def all(self) -> tuple[Path, ...]:
        return (self.staging, self.copies, self.catalog)


def _device(path: Path) -> int:
    """The device of the nearest folder that is there."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


def _site_name(hostname: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", hostname.partition(".")[0])[:12].upper() or "SITE"


def _stores(machine: Machine, places: _Places, given: list[Path]) -> list[tuple[str, str, Path]]:
    """Name, kind and path of the stores to propose."""
    for path in given:
        if not path.exists():
            raise ConfigError(
                f"there is no {path}", hint="name folders and files that are there", subject=str(path)
            )
    paths = given or [*likely_stores(places.all())]
    if not paths:
        raise ConfigError(
            "found nothing on this machine to back up", hint="name a folder or database with --store"
        )
    names: list[str] = []
    proposed = []
    for path in paths:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem or "root").strip("-_")[:56] or "store"
        name = stem if stem not in names else f"{stem}-{len(names) + 1}"
        names.append(name)
        kind = "sqlite" if path in machine.sqlite_files or _looks_like_sqlite(path) else "files"
        proposed.append((name, kind, path))
    return proposed


def _looks_like_sqlite(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def compose(machine: Machine, name: str, places: _Places, stores: Sequence[tuple[str, str, Path]]) -> str:
    """The site file's text."""
    code = _site_name(name)
    staging_room = next((m.free_bytes for m in machine.mounts if m.device == _device(places.staging)), None)
    room = f"   # {format_size(staging_room)} free today" if staging_room is not None else ""
    shown = "".join(
        f"""
  [[groups.stores]]
  name = {_toml(store_name)}
  kind = "{kind}"
  path = {_toml(str(path))}
"""
        + ('  # exclude = ["*.tmp", "cache/"]     # patterns as in .gitignore\n' if kind == "files" else "")
        for store_name, kind, path in stores
    )
    found = [path for path in machine.sqlite_files if path not in {path for _, _, path in stores}][:8]
    databases = "".join(f"#   {_comment(path)}\n" for path in found)
    if databases:
        databases = f'\n# SQLite databases found here; each can be a store of kind = "sqlite":\n{databases}'
    postgres = (
        "\n# A PostgreSQL server is on this machine; its own kind of store comes in a later release.\n"
        if machine.has_postgres
        else ""
    )
    return f"""\
# nightferry's site file: what is backed up, when, and where to. `nightferry check` says what is missing.
# Nobody but root and you may be able to write it. Secrets are never written here, only references to them.
schema = 1

[site]
name = {_toml(name)}
catalog = {_toml(str(places.catalog))}
timezone = {_toml(machine.timezone)}
# restore_roots = ["/restore"]         # where restores asked for in the Prefect UI may write
# restore_overwrite = true             # and that they may replace files that are there and older
# single_user = true                   # nobody else uses this machine: Prefect on loopback needs no auth string
# log = "summary"                      # full | summary | none

[cluster]
kind = "local"                         # one machine plays every node
nodes = ["{code}-ACTV-1", "{code}-PASS-1"]

[staging]                              # the BACK group's disk: images are staged here first
path = {_toml(str(places.staging))}{room}
# streams = 4                          # stores staged at once; `nightferry tune` measures what the disk likes
# unbuffered = true                    # read and write past the page cache
# verify = "sample:1%"                 # read back before the gate: sample:N%, full or none
# keep_free = "5 %"
# bandwidth = ["06:00 100 MiB/s", "20:00 unlimited"]   # of all streams together, by site time

[[groups]]                             # a storage group: stores that belong together
name = "SG1"
start = "20:00"
copies = ["copies"]                    # every image goes to each of these destinations
# tolerate = {{ vanished = "any", changed = 0, unreadable = 0 }}
# expect = {{ least = "50 %", most = "1000 %" }}   # of the last whole image; outside it the gate is held
{shown}{databases}{postgres}
[[destinations]]                       # better on another disk, best in another building
name = "copies"
kind = "fsspec"
url = {_toml(f"file://{places.copies}")}
# encode = {{ compress = "zstd:1" }}     # on the passive node; "zstd -dc" and tar restore such a copy too

# [[destinations]]                     # a tape library made of folders; add "tape" to the group's copies
# name = "tape"
# kind = "tape"
# library = {{ kind = "virtual", path = "/srv/vtl", drives = 2, slots = 20, cartridge_bytes = "2 GiB" }}
# pool = {{ name = "daily", barcodes = ["*"], autolabel = "blank", wait_for_media = "8h" }}

[retention]                            # what `nightferry expire` keeps of each store at each destination
keep_last = 3
keep_daily = 7
keep_weekly = 5
keep_monthly = 12
# at_most = "50 %"                     # of a destination's copies that may expire at once
# expire_at = "12:00"                  # when the deployment `expire` runs each day; else only when asked
"""


def _toml(text: str) -> str:
    """A TOML basic string."""
    escaped = "".join(
        f"\\u{ord(char):04x}"
        if ord(char) < 0x20 or ord(char) == 0x7F
        else {'"': '\\"', "\\": "\\\\"}.get(char, char)
        for char in text
    )
    return f'"{escaped}"'


def _comment(path: Path) -> str:
    from nightferry.model.text import safe

    return safe(os.fsencode(path))


def _write(target: Path, text: str) -> None:
    try:
        if not target.parent.is_dir():
            target.parent.parent.mkdir(parents=True, exist_ok=True)
            target.parent.mkdir(mode=0o700)
        # Whatever the umask says, nobody else may write a file that says what root runs, or read where everything lies.
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        if str(error.filename) == str(target):
            raise _exists(target) from None
        raise ConfigError(f"{error.filename} is not a folder", subject=str(target)) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write {target}: {reason}", subject=str(target)) from error


def _exists(target: Path) -> ConfigError:
    return ConfigError(
        f"{target} is already there, and is left as it is",
        hint="edit it, or name another folder: `nightferry init DIR`",
        subject=str(target),
    )


def _tell(
    target: Path, places: _Places, stores: Sequence[tuple[str, str, Path]], missing: Sequence[Path]
) -> None:
    import shlex

    lines = [f"wrote {target}", ""]
    lines += [f"  store SG1/{name}: {kind} {path}" for name, kind, path in stores]
    lines += [f"  staging on {places.staging}", f"  copies to {places.copies}", "", "next:"]
    if missing:
        lines.append(f"  mkdir -p {' '.join(shlex.quote(str(path)) for path in missing)}")
    site = shlex.quote(str(target))
    lines += [f"  nightferry --site {site} check", f"  nightferry --site {site} backup"]
    current().out.result(
        {
            "site_file": target,
            "staging": places.staging,
            "catalog": places.catalog,
            "copies": places.copies,
            "stores": [{"store": f"SG1/{name}", "kind": kind, "path": path} for name, kind, path in stores],
            "missing": list(missing),
        },
        "\n".join(lines),
    )
