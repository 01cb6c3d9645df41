"""What holds of every retention, whatever its numbers and however the nights went."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from nightferry.model.destinations import Retention
from nightferry.plan.retention import Candidate, judge

KEYS = ("keep_last", "keep_daily", "keep_weekly", "keep_monthly", "keep_yearly")

counts = st.integers(0, 5)
retentions = st.builds(
    Retention,
    keep_last=counts,
    keep_daily=counts,
    keep_weekly=counts,
    keep_monthly=counts,
    keep_yearly=counts,
)


@st.composite
def stores(draw: st.DrawFn) -> list[Candidate]:
    """A store's images: days between them, hours into the night, proved or not, few of them spared."""
    night, found = date(2024, 2, 20), []
    for number in range(draw(st.integers(0, 16))):
        night += timedelta(days=draw(st.sampled_from((0, 1, 1, 1, 2, 8, 31, 400))))
        hour = draw(st.integers(0, 30))
        started = datetime(night.year, night.month, night.day, tzinfo=UTC) + timedelta(hours=hour)
        proved = draw(st.sampled_from((True, True, True, False)))
        spared = draw(st.sampled_from(("", "", "", "", "held")))
        found.append(Candidate(f"i{number:02d}", night, started, proved, spared))
    return draw(st.permutations(found))


def kept(retention: Retention, store: list[Candidate]) -> set[str]:
    return {v.image for v in judge(retention, store) if v.stays}


def age(candidate: Candidate) -> tuple[date, datetime, str]:
    return (candidate.night, candidate.started, candidate.image)


@given(retentions, stores())
def test_every_image_is_judged_once_the_newest_first(retention: Retention, store: list[Candidate]) -> None:
    order = [c.image for c in sorted(store, key=age, reverse=True)]
    verdicts = judge(retention, store)
    assert [v.image for v in verdicts] == order
    assert all(v.why for v in verdicts)


@given(retentions, stores())
def test_the_newest_proved_image_and_all_after_it_stay(retention: Retention, store: list[Candidate]) -> None:
    proved = [c for c in store if c.proved]
    newest = max(proved, key=age, default=None)
    must = {c.image for c in store if newest is None or age(c) >= age(newest)}
    assert must <= kept(retention, store)


@given(retentions, stores())
def test_what_is_spared_stays(retention: Retention, store: list[Candidate]) -> None:
    assert {c.image for c in store if c.spared} <= kept(retention, store)


@given(retentions, stores())
def test_judging_what_stayed_changes_nothing(retention: Retention, store: list[Candidate]) -> None:
    stays = kept(retention, store)
    assert kept(retention, [c for c in store if c.image in stays]) == stays


@given(retentions, st.sampled_from(KEYS), stores())
def test_a_larger_number_never_costs_an_image(retention: Retention, key: str, store: list[Candidate]) -> None:
    if retention.keeps_everything:
        return
    larger = retention.model_copy(update={key: getattr(retention, key) + 1})
    assert kept(retention, store) <= kept(larger, store)


@given(retentions, stores(), st.integers(0, 3), st.booleans())
def test_a_further_night_brings_nothing_back(
    retention: Retention, store: list[Candidate], days: int, proved: bool
) -> None:
    newest = max(
        store, key=age, default=Candidate("", date(2024, 2, 20), datetime(2024, 2, 20, tzinfo=UTC), True)
    )
    night = newest.night + timedelta(days=days)
    further = Candidate(
        "new", night, max(newest.started, *(c.started for c in store), newest.started), proved
    )
    assert kept(retention, [*store, further]) <= kept(retention, store) | {"new"}


@given(retentions, stores())
def test_an_unproved_image_costs_no_proved_one_its_place(
    retention: Retention, store: list[Candidate]
) -> None:
    proved = [c for c in store if c.proved]
    assert kept(retention, proved) == kept(retention, store) & {c.image for c in proved}


@given(retentions, stores())
def test_what_stays_is_what_the_words_say(retention: Retention, store: list[Candidate]) -> None:
    """The rule once more, in the plainest way: for each number, the newest proved image of each period."""
    proved = sorted((c for c in store if c.proved), key=age, reverse=True)
    said = {c.image for c in proved[: retention.keep_last]}
    for count, form in (
        (retention.keep_daily, "%Y-%m-%d"),
        (retention.keep_weekly, "%G-W%V"),
        (retention.keep_monthly, "%Y-%m"),
        (retention.keep_yearly, "%Y"),
    ):
        periods = sorted({c.night.strftime(form) for c in proved}, reverse=True)[:count]
        said |= {next(c.image for c in proved if c.night.strftime(form) == period) for period in periods}
    said |= {c.image for c in proved if c.spared or retention.keeps_everything}
    assert kept(retention, store) & {c.image for c in proved} == said
