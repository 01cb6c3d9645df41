from datetime import UTC, datetime

from nightferry.model.records import CopyRecord, CopyState, ImageRecord
from nightferry.plan.restore_order import (
    FOLDER_SPEED,
    OBJECT_SPEED,
    OFFSITE_S,
    STAGING,
    TAPE_SPEED,
    Speed,
    by_cartridge,
    choose_copies,
    recalled_last,
)
from nightferry.units import GIB, MIB

AT = datetime(2026, 3, 8, 2, 0, tzinfo=UTC)
SPEEDS = {"tape": TAPE_SPEED, "cloud": OBJECT_SPEED, "folder": FOLDER_SPEED}


def image(size_bytes: int = GIB) -> ImageRecord:
    return ImageRecord.model_construct(
        image="i", run="r", group="SG1", store="priv1", source_kind="files", state="whole",
        size_bytes=size_bytes, payload_bytes=size_bytes, files=1, digest="", index_offset=0, index_bytes=0,
        index_digest="", path="SG1/priv1/i.tar", node="n", started=AT, ended=AT,
    )  # fmt: skip


def copy(destination: str, state: CopyState = "verified") -> CopyRecord:
    return CopyRecord.model_construct(
        image="i", destination=destination, epoch=1, state=state, run="r", started=AT
    )


def names(*copies: CopyRecord, staged: bool = False, wanted_bytes: int | None = None) -> list[str]:
    chosen = choose_copies(image(), copies, staged, SPEEDS, wanted_bytes=wanted_bytes)
    return [choice.source for choice in chosen]


def test_staging_comes_before_every_copy() -> None:
    assert names(copy("tape"), copy("folder"), staged=True) == [STAGING, "folder", "tape"]
    assert names(staged=True) == [STAGING]
    assert names() == []


def test_one_file_comes_from_a_folder_or_an_object_before_tape() -> None:
    assert names(copy("tape"), copy("cloud"), copy("folder"), wanted_bytes=MIB) == ["folder", "cloud", "tape"]


def test_a_tape_that_is_faster_for_much_data_comes_first() -> None:
    big = image(800 * GIB)
    slow = {"tape": TAPE_SPEED, "cloud": Speed(0.5, 10 * MIB)}
    chosen = choose_copies(big, [copy("cloud"), copy("tape")], False, slow)
    assert [choice.source for choice in chosen] == ["tape", "cloud"]
    assert chosen[0].expected_s == 120 + 800 * GIB / (300 * MIB)


def test_of_equally_fast_copies_the_verified_one_comes_first() -> None:
    speeds = {"a": OBJECT_SPEED, "b": OBJECT_SPEED}
    chosen = choose_copies(image(), [copy("a", "whole"), copy("b", "verified")], False, speeds)
    assert [choice.source for choice in chosen] == ["b", "a"]


def test_suspect_copies_come_last_and_unusable_ones_not_at_all() -> None:
    chosen = choose_copies(
        image(),
        [
            copy("folder", "suspect"),
            copy("tape"),
            copy("a", "damaged"),
            copy("b", "lost"),
            copy("c", "writing"),
        ],
        False,
        SPEEDS,
    )
    assert [(choice.source, choice.doubtful) for choice in chosen] == [("tape", False), ("folder", True)]


def test_a_destination_of_unknown_speed_counts_as_tape() -> None:
    assert names(copy("unheard of"), copy("cloud"), wanted_bytes=1) == ["cloud", "unheard of"]


def placed(image: str, destination: str, *parts: tuple[str, int]) -> CopyRecord:
    location = {"parts": [{"barcode": barcode, "file": file} for barcode, file in parts]}
    return CopyRecord.model_construct(
        image=image,
        destination=destination,
        epoch=1,
        state="verified",
        run="r",
        started=AT,
        location=location,
    )


def test_copies_are_read_cartridge_by_cartridge_and_forward() -> None:
    copies = [
        placed("a", "tape", ("T2", 5)),
        placed("b", "tape", ("T1", 3)),
        placed("c", "folder"),
        placed("d", "tape", ("T2", 1)),
        placed("e", "tape", ("T2", 9), ("T3", 1)),
        placed("f", "other", ("T2", 1)),
    ]
    passes = by_cartridge(copies, lambda each: each)
    assert [[c.image for c in one] for one in passes] == [["d", "a", "e"], ["b"], ["f"], ["c"]]
    assert by_cartridge([image()], lambda each: None) == [[image()]]


def test_a_cartridge_in_a_vault_comes_after_what_is_at_hand_and_says_so() -> None:
    here, away = placed("i", "near", ("N1", 1)), placed("i", "tape", ("T1", 1))
    chosen = choose_copies(image(), [away, here], False, {}, offsite={"tape": {"T1"}, "near": {"N9"}})
    assert [(c.source, c.offsite) for c in chosen] == [("near", ()), ("tape", ("T1",))]
    assert chosen[1].expected_s == chosen[0].expected_s + OFFSITE_S
    assert chosen[1].as_json()["offsite"] == ["T1"]


def test_all_of_a_spanned_image_takes_a_mount_for_each_cartridge_and_one_file_takes_one() -> None:
    spanned = placed("i", "tape", ("T1", 1), ("T2", 1), ("T3", 1))
    (whole,) = choose_copies(image(), [spanned], False, SPEEDS)
    (little,) = choose_copies(image(), [spanned], False, SPEEDS, wanted_bytes=MIB)
    assert whole.expected_s == 3 * 120 + GIB / (300 * MIB)
    assert little.expected_s == 120 + 1 / 300


def test_what_must_be_recalled_comes_after_everything_else_a_suspect_copy_too() -> None:
    copies = [copy("cloud"), copy("tape", "suspect"), copy("folder")]
    choices = choose_copies(image(), copies, True, SPEEDS)
    seen = recalled_last(choices, ["cloud", STAGING])
    assert [(c.source, c.needs_recall) for c in seen] == [
        (STAGING, False),
        ("folder", False),
        ("tape", False),
        ("cloud", True),
    ]
