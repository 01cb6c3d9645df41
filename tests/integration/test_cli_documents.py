"""docs/cli-json.md against what the commands really print: every field, its type, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nightferry.cli.backup import show_results
from nightferry.cli.output import Output, dump_json
from nightferry.cli.session import Session
from nightferry.copies.accept import Accepted
from nightferry.destination.base import Orphan
from nightferry.errors import BusyError
from nightferry.model.catalog_records import RebuildRecord
from nightferry.night.report import night_result
from nightferry.retention.expire import Expiry
from nightferry.retention.outlook import OrphanOutlook, StagedOutlook
from tests.support import night
from tests.support.command_site import BACK, SOURCES, Command, CommandSite, process

PAGE = SOURCES / "docs" / "cli-json.md"
RAW = b"caf\xe9\xff"


class Field(NamedTuple):
    """One row of the page."""

    kind: str
    may_be_null: bool
    optional: bool


def page() -> dict[str, dict[str, Field]]:
    """Heading → dotted path → its row."""
    sections: dict[str, dict[str, Field]] = {}
    for block in PAGE.read_text().split("\n## ")[1:]:
        fields = {}
        for path, kind in re.findall(r"^\| `([^`]+)` \| ([a-z ,]+) \|", block, re.M):
            base, _, rest = kind.partition(",")
            word, _, null = base.partition(" or ")
            fields[path] = Field(word, null == "null", rest.strip() == "optional")
        sections[block.splitlines()[0].strip("`")] = fields
    return sections


def flat(value: Any, path: str, documented: dict[str, Field]) -> Iterator[tuple[str, Any]]:
    """(path, value) of all leaves; what the page calls an object is one, an empty list of them is ``...``."""
    if path in documented and documented[path].kind == "object":
        yield path, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from flat(entry, f"{path}.{key}" if path else key, documented)
    elif isinstance(value, list):
        if not value and not any(known.startswith(f"{path}[].") for known in documented):
            yield f"{path}[]", ...
        for entry in value:
            yield from flat(entry, f"{path}[]", documented)
    else:
        yield path, value


def fits(value: Any, field: Field) -> bool:
    """Whether a value is of the type that the page names."""
    if value is ...:
        return True
    if value is None:
        return field.may_be_null
    match field.kind:
        case "text" | "path":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "flag":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "time":
            return datetime.fromisoformat(value).tzinfo is not None
    raise AssertionError(f"the page has a type {field.kind!r}")


def missing_keys(document: Any, documented: dict[str, Field]) -> Iterator[str]:
    """Fields that are neither optional nor there, where what holds them is there."""
    for path, field in documented.items():
        if field.optional:
            continue
        holders = [document]
        for step in path.split("."):
            below = []
            for holder in holders:
                if step.removesuffix("[]").replace("[]", "") not in holder:
                    yield path
                    break
                entry = holder[step.removesuffix("[]")]
                below += [e for e in entry if isinstance(e, dict)] if step.endswith("[]") else [entry]
            holders = [b for b in below if isinstance(b, dict)]


SAME = {
    "nightferry media inventory": "nightferry media list",
    "nightferry media export": "nightferry media move",
    "nightferry selection diff": "nightferry selection show",
    "nightferry hold remove": "nightferry hold add",
}
"""Commands whose document the page says to be another's."""


