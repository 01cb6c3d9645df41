"""The names of nodes, groups, runs and images, and what can be read from them.

Nodes are called ``xxx-yyyy-n`` (site code, ACTV or PASS, number) and resource groups ``xxx-zzzz-n`` (site
code, MAIL or BACK, number). Storage groups, stores and destinations have safe names, which hold no dot, so
that an image's name can always be taken apart again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from nightferry.errors import ConfigError

Role = Literal["active", "passive"]

SAFE_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
HOST_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
BARCODE = r"[A-Za-z0-9][A-Za-z0-9_$.+%-]{0,31}"
"""No slash, and no leading dot: a virtual cartridge is a folder of this name."""
POOL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"

_ROLES: dict[str, Role] = {"ACTV": "active", "PASS": "passive"}
_NODE = re.compile(r"([A-Za-z0-9]{1,16})-(ACTV|PASS)-([0-9]{1,4})", re.IGNORECASE)
_RESOURCE_GROUP = re.compile(r"([A-Za-z0-9]{1,16})-(MAIL|BACK)-([0-9]{1,4})", re.IGNORECASE)
_ENDS_LIKE_A_COUNTER = re.compile(r".*-[0-9]+")
_RUN = re.compile(rf"([0-9]{{8}})-({SAFE_NAME})")
_RUN_TAIL = re.compile(r"([A-Za-z0-9]{1,16}-BACK-[0-9]{1,4})(?:-([0-9]{1,4}))?", re.IGNORECASE)
_FOREIGN_RUN_TAIL = re.compile(r"(.+?)(?:-([0-9]{1,4}))?")
_IMAGE = re.compile(
    rf"([0-9]{{8}}-[A-Za-z0-9_-]+)\.({SAFE_NAME})\.({SAFE_NAME})\.L([0-9])(?:\.s([0-9]{{2,4}}))?"
)


@dataclass(frozen=True, slots=True)
class NodeName:
    """A node's name taken apart."""

    name: str
    site: str
    role: Role
    number: int


@dataclass(frozen=True, slots=True)
class ResourceGroupName:
    """A resource group's name taken apart."""

    name: str
    site: str
    kind: Literal["MAIL", "BACK"]
    number: int


@dataclass(frozen=True, slots=True)
class RunName:
    """A run's name taken apart. ``number`` is 1 for a window's first run, which carries no number."""

    window: str
    """Local date of the window's start, ``YYYYMMDD``."""
    back_group: str
    number: int

    def __str__(self) -> str:
        return run_name(self.window, self.back_group, self.number)


@dataclass(frozen=True, slots=True)
class ImageName:
    """An image's name taken apart. ``shard`` is None for a store that is one image."""

    run: str
    group: str
    store: str
    level: int
    shard: int | None = None

    def __str__(self) -> str:
        return image_name(self.run, self.group, self.store, self.level, self.shard)


def is_safe(name: str) -> bool:
    """Whether ``name`` may name a storage group, a store or a destination."""
    return re.fullmatch(SAFE_NAME, name) is not None


def require_safe(name: str, what: str) -> str:
    """Returns ``name`` unchanged.

    Raises:
        ConfigError: it holds something other than letters, digits, ``_`` and ``-``, or is too long.
    """
    if not is_safe(name):
        raise ConfigError(
            f"not a name for a {what}: {name!r}",
            hint="use up to 64 letters, digits, '_' and '-', beginning with a letter or digit",
            subject=what,
        )
    return name


def parse_node(name: str) -> NodeName:
    """``TEX-PASS-2`` → site TEX, passive, 2.

    Raises:
        ConfigError: the name says no role; a foreign name needs its role given.
    """
    match = _NODE.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"cannot read a role from the node name {name!r}",
            hint="name nodes like TEX-ACTV-1 and TEX-PASS-1, or list them as [[nodes]] with name and role",
            subject=name,
        )
    return NodeName(name, match[1].upper(), _ROLES[match[2].upper()], int(match[3]))


def parse_resource_group(name: str) -> ResourceGroupName | None:
    """``TEX-BACK-1`` → site TEX, BACK, 1; None for a foreign name."""
    match = _RESOURCE_GROUP.fullmatch(name)
    if match is None:
        return None
    kind: Literal["MAIL", "BACK"] = "MAIL" if match[2].upper() == "MAIL" else "BACK"
    return ResourceGroupName(name, match[1].upper(), kind, int(match[3]))


