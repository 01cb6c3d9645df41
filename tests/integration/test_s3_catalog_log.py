"""The catalog's log in a bucket of a real S3 server: races, lost answers, refusals, and what it costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from nightferry.catalog import events
from nightferry.catalog.events import EventLog
from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.errors import BusyError, CatalogError
from nightferry.model.records import FreedRecord
from nightferry.site import catalog_bucket
from nightferry.site.catalog_bucket import BucketStorage
from tests.servers.proxy import Ask, Fault, Proxy
from tests.servers.seaweed import READER_KEYS, Seaweed
from tests.support.bucket_catalog import bucket_place
from tests.support.small_site import HandClock
from tests.support.tapes import named

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]

WRITERS = 16


@pytest.fixture(autouse=True)
def _ask_again() -> None:
    catalog_bucket._honest.clear()


@pytest.fixture
def place(seaweed: Seaweed) -> Iterator[BucketStorage]:
    with bucket_place(seaweed, seaweed.prefix()) as place:
        yield place


def freed(image: str) -> FreedRecord:
    return FreedRecord(image=image, reason="test", at=HandClock().now())


def add(log: EventLog, count: int, start: int = 0) -> None:
    for i in range(start, start + count):
        log.append("run", f"r{i}", "result", {"n": i})


def claims(ask: Ask) -> bool:
    """A request that claims an event's name."""
    return ask.method == "PUT" and "/events/" in ask.path


def race(place: BucketStorage, each: int) -> dict[str, list[int]]:
    """Sixteen writers with logs of their own, of one name and one moment; what each was told."""

    def write(who: int) -> list[int]:
        log = EventLog(place, writer="node:1", clock=HandClock())
        return [log.append("run", f"w{who}-{i}", "result", {}).sequence for i in range(each)]

    with ThreadPoolExecutor(WRITERS) as writers:
        return {f"w{who}": told for who, told in enumerate(writers.map(write, range(WRITERS)))}


def require_one_history(place: BucketStorage, told: dict[str, list[int]], each: int) -> None:
    rows = EventLog(place).rows()
    assert [row.sequence for row in rows] == list(range(1, WRITERS * each + 1))
    for who, sequences in told.items():
        mine = [row for row in rows if row.subject.startswith(f"{who}-")]
        assert [row.subject for row in mine] == [f"{who}-{i}" for i in range(each)]
        assert [row.sequence for row in mine] == sequences


