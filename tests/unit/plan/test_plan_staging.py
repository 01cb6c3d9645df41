from datetime import UTC, datetime, timedelta

import pytest

from nightferry.errors import ConfigError
from nightferry.model.records import CopyRecord, CopyState, ImageRecord, ImageState
from nightferry.plan.staging import CopyPolicy, freeable, is_secured

AT = datetime(2026, 3, 8, 2, 0, tzinfo=UTC)
BOTH = CopyPolicy(("tape", "cloud"))


def image(name: str, day: int, store: str = "priv1", state: ImageState = "whole") -> ImageRecord:
    at = AT + timedelta(days=day)
    return ImageRecord.model_construct(
        image=name, run="r", group="SG1", store=store, source_kind="files", state=state, size_bytes=100,
        payload_bytes=90, files=1, digest="", index_offset=0, index_bytes=0, index_digest="",
        path=f"SG1/{store}/{name}.tar", node="n", started=at, ended=at,
    )  # fmt: skip


def copy(name: str, destination: str, state: CopyState = "verified") -> CopyRecord:
    return CopyRecord.model_construct(
        image=name, destination=destination, epoch=1, state=state, run="r", started=AT
    )


def verified(*names: str) -> dict[str, list[CopyRecord]]:
    return {name: [copy(name, "tape"), copy(name, "cloud")] for name in names}


def freed(images: list[ImageRecord], copies: dict[str, list[CopyRecord]], needed_bytes: int = 0) -> list[str]:
    policies = {image.image: BOTH for image in images}
    return [i.image for i in freeable(images, copies, policies, needed_bytes=needed_bytes)]


def test_older_images_with_every_copy_verified_go_the_oldest_first() -> None:
    images = [image("new", 2), image("mid", 1), image("old", 0)]
    assert freed(images, verified("new", "old", "mid")) == ["old", "mid"]


@pytest.mark.parametrize("state", ["writing", "whole", "suspect", "damaged", "lost"])
def test_an_image_with_a_copy_that_is_not_verified_stays(state: CopyState) -> None:
    images = [image("new", 1), image("old", 0)]
    copies = {**verified("new"), "old": [copy("old", "tape"), copy("old", "cloud", state)]}
    assert freed(images, copies) == []
    assert freed(images, copies, needed_bytes=10**9) == ["new"]


def test_the_newest_goes_only_when_room_is_needed_and_no_more_than_needed() -> None:
    images = [image("a-new", 2, "a"), image("b-new", 1, "b"), image("a-old", 0, "a")]
    copies = verified("a-old", "a-new", "b-new")
    assert freed(images, copies, needed_bytes=100) == ["a-old"]
    assert freed(images, copies, needed_bytes=101) == ["a-old", "b-new"]
    assert freed(images, copies, needed_bytes=10**9) == ["a-old", "b-new", "a-new"]


def test_the_newest_whole_image_stays_beside_a_newer_partial_one() -> None:
    images = [image("partial", 2, state="partial"), image("whole", 1), image("old", 0)]
    assert freed(images, verified("old", "whole", "partial")) == ["old"]


def test_what_a_wrong_clock_stamped_does_not_count_as_newer() -> None:
    images = [image("true", 1), image("from-the-future", 400), image("old", 0)]
    assert freed(images, verified("true", "from-the-future", "old")) == ["old", "from-the-future"]


def test_what_an_operator_gave_up_goes_like_what_is_secured() -> None:
    images = [image("new", 1), image("old", 0)]
    policies = {"new": BOTH, "old": BOTH}
    assert freeable(images, {}, policies) == []
    assert [i.image for i in freeable(images, {}, policies, forgotten={"old", "new"})] == ["old"]


def test_at_least_frees_earlier() -> None:
    policy = CopyPolicy(("tape", "cloud", "far"), at_least=2)
    assert not is_secured(policy, [copy("i", "tape")])
    assert is_secured(policy, [copy("i", "tape"), copy("i", "far")])
    assert not is_secured(policy, [copy("i", "tape"), copy("i", "elsewhere")])


def test_without_a_policy_or_copies_nothing_is_ever_freed() -> None:
    images = [image("new", 1), image("old", 0)]
    assert freeable(images, verified("new", "old"), {}, needed_bytes=10**9) == []
    assert freeable(images, verified("new", "old"), {"new": CopyPolicy(())}, needed_bytes=10**9) == []


def test_an_impossible_policy_is_refused() -> None:
    for at_least in (0, 3):
        with pytest.raises(ConfigError, match="at_least"):
            CopyPolicy(("tape", "cloud"), at_least=at_least)
