"""From the text of a site file to a Site; what fails is told with key, line and nearest right key.

Bounds on the text are checked in one pass before anything parses it. A parser of TOML recurses into nested values, and
takes time by the square of a dotted key's length: a text of a megabyte could end it by its recursion limit or keep it
busy for hours. No site file comes near these bounds.
"""

from __future__ import annotations

import difflib
import grp
import hashlib
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nightferry.errors import ConfigError
from nightferry.model.consistency import problems
from nightferry.model.site import SiteFile
from nightferry.model.toml_lines import Path as KeyPath
from nightferry.model.toml_lines import TomlLines

SYSTEM_SITE = Path("/etc/nightferry/nightferry.toml")
"""A machine's own site file."""
SEARCHED = (Path("nightferry.toml"), SYSTEM_SITE)
MOST_SHOWN = 20
"""Errors that are explained; of the others only the number is."""
LONGEST_QUOTE = 500
"""Characters of a key or of what is wrong with it."""
_WORD = re.compile(r"\w+")

MAX_SITE_BYTES = 1 << 20
MAX_NESTING = 32
"""Arrays and inline tables within each other; parts of a dotted key."""
MAX_WORD = 1000
"""Characters of a number, or of a key without quotes."""
MAX_VALUES = 30_000
"""Keys, tables and members of arrays; of a dotted key each part. A store takes six or more: this suffices for some
thousand stores, and a text within it is read or refused in about a second."""
# Every alternative takes something wherever it begins, to the end of the line or text if need be: one pass is linear.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)'
    r'|"(?:[^"\\\n]|\\[^\n])*+["\\]?|\'[^\'\n]*+\'?'
    r"|\#[^\n]*+|[][{}=,]|\n\s*+|[^][{}=,\n\"'\#]++",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LoadedSite:
    """A site together with the text it was read from. ``digest`` is the text's SHA-256, lower-case hex."""

    site: SiteFile
    path: Path
    text: str
    digest: str


def find_site(path: Path | None) -> Path:
    """The site file: as given, by NIGHTFERRY_SITE, in the current folder, or the machine's own.

    Raises:
        ConfigError: there is none.
    """
    if path is not None:
        return path
    named = os.environ.get("NIGHTFERRY_SITE")
    if named:
        return Path(named)
    for candidate in SEARCHED:
        if candidate.exists():
            return candidate
    raise ConfigError(
        f"no site file: neither --site, NIGHTFERRY_SITE, {' nor '.join(str(p) for p in SEARCHED)}",
        hint="write one with `nightferry init`, or name one with --site",
        subject="--site",
    )


def load_site(path: Path | None = None) -> LoadedSite:
    """Finds, reads and checks the site file.

    Raises:
        ConfigError: there is none, others can write it, or it is not as it must be.
    """
    found = find_site(path)
    text = read_trusted(found)
    return LoadedSite(parse_site(text, str(found)), found.resolve(), text, site_digest(text))


