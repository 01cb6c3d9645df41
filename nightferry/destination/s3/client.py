"""A boto3 client as the site file wants it, and nothing that would weaken it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

from nightferry.destination.hosts import is_loopback, keep_direct
from nightferry.destination.s3.wire import BoundedSession
from nightferry.errors import ConfigError
from nightferry.model.destinations import S3Settings
from nightferry.model.secrets import resolve_secret

S3_CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
"""Silence, not length: a request may take as long as bytes move."""
CONNECTIONS = 80
_SIGNER = "nightferry-s3v4"


@dataclass(frozen=True, slots=True)
class Connection:
    """An opened client. ``endpoint`` is the URL its requests go to; ``prefix`` is empty or ends in ``/``; ``again``
    opens another one, with the keys as they are by then."""

    client: Any
    session: BoundedSession
    endpoint: str
    bucket: str
    prefix: str
    again: Callable[[], Connection]
    credentials: Any = field(repr=False)

    @property
    def reads_a_file(self) -> bool:
        """Whether the keys are what a file says, which may be half written; all others come whole or not at all."""
        method = getattr(self.credentials, "method", "")
        return isinstance(self.credentials, dict) or method in ("shared-credentials-file", "config-file")

    def has_keys_of(self, other: Connection) -> bool:
        """Whether both sign with the same keys."""
        return bool(_frozen(self.credentials) == _frozen(other.credentials))

    def secrets(self) -> tuple[str, ...]:
        """What no message may repeat, whoever says it: keys and session token."""
        keys = _frozen(self.credentials)
        if isinstance(keys, dict):
            found = [*keys.values()]
        else:
            found = [getattr(keys, name, None) for name in ("access_key", "secret_key", "token")]
        return tuple(secret for secret in found if secret)


def _frozen(credentials: Any) -> Any:
    return (
        credentials.get_frozen_credentials()
        if hasattr(credentials, "get_frozen_credentials")
        else credentials
    )


def connect(settings: S3Settings, *, read_timeout_s: float = READ_TIMEOUT_S, who: str = "") -> Connection:
    """Opens a client for ``who``, by default the destination of that name. Nothing is sent yet.

    Keys come from the settings' references, else from boto3's own chain. Certificates are verified always:
    there is no switch, and ``ca_file`` only adds whom to trust. A proxy that the environment names gets neither
    what goes to this machine nor keys without TLS.

    Raises:
        ConfigError: the URL names no bucket, a reference or the profile cannot be resolved, or keys would
            cross a network without TLS.
    """
    import boto3
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header
    from botocore.utils import get_environ_proxies

    keep_direct()
    again = partial(connect, settings, read_timeout_s=read_timeout_s, who=who)
    who = who or f"destination {settings.name}"
    bucket, prefix = split_url(settings.url)
    keys: dict[str, str] = {}
    if settings.access_key and settings.secret_key:
        keys = {
            "aws_access_key_id": resolve_secret(settings.access_key).get_secret_value(),
            "aws_secret_access_key": resolve_secret(settings.secret_key).get_secret_value(),
        }
    verify = str(settings.ca_file) if settings.ca_file else None
    named = any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    custom = settings.endpoint is not None or named
    path_style = custom if settings.path_style is None else settings.path_style
    config = Config(
        connect_timeout=S3_CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        max_pool_connections=CONNECTIONS,
        # All streams share one back-off; tries that botocore made by itself would not be seen by it.
        retries={"total_max_attempts": 1, "mode": "standard"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # Our CRC64NVME and TLS protect the bytes; hashing them a second time would double the cost.
        s3={"addressing_style": "path" if path_style else "auto", "payload_signing_enabled": False},
    )
    try:
        core = botocore.session.Session(profile=settings.profile)
        core.register_component("data_loader", _loader())
        session = boto3.session.Session(botocore_session=core)
        region = settings.region or session.region_name or ("us-east-1" if custom else None)
        client = session.client(
            "s3", endpoint_url=settings.endpoint, region_name=region, verify=verify, config=config, **keys
        )
        credentials = keys or session.get_credentials()
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"{who}: {error}", subject=settings.name) from error
    endpoint = client.meta.endpoint_url
    with_keys = bool(credentials)
    _require_tls(who, settings.name, endpoint, with_keys)
    is_direct = is_loopback(endpoint) or (with_keys and not endpoint.startswith("https://"))
    wire = BoundedSession(
        verify=verify or core.get_config_variable("ca_bundle") or True,
        proxies={} if is_direct else get_environ_proxies(endpoint),
        timeout=(S3_CONNECT_TIMEOUT_S, read_timeout_s),
        max_pool_connections=CONNECTIONS,
    )
    client.meta.events.register("before-send.s3", wire.send)
    client.meta.events.register("choose-signer.s3", _signer)
    # A store that does not say "100 Continue" would cost a second of waiting for it, each time.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return Connection(client, wire, endpoint, bucket, prefix, again, credentials)


@cache
def _loader() -> Any:
    """The description of S3, read once: it takes most of a second."""
    import botocore.session

    return botocore.session.Session().get_component("data_loader")


def _signer(signature_version: Any, **_: Any) -> str | None:
    """botocore's own signer in place of the one in awscrt, which copies every body, used or not."""
    from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth

    if signature_version not in ("v4", "s3v4"):
        return None
    AUTH_TYPE_MAPS.setdefault(_SIGNER, S3SigV4Auth)
    return _SIGNER


def split_url(url: str) -> tuple[str, str]:
    """``s3://bucket/a/b`` → ``("bucket", "a/b/")``.

    Raises:
        ConfigError: not such a URL.
    """
    parts = urlsplit(url)
    names = [name for name in parts.path.split("/") if name]
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or ".." in names:
        raise ConfigError(f"not the URL of a bucket: {url!r}", hint="write s3://bucket or s3://bucket/prefix")
    return parts.netloc, "".join(f"{name}/" for name in names)


def _require_tls(who: str, name: str, endpoint: str, with_keys: bool) -> None:
    if not endpoint.startswith("https://") and with_keys and not is_loopback(endpoint):
        raise ConfigError(
            f"{who}: {endpoint} would carry keys and stores without encryption",
            hint="use https (ca_file names your own authority); plain http is for loopback alone",
            subject=name,
        )
