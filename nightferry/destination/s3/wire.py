"""The HTTP session under boto3, with bounds: no answer but an object's own bytes may be long."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session
from urllib3.exceptions import ProtocolError

ANSWER_BYTES = 16 << 20
"""The longest XML answer read; a page of a thousand names is far below."""


class AnswerTooLong(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """More than ``ANSWER_BYTES`` where a few KiB are due."""

    fmt = "an answer of more than {limit} bytes"


class Redirected(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """The endpoint names another place. botocore would go there, or ask it where to go, without an end."""

    fmt = "it answers {status}: another place is to be asked"


class _Bounded:
    """A response body whose ``stream`` ends with an error beyond the limit; all else is passed through.

    botocore takes XML answers and errors whole through ``stream``; an object's bytes are read by ``read`` or
    ``readinto``, whose caller knows how many it wants.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def stream(self, *args: Any, **options: Any) -> Iterator[bytes]:
        total = 0
        for piece in self._raw.stream(*args, **options):
            total += len(piece)
            if total > ANSWER_BYTES:
                self._raw.close()
                raise AnswerTooLong(limit=ANSWER_BYTES)
            yield piece

    def readinto(self, into: memoryview) -> int:
        """Bytes from the socket to where they are wanted; urllib3's own makes a new object of every read."""
        answer = self._raw._fp
        try:
            count = int(answer.readinto(into))
        except HTTPException as error:
            raise ProtocolError(f"connection broken: {error!r}", error) from error
        if answer.isclosed():  # all of it was read: the connection may carry the next request
            self._raw.release_conn()
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class BoundedSession:
    """Sends requests for a client: register ``send`` for ``before-send``.

    Args:
        options: ``URLLib3Session``'s.
    """

    def __init__(self, **options: Any) -> None:
        self._session = URLLib3Session(**options)

    def send(self, request: Any, **_: Any) -> AWSResponse:
        """The answer.

        Raises:
            Redirected: it is a redirect; none is ever followed.
            AnswerTooLong: it is not an object's bytes, and longer than any other answer.
        """
        wants_stream, request.stream_output = request.stream_output, True
        answer = self._session.send(request)
        if 300 <= answer.status_code < 400 and answer.status_code != 304:
            answer.raw.close()
            raise Redirected(status=answer.status_code)
        bounded = AWSResponse(answer.url, answer.status_code, answer.headers, _Bounded(answer.raw))
        request.stream_output = wants_stream
        if not wants_stream:
            _ = bounded.content
        return bounded

    def close(self) -> None:
        self._session.close()
