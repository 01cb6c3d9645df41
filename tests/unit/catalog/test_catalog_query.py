import io
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nightferry.catalog.folder import FolderStorage
from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.errors import BusyError, CatalogError, ConfigError
from nightferry.model.claim_records import OwnerRecord
from nightferry.model.records import (
    ApprovalRecord,
    CartridgeRecord,
    CopyRecord,
    CopyState,
    FailureRecord,
    FreedRecord,
    HoldRecord,
    ImageRecord,
    ImageState,
    RunRecord,
    RunState,
    SealRecord,
    SelectionRecord,
)

AT = datetime(2026, 3, 8, 2, 0, tzinfo=UTC)


class StoppedClock:
    def now(self) -> datetime:
        return AT

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None: ...


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return opened(tmp_path)


def opened(folder: Path) -> Catalog:
    return Catalog(folder, node="TEX-ACTV-1", clock=StoppedClock())


def named(store: str, day: int = 0, group: str = "SG1") -> str:
    """The name of the store's image of a day's run."""
    return f"{run_of(day)}.{group}.{store}.L0"


def run_of(day: int = 0) -> str:
    return f"2026030{day + 1}-B1"


def run(name: str = run_of(), day: int = 0, back_group: str = "B1", state: RunState = "staging") -> RunRecord:
    return RunRecord(
        run=name, back_group=back_group, window="20260307", state=state, groups=("SG1",),
        selection={"SG1": ("priv1",)}, node="n", started=AT + timedelta(days=day),
    )  # fmt: skip


def image(
    store: str = "priv1",
    day: int = 0,
    state: ImageState = "whole",
    group: str = "SG1",
) -> ImageRecord:
    at = AT + timedelta(days=day)
    name, run = named(store, day, group), run_of(day)
    return ImageRecord(
        image=name, run=run, group=group, store=store, source_kind="files", state=state, size_bytes=100,
        payload_bytes=90, files=1, digest="", index_offset=0, index_bytes=0, index_digest="",
        path=f"{group}/{store}/{name}.tar", node="n", started=at, ended=at,
    )  # fmt: skip


def copy(
    store: str, destination: str = "tape", epoch: int = 1, state: CopyState = "whole", **rest: Any
) -> CopyRecord:
    return CopyRecord(
        image=named(store),
        destination=destination,
        epoch=epoch,
        state=state,
        run=run_of(),
        started=AT,
        **rest,
    )


def failure(store: str, run: str = run_of()) -> FailureRecord:
    return FailureRecord(run=run, group="SG1", store=store, error="unreadable", exit_code=3, at=AT)


def test_the_latest_result_of_a_subject_is_its_truth(catalog: Catalog, tmp_path: Path) -> None:
    catalog.append(run(run_of(1)))
    ended = run(run_of(1), state="ended")
    catalog.append(ended)
    for look in (catalog, opened(tmp_path)):
        assert look.latest(RunRecord, run_of(1)) == ended
        assert look.all(RunRecord) == [ended]
        assert look.latest(RunRecord, run_of(2)) is None
        assert look.latest(ImageRecord, named("priv1")) is None


def test_an_intent_is_pending_until_a_result_and_never_the_truth(catalog: Catalog) -> None:
    writing, whole = copy("i", state="writing"), copy("i")
    catalog.append(writing, "intent")
    assert catalog.latest(CopyRecord, writing.subject) is None
    assert catalog.copies(named("i")) == []
    assert catalog.pending(CopyRecord) == [writing]
    catalog.append(whole)
    assert catalog.pending(CopyRecord) == []
    assert catalog.copies(named("i")) == [whole]
    catalog.append(writing, "intent")
    assert catalog.pending(CopyRecord) == [writing]
    assert catalog.copies(named("i")) == [whole]


def test_latest_event_serves_the_expectation(catalog: Catalog, tmp_path: Path) -> None:
    other = opened(tmp_path)
    owner = OwnerRecord(back_group="B1", epoch=1, node="n", run="r", at=AT)
    assert catalog.latest_event(OwnerRecord, "B1") is None
    catalog.append(owner, "intent", expect=0)
    event = catalog.latest_event(OwnerRecord, "B1")
    assert event is not None
    assert (event.phase, event.sequence, event.writer) == ("intent", 1, f"TEX-ACTV-1:{os.getpid()}")
    assert OwnerRecord.model_validate(event.body) == owner
    other.append(owner, expect=event.sequence)
    with pytest.raises(BusyError):
        catalog.append(owner, expect=event.sequence)
    assert catalog.owner("B1") == owner  # the refused append learned of it


