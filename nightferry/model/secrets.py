"""Secrets: references in the site file, resolved where they are used, never shown.

A reference is ``env:NAME``, ``file:/PATH`` (owned by root or the caller, mode at most 0600) or
``block:NAME``, a Secret block of Prefect, which the core does not know: who does hands in how to read one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping

from pydantic import BaseModel, SecretStr

from nightferry.errors import ConfigError, NightferryError

MAX_BYTES = 64 << 10

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|block:[a-z0-9-]+")

BlockResolver = Callable[[str], str]
"""A block's name → the secret it holds."""

_read_block: BlockResolver | None = None


def use_blocks(read: BlockResolver | None) -> None:
    """Names how this process reads a ``block:`` reference; None: it does not."""
    global _read_block
    _read_block = read


def is_reference(value: str) -> bool:
    """Whether a text of the site file stands for a secret that lies elsewhere."""
    return _REFERENCE.fullmatch(value) is not None


def resolve_secret(reference: str, *, environ: Mapping[str, str] = os.environ) -> SecretStr:
    """The secret behind a reference.

    Args:
        reference: ``env:``, ``file:`` or ``block:`` and a name.
        environ: Where ``env:`` references look.

    Raises:
        ConfigError: there is no such secret, or others can read its file. The secret is not in the message.
        PrefectRequired: it is a block, and the server does not answer.
    """
    scheme, _, name = reference.partition(":")
    if scheme == "env" and name:
        return _from_environment(name, environ)
    if scheme == "file" and name.startswith("/"):
        return _from_file(name)
    if scheme == "block" and name:
        if _read_block is None:
            raise ConfigError(
                f"the secret {reference} is stored in Prefect, which is not used here",
                hint="use an env: or file: reference for what runs without a Prefect server",
                subject=reference,
            )
        return SecretStr(_read_block(name))
    # What is not a reference may be the secret itself, so it is not repeated.
    raise ConfigError("a secret must be a reference", hint="write env:NAME, file:/PATH or block:NAME")


def known_secrets(settings: BaseModel) -> set[str]:
    """Every secret that settings refer to, as far as it can be read here; and what this process shows Prefect."""
    found = {os.environ.get(name, "") for name in ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")}
    found |= {auth.partition(":")[2] for auth in found}
    for reference in _references(settings.model_dump()):
        try:
            found.add(resolve_secret(reference).get_secret_value())
        except NightferryError:
            continue  # what cannot be read here cannot be compared with
    return found - {""}


def _references(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if is_reference(value):
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


def _from_environment(name: str, environ: Mapping[str, str]) -> SecretStr:
    value = environ.get(name)
    if not value:
        raise ConfigError(
            f"the secret env:{name} is not set",
            hint=f"set {name} in the environment nightferry and its workers start in",
            subject=f"env:{name}",
        )
    return SecretStr(value)


def _from_file(name: str) -> SecretStr:
    subject = f"file:{name}"
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"cannot read the secret {subject}: {error.strerror}", subject=subject) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ConfigError(f"the secret {subject} is not a regular file", subject=subject)
    with open(fd, "rb") as file:
        if status.st_mode & 0o177 or status.st_uid not in (0, os.geteuid()):
            raise ConfigError(
                f"the secret {subject} is open to others: "
                f"mode {stat.S_IMODE(status.st_mode):04o}, user {status.st_uid}",
                hint=f"`chmod 600 {name}`, owned by root or the user that runs nightferry",
                subject=subject,
            )
        data = file.read(MAX_BYTES + 1)
    try:
        value = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"the secret {subject} is not UTF-8", subject=subject) from None
    if not value or len(data) > MAX_BYTES:
        problem = "is empty" if not value else f"is larger than {MAX_BYTES >> 10} KiB"
        raise ConfigError(f"the secret {subject} {problem}", subject=subject)
    return SecretStr(value)