def is_back_group(name: str) -> bool:
    """Whether ``name`` may name a BACK group.

    A foreign name must not end in ``-`` and digits: the runs of one window are numbered that way, and
    ``20261130-disk-2`` would be both the first run of ``disk-2`` and the second of ``disk``.
    """
    parsed = parse_resource_group(name)
    if parsed is not None:
        return parsed.kind == "BACK"
    return is_safe(name) and _ENDS_LIKE_A_COUNTER.fullmatch(name) is None


def run_name(window: str | date, back_group: str, number: int = 1) -> str:
    """``<YYYYMMDD>-<back group>[-n]``; the window's first run carries no number.

    Args:
        window: Local date of the window's start.
        back_group: The BACK group's name.
        number: Which run of the window this is, from 1.

    Raises:
        ConfigError: a part cannot be in a run's name.
    """
    day = window if isinstance(window, str) else f"{window:%Y%m%d}"
    name = f"{day}-{back_group}" + (f"-{number}" if number > 1 else "")
    if number < 1 or parse_run(name) != RunName(day, back_group, number):
        raise ConfigError(f"not a valid name for a run: {name!r}", subject=name)
    return name


def is_run(name: str) -> bool:
    """Whether a text is the name of a run."""
    try:
        parse_run(name)
    except ConfigError:
        return False
    return True


def parse_run(name: str) -> RunName:
    """The opposite of ``run_name``.

    Raises:
        ConfigError: not a run's name.
    """
    match = _RUN.fullmatch(name) if len(name) <= 80 else None
    if match is not None and _is_date(match[1]):
        tail = _RUN_TAIL.fullmatch(match[2]) or _FOREIGN_RUN_TAIL.fullmatch(match[2])
        if tail is not None and is_back_group(tail[1]) and _is_counter(tail[2]):
            return RunName(match[1], tail[1], int(tail[2] or 1))
    raise ConfigError(
        f"not a run: {name!r}",
        hint="a run's name looks like 20261130-TEX-BACK-1; `nightferry runs` lists them",
        subject=name,
    )


def image_name(run: str, group: str, store: str, level: int, shard: int | None = None) -> str:
    """``<run>.<group>.<store>.L<n>[.s<nn>]``.

    Raises:
        ConfigError: a part cannot be in an image's name.
    """
    parse_run(run)
    require_safe(group, "storage group")
    require_safe(store, "store")
    if not 0 <= level <= 9:
        raise ConfigError(f"not a level: {level}", hint="levels are 0 to 9, as in dump", subject=store)
    if shard is not None and not 0 <= shard <= 9999:
        raise ConfigError(f"not a shard number: {shard}", subject=store)
    return f"{run}.{group}.{store}.L{level}" + (f".s{shard:02d}" if shard is not None else "")


def parse_image_name(name: str) -> ImageName:
    """The opposite of ``image_name``.

    Raises:
        ConfigError: not an image's name.
    """
    match = _IMAGE.fullmatch(name)
    if match is None or (match[5] is not None and match[5] != f"{int(match[5]):02d}"):
        raise ConfigError(
            f"not an image: {name!r}",
            hint="an image's name looks like 20261130-TEX-BACK-1.SG1.priv1.L0; `nightferry images` lists them",
            subject=name,
        )
    parse_run(match[1])
    return ImageName(match[1], match[2], match[3], int(match[4]), None if match[5] is None else int(match[5]))


def split_store(name: str) -> tuple[str, str]:
    """``GROUP/STORE`` → its two parts.

    Raises:
        ConfigError: not written that way.
    """
    group, slash, store = name.partition("/")
    if not slash or not is_safe(group) or not is_safe(store):
        raise ConfigError(
            f"not a store: {name!r}", hint="write GROUP/STORE, for example SG1/priv1", subject=name
        )
    return group, store


def choose(name: str, known: Collection[str], what: str) -> ConfigError:
    """The error for a name that does not exist: it lists what does, nearest first."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(sorted(known)) or "none"
    hint = f"did you mean {near[0]!r}? choose from: {listed}" if near else f"choose from: {listed}"
    return ConfigError(f"no {what} is called {name!r}", hint=hint, subject=name)


def _is_date(text: str) -> bool:
    try:
        datetime.strptime(text, "%Y%m%d")
    except ValueError:
        return False
    return True


def _is_counter(text: str | None) -> bool:
    return text is None or (text == str(int(text)) and int(text) >= 2)