def test_the_highest_epoch_owns_the_disk_not_the_last_word(catalog: Catalog, tmp_path: Path) -> None:
    second = OwnerRecord(back_group="B1", epoch=2, node="n2", run="r", at=AT)
    catalog.append(second)
    catalog.append(OwnerRecord(back_group="B1", epoch=1, node="n1", run="r", at=AT))
    assert catalog.owner("B1") == second
    assert opened(tmp_path).owner("B1") == second
    third = OwnerRecord(back_group="B1", epoch=3, node="n3", run="r", at=AT)
    catalog.append(third)
    assert catalog.owner("B1") == third
    assert catalog.owner("B2") is None


def test_runs_come_newest_first_by_the_log_whatever_their_stamps_say(catalog: Catalog) -> None:
    a, b, c, d = "20260302-B1", "20260301-B1", "20260304-B2", "20260303-B1"
    for record in (run(a, 1), run(b, 400), run(c, 2, back_group="B2"), run(d, 1)):
        catalog.append(record)
    catalog.append(run(a, 1))
    assert [r.run for r in catalog.runs()] == [d, c, b, a]
    assert [r.run for r in catalog.runs("B2")] == [c]


def test_an_unknown_name_is_refused_with_the_nearest_ones(catalog: Catalog) -> None:
    catalog.append(run("20260301-B1"))
    catalog.append(image())
    assert catalog.run("20260301-B1").run == "20260301-B1"
    with pytest.raises(ConfigError, match="no run '20260309-B1'") as caught:
        catalog.run("20260309-B1")
    assert "20260301-B1" in caught.value.hint
    with pytest.raises(ConfigError, match="no image") as caught:
        catalog.image("20260301-B1.SG1.priv1")
    assert "20260301-B1.SG1.priv1.L0" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        catalog.run("zzz")
    assert "nightferry runs" in caught.value.hint


def test_a_failure_counts_until_the_store_is_staged(catalog: Catalog) -> None:
    catalog.append(image("priv1", 1))
    catalog.append(failure("priv1"))
    catalog.append(failure("priv2"))
    catalog.append(failure("priv3", run=run_of(1)))
    assert [f.store for f in catalog.failures(run_of())] == ["priv1", "priv2"]
    catalog.append(image("priv1"))
    assert [f.store for f in catalog.failures(run_of())] == ["priv2"]
    catalog.append(failure("priv1"))
    assert [f.store for f in catalog.failures(run_of())] == ["priv2", "priv1"]


def test_images_are_found_by_group_store_and_run(catalog: Catalog) -> None:
    a, b, c, d = image(), image("priv2", 1), image("priv1", 2), image(day=1, group="SG2")
    for record in (a, b, c, d):
        catalog.append(record)
    assert catalog.images() == [d, c, b, a]
    assert catalog.images("SG1") == [c, b, a]
    assert catalog.images("SG1", "priv1") == [c, a]
    assert catalog.images(run=run_of(2)) == [c]
    assert catalog.image(d.image).group == "SG2"


def test_the_image_as_of_a_time_is_the_newest_whole_one_that_had_begun(catalog: Catalog) -> None:
    for record in (image(), image(day=1, state="partial"), image(day=2)):
        catalog.append(record)
    first, last = named("priv1"), named("priv1", 2)

    def as_of(day: float) -> str | None:
        found = catalog.image_as_of("SG1", "priv1", AT + timedelta(days=day))
        return found.image if found else None

    assert [as_of(day) for day in (-0.1, 0, 0.9, 1.5, 2)] == [None, first, first, first, last]
    assert catalog.image_as_of("SG1", "priv2", AT) is None


def test_the_highest_epoch_of_each_destination_is_the_copy(catalog: Catalog, tmp_path: Path) -> None:
    for record in (
        copy("i", "tape", 2, "verified"),
        copy("i", "tape", 1, "damaged"),
        copy("i", "cloud", 1),
        copy("j", "cloud", 1),
    ):
        catalog.append(record)
    for look in (catalog, opened(tmp_path)):
        assert [(c.destination, c.epoch, c.state) for c in look.copies(named("i"))] == [
            ("cloud", 1, "whole"),
            ("tape", 2, "verified"),
        ]
        assert [(c.destination, c.epoch) for c in look.all_copies(named("i"))] == [
            ("cloud", 1),
            ("tape", 1),
            ("tape", 2),
        ]
        assert look.copies(named("k")) == []


def test_an_epoch_that_was_only_begun_is_never_used_again(catalog: Catalog, tmp_path: Path) -> None:
    assert catalog.next_epoch(named("i"), "tape") == 1
    catalog.append(copy("i", "tape", 1, "writing"), "intent")
    assert catalog.next_epoch(named("i"), "tape") == 2
    assert catalog.next_epoch(named("i"), "cloud") == 1
    assert catalog.next_epoch(named("j"), "tape") == 1
    assert opened(tmp_path).next_epoch(named("i"), "tape") == 2


