"""FTP listings that break off, which fsspec's own driver takes for empty folders."""

from __future__ import annotations

import pytest

from nightferry.destination.fsspec import FsspecDestination
from nightferry.errors import DestinationError
from tests.servers.ftp import PASSWORD, Ftp
from tests.support.outgoing import PlainImage, put
from tests.support.tapes import named

pytestmark = pytest.mark.server
FIRST, SECOND = named("i1"), named("i2")


def test_a_listing_that_breaks_off_is_an_error_and_no_empty_folder(
    ftp: Ftp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NF_TEST_FTP", PASSWORD)
    folder = ftp.folder()
    destination = FsspecDestination("ftp", ftp.url(folder), options={"password": "env:NF_TEST_FTP"})
    receipt = put(destination, PlainImage(FIRST, b"x" * 1000))
    put(destination, PlainImage(SECOND, b"y" * 1000))
    assert [found.image for found in destination.scan()] == [FIRST, SECOND]
    ftp.cuts["listings"] = True
    try:
        for look in (
            lambda: list(destination.scan()),
            lambda: destination.find(FIRST, 1),
            destination.catalog_copies,
            lambda: destination.open(receipt.location).__enter__(),
        ):
            with pytest.raises(DestinationError) as refused:
                look()
            assert refused.value.retryable, "the server is away: nothing is lost"
    finally:
        ftp.cuts["listings"] = False
    assert [found.image for found in destination.scan()] == [FIRST, SECOND]
    assert (folder / "images" / FIRST / "data").read_bytes() == b"x" * 1000