class Said:
    """Every document that was seen, by heading."""

    def __init__(self) -> None:
        self.documents: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(self, heading: str, document: dict[str, Any]) -> dict[str, Any]:
        heading = SAME.get(heading, heading)
        self.documents["An error" if "error" in document else heading].append(document)
        return document


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: one file is to lose its setuid bit")
def test_the_page_says_exactly_what_is_printed(
    site: CommandSite, nightferry: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Said()

    def run(heading: str, *options: str | Path, code: int | None = 0) -> dict[str, Any]:
        words = heading.removeprefix("nightferry ").split()
        ran = nightferry(site, *words, *options, "--json")
        assert code in (None, ran.code), ran
        for line in ran.err.splitlines():
            said.add("Progress on stderr", json.loads(line))
        return said.add(heading, ran.document)

    def backup(*errors: BusyError, staged_only: bool = False) -> dict[str, Any]:
        """The document of `backup`, which needs Prefect for the night but not for this."""
        capsys.readouterr()
        with site.opened() as here:
            here.catalog.refresh()
            runs = [night_result(here, run, staged_only=staged_only) for run in here.catalog.runs()[:1]]
            show_results(Session(Output(as_json=True)), runs, errors)
        return said.add("nightferry backup", json.loads(capsys.readouterr().out))

    _prepare(site)
    run("nightferry init", tmp_path / "new", "--store", site.ledger)
    run("nightferry status", code=30)
    run("nightferry cluster move", BACK, code=50)
    run("nightferry gate show", code=2)

    # The first night is held: one store is not there. An operator approves, the night goes on.
    site.ledger.rename(site.root / "ledger.aside")
    with site.opened() as here:
        held = night.stage_one(here, BACK)
    assert backup()["gate"] == "held"
    site.edit('name = "objects"', 'name = "objects"\ndeadline = "1s"')
    assert run("nightferry status", code=30)["stores"][0]["missing"]
    site.edit('name = "objects"\ndeadline = "1s"', 'name = "objects"')
    assert run("nightferry check", code=2)["fail"]
    run("nightferry gate show", code=50)
    run("nightferry gate approve", held.run, "--store", "SG1/ledger", "--reason", "a test", "--record-only")
    run("nightferry gate show")
    (site.root / "ledger.aside").rename(site.ledger)
    site.night()
    site.night(new=True)
    assert backup(BusyError("somebody else is at it", subject="TEX-BACK-2"))["state"] == "Completed"

    image = run("nightferry images", "--store", "SG1/priv1")["images"][0]["image"]
    run("nightferry runs")
    run("nightferry status")
    run("nightferry copies", image)
    run("nightferry files", image)
    run("nightferry completion", "bash")
    run("nightferry help", "restore", "files")
    run("nightferry media list")
    run("nightferry media inventory")
    run("nightferry media show", "A00001L9")
    run("nightferry media show", "A00002L9")
    run("nightferry media label", "A00002L9")
    _media(site, run)
    run("nightferry selection show", "SG1")
    site.edit('name = "ledger"', 'name = "books"')
    run("nightferry selection diff", "SG1", code=3)
    site.edit('name = "books"', 'name = "ledger"')
    site.edit(f'"{site.ledger}"', f'"{tmp_path / "elsewhere"}"')
    assert run("nightferry selection diff", "SG1", code=3)["paths"][0]["store"] == "ledger"
    site.edit(f'"{tmp_path / "elsewhere"}"', f'"{site.ledger}"')
    run("nightferry selection fix", "SG1")
    with site.opened() as here, here.claims.shared(BACK).read("a test"):
        run("nightferry cluster view")
    run("nightferry cluster install-agent", "--agents", tmp_path / "agents")
    run("nightferry cluster move --dry-run", BACK)
    run("nightferry cluster move", BACK)
    run("nightferry tune", tmp_path, "--size", "64 KiB")
    run("nightferry support", "--to", tmp_path / "support.tar.gz")
    run("nightferry support", "--to", tmp_path / "support.tar.gz", code=2)
    _restores(site, nightferry, said, image, tmp_path)

    data = site.root / "objects" / "images" / image / "data"
    data.write_bytes(b"\xff" + data.read_bytes()[1:])
    run("nightferry verify", "--copy", "objects", code=30)
    (site.root / "objects").rename(site.root / "away")
    run("nightferry copy", "--missing", "--to", "objects", code=20)
    (site.root / "away").rename(site.root / "objects")
    run("nightferry copy", "--missing", "--to", "objects")
    _expiry(site, run, said)
    _renames(site, run)
    kept = sorted((site.root / "objects" / "images").glob("*/meta.json"))
    kept[0].unlink()
    (kept[1].parent / "data").unlink()
    (site.root / "objects" / "images" / "holiday").mkdir()
    run("nightferry catalog rebuild", "--copy", "objects", "--to", tmp_path / "rebuilt", code=3)
    _accept(said)
    (site.root / "backup").rename(site.root / "unmounted")
    run("nightferry cluster view")

    state = {"NIGHTFERRY_STATE": str(tmp_path / "state"), "PREFECT_API_URL": ""}
    said.add("nightferry deploy", process(site.file, "deploy", "--dry-run", "--json", env=state).document)
    said.add("nightferry server status", process(site.file, "server", "status", "--json", env=state).document)
    _hold_the_page_to(said)


def _accept(said: Said) -> None:
    made = RebuildRecord(
        rebuild="20261130T210000Z",
        copy_from="objects",
        left_out=("objects/images/x",),
        who="op",
        at=datetime.now(UTC),
    )
    for accepted in (Accepted(made.model_copy(update={"begun_from": "catalog-x"})), Accepted(None, "TEX")):
        said.add("nightferry catalog accept", {**accepted.as_json(), "dry_run": False})


def _media(site: CommandSite, run: Callable[..., dict[str, Any]]) -> None:
    """Cartridges that come, go and are given up, on a night of their own so that the others keep their copies."""
    (site.root / "vtl/drives/0.alerts").write_text("media life\n")
    run("nightferry verify", "--copy", "tape")
    (site.root / "vtl/drives/0.alerts").unlink()
    run("nightferry media list")
    run("nightferry media show", "A00001L9")
    run("nightferry media move", "A00004L9", "--to", "slot", "3")
    for barcode in ("A00001L9", "A00004L9"):
        run("nightferry media export", barcode)
    run("nightferry verify", "--copy", "tape")
    run("nightferry media import")
    run("nightferry media retire", "A00001L9", "--reason", "a test")
    run("nightferry media move", "A00001L9", "--to", "slot", "0")
    run("nightferry media erase", "A00001L9", "--dry-run")
    run("nightferry media erase", "A00001L9", "--yes")
    run("nightferry copy", "--missing", "--to", "tape")


def _renames(site: CommandSite, run: Callable[..., dict[str, Any]]) -> None:
    """A store that is renamed while the destination of its last copy has gone from the site file."""
    with site.opened() as here:
        held = night.stage_one(here, BACK, new=True)
    site.edit('name = "mailbox"', 'name = "letters"')
    run("nightferry selection adopt", "SG2/mailbox", "SG2/letters")
    site.edit('name = "letters"', 'name = "mailbox"')
    run("nightferry forget", f"{held.run}.SG2.mailbox.L0", "--reason", "a test")


def _expiry(site: CommandSite, run: Callable[..., dict[str, Any]], said: Said) -> None:
    """Holds, and an expiry that is refused, foreseen, cannot reach a destination, and meets all it may meet."""
    with site.file.open("a") as file:
        file.write('\n[retention]\nkeep_last = 1\nat_most = "1 %"\n')
    held = site.image("SG2/mailbox")
    run("nightferry hold add", held, "--reason", "a lawsuit")
    run("nightferry hold list")
    run("nightferry hold remove", held)
    assert run("nightferry expire", "--dry-run", code=2)["refused"]
    (site.root / "objects").rename(site.root / "away")
    assert run("nightferry expire", "--yes", "--reason", "a test", code=20)["errors"]
    (site.root / "away").rename(site.root / "objects")
    assert run("nightferry expire", "--yes", "--reason", "a test")["freed_bytes"]
    assert run("nightferry images", "--expired")["images"]
    with site.opened() as here:
        image = here.catalog.images()[0]
        when = image.started
        cartridge = here.catalog.cartridges("tape")[0]
    left = Orphan("upload", image.image, f"images/{image.image}/data", when, 5, "7")
    met = Expiry(
        False,
        staged=[StagedOutlook(image, BACK, "partial, never approved, beyond keep_last = 1")],
        cartridges=[cartridge],
        orphans=[OrphanOutlook("cloud", left), OrphanOutlook("cloud", left, "it is away")],
        foreign=[OrphanOutlook("cloud", left, why="nothing proves that it is ours")],
        undeliverable=[f"{image.image} owes 1 copy at cloud: destination cloud is not in the site file"],
    )
    said.add("nightferry expire", json.loads(dump_json(met.as_json())))


def _prepare(site: CommandSite) -> None:
    """A name that is not UTF-8, of a file that loses something; a socket."""
    raw = os.path.join(os.fsencode(site.priv1), RAW)
    with open(raw, "wb") as file:
        file.write(b"x")
    os.chmod(raw, 0o4755)
    here = os.getcwd()
    os.chdir(site.priv1)  # a socket's name has 108 bytes, the path may have more
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"sock" + RAW)
    os.chdir(here)


