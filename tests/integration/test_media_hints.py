"""Every refusal of the media verbs leads out: its hint is followed as a user would, and then the verb works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.destination.tape.library.virtual import VirtualLibrary
from nightferry.errors import NoScratch
from tests.support import night
from tests.support.command_site import BACK, Command, CommandSite, Ran

FIRST, BLANK = "A00001L9", "A00003L9"
Site = CommandSite
Hand = Callable[[Site], None]


@pytest.fixture
def full(site: Site) -> Site:
    """One night on tape and in the folder."""
    site.night()
    return site


def folder(site: Site, barcode: str) -> Path:
    """Where a virtual cartridge lies: in the library, or in one of its ports."""
    return next(p for p in (site.root / "vtl").rglob(barcode) if p.is_dir())


def foreign(site: Site) -> None:
    """Somebody else's cartridge in the place of a blank one."""
    (site.root / "vtl/cartridges" / BLANK / "0000.tape").write_bytes(b"payroll of another company")
    (site.root / "vtl/cartridges" / BLANK / "marks").write_bytes(b"26x1\n")


def protected(site: Site) -> None:
    (site.root / "vtl/cartridges" / BLANK / "write-protected").touch()


def unprotect(site: Site) -> None:
    (folder(site, BLANK) / "write-protected").unlink(missing_ok=True)


def empty_slot(site: Site) -> None:
    """A hand takes a cartridge out that nobody needs."""
    path = site.root / "vtl/elements.json"
    path.write_text(path.read_text().replace("A00004L9", ""))


def into_port(barcode: str) -> Hand:
    def put(site: Site) -> None:
        empty_slot(site)
        changer = VirtualLibrary(site.root / "vtl").changer
        slot = next(e.address for e in changer.inventory() if e.barcode == barcode)
        port = next(e.address for e in changer.inventory() if e.address.kind == "port" and not e.barcode)
        changer.move(slot, port)

    return put


def taken_home(site: Site) -> None:
    """A cartridge lies on the operator's desk."""
    into_port(FIRST)(site)
    folder(site, FIRST).rename(site.root / FIRST)


def put_back(site: Site) -> None:
    if (site.root / FIRST).is_dir():
        (site.root / FIRST).rename(site.root / "vtl/ports/1" / FIRST)


def both_ports(site: Site) -> None:
    for barcode in ("A00002L9", BLANK):
        into_port(barcode)(site)


def nothing(site: Site) -> None:
    """There is nothing to do by hand."""


def no_room(site: Site) -> None:
    """A cartridge more than there are slots lies in a port."""
    (site.root / "vtl/ports/0/B00001L9").mkdir()


def second_library(site: Site) -> None:
    site.file.write_text(
        site.file.read_text()
        + '\n[[destinations]]\nname = "tape2"\nkind = "tape"\n'
        + f'library = {{ kind = "virtual", path = "{site.root}/vtl2", drives = 1, slots = 2 }}\n'
    )


def commands(hint: str) -> list[list[str]]:
    """The commands that a hint names, as a user would type them."""
    found = re.findall(r"`nightferry ([^`]+)`|`(--library [^`]+)`", hint)
    words = [(first or second).replace("TEXT", "because").split() for first, second in found]
    return [["A00002L9" if word == "BARCODE" else word for word in each] for each in words]


def follow(nightferry: Command, site: Site, words: list[str], by_hand: Hand, depth: int = 0) -> Ran:
    """Runs a command; where it is refused, does what the hint says and runs it again."""
    ran = nightferry(site, *words, "--json")
    if ran.code in (0, 3) or depth == 4:
        return ran
    for command in commands(ran.error["hint"]):
        if command[0].startswith("--"):
            return follow(nightferry, site, [*words, *command], by_hand, depth + 1)
        if command[:3] != words[:3] or "--yes" in command:
            follow(nightferry, site, command, by_hand, depth + 1)
        by_hand(site)
    by_hand(site)
    return follow(nightferry, site, words, by_hand, depth + 1)


@pytest.mark.parametrize(
    ("before", "words", "by_hand", "after"),
    [
        (nothing, "media erase --yes A00001L9", nothing, {"tape_files": 1, "images": []}),
        (nothing, "media erase A00003L9", nothing, {"state": "appendable"}),
        (foreign, "media label A00003L9", nothing, {"state": "appendable"}),
        (protected, "media erase --yes A00003L9", unprotect, {"state": "appendable"}),
        (taken_home, "media show A00001L9", put_back, {"state": "appendable", "problem": None}),
        (into_port(BLANK), "media move A00003L9 --to slot 3", nothing, {"element": "slot 3"}),
        (both_ports, "media export A00001L9", nothing, {"state": "offsite"}),
        (second_library, "media show A00001L9", nothing, {"state": "appendable"}),
    ],
    ids=[
        "erase what lives",
        "erase without --yes",
        "label a foreign one",
        "erase a protected one",
        "show one that is elsewhere",
        "move one in a port",
        "export with every port full",
        "a barcode in two libraries",
    ],
)
def test_what_a_hint_says_leads_out(
    full: Site, nightferry: Command, before: Hand, words: str, by_hand: Hand, after: dict[str, object]
) -> None:
    before(full)
    refused = nightferry(full, *words.split(), "--json")
    assert refused.code not in (0, 3)
    assert "copy --missing" not in refused.error["hint"]
    done = follow(nightferry, full, words.split(), by_hand)
    if words in ("media erase A00003L9", "media label A00003L9"):
        done = nightferry(full, "media", "show", BLANK, "--json")
    assert done.code == 0, done
    assert {key: done.document[key] for key in after} == after


