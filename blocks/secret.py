"""What a ``block:NAME`` reference of a site file stands for: Prefect's own Secret block of that name."""

from __future__ import annotations

import httpx
from prefect.blocks.system import Secret
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from nightferry.errors import ConfigError, PrefectRequired


def read_block(name: str) -> str:
    """The secret that a block holds.

    Raises:
        ConfigError: no server is named, or it has no such block, or that holds no text.
        PrefectRequired: the server does not answer.
    """
    subject = f"block:{name}"
    if not PREFECT_API_URL.value():
        raise ConfigError(
            f"the secret {subject} lies in Prefect, and no server is named",
            hint="set PREFECT_API_URL, or give an env: or file: reference",
            subject=subject,
        )
    try:
        block = Secret.load(name)
    except ValueError as error:
        raise ConfigError(
            f"there is no Secret block for {subject}",
            hint=f"make it in the Prefect UI, or by Secret(value=…).save({name!r})",
            subject=subject,
        ) from error
    except (httpx.TransportError, PrefectHTTPStatusError) as error:
        raise PrefectRequired(
            f"the secret {subject} cannot be read: the Prefect server does not answer ({type(error).__name__})",
            subject=subject,
        ) from error
    value = block.get() if isinstance(block, Secret) else None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the secret {subject} is no text, or empty", subject=subject)
    return value
