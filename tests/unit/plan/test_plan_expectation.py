"""When a new image can hardly be what the store was."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nightferry.model.records import ImageRecord, StoreOrigin
from nightferry.model.stores import Expect
from nightferry.plan.expectation import doubts, elsewhere
from nightferry.plan.lines import lines, path_before
from nightferry.units import MIB

DISK = StoreOrigin(
    path="/srv/a", mount="/srv/a", source="/dev/sdb1", filesystem="xfs", uuid="1111", device="8:17"
)
ROOT = StoreOrigin(path="/srv/a", mount="/", source="/dev/sda1", filesystem="xfs", uuid="2222", device="8:1")
AT = datetime(2026, 11, 30, 20, tzinfo=UTC)


def image(
    size_bytes: int = 0,
    files: int = 1,
    *,
    kind: str = "files",
    origin: StoreOrigin | None = None,
    name: str = "i",
) -> ImageRecord:
    return ImageRecord.model_construct(
        image=name,
        run="20261130-TEX-BACK-1",
        group="SG1",
        store="a",
        source_kind=kind,
        state="whole",
        size_bytes=size_bytes,
        payload_bytes=size_bytes,
        files=files,
        digest="",
        index_offset=0,
        index_bytes=0,
        index_digest="",
        path="",
        node="TEX-ACTV-1",
        started=AT,
        ended=AT,
        origin=origin,
    )


@pytest.mark.parametrize(
    ("now", "before", "why"),
    [
        ((0, 0), (5000, 3), "it is empty, and had 3 files with 4.9 KiB"),
        ((0, 3), (5000, 3), "it is empty"),
        ((49 * MIB, 500), (100 * MIB, 500), "it has 49.0 MiB, and had 100.0 MiB: less than 50%"),
        ((100 * MIB, 249), (100 * MIB, 500), "it has 249 files, and had 500 files: less than 50%"),
        ((1001 * MIB, 500), (100 * MIB, 500), "it has 1001.0 MiB, and had 100.0 MiB: more than 1000%"),
        ((100 * MIB, 5001), (100 * MIB, 500), "it has 5001 files, and had 500 files: more than 1000%"),
        ((10_000, 1), (10 * MIB, 1), "it has 9.8 KiB, and had 10.0 MiB"),
    ],
)
def test_what_became_empty_small_or_large_is_suspect(
    now: tuple[int, int], before: tuple[int, int], why: str
) -> None:
    [found] = doubts(image(*now), image(*before), Expect())
    assert found.startswith(why)


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ((50 * MIB, 500), (100 * MIB, 500)),
        ((1000 * MIB, 500), (100 * MIB, 500)),
        ((100 * MIB, 250), (100 * MIB, 500)),
        ((10, 1), (2 * MIB, 200)),  # less than the floor counts as the floor
        ((10 * MIB, 1000), (1, 1)),
        ((0, 0), (0, 0)),
        ((5, 1), (0, 0)),
        ((0, 3), (0, 5)),
    ],
)
def test_what_stays_within_bounds_or_small_is_not(now: tuple[int, int], before: tuple[int, int]) -> None:
    assert doubts(image(*now), image(*before), Expect()) == []


@pytest.mark.parametrize(
    ("now_bytes", "before_bytes", "is_suspect"),
    [(4096, 40_960, True), (0, 40_960, True), (8192, 40_960, False), (4096, 4096, False)],
)
def test_a_database_without_a_table_is_empty(now_bytes: int, before_bytes: int, is_suspect: bool) -> None:
    found = doubts(image(now_bytes, kind="sqlite"), image(before_bytes, kind="sqlite"), Expect())
    assert bool(found) == is_suspect


def test_a_store_may_be_expected_to_shrink_to_nothing_or_to_grow_as_it_likes() -> None:
    assert doubts(image(0, 0), image(100 * MIB, 500), Expect(least=0.0)) == []
    assert doubts(image(100 * MIB, 5000), image(MIB, 1), Expect(most="any")) == []
    assert doubts(image(0, 0), image(100 * MIB, 500), Expect(most="any")) != []


@pytest.mark.parametrize(
    ("changes", "is_other"),
    [
        ({}, False),
        ({"device": "8:33", "source": "/dev/sdc1"}, False),
        ({"mount": "/mnt/a"}, False),
        ({"uuid": "3333"}, True),
        ({"uuid": ""}, False),
        ({"uuid": "", "mount": "/"}, True),
        ({"uuid": "", "filesystem": "ext4"}, True),
    ],
)
def test_a_file_system_is_known_by_its_uuid_else_by_type_and_mount_point(
    changes: dict[str, str], is_other: bool
) -> None:
    now = DISK.model_copy(update=changes)
    assert bool(list(elsewhere(now, DISK))) == is_other
    assert bool(list(elsewhere(DISK, now))) == is_other


def test_without_a_uuid_an_ext_file_system_is_known_by_its_id() -> None:
    before = DISK.model_copy(update={"uuid": "", "filesystem": "ext4", "fsid": "aa"})
    moved = before.model_copy(update={"mount": "/mnt/x"})
    assert list(elsewhere(moved, before)) == []
    assert list(elsewhere(before.model_copy(update={"fsid": "bb"}), before)) != []


def test_the_unmounted_disk_is_named_and_so_is_one_inside_the_store() -> None:
    [found] = doubts(image(5, origin=ROOT), image(5, origin=DISK), Expect())
    assert found == (
        "its file system is /dev/sda1 (xfs) at / with UUID 2222, and was /dev/sdb1 (xfs) at /srv/a with UUID 1111"
    )
    with_more = DISK.model_copy(update={"below": ("deep/disk2",)})
    assert list(elsewhere(DISK, with_more)) == ["nothing is mounted at deep/disk2 inside it any more"]
    assert list(elsewhere(with_more, DISK)) == []


def test_images_of_a_release_that_knew_no_path_belong_to_the_oldest_line() -> None:
    new = image(name="4", origin=DISK.model_copy(update={"path": "/srv/new"}))
    old = image(name="3", origin=DISK)
    unknown = [image(name="2"), image(name="1")]
    expected = {"4": "/srv/new", "3": "/srv/a", "2": "/srv/a", "1": "/srv/a"}
    assert lines([new, old, *unknown]) == expected
    assert lines(unknown, "/srv/now") == {"2": "/srv/now", "1": "/srv/now"}
    assert path_before([new, old], "/srv/a") == "/srv/new"
    assert (
        path_before([new, old], "/srv/new") == path_before(unknown, "/srv/a") == path_before([], "/x") == ""
    )
