"""A Prefect API seen by plain HTTP: whether it answers, and whether it lets in anybody who reaches it.

Whoever can write to the API commands the workers, so every server must ask who is there, also one on loopback:
any user of the machine reaches that. Nothing here imports Prefect.
"""

from __future__ import annotations

import base64
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping

from nightferry.model.findings import Finding

API_ANSWER_S = 3.0
"""How long a server may take to answer before it counts as away."""

KEYS = ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
"""What a client may be given to show the server who it is."""

FIX = (
    "give the server PREFECT_SERVER_API_AUTH_STRING and its clients PREFECT_API_AUTH_STRING; on a machine that nobody "
    "else uses, [site] single_user = true accepts a server on loopback without"
)


def answers(url: str) -> bool:
    """Whether a Prefect API answers its health question there; it needs no credentials."""
    return _status(f"{url.rstrip('/')}/health", {}) == 200


def accepts(url: str, auth_string: str, timeout_s: float = API_ANSWER_S) -> bool:
    """Whether the API lets in whoever shows this auth string. Call it only for a server that may know it."""
    return _status(f"{url.rstrip('/')}/admin/version", basic(auth_string), timeout_s) == 200


def is_open(url: str) -> bool | None:
    """Whether the API answers somebody who shows no credentials; None when it does not answer at all."""
    status = _status(f"{url.rstrip('/')}/admin/version", {})
    return None if status is None else status == 200


def is_beyond_loopback(url: str) -> bool:
    """Whether other machines reach what answers at this URL; no URL is none."""
    host = urllib.parse.urlsplit(url).hostname or ""
    return bool(host) and not (host in ("localhost", "::1") or host.startswith("127."))


def why_unguarded(url: str, single_user: bool, has_credentials: bool) -> str:
    """Why a server must not be used as it is; empty when it may.

    Args:
        url: Its API.
        single_user: The site says that nobody else uses the machine.
        has_credentials: The client has something to show. It counts only when the server does not answer.
    """
    beyond = is_beyond_loopback(url)
    if not url or (single_user and not beyond):
        return ""
    opened = is_open(url)
    host = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
    if opened:
        who = "anybody who reaches it" if beyond else "every user of this machine"
        return f"the Prefect API at {host} lets {who} in, who can then command its workers"
    if opened is None and beyond and not has_credentials:
        return f"the Prefect API at {host} is not on loopback, and no key or auth string is set for it"
    return ""


def prefect_api(single_user: bool, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """What `check` says of the server that PREFECT_API_URL names."""
    url = environment.get("PREFECT_API_URL", "")
    why = why_unguarded(url, single_user, any(environment.get(key) for key in KEYS))
    if why:
        yield Finding("NF-PREFECT-001", "fail", why, FIX)


def basic(auth_string: str) -> dict[str, str]:
    """The header that shows a Prefect server its auth string."""
    return {"Authorization": "Basic " + base64.b64encode(auth_string.encode()).decode()}


def _status(url: str, headers: dict[str, str], timeout_s: float = API_ANSWER_S) -> int | None:
    """The HTTP status of a GET; None when nothing answers."""
    if not url.startswith(("http://", "https://")):
        return None
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http(s) only
    # A proxy that the environment names leads away from this machine.
    proxies: dict[str, str] | None = None if is_beyond_loopback(url) else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError, ValueError):
        return None
