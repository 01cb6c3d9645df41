"""What a ``block:NAME`` reference of a site file stands for: Prefect's own Secret block of that name."""

from __future__ import annotations

import httpx
from prefect.blocks.system import Secret
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from nightferry.errors import ConfigError, PrefectRequired


def read_secret_block(name: str) -> str:
    """The secret that a block holds.

    Raises:
        ConfigError: no server is named, or it has no such block, or that holds no text.
        PrefectRequired: the server does not answer.
    """
    subject = f"block:{name}"
    if not PREFECT_API_URL.value():
        raise ConfigError(
            f"the secret {subject} is stored in Prefect, but no server is configured",
            hint="set PREFECT_API_URL, or use an env: or file: reference",
            subject=subject,
        )
    try:
        block = Secret.load(name)
    except ValueError as error:
        raise ConfigError(
            f"there is no Secret block for {subject}",
            hint=f"create it in the Prefect UI, or with Secret(value=…).save({name!r})",
            subject=subject,
        ) from error
    except PrefectHTTPStatusError as error:
        if error.response.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise _does_not_answer(subject, error) from error
        raise ConfigError(
            f"the Prefect server denies access to the secret {subject}",
            hint="set PREFECT_API_AUTH_STRING or PREFECT_API_KEY to the value that the server expects",
            subject=subject,
        ) from error
    except httpx.TransportError as error:
        raise _does_not_answer(subject, error) from error
    value = block.get() if isinstance(block, Secret) else None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the secret {subject} is not text, or is empty", subject=subject)
    return value


def _does_not_answer(subject: str, error: Exception) -> PrefectRequired:
    return PrefectRequired(
        f"the secret {subject} cannot be read: the Prefect server does not answer ({type(error).__name__})",
        subject=subject,
    )