def test_seals_approvals_selections_and_freed_images(catalog: Catalog) -> None:
    def seal(number: int) -> SealRecord:
        return SealRecord(
            run=run_of(),
            back_group="B1",
            number=number,
            epoch=1,
            node="n",
            at=AT,
            stores=(),
            digest=f"d{number}",
        )

    def approval(digest: str, store: str) -> ApprovalRecord:
        return ApprovalRecord(run=run_of(), seal_digest=digest, stores=(store,), reason="x", who="me", at=AT)

    assert (catalog.seal(run_of()), catalog.approvals(run_of()), catalog.selection("SG1")) == (None, [], None)
    catalog.append(seal(1))
    catalog.append(seal(2))
    assert catalog.seal(run_of()) == seal(2)
    catalog.append(approval("d1", "SG1/priv1"))
    catalog.append(approval("d2", "SG1/priv1"))
    assert [a.seal_digest for a in catalog.approvals(run_of())] == ["d1", "d2"]
    assert catalog.approvals("other") == []
    fixed = SelectionRecord(group="SG1", stores=("priv1",), at=AT)
    catalog.append(fixed)
    assert catalog.selection("SG1") == fixed
    assert not catalog.freed(named("i"))
    catalog.append(FreedRecord(image=named("i"), reason="copies verified", at=AT))
    assert catalog.freed(named("i"))


def test_a_cartridge_knows_the_images_that_still_live_on_it(catalog: Catalog) -> None:
    def cartridge(barcode: str, destination: str = "tape") -> CartridgeRecord:
        return CartridgeRecord(
            barcode=barcode, destination=destination, pool="daily", state="appendable", at=AT
        )

    def on(*barcodes: str) -> dict[str, Any]:
        return {"parts": [{"barcode": barcode, "file": 1} for barcode in barcodes]}

    for record in (cartridge("A2"), cartridge("A1"), cartridge("A1", "other")):
        catalog.append(record)
    assert [c.barcode for c in catalog.cartridges("tape")] == ["A1", "A2"]
    catalog.append(copy("spanning", location=on("A1", "A2")))
    catalog.append(copy("one", location=on("A1")))
    catalog.append(copy("gone", location=on("A1")))
    catalog.append(copy("elsewhere", "other", location=on("A1")))
    catalog.append(copy("object", "tape", location={"key": "images/x"}))
    catalog.append(copy("gone", state="lost", location=on("A1")))
    assert catalog.live_images("tape", "A1") == [named("one"), named("spanning")]
    assert catalog.live_images("tape", "A2") == [named("spanning")]
    assert catalog.live_images("tape", "A3") == []


def test_an_older_epoch_still_lives_on_its_cartridge(catalog: Catalog) -> None:
    catalog.append(copy("i", epoch=1, location={"parts": [{"barcode": "A1"}]}))
    catalog.append(copy("i", epoch=2, location={"parts": [{"barcode": "A2"}]}))
    assert catalog.live_images("tape", "A1") == [named("i")]


def test_what_expired_does_not_keep_a_cartridge_and_what_may_be_on_it_does(catalog: Catalog) -> None:
    a1 = {"parts": [{"barcode": "A1"}]}
    catalog.append(copy("expired", state="expired", location=a1))
    catalog.append(copy("expiring", state="expiring", location=a1))
    catalog.append(copy("cut-off", state="writing"))
    catalog.append(copy("elsewhere", state="writing"))
    assert catalog.live_images("tape", "A1") == [named("expiring")]
    on_it = (named("expired"), named("cut-off"))
    catalog.append(
        CartridgeRecord(barcode="A1", destination="tape", pool="p", state="full", images=on_it, at=AT)
    )
    assert catalog.live_by_cartridge("tape") == {"A1": {named("expiring"), named("cut-off")}}


def test_an_image_has_expired_when_nothing_of_it_is_left_and_the_retention_took_it(catalog: Catalog) -> None:
    def freed(name: str, **more: bool) -> FreedRecord:
        return FreedRecord(image=named(name), reason="", at=AT, **more)

    for name in ("staged", "gone", "lost", "half", "partial"):
        catalog.append(image(name))
    catalog.append(copy("staged", state="expired"))
    for name in ("gone", "lost", "half"):
        catalog.append(freed(name))
    catalog.append(copy("gone", state="lost"))
    catalog.append(copy("gone", epoch=2, state="expired"))
    catalog.append(copy("gone", "folder", state="expiring"))
    catalog.append(copy("lost", state="lost"))
    catalog.append(copy("half", state="expired"))
    catalog.append(copy("half", "folder", state="damaged"))
    catalog.append(freed("partial", expired=True))
    names = ("staged", "gone", "lost", "half", "partial", "unknown")
    assert [name for name in names if catalog.expired(named(name))] == ["gone", "partial"]
    assert catalog.image_as_of("SG1", "staged", None) == image("staged")
    assert catalog.image_as_of("SG1", "gone", None) is None