def test_a_cartridge_that_finds_no_slot_is_taken_in_when_one_is_carried_out(
    full: Site, nightferry: Command
) -> None:
    no_room(full)
    refused = nightferry(full, "media", "import", "--json")
    assert "no empty slot for B00001L9" in refused.error["message"]
    [[*carry_out]] = commands(refused.error["hint"])
    assert nightferry(full, *carry_out).code == 0
    folder(full, "A00002L9").rename(full.root / "A00002L9")
    taken = nightferry(full, "media", "import", "--json").document["cartridges"]
    assert [(c["barcode"], c["state"]) for c in taken] == [("B00001L9", "unknown")]


@pytest.mark.parametrize(
    "words",
    [
        "media move A00001L9 --to slot 1",
        "media move A00001L9 --to slot 99",
        "media show NOPE",
        "media label CLN001L9",
        "media retire NOPE --reason x",
        "media list --library objects",
        "media erase NOPE",
        "media label A00001L9",
    ],
)
def test_a_refusal_of_a_media_verb_speaks_of_media(full: Site, nightferry: Command, words: str) -> None:
    hint = nightferry(full, *words.split(), "--json").error["hint"]
    assert re.search(r"nightferry media|pool\.cleaning|name one of the tape libraries: tape", hint), hint
    for command in commands(hint):
        assert nightferry(full, *command, "--json").code in (0, 2, 20)


def test_a_retired_cartridge_is_erased_and_put_back_to_use(full: Site, nightferry: Command) -> None:
    assert nightferry(full, "media", "retire", FIRST, "--reason", "by mistake").code == 0
    erased = nightferry(full, "media", "erase", "--yes", FIRST)
    assert (erased.code, "retired" in erased.out) == (0, True)
    [[*label]] = [c for c in commands(erased.out) if c[1] == "label"]
    assert nightferry(full, *label, "--json").document["state"] == "appendable"
    assert nightferry(full, "copy", "--missing", "--to", "tape").code == 0
    with full.opened() as here:
        used = {
            p["barcode"]
            for c in here.catalog.copies(full.image("SG1/priv1"))
            for p in c.location.get("parts", ())
        }
    assert used == {FIRST}


@pytest.fixture
def cut_short(site: Site) -> Site:
    """A night on a library that is too small for the largest of its images."""
    site.edit('cartridge_bytes = "256 MiB"', 'cartridge_bytes = "4 MiB"')
    (site.priv1 / "large.bin").write_bytes(bytes(range(256)) * (20 << 12))
    with site.opened() as here, pytest.raises(NoScratch):
        night.night(here, BACK)
    return site


def test_cartridges_with_parts_of_an_unfinished_copy_are_erased_at_once(
    cut_short: Site, nightferry: Command
) -> None:
    image = cut_short.image("SG1/priv1")
    with cut_short.opened() as here:
        [begun] = [c for c in here.catalog.copies(image) if c.destination == "tape"]
    held = [part["barcode"] for part in begun.location["parts"]]
    said = nightferry(cut_short, "media", "erase", held[0], "--json").error
    assert f"the unfinished copy of {image} begins again" in said["message"]
    [[*erase]] = commands(said["hint"])
    assert nightferry(cut_short, *erase, "--json").document["state"] == "appendable"
    # It was given up with that: the others are dead space, and just as free.
    for barcode in held[1:]:
        done = nightferry(cut_short, "media", "erase", "--yes", barcode, "--json")
        assert (done.code, done.document["state"]) == (0, "appendable")


def test_cartridges_with_parts_are_retired_and_then_erased(cut_short: Site, nightferry: Command) -> None:
    image = cut_short.image("SG1/priv1")
    with cut_short.opened() as here:
        [begun] = [c for c in here.catalog.copies(image) if c.destination == "tape"]
    barcode = begun.location["parts"][0]["barcode"]
    nightferry(cut_short, "media", "retire", barcode, "--reason", "worn")
    assert nightferry(cut_short, "media", "erase", "--yes", barcode, "--json").code == 0


def test_cartridges_are_scratch_by_themselves_once_the_image_is_given_up(
    cut_short: Site, nightferry: Command
) -> None:
    image = cut_short.image("SG1/priv1")
    with cut_short.opened() as here:
        [begun] = [c for c in here.catalog.copies(image) if c.destination == "tape"]
    held = {part["barcode"] for part in begun.location["parts"]}
    assert nightferry(cut_short, "forget", image, "--reason", "too large").code == 0
    assert nightferry(cut_short, "expire").code == 0
    listed = nightferry(cut_short, "media", "list", "--json").document["cartridges"]
    assert held <= {c["barcode"] for c in listed if c["state"] == "expired"}