def site_digest(text: str) -> str:
    """SHA-256 of a site file's text, lower-case hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_site(text: str, source: str = "the site file") -> SiteFile:
    """The text of a site file → a complete, consistent Site.

    Args:
        text: TOML.
        source: What to call it in errors: a path, a block's name.

    Raises:
        ConfigError: naming every wrong key with its line.
    """
    beyond = out_of_bounds(text)
    if beyond:
        raise ConfigError(f"{source}, {beyond}", subject=source)
    try:
        raw = tomllib.loads(text)
        lines = TomlLines(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {_decode_place(error)}", subject=source) from None
    _complete(raw)
    try:
        site = SiteFile.model_validate(raw)
    except ValidationError as error:
        # The input may hold a secret that should have been a reference: pydantic's error is not kept.
        details = error.errors(include_url=False)
        complaints = [_explain(detail, raw) for detail in details[:MOST_SHOWN]]
        raise _refuse(source, complaints, len(details), raw, lines) from None
    found = list(problems(site))
    if found:
        raise _refuse(source, found[:MOST_SHOWN], len(found), raw, lines)
    return site


def _decode_place(error: tomllib.TOMLDecodeError) -> str:
    return re.sub(r"\(at line (\d+), column (\d+)\)", r"at line \1, column \2", str(error).lower())


def _complete(raw: dict[str, Any]) -> None:
    """Fills in what one BACK group makes obvious; the models refuse what is not well formed."""
    groups = _tables(raw.get("groups"))
    staging = raw.get("staging")
    site = raw.get("site")
    if "back_groups" not in raw and isinstance(staging, dict) and "path" in staging:
        named = {g["back_group"] for g in groups if isinstance(g.get("back_group"), str)}
        if len(named) <= 1:
            code = re.sub(r"[^A-Za-z0-9]", "", str(site.get("name", "")) if isinstance(site, dict) else "")[
                :16
            ]
            raw["back_groups"] = [
                {"name": named.pop() if named else f"{code or 'SITE'}-BACK-1", "path": staging["path"]}
            ]
    back_groups = _tables(raw.get("back_groups"))
    if len(back_groups) == 1 and isinstance(staging, dict) and "path" in staging:
        back_groups[0].setdefault("path", staging["path"])
    if len(back_groups) == 1 and "name" in back_groups[0]:
        for group in groups:
            group.setdefault("back_group", back_groups[0]["name"])
    cluster = raw.get("cluster")
    if isinstance(cluster, dict):
        cluster.setdefault("kind", "local")


def _tables(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _refuse(
    source: str, complaints: Iterable[tuple[KeyPath, str]], count: int, raw: dict[str, Any], lines: TomlLines
) -> ConfigError:
    """The error of ``count`` errors, with the words of the first ones."""
    messages: dict[str, None] = {}
    subject = ""
    for path, text in complaints:
        shown, text = _cut(_shown(path, raw)), _cut(text)
        line = lines.line(path)
        subject = subject or shown
        messages[f"{f'line {line}: ' if line else ''}{shown}: {text}" if shown else text] = None
    if len(messages) == 1 and count <= MOST_SHOWN:
        return ConfigError(f"{source}, {next(iter(messages))}", subject=subject)
    if count > MOST_SHOWN:
        messages[f"and {count - MOST_SHOWN} more"] = None
    return ConfigError(
        f"{source}, {count if count > MOST_SHOWN else len(messages)} errors:\n  " + "\n  ".join(messages),
        subject=subject,
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 1]}…"


def _shown(path: KeyPath, raw: dict[str, Any]) -> str:
    """``("groups", 0, "stores", 1, "path")`` → ``groups[SG1].stores[priv1].path``."""
    here: Any = raw
    shown = ""
    for part in path:
        if isinstance(part, int):
            here = here[part] if isinstance(here, list) and part < len(here) else None
            name = here.get("name") if isinstance(here, dict) else None
            shown += f"[{name if isinstance(name, str) else part + 1}]"
        else:
            here = here.get(part) if isinstance(here, dict) else None
            shown += f".{part}" if shown else part
    return shown


def _explain(detail: ErrorDetails, raw: dict[str, Any]) -> tuple[KeyPath, str]:
    """One of pydantic's errors as a path into the file and words."""
    path = _file_path(detail["loc"], raw)
    context = detail.get("ctx", {})
    match detail["type"]:
        case "unknown_key":
            near = context["near"]
            advice = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(context['known'])}"
            return (*path, context["key"]), f"unknown key; {advice}"
        case "missing":
            return path, _missing(path)
        case "union_tag_not_found":
            return (*path, "kind"), "is missing"
        case "union_tag_invalid":
            tag, known = str(context["tag"]), context["expected_tags"]
            near = difflib.get_close_matches(tag, _WORD.findall(known), n=1)
            advice = f"did you mean {near[0]!r}? " if near else ""
            return (*path, "kind"), f"unknown kind {tag!r}; {advice}the kinds are: {known}"
        case "value_error":
            return path, str(context["error"])
        case "literal_error":
            return path, f"must be {context['expected']}"
        case _:
            return path, detail["msg"][:1].lower() + detail["msg"][1:]


