"""Which driver serves which URL, and what of its options is secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightferry.destination.drivers import Driver
from nightferry.destination.hosts import is_loopback, keep_direct
from nightferry.errors import ConfigError
from nightferry.model.secrets import is_reference, resolve_secret

_UNENCRYPTED = {"ftp": "sftp", "http": "https", "webdav": "sftp"}
"""Schemes that carry secrets and stores as they are, or to whoever answers (FTP's TLS is not checked by its driver),
and what to take instead."""


def open_driver(name: str, url: str, options: Mapping[str, Any]) -> Driver:
    """The driver of a URL as the site file describes it. Nothing is sent yet.

    Args:
        name: The destination's name.
        url: Its URL.
        options: As written: secrets among them are references, which are resolved here.

    Raises:
        ConfigError: no such scheme, its package is missing, an option is wrong, a reference cannot be
            resolved, or a secret would cross a network as it is.
    """
    keep_direct()
    values, secrets = dict(options), []
    for key, value in options.items():
        if isinstance(value, str) and is_reference(value):
            values[key] = resolve_secret(value).get_secret_value()
            secrets.append(values[key])
    scheme = url.partition("://")[0]
    if scheme in _UNENCRYPTED and not is_loopback(url):
        raise ConfigError(
            f"destination {name}: {scheme}:// would carry stores without encryption",
            hint=f"use {_UNENCRYPTED[scheme]}://; plain {scheme} is for loopback alone",
            subject=name,
        )
    if scheme in ("sftp", "ssh"):
        from nightferry.destination.sftp import SftpDriver

        return SftpDriver(name, url, values, tuple(secrets))
    if scheme == "ftp":
        from nightferry.destination.ftp import FtpDriver

        return FtpDriver(name, url, values, tuple(secrets))
    return Driver(name, url, values, tuple(secrets))
