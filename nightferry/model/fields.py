"""The kinds of values a site file holds, and the base of all its sections.

Sizes, durations and percentages are written as people write them and read by `nightferry.units`; a key that a
section does not know is an error that says what was meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from datetime import time, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nightferry.errors import ConfigError
from nightferry.model.names import (
    BARCODE,
    HOST_NAME,
    POOL,
    is_back_group,
    is_safe,
    parse_image_name,
    parse_run,
    split_store,
)
from nightferry.model.patterns import require_pattern
from nightferry.model.secrets import is_reference
from nightferry.units import parse_duration, parse_percent, parse_rate, parse_size

_TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_SECRET_IN_DSN = re.compile(r"\bpass(word|file)?\s*=", re.IGNORECASE)
_SECRET_IN_URL = re.compile(r"//[^/@\s]*:[^/@\s]*@|[?&][^=&]*(pass|secret|token|key)[^=&]*=", re.IGNORECASE)
_SECRET_KEY = re.compile(r"pass|secret|token|key|credential", re.IGNORECASE)


class Section(BaseModel):
    """Base of everything a site file says: frozen, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: object) -> object:
        """Names the first unknown key with its nearest right one, which pydantic's own error does not."""
        if isinstance(data, dict):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
                    raise PydanticCustomError(
                        "unknown_key", "unknown key", {"key": str(key), "near": near, "known": sorted(known)}
                    )
        return data


def _size(value: object) -> object:
    return parse_size(value) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _duration(value: object) -> object:
    return (
        parse_duration(value)
        if isinstance(value, str | int | float) and not isinstance(value, bool)
        else value
    )


def _bound(value: object) -> object:
    if value != "any" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError("must be a number of files, or 'any'")
    return value


def _time_of_day(value: object) -> time:
    if isinstance(value, time):
        return value
    match = _TIME_OF_DAY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a time of day; write for example '20:00'")
    return time(int(match[1]), int(match[2]))


def _deadline(value: object) -> time | timedelta:
    if isinstance(value, time | timedelta):
        return value
    if isinstance(value, str) and ":" not in value:
        return timedelta(seconds=parse_duration(value))
    return _time_of_day(value)


def _safe_name(value: str) -> str:
    if not is_safe(value):
        raise ValueError(
            f"not a name: {value!r}; up to 64 letters, digits, '_' and '-', beginning with a letter or digit"
        )
    return value


def _back_group_name(value: str) -> str:
    if not is_back_group(value):
        raise ValueError(
            f"not a name for a BACK group: {value!r}; use one like TEX-BACK-1, "
            "or one that does not end in '-' and digits"
        )
    return value


def _named(parse: Callable[[str], object]) -> Callable[[str], str]:
    """A check by one of the parsers of names; a catalog holds few names, many times over."""

    @lru_cache(maxsize=4096)
    def check(value: str) -> str:
        try:
            parse(value)
        except ConfigError as error:
            raise ValueError(error.message) from error
        return value

    return check


def _absolute(value: Path) -> Path:
    if not value.is_absolute() or ".." in value.parts or "\0" in str(value):
        raise ValueError(f"not an absolute path: {str(value)!r}")
    return value


def _argv(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0].startswith("/"):
        raise ValueError("a command is a list whose first entry is a program's absolute path")
    if any("\0" in word for word in value):
        raise ValueError("a command's words cannot hold a NUL byte")
    return value


def _secret_reference(value: str) -> str:
    """The value is never repeated in the message: it may be the secret itself."""
    if not is_reference(value):
        raise ValueError("a secret is never written here; write env:NAME, file:/PATH or block:NAME")
    return value


def _dsn(value: str) -> str:
    if _SECRET_IN_DSN.search(value) or _SECRET_IN_URL.search(value):
        raise ValueError(
            "a password is never written here; use a pgpass file, peer authentication or a service"
        )
    return value


def _url(value: str) -> str:
    if _SECRET_IN_URL.search(value):
        raise ValueError("a password is never written into a URL; give a reference (env:NAME, file:/PATH)")
    if not re.match(r"[a-z][a-z0-9+.-]*://", value):
        raise ValueError(f"not a URL: {value!r}; write for example 'file:///srv/copies'")
    return value


