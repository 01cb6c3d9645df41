"""Every command as a stranger meets it: what it says, how it ends, and what it says to what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import night
from tests.support.command_site import BACK, SOURCES, Command, CommandSite, process

IMAGE = "{image}"
LOOKING = (
    ("check",),
    ("runs",),
    ("runs", "--back-group", BACK),
    ("images",),
    ("images", "--group", "SG1"),
    ("images", "--store", "SG1/priv1"),
    ("copies", IMAGE),
    ("files", IMAGE),
    ("files", IMAGE, "in/", "!*.bin"),
    ("files", IMAGE, "--outcome"),
    ("status",),
    ("gate", "show"),
    ("verify",),
    ("verify", "--copy", "objects", "--sample", "10"),
    ("copy", IMAGE, "--to", "objects"),
    ("copy", "--missing", "--to", "tape"),
    ("media", "list"),
    ("media", "inventory", "--library", "tape"),
    ("media", "show", "A00001L9"),
    ("selection", "show", "SG1"),
    ("selection", "diff", "SG1"),
    ("selection", "fix", "SG2"),
    ("cluster", "view"),
    ("cluster", "move", BACK, "--dry-run"),
    ("cluster", "move", BACK),
    ("restore", "files", "SG1/priv1", "note.md", "--to", "/nowhere/at/all", "--dry-run"),
    ("restore", "store", "SG2/mailbox", "--to", "/nowhere/at/all", "--dry-run"),
    ("restore", "group", "SG1", "--to", "/nowhere/at/all", "--dry-run"),
    ("media", "erase", "A00003L9", "--dry-run"),
    ("media", "import"),
)


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_command_says_the_same_in_words_and_as_one_document(
    kept_night: CommandSite, nightferry: Command, words: tuple[str, ...]
) -> None:
    image = kept_night.image("SG1/priv1")
    arguments = [word.replace(IMAGE, image) for word in words]
    human = nightferry(kept_night, *arguments)
    assert human.code == 0, human
    assert human.out.strip()
    assert not human.out.lstrip().startswith("{")
    machine = nightferry(kept_night, *arguments, "--json")
    assert machine.code == 0
    assert machine.out.count("\n") == 1
    assert machine.out.isascii()
    assert "error" not in machine.document
    for line in machine.err.splitlines():
        assert line.startswith('{"progress": ')


WRONG = (
    (("stauts",), "did you mean 'status'?"),
    (("restore", "flies", "SG1/priv1"), "did you mean 'files'?"),
    (("restore", "files", "SG1/priv1", "--to", "/x"), "no file was named"),
    (("restore", "files", "SG1/priv1", "x"), "needs --to"),
    (("restore", "files", "SG1/priv2", "x", "--to", "/x"), "did you mean 'priv1'?"),
    (("restore", "files", "priv1", "x", "--to", "/x"), "write GROUP/STORE"),
    (("restore", "files", "SG1/priv1", "no-such-file", "--to", "/x"), "matches no-such-file"),
    (("restore", "files", "SG1/priv1", "", "--to", "/x"), "an empty pattern"),
    (("restore", "store", "SG1/priv1"), "--to DIR or --in-place"),
    (
        ("restore", "files", "SG1/priv1", "x", "--to", "/x", "--overwrite", "maybe"),
        '"never", "older", "always"',
    ),
    (("images", "--store", "SG1/priv"), "did you mean 'priv1'?"),
    (("images", "--group", "SG11"), "did you mean 'SG1'?"),
    (("images", "--stor", "SG1/priv1"), "--store"),
    (("runs", "--back-group", "TEX-BACK-2"), "did you mean 'TEX-BACK-1'?"),
    (("copies", "20261130-TEX-BACK-1.SG1.priv.L0"), "no image"),
    (("copies",), "needs IMAGE"),
    (("files", IMAGE, "zzz"), "matches zzz"),
    (("verify", "--copy", "moon"), "choose from: objects, tape"),
    (("verify", "--sample", "0"), "percent of a copy"),
    (("verify", "--sample", "101"), "percent of a copy"),
    (("copy", "--to", "objects"), "--missing"),
    (("copy", IMAGE, "--missing", "--to", "objects"), "--missing"),
    (("copy", IMAGE, "--to", "moon"), "choose from: objects, tape"),
    (("media", "show", "A00009L9"), "no cartridge A00009L9"),
    (("media", "list", "--library", "objects"), "not a tape library"),
    (("media", "erase", "A00002L9"), "erase --yes A00002L9"),
    (("media", "retire", "A00001L9"), "needs --reason"),
    (("media", "retire", "A00001L9", "--reason", " "), "needs a reason"),
    (("media", "move", "A00001L9", "--to", "drive", "0"), "not to drive 0"),
    (("restore", "group", "SG9", "--to", "/x"), "choose from: SG1, SG2"),
    (("status", "--max-age", "soon"), "not a duration"),
    (("selection", "show", "SG9"), "no storage group"),
    (("images", "--group", "SG2", "--store", "SG1/priv1"), "does not belong to SG2"),
    (("gate", "show", "20200101-TEX-BACK-1"), "no run"),
    (("gate", "approve", "R", "--store", "SG1/priv1"), "needs --reason"),
    (("cluster", "move", BACK, "--to", "TEX-PASS-9"), "no node is called 'TEX-PASS-9'"),
    (("cluster", "move", BACK, "--ungated"), "needs --to and --reason"),
    (("tune", "/no/such/folder"), "there is no folder"),
    (("support", "--to", "/no/such/folder/s.tar.gz"), "cannot write the bundle"),
    (("backup", "extra"), "does not take 'extra'"),
    (("backup", "--stage", "three"), '"one", "two", "both"'),
    (("backup", "--store", "SG1/nope"), "no store of SG1"),
    (("backup", "--group", "SG9"), "no storage group"),
    (("backup", "--accept-partial", "SG1/priv1"), "needs a reason"),
    (("backup", "--level", "1"), "not in this release"),
)


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_what_is_wrong_is_named_with_what_to_do(
    kept_night: CommandSite, nightferry: Command, words: tuple[str, ...], said: str
) -> None:
    arguments = [word.replace(IMAGE, kept_night.image("SG1/priv1")) for word in words]
    human = nightferry(kept_night, *arguments)
    assert (human.code, human.out) == (2, "")
    assert said in human.err
    message, hint = human.err.splitlines()[:2]
    assert message.startswith("nightferry: ")
    assert not message.endswith(".")
    assert hint.startswith("  hint: ")
    assert "Traceback" not in human.err
    error = nightferry(kept_night, *arguments, "--json").error
    assert said in error["message"] + error["hint"]
    assert not Path("/x").exists()


LATER = (
    ("plan",),
    ("ndmp", "probe", "nas1"),
    ("log", "status"),
    ("restore", "group", "SG1", "--to", "/x", "--until", "now"),
)


@pytest.mark.parametrize("words", LATER, ids=" ".join)
def test_what_a_later_release_brings_says_so(
    kept_night: CommandSite, nightferry: Command, words: tuple[str, ...]
) -> None:
    human = nightferry(kept_night, *words)
    assert (human.code, human.out) == (2, "")
    assert "not in this release" in human.err
    assert "not in this release" in nightferry(kept_night, *words, "--json").error["message"]


KINDS = {
    "ndmp": (
        'kind = "files"\n  path = "{root}/stores/ledger.csv"',
        'kind = "ndmp"\n  server = "nas1"\n  path = "/vol/home"\n  streams = 4',
        '\n[[ndmp_servers]]\nname = "nas1"\naddress = ["10.0.0.11"]\npassword = "env:NAS1_PASSWORD"\n',
    ),
    "command": (
        'kind = "files"\n  path = "{root}/stores/ledger.csv"',
        'kind = "command"\n  backup = ["/usr/bin/dump"]\n  restore = ["/usr/bin/load", "{{target}}"]',
        "",
    ),
    "library": (
        'kind = "virtual", path = "{root}/vtl", drives = 1, slots = 4, cartridge_bytes = "256 MiB"',
        'kind = "ndmp", server = "nas1", robot = "robot", drives = ["tape1"]',
        '\n[[ndmp_servers]]\nname = "nas1"\naddress = ["10.0.0.11"]\npassword = "env:NAS1_PASSWORD"\n',
    ),
    "PostgreSQL": (
        "",
        "",
        '\n[[groups]]\nname = "PG1"\nstart = "20:05"\ncopies = ["objects"]\n'
        'postgres = {{ dsn = "host=/run/postgresql user=backup", databases = "all" }}\n',
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_a_later_release_is_found_by_check_and_refused_by_backup(
    site: CommandSite, nightferry: Command, kind: str
) -> None:
    old, new, more = (text.format(root=site.root) for text in KINDS[kind])
    site.edit(old, new) if old else None
    site.file.write_text(site.file.read_text() + more)
    found = nightferry(site, "check", "--json")
    assert found.code == 2
    assert [f["id"] for f in found.document["findings"]] == ["NF-SITE-001"]
    assert kind in found.document["findings"][0]["text"]
    refused = nightferry(site, "backup", "--json")
    assert refused.code == 2
    assert "not in this release" in refused.error["message"]
    assert kind in refused.error["message"]


BROKEN = {
    "unknown key": ('keep_free = "1 %"', 'keep_fre = "1 %"', "staging.keep_fre", "did you mean 'keep_free'?"),
    "wrong size": ('_bytes = "256 MiB"', '_bytes = "2 lots"', "library.cartridge_bytes", "not a size"),
    "unknown kind": ('kind = "sqlite"', 'kind = "sqlight"', "stores[mailbox].kind", "did you mean 'sqlite'?"),
    "unknown destination": ('copies = ["tape", "objects"]', 'copies = ["tap"]', "groups[SG1].copies", "tap"),
    "time of day": ('start = "00:00"', 'start = "25:00"', "groups[SG1].start", "not a time of day"),
    "secret in clear": (
        'url = "file:///',
        'url = "s3://key:hunter2@/',
        "destinations[objects].url",
        "a password is never written into a URL",
    ),
    "time zone": ('timezone = "America/Chicago"', 'timezone = "Texas"', "site.timezone", "Texas"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_site_file_is_told_by_key_and_line(site: CommandSite, nightferry: Command, what: str) -> None:
    old, new, key, said = BROKEN[what]
    text = site.file.read_text().replace(old, new)
    site.file.write_text(text)
    line = next(n for n, each in enumerate(text.splitlines(), 1) if new.partition("/")[0] in each)
    for verb in ("status", "check", "backup"):
        error = nightferry(site, verb, "--json").error
        assert nightferry(site, verb).code == 2
        assert f"line {line}: " in error["message"]
        assert key in error["message"]
        assert said in error["message"]
        assert "hunter2" not in error["message"]


def test_a_site_file_that_others_can_write_is_refused(site: CommandSite, nightferry: Command) -> None:
    site.file.chmod(0o666)
    error = nightferry(site, "status", "--json").error
    assert "everyone can write it" in error["message"]
    assert "chmod o-w" in error["hint"]
    site.file.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(site.file, 65534, 0)
        assert "belongs to user 65534" in nightferry(site, "status", "--json").error["message"]


def test_a_site_file_that_is_not_there_is_named_with_the_ways_to_name_one(
    site: CommandSite, nightferry: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = nightferry(tmp_path / "none.toml", "status", "--json").error
    assert str(tmp_path / "none.toml") in error["message"]
    assert "nightferry init" in error["hint"]
    site.file.write_text("this is = not toml = at all")
    assert "not TOML" in nightferry(site, "status", "--json").error["message"]
    site.file.write_bytes(b"# caf\xe9\n")
    assert "not UTF-8 at line 1" in nightferry(site, "status", "--json").error["message"]


def test_a_catalog_that_is_gone_is_told_and_never_begun_anew(site: CommandSite, nightferry: Command) -> None:
    site.night()
    (site.root / "catalog").rename(site.root / "unmounted")
    for verb in (["status"], ["images"], ["gate", "show"], ["backup"], ["verify"]):
        ran = nightferry(site, *verb, "--json")
        assert ran.code == 60, ran
        assert "mount" in ran.error["hint"]
    found = nightferry(site, "check", "--json")
    assert (found.code, [f["id"] for f in found.document["findings"]]) == (2, ["NF-CAT-001"])
    assert not (site.root / "catalog").exists()
    (site.root / "unmounted").rename(site.root / "catalog")
    assert nightferry(site, "status").code == 0


class TestTheGate:
    def test_a_move_is_shut_out_while_the_window_is_not_sealed(
        self, site: CommandSite, nightferry: Command
    ) -> None:
        shut = nightferry(site, "cluster", "move", BACK, "--json")
        assert shut.code == 50
        assert "nothing is proven staged" in shut.error["message"]
        dry = nightferry(site, "cluster", "move", BACK, "--dry-run", "--json")
        assert (dry.code, dry.document["gate"]) == (0, "closed")
        site.ledger.rename(site.root / "aside")
        with site.opened() as here:
            run = night.stage_one(here, BACK).run
        held = nightferry(site, "cluster", "move", BACK, "--json")
        assert held.code == 50
        assert "SG1/ledger" in held.error["message"]
        assert nightferry(site, "gate", "show", run).code == 50
        again = nightferry(
            site, "gate", "approve", run, "--store", "SG1/priv1", "--reason", "x", "--record-only", "--json"
        )
        assert "the seal lacks: SG1/ledger" in again.error["message"]
        empty = ("--store", "SG1/ledger", "--reason", "  ", "--record-only")
        assert nightferry(site, "gate", "approve", run, *empty).code == 2
        approved = nightferry(
            site, "gate", "approve", run, "--store", "SG1/ledger", "--reason", "gone", "--record-only"
        )
        assert approved.code == 0
        assert "open" in approved.out
        moved = nightferry(site, "cluster", "move", BACK, "--to", "TEX-PASS-1", "--json")
        assert (moved.code, moved.document["node"]) == (0, "TEX-PASS-1")

    def test_maintenance_moves_it_with_a_reason(self, site: CommandSite, nightferry: Command) -> None:
        ungated = ("cluster", "move", BACK, "--ungated", "--to", "TEX-PASS-2", "--json")
        assert nightferry(site, *ungated).code == 2
        dry = nightferry(site, *ungated, "--reason", "new disk", "--dry-run")
        assert dry.document["plan"]["target"] == "TEX-PASS-2"
        moved = nightferry(site, *ungated, "--reason", "new disk")
        assert (moved.code, moved.document["node"]) == (0, "TEX-PASS-2")
        disk = nightferry(site, "cluster", "view", "--json").document["disks"][0]
        assert (disk["owner"], disk["epoch"]) == ("TEX-PASS-2", 1)


class TestBeforeTheFirstNight:
    """A site that was never backed up."""

    def test_everything_says_that_there_is_nothing_yet(self, site: CommandSite, nightferry: Command) -> None:
        assert "no run yet" in nightferry(site, "runs").out
        assert "no image yet" in nightferry(site, "images").out
        assert "no copies to read" in nightferry(site, "verify").out
        status = nightferry(site, "status")
        assert status.code == 30
        assert status.out.count("never backed up whole") == 3
        assert "not fixed yet" in nightferry(site, "selection", "show", "SG1").out
        nothing = nightferry(site, "restore", "store", "SG1/priv1", "--to", site.root / "r", "--json")
        assert nothing.code == 2
        assert "no whole image" in nothing.error["message"]

    def test_init_writes_a_site_file_that_loads(self, nightferry: Command, tmp_path: Path) -> None:
        store = tmp_path / "data"
        store.mkdir()
        wanted = ("init", tmp_path / "new", "--store", store, "--name", "LAB")
        first = nightferry(Path("unused"), *wanted, "--json")
        assert first.code == 0
        made = Path(first.document["site_file"])
        for folder in first.document["missing"]:
            Path(folder).mkdir(parents=True)
        assert nightferry(made, "check").code in (0, 3)
        assert nightferry(made, "status", "--json").code == 30
        assert "already there" in nightferry(Path("unused"), *wanted, "--json").error["message"]


class TestThePath:
    """The program as a process."""

    def test_help_loads_nothing_heavy(self, tmp_path: Path) -> None:
        program = (
            "import sys; from nightferry.cli.app import main; main(['--help']);"
            "print(sorted({'pyarrow', 'prefect', 'pydantic', 'cyclopts'} & set(sys.modules)), file=sys.stderr)"
        )
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        assert (done.returncode, done.stderr) == (0, "[]\n")
        assert "restore" in done.stdout

    def test_errors_and_results_are_the_same_as_in_here(
        self, kept_night: CommandSite, tmp_path: Path
    ) -> None:
        listed = process(kept_night.file, "images", "--json", cwd=tmp_path)
        assert (listed.code, len(listed.document["images"])) == (0, 3)
        assert process(kept_night.file, "images", "--store", "SG1/x", "--json").error["exit_code"] == 2

    def test_the_site_is_found_by_the_environment_or_asked_for(
        self, kept_night: CommandSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("NIGHTFERRY_SITE", str(kept_night.file))
        found = process(None, "status", cwd=tmp_path)
        assert found.code == 0
        assert "SG1/priv1" in found.out
        monkeypatch.delenv("NIGHTFERRY_SITE")
        if not Path("/etc/nightferry/nightferry.toml").exists():
            assert "nightferry init" in process(None, "status", "--json", cwd=tmp_path).error["hint"]

    @pytest.mark.parametrize("noun", ["restore", "media", "gate", "cluster", "selection"])
    def test_a_noun_alone_is_help_for_people_and_an_error_for_programs(
        self, kept_night: CommandSite, nightferry: Command, noun: str
    ) -> None:
        human = nightferry(kept_night, noun)
        assert human.code == 0
        assert "Commands" in human.out
        assert "needs a verb" in nightferry(kept_night, noun, "--json").error["message"]


def test_files_of_a_store_are_those_of_its_newest_image_then(site: CommandSite, nightferry: Command) -> None:
    site.night()
    first = site.image("SG1/priv1")
    (site.priv1 / "since").write_text("new")
    site.night(new=True)
    newest = site.image("SG1/priv1")
    listed = nightferry(site, "files", "--store", "SG1/priv1", "--json")
    assert listed.code == 0
    assert listed.document == nightferry(site, "files", newest, "--json").document
    only = nightferry(site, "files", "--store", "SG1/priv1", "since", "--json").document
    assert [row["path"] for row in only["files"]] == ["since"]
    images = nightferry(site, "images", "--store", "SG1/priv1", "--json").document["images"]
    began = next(row["started"] for row in images if row["image"] == first)
    then = nightferry(site, "files", "--store", "SG1/priv1", "--as-of", began, "--json").document
    assert (then["image"], "since" in {row["path"] for row in then["files"]}) == (first, False)
    for words in (["--as-of", began, first], []):
        assert nightferry(site, "files", *words, "--json").error["exit_code"] == 2