def _restores(site: CommandSite, nightferry: Command, said: Said, image: str, tmp_path: Path) -> None:
    """Restores that leave something out in every way there is."""
    wanted = ("restore", "store", "SG1/priv1", "--to", tmp_path / "r", "--json")

    def run(*options: str, heading: str = "nightferry restore", code: int = 0) -> None:
        ran = nightferry(site, *wanted, *options)
        assert code in (None, ran.code), ran
        said.add(heading, ran.document)

    dry = {"heading": "nightferry restore --dry-run"}
    run("--dry-run", "--copy", "tape", **dry)  # type: ignore[arg-type]
    run("--as-of", "2100-01-01T00:00")
    run(code=3)
    run("--dry-run", "--as-of", "2100-01-01T00:00", code=3, **dry)  # type: ignore[arg-type]
    run("--overwrite", "older")
    run("--dry-run", "--overwrite", "older", **dry)  # type: ignore[arg-type]
    raw = os.path.join(os.fsencode(tmp_path / "r"), RAW)
    os.unlink(raw)
    os.mkdir(raw)
    run("--dry-run", code=3, **dry)  # type: ignore[arg-type]
    run(code=3)
    in_place = ("restore", "store", "SG1/priv1", "--in-place", "--json")
    with (site.priv1 / "note.md").open():
        dry_run = nightferry(site, *in_place, "--dry-run")
    said.add("nightferry restore --dry-run", {**dry_run.document, "in_use": ["ourselves are not counted"]})
    data = site.root / "objects" / "images" / image / "data"
    kept = data.read_bytes()
    data.write_bytes(b"\xff" * len(kept))
    staged = site.root / "backup" / "SG1" / "priv1"
    staged.rename(site.root / "aside")
    said.add("nightferry restore", nightferry(site, *in_place, "--yes").document)
    (site.root / "aside").rename(staged)
    data.write_bytes(kept)
    assert nightferry(site, "verify", "--copy", "objects").code == 0
    shutil.rmtree(tmp_path / "r")