def _missing(path: KeyPath) -> str:
    if path == ("back_groups",):
        return "is missing; give [staging] a path, or list the BACK groups when there are several"
    if path[-1:] == ("back_group",):
        return "is missing; there are several BACK groups"
    return "is missing"


def _file_path(loc: tuple[int | str, ...], raw: dict[str, Any]) -> KeyPath:
    """A pydantic location without the parts that name a union's member instead of a key."""
    here: Any = raw
    path: list[str | int] = []
    for position, part in enumerate(loc):
        is_last = position == len(loc) - 1
        match here:
            case list() if isinstance(part, int):
                here = here[part]
            case dict() if part in here:
                here = here[part]
            case dict() if is_last and part != here.get("kind"):
                here = None
            case _:
                continue
        path.append(part)
    return tuple(path)


def read_trusted(path: Path, what: str = "the site file") -> str:
    """Reads a file that nobody but root and the caller can write, by one descriptor: what was judged is what is read.

    Args:
        path: A regular file.
        what: What to call it in errors.

    Raises:
        ConfigError: it is not there, not a file, cannot be read, or others than root and the caller can write it.
    """
    try:
        real = path.resolve(strict=True)
        # A FIFO without a writer would wait for ever.
        with open(os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{what} {path} is not a regular file", subject=str(path))
            _refuse_writable(status, real, what)
            _refuse_writable(real.parent.stat(), real.parent, f"{what}'s folder")
            data = file.read(MAX_SITE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {what} {path}: {error.strerror}",
            hint="name another with --site, or write one with `nightferry init`",
            subject=str(path),
        ) from error
    if len(data) > MAX_SITE_BYTES:
        raise ConfigError(f"{what} {path} is larger than {MAX_SITE_BYTES >> 20} MiB", subject=str(path))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{what} {path} is not UTF-8 at line {line}", subject=str(path)) from None


def _refuse_writable(status: os.stat_result, path: Path, what: str) -> None:
    caller = os.geteuid()
    if status.st_uid not in (0, caller):
        why = f"it belongs to user {status.st_uid}"
        cure = f"chown root {path}"
    elif status.st_mode & stat.S_IWOTH and not (
        stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    ):
        why = "everyone can write it"
        cure = f"chmod o-w {path}"
    elif status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid, caller):
        why = f"group {status.st_gid} can write it"
        cure = f"chmod g-w {path}"
    else:
        return
    raise ConfigError(f"{what} {path} cannot be trusted: {why}", hint=f"`{cure}`", subject=str(path))


def _is_private_group(gid: int, caller: int) -> bool:
    """Whether only root and the caller are in the group: root's own, or the user's own of the same name."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(caller)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def out_of_bounds(text: str) -> str:
    """What in a TOML text is beyond the bounds, with its line; empty when nothing is. The text need not be TOML."""
    # Each character takes a byte or more.
    if len(text) > MAX_SITE_BYTES:
        return f"it is larger than {MAX_SITE_BYTES >> 20} MiB"
    return next(_beyond(text), "")


def _beyond(text: str) -> Iterator[str]:
    line, depth, dots, values = 1, 0, 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        first = token[0]
        if first in "[{":
            depth += 1
            values += 1
            dots = 0
        elif first in "]}":
            depth = max(depth - 1, 0)
            dots = 0
        elif first in "=,\n":
            values += first in "=,"
            dots = 0
        elif first not in "\"'#":
            dots += (parts := token.count("."))
            values += parts
            if len(token.strip()) > MAX_WORD:
                yield f"line {line}: a number, or a key without quotes, of more than {MAX_WORD:,} characters"
        if depth > MAX_NESTING or dots >= MAX_NESTING:
            yield f"line {line}: it is nested more than {MAX_NESTING} deep"
        if values > MAX_VALUES:
            yield f"line {line}: there are more than {MAX_VALUES:,} keys and values"
        line += token.count("\n")