def _options(value: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
    for key, entry in value.items():
        if _SECRET_KEY.search(key) and isinstance(entry, str):
            try:
                _secret_reference(entry)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
    return value


def _verify(value: str) -> str:
    verify_share(value)
    return value


def _keep_free(value: str | int) -> str | int:
    keep_free_bytes(value, 1 << 40)
    return value


def _patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    for line in value:
        require_pattern(line)
    return value


def _share(value: object) -> object:
    return parse_percent(value) if isinstance(value, str) else value


def _shrinking(value: object) -> object:
    """A share of what was there before; like the next one written as a percentage, and only so."""
    if isinstance(value, float):
        return value
    if not isinstance(value, str):
        raise ValueError("write a percentage of the last whole image, for example '50 %'")
    return parse_percent(value)


def _growing(value: object) -> object:
    if value == "any" or isinstance(value, float):
        return value
    if not isinstance(value, str):
        raise ValueError("write a percentage of the last whole image, for example '1000 %', or 'any'")
    factor = parse_percent(value, limit=float("inf"))
    if factor < 1:
        raise ValueError(
            f"{value!r} of the last whole image is less than all of it; write '1000 %', or 'any'"
        )
    return factor


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def verify_share(text: str) -> float:
    """``"sample:1%"`` → 0.01, ``"full"`` → 1, ``"none"`` → 0.

    Raises:
        ValueError: none of these.
    """
    if text in ("full", "none"):
        return 1.0 if text == "full" else 0.0
    if not text.startswith("sample:"):
        raise ValueError(f"not a way to verify: {text!r}; write 'sample:1%', 'full' or 'none'")
    return parse_percent(text.removeprefix("sample:"))


def keep_free_bytes(value: str | int, disk_bytes: int) -> int:
    """``"5 %"`` of the disk's size, or a size as it is → bytes.

    Raises:
        ValueError: neither a percentage nor a size.
    """
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return int(parse_percent(value) * disk_bytes)
    return parse_size(value)


class BandwidthStep(BaseModel):
    """From ``start`` (site time) on, at most ``bytes_per_s``; None means no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    start: time
    bytes_per_s: float | None


def _bandwidth(value: object) -> object:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple):
        raise ValueError('write for example ["20:00 50 MiB/s", "06:00 5 MiB/s"]')
    steps = []
    for text in value:
        if isinstance(text, BandwidthStep):
            steps.append(text)
            continue
        if not isinstance(text, str):
            raise ValueError('write for example ["20:00 50 MiB/s", "06:00 5 MiB/s"]')
        match = re.fullmatch(r"\s*([0-9]{2}:[0-9]{2})\s+(.+)", text)
        start, rate = (match[1], match[2]) if match is not None else ("00:00", text)
        rate_bytes = None if rate.strip() == "unlimited" else parse_rate(rate)
        if rate_bytes == 0:
            raise ValueError(
                f"in {text!r}: a limit of zero stops every transfer; write 'unlimited' for no limit"
            )
        steps.append(BandwidthStep(start=_time_of_day(start), bytes_per_s=rate_bytes))
    steps.sort(key=lambda step: step.start)
    if len({step.start for step in steps}) != len(steps):
        raise ValueError("two limits begin at the same time")
    return tuple(steps)


Size = Annotated[int, BeforeValidator(_size), Field(strict=True, ge=0)]
Duration = Annotated[float, BeforeValidator(_duration), Field(ge=0)]
Share = Annotated[float, BeforeValidator(_share), Field(gt=0, le=1)]
Shrinking = Annotated[float, BeforeValidator(_shrinking), Field(ge=0, le=1)]
Growing = Annotated[float | Literal["any"], BeforeValidator(_growing)]
Bound = Annotated[int | Literal["any"], BeforeValidator(_bound)]
TimeOfDay = Annotated[time, BeforeValidator(_time_of_day)]
Deadline = Annotated[time | timedelta, BeforeValidator(_deadline)]
SafeName = Annotated[str, AfterValidator(_safe_name)]
BackGroupName = Annotated[str, AfterValidator(_back_group_name)]
NodeText = Annotated[str, StringConstraints(pattern=f"^{HOST_NAME}$")]
RunText = Annotated[str, AfterValidator(_named(parse_run))]
ImageText = Annotated[str, AfterValidator(_named(parse_image_name))]
StoreText = Annotated[str, AfterValidator(_named(split_store))]
"""``GROUP/STORE``."""
BarcodeText = Annotated[str, StringConstraints(pattern=f"^{BARCODE}$")]
PoolText = Annotated[str, StringConstraints(pattern=f"^{POOL}$")]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
"""BLAKE3 in lower-case hex."""
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""Bytes, files, numbers: what fits a column of an index."""
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Argv = Annotated[tuple[str, ...], AfterValidator(_argv)]
SecretRef = Annotated[str, AfterValidator(_secret_reference)]
Dsn = Annotated[str, AfterValidator(_dsn)]
Url = Annotated[str, AfterValidator(_url)]
DriverOptions = Annotated[dict[str, str | int | float | bool], AfterValidator(_options)]
Verify = Annotated[str, AfterValidator(_verify)]
Patterns = Annotated[tuple[str, ...], AfterValidator(_patterns)]
KeepFree = Annotated[str | int, AfterValidator(_keep_free)]
Bandwidth = Annotated[tuple[BandwidthStep, ...], BeforeValidator(_bandwidth)]
StringList = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]