def _hold_the_page_to(said: Said) -> None:
    documented = page()
    assert set(documented) == set(said.documents)
    problems = []
    for heading, fields in documented.items():
        seen = set()
        for document in said.documents[heading]:
            for path, value in flat(document, "", fields):
                seen.add(path)
                if path not in fields:
                    problems.append(f"{heading}: {path} is printed, not documented")
                elif not fits(value, fields[path]):
                    problems.append(f"{heading}: {path} is {value!r}, not {fields[path]}")
            problems += [
                f"{heading}: {path} is missing in {document}" for path in missing_keys(document, fields)
            ]
        problems += [f"{heading}: {path} was never seen" for path in fields if path not in seen]
    assert not problems, "\n".join(problems)


def test_the_page_holds_what_the_contract_promises() -> None:
    promised = {
        "nightferry backup": "run images[].image gate gates[].back_group gates[].state gates[].missing[] "
        "gates[].moved_to failed[].store",
        "nightferry images": "images[].image images[].group images[].store images[].run images[].level "
        "images[].state images[].size_bytes images[].files images[].started images[].ended "
        "images[].copies[].destination",
        "nightferry copies": "copies[].destination copies[].state copies[].location copies[].size_bytes "
        "copies[].digest",
        "nightferry files": "files[].path files[].path_b64 files[].type files[].size_bytes files[].mtime_ns "
        "files[].digest",
        "An error": "error.exit_code error.message error.hint error.subject",
    }
    documented = page()
    for heading, paths in promised.items():
        assert set(paths.split()) <= set(documented[heading]), heading
