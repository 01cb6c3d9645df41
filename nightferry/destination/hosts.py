"""Which hosts are this machine, and that no proxy stands between it and itself."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import MutableMapping
from urllib.parse import urlsplit

_DIRECT = ("localhost", "127.0.0.1", "::1", "169.254.169.254", "fd00:ec2::254")
"""This machine, and where a cloud's machines get their credentials, without encryption."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def keep_direct(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keeps the proxies that the environment names away from this machine's own addresses, for every library of
    this process and the processes that it starts; proxies to other hosts stay as they are."""
    if not any(environment.get(name) or environment.get(name.upper()) for name in _PROXIES):
        return
    for name in ("no_proxy", "NO_PROXY"):
        # Libraries look at the one or the other, and at the lower case first.
        given = environment.get(name) or environment.get(name.swapcase()) or ""
        spared = [host.strip() for host in given.split(",") if host.strip()]
        if "*" not in spared:
            environment[name] = ",".join([*spared, *(host for host in _DIRECT if host not in spared)])
