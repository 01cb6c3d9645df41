"""What an S3 endpoint's refusals and silences mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from urllib3.exceptions import HTTPError

from nightferry.destination.s3.wire import Redirected
from nightferry.errors import DestinationError, MediumDamaged, MediumFull, Unavailable
from nightferry.model.redact import scrubbed
from nightferry.model.text import safe

FAULTS = (ClientError, BotoCoreError, HTTPError, OSError)
"""All that a request may raise."""

_PASSING_CODES = {
    "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestTimeout", "ServiceUnavailable",
    "InternalError", "OperationAborted", "BadDigest", "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}  # fmt: skip
"""A wrong digest is here: the bytes were right when they left, so that they were hurt on the way."""
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "StorageFull"}
_HINTS = {
    "InvalidAccessKeyId": "the access key is unknown there; check access_key or profile",
    "SignatureDoesNotMatch": "the secret key does not match the access key; check secret_key or profile",
    "RequestTimeTooSkewed": "set this node's clock (chronyc makestep): it and the store's differ too much",
    "NoSuchBucket": "create the bucket, or correct the url",
    "AccessDenied": "give the key the right; docs/s3.md lists which are needed",
    "InvalidObjectState": "the object is archived: recall it first",
    "GlacierExpeditedRetrievalNotAvailable": "no expedited recall is available now; set recall's tier to standard",
    "MethodNotAllowed": "this store cannot do that",
}


EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"}


class SessionExpired(Unavailable):
    """The keys were good until now, and no newer ones are to be had yet. What is up there stays."""

    default_hint = (
        "log in again, or renew the keys that the site file refers to; the uploaded parts are kept, and a rerun "
        "sends only what is missing"
    )


class KeysRefused(DestinationError):
    """The store does not take the keys, or their signature. What is up there stays."""


class Forbidden(DestinationError):
    """The key may not do this. For reading that is well when it may only write."""

    default_hint = _HINTS["AccessDenied"]


class NotSupported(Forbidden):
    """The store does not know such a request."""

    default_hint = "`nightferry check` says what is missing"


def status_of(error: BaseException) -> int:
    """The HTTP status of a refusal; 0 when there was no answer."""
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: BaseException) -> str:
    """The S3 code of a refusal, or its status as text where an answer has no body (HEAD)."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def is_expired(error: BaseException) -> bool:
    """Whether the store takes these keys no longer. The answer to a HEAD has no words: it may be so then."""
    return code_of(error) in (*EXPIRED, "400")


def is_passing(error: Exception) -> bool:
    """Whether another try of the same request can help."""
    if isinstance(error, ClientError):
        status = status_of(error)
        return (
            code_of(error) in _PASSING_CODES or status == 429 or (status >= 500 and status not in (501, 507))
        )
    if isinstance(error, SSLError):
        return False
    return isinstance(
        error, HTTPClientError | IncompleteReadError | ResponseStreamingError | HTTPError | OSError
    )


def as_s3_error(error: Exception, name: str, what: str, secrets: Iterable[str] = ()) -> DestinationError:
    """The error a user should see. Foreign words are made safe, and hold none of our secrets: a store may repeat what
    it was sent. Raise it ``from None``, as the library's own words are as they came.

    Args:
        error: One of ``FAULTS``.
        name: The destination.
        what: What was asked: ``get images/…/data``.
        secrets: Never shown.
    """
    text = f"{name}: {what}: {_said(error, secrets)}"
    code, status = code_of(error), status_of(error)
    hint = _HINTS.get(code, "")
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return DestinationError(
            text, subject=name, hint="give access_key and secret_key as references, or a profile"
        )
    if code in EXPIRED or isinstance(error, CredentialRetrievalError | SSOError | TokenRetrievalError):
        return SessionExpired(text, subject=name)
    if code in _KEYS:
        return KeysRefused(text, subject=name, hint=hint)
    if code in _FULL or status == 507:
        return MediumFull(text, subject=name)
    if isinstance(error, Redirected):
        return DestinationError(
            f"{text}; nothing was sent there", subject=name, hint="correct endpoint and region"
        )
    if code in ("NoSuchKey", "NoSuchVersion", "InvalidRange"):
        return MediumDamaged(text, subject=name)
    if code in ("AccessDenied", "403"):
        return Forbidden(text, subject=name)
    if isinstance(error, SSLError):
        return DestinationError(text, subject=name, hint="give the authority's certificate as ca_file")
    if is_passing(error):
        return Unavailable(text, subject=name)
    return DestinationError(text, subject=name, hint=hint)


def _said(error: Exception, secrets: Iterable[str]) -> str:
    if isinstance(error, ClientError):
        said = f"{code_of(error)}: {_response(error).get('Error', {}).get('Message', '')}"
        return safe(scrubbed(said.rstrip(": "), secrets), 300)
    return safe(scrubbed(f"{type(error).__name__}: {error}", secrets), 300)


def _response(error: BaseException) -> Mapping[str, Any]:
    return error.response if isinstance(error, ClientError) else {}
