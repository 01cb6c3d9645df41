"""What has left the site file is not lost: its images are listed, checked and brought back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import toml
from tests.support.command_site import Command, CommandSite


@pytest.fixture
def backed_up(site: CommandSite) -> CommandSite:
    assert site.night().state == "ended"
    return site


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("store", "group"), [("SG1/ledger", False), ("SG2/mailbox", True)], ids=["a store", "a storage group"]
)
def test_its_images_are_listed_and_restored_from_every_place(
    backed_up: CommandSite, nightferry: Command, store: str, group: bool
) -> None:
    image = backed_up.image(store)
    backed_up.edit(backed_up.sg2_toml if group else backed_up.ledger_toml, "")
    for words in (("--store", store), ("--group", store.split("/")[0])):
        listed = nightferry(backed_up, "images", *words, "--json").document["images"]
        assert image in [entry["image"] for entry in listed]
    assert nightferry(backed_up, "copies", image, "--json").document["staged"]
    for place in ("staging", "objects", "tape"):
        to = backed_up.root / "restored" / place
        brought = nightferry(backed_up, "restore", "store", store, "--copy", place, "--to", to, "--json")
        assert brought.code == 0, brought
        (name,) = [path.name for path in to.iterdir()]
        assert same(to / name, backed_up.root / "stores" / name) or name.endswith(".db")
    assert nightferry(backed_up, "verify", "--json").code == 0
    assert nightferry(backed_up, "copy", image, "--to", "tape").code == 0


def test_a_name_that_neither_site_nor_catalog_knows_stays_an_error(
    backed_up: CommandSite, nightferry: Command
) -> None:
    backed_up.edit(backed_up.ledger_toml, "")
    for words in (("images", "--store"), ("restore", "store", "--to", "/nowhere/at/all")):
        assert "no store of SG1" in nightferry(backed_up, *words, "SG1/ledgr", "--json").error["message"]


def test_a_destination_that_left_is_passed_over_and_told_by_verify(
    backed_up: CommandSite, nightferry: Command
) -> None:
    backed_up.edit(backed_up.objects_toml, "")
    backed_up.file.write_text(backed_up.file.read_text().replace('["tape", "objects"]', '["tape"]'))
    shutil.rmtree(backed_up.root / "backup" / "SG1")
    to = backed_up.root / "restored" / "ledger"
    brought = nightferry(backed_up, "restore", "store", "SG1/ledger", "--to", to, "--json")
    assert brought.code == 0, brought
    assert (brought.document["copy"], brought.document["damaged"]) == ("tape", [])
    assert same(to / "ledger.csv", backed_up.ledger)
    checked = nightferry(backed_up, "verify", "--json")
    assert checked.code == 20
    wrong = {c["destination"] for c in checked.document["copies"] if c["error"]}
    assert wrong == {"objects"}


def test_the_copies_of_a_renamed_destination_are_named_with_the_way_back(
    backed_up: CommandSite, nightferry: Command
) -> None:
    renamed = backed_up.objects_toml.replace('"objects"', '"archive"', 1)
    backed_up.edit(backed_up.objects_toml, renamed)
    backed_up.file.write_text(backed_up.file.read_text().replace('["tape", "objects"]', '["archive"]'))
    checked = nightferry(backed_up, "check", "--json").document["findings"]
    (finding,) = [found for found in checked if found["id"] == "NF-DEST-004"]
    assert "3 copies at objects" in finding["text"]
    shutil.rmtree(backed_up.root / "backup/SG1")
    backed_up.edit(toml.tape(toml.virtual(backed_up.root / "vtl")), "")
    to = backed_up.root / "restored" / "ledger"
    refused = nightferry(backed_up, "restore", "store", "SG1/ledger", "--to", to, "--json")
    assert "objects verified (not in the site file)" in refused.error["message"]
    assert "back into the site file" in refused.error["hint"]
    backed_up.edit(renamed, backed_up.objects_toml)
    backed_up.file.write_text(backed_up.file.read_text().replace('["archive"]', '["objects"]'))
    brought = nightferry(backed_up, "restore", "store", "SG1/ledger", "--to", to, "--json")
    assert brought.code == 0, brought
    assert same(to / "ledger.csv", backed_up.ledger)
