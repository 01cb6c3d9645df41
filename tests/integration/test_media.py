"""The media commands on a real night: what they refuse, what they say is lost, what comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightferry.destination.tape.library.virtual import VirtualLibrary
from nightferry.model.records import CartridgeRecord, CopyRecord
from nightferry.staging.images import staged_path
from tests.support.command_site import SOURCES, Command, CommandSite

FIRST = "A00001L9"


@pytest.fixture
def night(site: CommandSite) -> CommandSite:
    """One night on tape and in the folder."""
    site.night()
    return site


def media(nightferry: Command, site: CommandSite, *words: str, code: int = 0) -> dict[str, Any]:
    ran = nightferry(site, "media", *words, "--json")
    assert ran.code == code, ran
    return ran.document


def listed(nightferry: Command, site: CommandSite) -> dict[str, dict[str, Any]]:
    return {line["barcode"]: line for line in media(nightferry, site, "list")["cartridges"]}


def intents(site: CommandSite, barcode: str) -> list[str]:
    """The notes of what somebody was about to do with a cartridge, as the log has them."""
    with site.opened() as here:
        rows = here.catalog._log.rows()
    events = [row.event() for row in rows if row.kind == CartridgeRecord.kind]
    return [e.body["note"] for e in events if e.phase == "intent" and e.body["barcode"] == barcode]


def lying(site: CommandSite, barcode: str) -> bytes:
    return b"".join(p.read_bytes() for p in sorted((site.root / "vtl/cartridges" / barcode).glob("*.tape")))


def test_the_list_tells_state_wear_and_last_use(night: CommandSite, nightferry: Command) -> None:
    line = listed(nightferry, night)[FIRST]
    assert (line["state"], line["mounts"], line["errors"]) == ("appendable", 1, 0)
    assert line["written"] is not None
    assert line["used_bytes"] >= sum(
        p.stat().st_size for p in (night.root / "vtl/cartridges" / FIRST).glob("*[13579].tape")
    )
    assert len(line["images"]) == 3
    assert "mounts" in nightferry(night, "media", "list").out


def test_a_cartridge_with_living_copies_is_not_erased(night: CommandSite, nightferry: Command) -> None:
    before = lying(night, FIRST)
    for words in (("erase", "--yes", FIRST), ("erase", "--dry-run", FIRST)):
        error = nightferry(night, "media", *words, "--json").error
        assert "live copies" in error["message"]
        assert f"media retire {FIRST}" in error["hint"]
    assert lying(night, FIRST) == before


def test_a_retired_cartridge_says_what_is_endangered_and_its_copies_are_made_again(
    night: CommandSite, nightferry: Command
) -> None:
    media(nightferry, night, "retire", FIRST, code=2)
    with night.opened() as here:
        images = {i.image for i in here.catalog.images()}
    done = media(nightferry, night, "retire", FIRST, "--reason", "dropped on the floor")
    assert done["state"] == "retired"
    assert {loss["image"] for loss in done["lost"]} == images
    assert all("objects" in loss["left"] for loss in done["lost"])
    with night.opened() as here:
        for image in images:
            states = {c.destination: c.state for c in here.catalog.copies(image)}
            assert states == {"tape": "lost", "objects": "verified"}
    assert any("to be retired by" in note and "dropped" in note for note in intents(night, FIRST))
    # Twice is once; and nothing is written to it any more.
    assert media(nightferry, night, "retire", FIRST, "--reason", "again")["lost"] == []
    again = nightferry(night, "copy", "--missing", "--to", "tape", "--json")
    assert (again.code, {c["state"] for c in again.document["copies"]}) == (0, {"verified"})
    assert listed(nightferry, night)["A00002L9"]["state"] == "appendable"


def test_the_last_copy_lost_with_a_cartridge_is_named_and_is_no_success(
    night: CommandSite, nightferry: Command
) -> None:
    with night.opened() as here:
        for copy in here.catalog.all(CopyRecord):
            if copy.destination == "objects":
                here.catalog.append(copy.model_copy(update={"state": "lost"}))
        for image in here.catalog.images():
            staged_path(here, image).unlink()
    ran = nightferry(night, "media", "retire", FIRST, "--reason", "burnt")
    assert ran.code == 20
    assert ran.out.count("nowhere") == 3


def test_a_retired_cartridge_can_be_erased_after_it_was_said_what_is_lost(
    night: CommandSite, nightferry: Command
) -> None:
    media(nightferry, night, "retire", FIRST, "--reason", "worn")
    image = night.image("SG1/priv1")
    error = nightferry(night, "media", "erase", FIRST, "--json").error
    assert image in error["message"]
    assert "--yes" in error["hint"]
    assert image in media(nightferry, night, "erase", "--dry-run", FIRST)["lost"]
    erased = media(nightferry, night, "erase", "--yes", FIRST, "--reason", "to the shredder")
    assert (erased["state"], erased["images"], erased["tape_files"]) == ("retired", [], 1)
    assert [p.name for p in (night.root / "vtl/cartridges" / FIRST).glob("*.tape")] == ["0000.tape"]
    assert any("to be erased by" in n and "shredder" in n for n in intents(night, FIRST))


def test_a_foreign_cartridge_becomes_ours_only_by_erasing_it(night: CommandSite, nightferry: Command) -> None:
    folder = night.root / "vtl/cartridges/A00002L9"
    (folder / "0000.tape").write_bytes(b"payroll of another company")
    (folder / "marks").write_bytes(b"26x1\n")
    error = nightferry(night, "media", "label", "A00002L9", "--json").error
    assert error["exit_code"] == 20
    assert (folder / "0000.tape").read_bytes() == b"payroll of another company"
    (folder / "write-protected").touch()
    assert (
        "write-protected"
        in nightferry(night, "media", "erase", "--yes", "A00002L9", "--json").error["message"]
    )
    (folder / "write-protected").unlink()
    assert "not ours" in nightferry(night, "media", "erase", "A00002L9", "--json").error["message"]
    erased = media(nightferry, night, "erase", "--yes", "A00002L9")
    assert (erased["state"], erased["pool"]) == ("appendable", "daily")
    assert (folder / "0000.tape").read_bytes().startswith(b"NIGHTFERRY TAPE LABEL 1\nbarcode: A00002L9\n")
    assert intents(night, "A00002L9")


def test_a_cartridge_is_moved_to_an_empty_slot(night: CommandSite, nightferry: Command) -> None:
    for words in (("--to", "slot", "1"), ("--to", "slot", "9"), ("--to", "drive", "0")):
        assert nightferry(night, "media", "move", FIRST, *words, "--json").code in (2, 20)
    media(nightferry, night, "export", "A00002L9")
    moved = media(nightferry, night, "move", FIRST, "--to", "slot", "1", "--reason", "order")
    assert moved["element"] == "slot 1"
    assert any("from slot 0 to slot 1" in note for note in intents(night, FIRST))


def test_a_cartridge_goes_to_the_vault_and_comes_back_with_its_state(
    night: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    exported = media(nightferry, night, "export", FIRST, "--reason", "vault 7")
    assert (exported["element"], exported["state"]) == ("port 0", "offsite")
    port = night.root / "vtl/ports/0"
    (port / FIRST).rename(tmp_path / FIRST)
    line = listed(nightferry, night)[FIRST]
    assert (line["element"], line["state"]) == (None, "offsite")
    assert "vault 7" in line["note"]
    # It is neither read by verify nor written by the next night.
    checked = nightferry(night, "verify", "--copy", "tape", "--json").document["copies"]
    assert {c["note"] for c in checked} == {f"{FIRST} is offsite"}
    plan = nightferry(
        night,
        "restore",
        "store",
        "SG1/priv1",
        "--to",
        tmp_path / "x",
        "--copy",
        "tape",
        "--dry-run",
        "--json",
    ).document
    assert plan["sources"][0]["offsite"] == [FIRST]
    assert plan["predicted_s"] > 3600
    night.night(new=True)
    assert listed(nightferry, night)["A00002L9"]["state"] == "appendable"
    (tmp_path / FIRST).rename(port / FIRST)
    taken = media(nightferry, night, "import")["cartridges"]
    assert [(c["barcode"], c["element"], c["state"]) for c in taken] == [(FIRST, "slot 0", "appendable")]
    assert media(nightferry, night, "import")["cartridges"] == []


def test_export_says_which_ports_are_full(night: CommandSite, nightferry: Command) -> None:
    for barcode in ("A00002L9", "A00003L9"):
        media(nightferry, night, "export", barcode)
    error = nightferry(night, "media", "export", FIRST, "--json").error
    assert "port 0 holds A00002L9, port 1 holds A00003L9" in error["message"]
    assert listed(nightferry, night)[FIRST]["state"] == "appendable"


def test_verify_waits_for_no_cartridge_that_a_hand_took(night: CommandSite, nightferry: Command) -> None:
    folder = night.root / "vtl/cartridges" / FIRST
    elements = night.root / "vtl/elements.json"
    folder.rename(night.root / FIRST)
    elements.write_text(elements.read_text().replace(FIRST, ""))
    checked = nightferry(night, "verify", "--copy", "tape", "--json")
    assert checked.code == 20
    assert {c["error"] for c in checked.document["copies"]} == {f"cartridge {FIRST} is not in the library"}
    assert {c["state"] for c in checked.document["copies"]} == {"verified"}


def test_a_restore_waits_by_name_for_a_cartridge_in_the_vault(
    night: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    media(nightferry, night, "export", FIRST)
    night.edit('wait_for_media = "1s"', 'wait_for_media = "60s"')
    waiting = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from nightferry.cli.app import main; sys.exit(main())",
            *("--site", str(night.file), "restore", "files", "SG1/priv1", "note.md"),
            *("--copy", "tape", "--to", str(tmp_path / "back")),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    said: list[str] = []
    asked = threading.Event()

    def listen() -> None:
        assert waiting.stderr is not None
        for line in waiting.stderr:
            said.append(line)
            if "waiting for cartridge" in line:
                asked.set()

    listener = threading.Thread(target=listen)
    listener.start()
    assert asked.wait(30), said
    media(nightferry, night, "import")
    assert waiting.wait(30) == 0, said
    listener.join()
    assert f"waiting for cartridge {FIRST} (offsite: exported by" in "".join(said)
    assert (tmp_path / "back/note.md").read_text() == "# note\n"


def test_a_cartridge_that_nobody_brings_ends_the_restore_at_its_deadline(
    night: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    media(nightferry, night, "export", FIRST)
    words = ("restore", "files", "SG1/priv1", "note.md", "--copy", "tape", "--to", str(tmp_path / "back"))
    error = nightferry(night, *words, "--json").error
    assert error["exit_code"] == 20
    assert f"cartridge {FIRST} is not in the library" in error["message"]
    assert "media import" in error["hint"]


@pytest.mark.parametrize(
    "act",
    [
        lambda library: library.changer.add("B00001L9"),
        lambda library: (library._path / "ports/0/B00001L9").mkdir(),
    ],
    ids=["slot", "port"],
)
def test_a_new_cartridge_is_taken_in_without_a_record(
    night: CommandSite, nightferry: Command, act: Callable[[VirtualLibrary], object]
) -> None:
    media(nightferry, night, "export", "A00004L9")
    library = VirtualLibrary(night.root / "vtl")
    for lies in (night.root / "vtl/ports").glob("*/*"):
        lies.rename(night.root / lies.name)
    act(library)
    media(nightferry, night, "import")
    assert listed(nightferry, night)["B00001L9"]["state"] == "unknown"