def test_sixteen_writers_lose_nothing_and_leave_no_gap(
    place: BucketStorage, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_LOOSE", 10)
    told = race(place, 2)
    require_one_history(place, told, 2)
    assert seaweed.keys_below(place.bucket.key("segments/")), "nobody gathered on the way"


def test_sixteen_writers_whose_answers_are_lost_lose_nothing(seaweed: Seaweed, proxy: Proxy) -> None:
    met: Counter[str] = Counter()

    def rule(ask: Ask) -> Fault | None:
        if not claims(ask):
            return None
        met[ask.path] += 1
        return Fault(lose_answer=True) if met[ask.path] % 3 == 1 else None

    proxy.rule = rule
    with bucket_place(seaweed, seaweed.prefix(), endpoint=proxy.endpoint) as place:
        told = race(place, 1)
        require_one_history(place, told, 1)
    assert proxy.count(claims) > WRITERS


def test_of_sixteen_that_expect_the_same_one_wins(place: BucketStorage) -> None:
    def try_it(who: int) -> int | None:
        log = EventLog(place, writer="node:1", clock=HandClock())
        try:
            log.append("owner", "B1", "result", {"who": who}, expect=0)
        except BusyError:
            return None
        return who

    with ThreadPoolExecutor(WRITERS) as racers:
        winners = [who for who in racers.map(try_it, range(WRITERS)) if who is not None]
    (row,) = EventLog(place).rows()
    assert [json.loads(row.body)["who"]] == winners


def test_an_event_gathered_before_its_lost_answer_was_asked_for_is_written_once(
    seaweed: Seaweed, proxy: Proxy
) -> None:
    prefix = seaweed.prefix()
    with (
        bucket_place(seaweed, prefix) as direct,
        bucket_place(seaweed, prefix, endpoint=proxy.endpoint) as slow,
    ):
        add(EventLog(direct), 1)

        def rule(ask: Ask) -> Fault | None:
            if not claims(ask):
                return None
            if proxy.count(claims) == 1:
                return Fault(lose_answer=True)
            if proxy.count(claims) == 2:
                EventLog(direct).compact()
            return None

        proxy.rule = rule
        assert EventLog(slow, clock=HandClock()).append("run", "late", "result", {}).sequence == 2
        assert [row.subject for row in EventLog(direct).rows()] == ["r0", "late"]
        EventLog(direct).compact()
        assert seaweed.keys_below(f"{prefix}/events/") == []


def test_a_store_that_does_not_honour_claims_is_refused(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix = seaweed.prefix()
    taken: set[str] = set()

    def rule(ask: Ask) -> Fault | None:
        """As a store that never heard of conditions: it takes the second one, too."""
        if ask.method != "PUT" or ask.path not in taken:
            taken.add(ask.path)
            return None
        return Fault(answer=(200, {"ETag": '"0"'}, b""))

    proxy.rule = rule
    with bucket_place(seaweed, prefix, endpoint=proxy.endpoint) as place:
        with pytest.raises(CatalogError, match="does not honour If-None-Match") as caught:
            EventLog(place).append("run", "r", "result", {})
        assert (caught.value.exit_code, "conditional writes" in caught.value.hint) == (60, True)
        assert proxy.endpoint in caught.value.message
    assert seaweed.keys_below(prefix) == []


@pytest.mark.parametrize("status", [501, 400])
def test_a_store_that_refuses_conditions_is_refused(seaweed: Seaweed, proxy: Proxy, status: int) -> None:
    said = b"<Error><Code>NotImplemented</Code><Message>no conditions</Message></Error>"
    proxy.rule = lambda ask: Fault(answer=(status, {}, said)) if "If-None-Match" in ask.headers else None
    with bucket_place(seaweed, seaweed.prefix(), endpoint=proxy.endpoint) as place:
        with pytest.raises(CatalogError):
            EventLog(place).append("run", "r", "result", {})
        assert place.names("events") == []


def test_what_refuses_is_a_catalog_error_that_names_the_catalog(seaweed: Seaweed, proxy: Proxy) -> None:
    proxy.rule = lambda ask: Fault(cut_request=0)
    with (
        bucket_place(seaweed, "away", endpoint=proxy.endpoint, attempts=2) as place,
        pytest.raises(CatalogError, match="s3://copies/away") as caught,
    ):
        Catalog(place, node="n")
    assert caught.value.exit_code == 60
    with bucket_place(seaweed, "readonly", keys=READER_KEYS) as place:
        log = EventLog(place)
        assert log.refresh() == 0
        with pytest.raises(CatalogError, match="AccessDenied"):
            log.append("run", "r", "result", {})


def test_opening_a_catalog_of_a_thousand_events_takes_few_requests(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix = seaweed.prefix()
    memory = MemoryStorage()
    written = Catalog(memory, node="n", clock=HandClock())
    for i in range(1000):
        written.append(freed(named(f"i{i}")))
    with bucket_place(seaweed, prefix) as place:
        for folder in ("segments", "events"):
            for name, data in memory.read_all(folder, memory.names(folder)).items():
                assert place.create(f"{folder}/{name}", data)
    with bucket_place(seaweed, prefix, endpoint=proxy.endpoint) as place:
        catalog = Catalog(place, node="n", clock=HandClock())
        assert len(catalog.all(FreedRecord)) == 1000
        opening = len(proxy.asked)
        catalog.append(freed(named("one-more")))
        appending = len(proxy.asked) - opening
        loose = proxy.count(lambda ask: ask.method == "GET" and "/events/" in ask.path)
        segments = proxy.count(lambda ask: ask.method == "GET" and "/segments/" in ask.path)
    assert loose <= 64
    assert segments <= 10
    assert opening - loose <= 14
    assert appending <= 12, "the probe of a process's first claim included"
    with bucket_place(seaweed, prefix) as place:
        EventLog(place).compact()
    with ExitStack() as stack:
        place = stack.enter_context(bucket_place(seaweed, prefix, endpoint=proxy.endpoint))
        proxy.asked.clear()
        assert len(Catalog(place, node="n").all(FreedRecord)) == 1001
        assert len(proxy.asked) <= 12
