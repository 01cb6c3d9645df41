"""What a night that could not deliver says to do: the error's own hint, and doing it leads out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nightferry.destination.s3 import probe
from nightferry.errors import DestinationError, NightferryError
from nightferry.night.report import NightResult, night_result, report_markdown
from nightferry.site.opened import OpenSite
from tests.integration.test_s3_sessions import EXPIRED
from tests.servers.proxy import Proxy
from tests.servers.seaweed import Seaweed
from tests.support import night, toml
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("bucket_keys")]

MakeSite = Callable[..., SmallSite]


@pytest.fixture(autouse=True)
def _ask_the_store_again() -> Iterator[None]:
    probe.forget_abilities()
    yield
    probe.forget_abilities()


def failed_night(opened: OpenSite) -> tuple[NightResult, NightferryError]:
    record = night.stage_one(opened, BACK_GROUP)
    with pytest.raises(NightferryError) as failed:
        night.stage_two(opened, record)
    result = night_result(opened, record)
    assert (result.outcome, result.exit_code) == ("CopyMissing", 20)
    return result, failed.value


def test_of_a_place_that_is_another_sites_the_night_says_what_to_do(make_site: MakeSite) -> None:
    clock = HandClock()
    site = make_site(copies=("folder",))
    with site.open(clock) as opened:
        site.objects.mkdir()
        (site.objects / "site.json").write_text('{"format": 1, "site": "OHIO", "id": "%s"}' % ("f" * 32))
        result, error = failed_night(opened)
        assert "belongs to site OHIO" in result.reasons[0]
        assert result.hints == [error.hint]
        assert "give each site its own url" in result.hints[0]
        assert "give each site its own url" in report_markdown(result)
        assert result.as_json()["missing_copies"][0]["hint"] == error.hint
    site.file.write_text(site.file.read_text().replace(f"file://{site.objects}", f"file://{site.home}/own"))
    with site.open(clock) as opened:
        night.stage_two(opened, result.run)
        later = night_result(opened, result.run)
        assert (later.outcome, later.hints) == ("Completed", [])


@pytest.mark.xdist_group("seaweed")
def test_of_a_session_that_expired_the_night_says_to_log_in_again(
    make_site: MakeSite, seaweed: Seaweed, proxy: Proxy
) -> None:
    site = make_site(copies=())
    bucket = toml.bucket(f"s3://{seaweed.bucket}/{seaweed.prefix()}", proxy.endpoint)
    site.write_file(copies=("cloud",), more=bucket)
    with site.open(HandClock()) as opened:
        proxy.rule = lambda ask: EXPIRED if ask.method == "PUT" and ask.path.endswith("/data") else None
        result, error = failed_night(opened)
        assert isinstance(error, DestinationError)
        assert "ExpiredToken" in result.reasons[0]
        assert any("log in again" in hint for hint in result.hints)
        proxy.rule = lambda ask: None
        night.stage_two(opened, result.run)
        later = night_result(opened, result.run)
        assert (later.outcome, later.hints) == ("Completed", [])