def test_a_hold_lasts_until_it_is_taken_back(catalog: Catalog) -> None:
    def record(name: str, held: bool) -> HoldRecord:
        return HoldRecord(image=named(name), held=held, reason="why", who="me", at=AT)

    catalog.append(record("a", True))
    catalog.append(record("b", True))
    catalog.append(record("a", False))
    assert (catalog.hold(named("a")), catalog.hold(named("c"))) == (None, None)
    assert [hold.image for hold in catalog.holds()] == [named("b")]


def test_refresh_shows_what_others_wrote(catalog: Catalog, tmp_path: Path) -> None:
    opened(tmp_path).append(run(run_of(1)))
    assert catalog.runs() == []
    assert catalog.refresh() == 1
    assert [r.run for r in catalog.runs()] == [run_of(1)]


def test_indexes_are_kept_whole_beside_the_log(catalog: Catalog, tmp_path: Path) -> None:
    name = "20260308-B1.SG1.priv1.L0"
    for look in (catalog.index, catalog.chunks):
        with pytest.raises(CatalogError, match=f"of image {name}"):
            look(name)
    catalog.keep_index(name, b"index", b"chunks")
    catalog.keep_index(name, b"index again", b"chunks again")
    path = tmp_path / "indexes" / f"{name}.parquet"
    assert path.read_bytes() == catalog.index(name) == b"index again"
    assert catalog.chunks(name) == b"chunks again"
    assert sorted(p.name for p in (tmp_path / "indexes").iterdir()) == [f"{name}.chunks", f"{name}.parquet"]
    assert (tmp_path / "indexes").stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CatalogError, match="not a name"):
        catalog.keep_index("../out", b"", b"")


def test_an_export_is_the_whole_catalog_in_one_file(catalog: Catalog, tmp_path: Path) -> None:
    catalog.append(run(run_of(1)))
    catalog.append(copy("i", state="writing"), "intent")
    catalog.compact()
    catalog.append(image("i"))
    data, _ = catalog.export()
    assert pq.read_table(io.BytesIO(data)).column("sequence").to_pylist() == [1, 2, 3]
    (tmp_path / "new").mkdir()
    new = FolderStorage(tmp_path / "new")
    again = Catalog.from_export(data, new, node="n")
    assert again.runs() == catalog.runs()
    assert again.pending(CopyRecord) == catalog.pending(CopyRecord)
    assert again.export()[0] == data
    assert again.append(run(run_of(2))).sequence == 4
    with pytest.raises(CatalogError, match="already holds a catalog"):
        Catalog.from_export(data, new, node="n")
    with pytest.raises(CatalogError, match="the export is"):
        Catalog.from_export(data[:-9], MemoryStorage(), node="n")


def test_an_empty_catalog_exports_too(catalog: Catalog) -> None:
    assert Catalog.from_export(catalog.export()[0], MemoryStorage(), node="n").is_empty


def test_a_folder_that_is_not_there_is_refused_and_can_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "catalog"
    with pytest.raises(CatalogError) as caught:
        opened(folder)
    assert caught.value.exit_code == 60
    assert "mounted" in caught.value.hint
    Catalog.create(folder, node="n").append(run(run_of(1)))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(Catalog.create(folder, node="n").runs()) == 1


def test_a_record_of_a_newer_release_is_named_when_asked_for(catalog: Catalog, tmp_path: Path) -> None:
    catalog.append(run(run_of(1)))
    path = tmp_path / "events" / "000000000001.json"
    path.write_text(path.read_text().replace('"node":', '"nodes":'))
    look = opened(tmp_path)
    assert look.images() == []
    with pytest.raises(CatalogError, match="event 1 is not a run record: node: field required") as caught:
        look.runs()
    assert "newer" in caught.value.hint


def test_kinds_of_a_newer_release_stay_in_the_log(catalog: Catalog, tmp_path: Path) -> None:
    catalog.append(run(run_of(1)))
    path = tmp_path / "events" / "000000000001.json"
    path.write_text(path.read_text().replace('"kind": "run"', '"kind": "wagon"'))
    look = opened(tmp_path)
    assert look.runs() == []
    assert pq.read_table(io.BytesIO(look.export()[0])).column("kind").to_pylist() == ["wagon"]
    assert look.append(run(run_of(2))).sequence == 2


def test_a_location_that_is_not_json_is_refused(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="cannot record copy"):
        catalog.append(copy("i", location={"x": object()}))
