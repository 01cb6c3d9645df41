"""Restores by the command line, end to end: which image, which copy, what stays, what is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.restore import restore as ops
from nightferry.staging.room import free_staging
from nightferry.transfer.base import ByteReader
from tests.conftest import needs
from tests.support.command_site import BACK, SOURCES, Command, CommandSite, build_site, process

MIB = 1 << 20
LETTER = ("restore", "files", "SG1/priv1", "in/letter.txt")


@pytest.fixture(scope="session")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> CommandSite:
    """A site after two nights; the letter says what night it was."""
    site = build_site(tmp_path_factory.mktemp("two") / "site")
    for said in ("first night", "second night"):
        (site.priv1 / "in" / "letter.txt").write_text(said)
        site.night(new=True)
    return site


def content(folder: Path) -> dict[str, bytes]:
    """Relative path → bytes of every regular file below."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def same_trees(one: Path, other: Path, *options: str) -> None:
    subprocess.run(["diff", "-r", *options, one, other], check=True)


class TestWhichImage:
    def test_the_newest_whole_image_is_the_default(
        self, two_nights: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        assert nightferry(two_nights, *LETTER, "--to", tmp_path).code == 0
        assert content(tmp_path) == {"in/letter.txt": b"second night"}

    def test_as_of_is_site_time_and_the_instant_it_came_to_is_told(
        self, two_nights: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        with two_nights.opened() as here:
            newest, oldest = here.catalog.images("SG1", "priv1")
            between = (oldest.started + timedelta(milliseconds=1)).astimezone(here.file.tz)
        local = between.replace(tzinfo=None).isoformat()
        ran = nightferry(two_nights, *LETTER, "--to", tmp_path, "--as-of", local)
        assert ran.code == 0
        assert f"as of {between.isoformat()}" in ran.err
        assert content(tmp_path) == {"in/letter.txt": b"first night"}
        ran = nightferry(
            two_nights, *LETTER, "--to", tmp_path / "z", "--as-of", between.isoformat(), "--json"
        )
        assert (ran.document["image"], ran.document["as_of"]) == (oldest.image, _utc(between))
        # The newest image whose start is not later: its own start counts.
        ran = nightferry(
            two_nights, *LETTER, "--to", tmp_path / "n", "--as-of", newest.started.isoformat(), "--json"
        )
        assert ran.document["image"] == newest.image

    def test_an_image_is_named(self, two_nights: CommandSite, nightferry: Command, tmp_path: Path) -> None:
        oldest = nightferry(two_nights, "images", "--store", "SG1/priv1", "--json").document["images"][-1]
        assert nightferry(two_nights, *LETTER, "--to", tmp_path, "--image", oldest["image"]).code == 0
        assert content(tmp_path) == {"in/letter.txt": b"first night"}

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (
                ["--as-of", "2020-01-01T00:00"],
                "no whole image of SG1/priv1 began by 2020-01-01T00:00:00-06:00",
            ),
            (["--as-of", "last week"], "not a time: 'last week'"),
            (["--image", "20200101-TEX-BACK-1.SG1.priv1.L0"], "no image"),
            (["--as-of", "2030-01-01", "--image", "x"], "both name an image"),
        ],
    )
    def test_what_there_is_not_is_told(
        self, two_nights: CommandSite, nightferry: Command, tmp_path: Path, options: list[str], said: str
    ) -> None:
        ran = nightferry(two_nights, *LETTER, "--to", tmp_path / "r", *options, "--json")
        assert ran.code == 2
        assert said in ran.error["message"]
        assert not (tmp_path / "r").exists()


def _utc(moment: object) -> str:
    from nightferry.cli.output import dump_json

    return dump_json(moment).strip('"')


class TestWhichCopy:
    @pytest.mark.parametrize("option", ["--copy", "--from"])
    @pytest.mark.parametrize("place", ["staging", "tape", "objects"])
    def test_every_place_gives_the_same_back(
        self, kept_night: CommandSite, nightferry: Command, tmp_path: Path, place: str, option: str
    ) -> None:
        ran = nightferry(
            kept_night, "restore", "store", "SG1/priv1", "--to", tmp_path, option, place, "--json"
        )
        assert (ran.code, ran.document["copy"]) == (0, place)
        same_trees(kept_night.priv1, tmp_path, "--exclude=*.tmp")

    def test_a_place_that_is_none_is_told_with_those_there_are(
        self, kept_night: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        ran = nightferry(kept_night, *LETTER, "--to", tmp_path, "--copy", "stagign", "--json")
        assert ran.code == 2
        assert "no source of copies is called 'stagign'" in ran.error["message"]
        assert "staging" in ran.error["hint"]

    def test_without_staging_the_nearest_copy_comes_first_and_the_next_takes_over(
        self, site: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        site.night()
        site.night(new=True)
        oldest = nightferry(site, "images", "--store", "SG1/priv1", "--json").document["images"][-1]["image"]
        with site.opened() as here:
            free_staging(here, BACK, needed_bytes=1 << 50)
            assert here.catalog.freed(oldest)
        wanted = ("restore", "store", "SG1/priv1", "--image", oldest, "--json", "--to")
        planned = nightferry(site, *wanted, tmp_path / "dry", "--dry-run")
        assert (planned.document["copy"], planned.document["fallbacks"]) == ("objects", ["tape"])
        assert nightferry(site, *wanted, tmp_path / "s", "--copy", "staging").code == 20
        data = site.root / "objects" / "images" / oldest / "data"
        _flip(data, data.stat().st_size // 2)
        ran = nightferry(site, *wanted, tmp_path / "r")
        assert (ran.code, ran.document["copy"], ran.document["damaged"]) == (0, "tape", ["objects"])
        same_trees(site.priv1, tmp_path / "r", "--exclude=*.tmp")
        assert " from objects: " in ran.err
        states = {
            c["destination"]: c["state"]
            for c in nightferry(site, "copies", oldest, "--json").document["copies"]
        }
        assert states == {"objects": "damaged", "tape": "verified"}
        damaged = nightferry(site, *wanted, tmp_path / "d", "--copy", "objects")
        assert damaged.code == 20
        assert not (tmp_path / "d").exists()

    def test_one_file_of_a_large_image_costs_little_reading(
        self, site: CommandSite, nightferry: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with (site.priv1 / "big").open("wb") as big:
            for _ in range(63):
                big.write(os.urandom(MIB))
        (site.priv1 / "wanted.bin").write_bytes(os.urandom(MIB))
        site.night()
        read = [0]
        really = ops.open_image_from

        @contextmanager
        def counted(*arguments: object) -> Iterator[ByteReader]:
            with really(*arguments) as reader:  # type: ignore[arg-type]
                inner = reader._reader  # type: ignore[attr-defined]
                monkeypatch.setattr(reader, "_reader", Counted(inner, read))
                yield reader

        monkeypatch.setattr(ops, "open_image_from", counted)
        for place in ("staging", "objects", "tape"):
            read[0] = 0
            to = tmp_path / place
            ran = nightferry(site, "restore", "files", "SG1/priv1", "wanted.bin", "--to", to, "--copy", place)
            assert ran.code == 0
            subprocess.run(["cmp", site.priv1 / "wanted.bin", to / "wanted.bin"], check=True)
            assert MIB <= read[0] <= 4 * MIB, place


class Counted:
    """A reader that counts what is asked of it."""

    def __init__(self, inner: ByteReader, read: list[int]) -> None:
        self._inner, self._read = inner, read

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        self._read[0] += length
        return self._inner.read(offset, length)

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        self._read[0] += length
        return self._inner.stream(offset, length)


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


class TestWhatIsThereAlready:
    def test_never_lists_it_and_leaves_it(
        self, kept_night: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "letter.txt").write_text("mine")
        ran = nightferry(kept_night, "restore", "files", "SG1/priv1", "in", "--to", tmp_path)
        assert ran.code == 3
        assert "in/letter.txt" in ran.out
        assert "in/deep" not in ran.out
        assert (tmp_path / "in" / "letter.txt").read_text() == "mine"
        assert (tmp_path / "in" / "deep" / "large.bin").stat().st_size == 3_000_001
        ran = nightferry(kept_night, "restore", "files", "SG1/priv1", "in", "--to", tmp_path, "--json")
        assert [s["path"] for s in ran.document["skipped"]] == ["in/deep/large.bin", "in/letter.txt"]

    def test_older_replaces_what_is_older_and_names_what_is_not(
        self, kept_night: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        for name, when in (("note.md", 1), ("in/letter.txt", 2**33)):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("mine")
            os.utime(tmp_path / name, (when, when))
        ran = nightferry(
            kept_night,
            "restore",
            "files",
            "SG1/priv1",
            "*.md",
            "*.txt",
            "--to",
            tmp_path,
            "--overwrite",
            "older",
        )
        assert ran.code == 0
        assert content(tmp_path) == {"note.md": b"# note\n", "in/letter.txt": b"mine"}
        assert "is there and not older, kept: in/letter.txt" in ran.out

    def test_always_replaces_and_an_inode_is_never_written_to(
        self, kept_night: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        (tmp_path / "note.md").write_text("mine")
        os.link(tmp_path / "note.md", tmp_path / "elsewhere")
        ran = nightferry(
            kept_night, "restore", "files", "SG1/priv1", "*.md", "--to", tmp_path, "--overwrite", "always"
        )
        assert ran.code == 0
        assert content(tmp_path) == {"note.md": b"# note\n", "elsewhere": b"mine"}

    @pytest.mark.parametrize("place", ["tape", "objects", "staging"])
    def test_a_dry_run_says_what_it_takes_and_writes_nothing(
        self, kept_night: CommandSite, nightferry: Command, tmp_path: Path, place: str
    ) -> None:
        target = tmp_path / "r"
        wanted = ("restore", "store", "SG1/priv1", "--to", target, "--copy", place, "--dry-run")
        said = nightferry(kept_night, *wanted, "--json").document
        assert said["dry_run"] is True
        assert said["copy"] == place
        assert said["bytes"] == 3_000_001 + len("dear reader\n") + len("# note\n")
        assert said["predicted_s"] > 0
        assert said["cartridges"] == (["A00001L9"] if place == "tape" else [])
        human = nightferry(kept_night, *wanted)
        assert human.code == 0
        assert ("A00001L9" in human.out) is (place == "tape")
        assert "2.9 MiB, about" in human.out
        assert not target.exists()
        target.mkdir()
        (target / "note.md").write_text("mine")
        collides = nightferry(kept_night, *wanted)
        assert collides.code == 3
        assert "note.md" in collides.out
        assert content(target) == {"note.md": b"mine"}


class TestOwners:
    def test_owners_are_mapped(self, kept_night: CommandSite, nightferry: Command, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root to give files away")
        wanted = ("restore", "files", "SG1/priv1", "*.md", "--to", tmp_path)
        assert (
            nightferry(kept_night, *wanted, "--map-owner", "root=65534", "--map-owner", ":root=:7").code == 0
        )
        status = (tmp_path / "note.md").stat()
        assert (status.st_uid, status.st_gid) == (65534, 7)

    @pytest.mark.parametrize("pair", ["root", "=", "root=no-such-user", "root=:7"])
    def test_a_mapping_that_is_none_is_refused(
        self, kept_night: CommandSite, nightferry: Command, tmp_path: Path, pair: str
    ) -> None:
        wanted = ("restore", "files", "SG1/priv1", "*.md", "--to", tmp_path / "r")
        ran = nightferry(kept_night, *wanted, "--map-owner", pair, "--json")
        assert ran.code == 2
        assert "owner" in ran.error["message"]
        assert not (tmp_path / "r").exists()

    def test_devices_and_setuid_need_the_switch(
        self, site: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root to make a device")
        os.mknod(site.priv1 / "null", 0o600 | 0o020000, os.makedev(1, 3))
        (site.priv1 / "su").write_bytes(b"#!")
        (site.priv1 / "su").chmod(0o4755)
        site.night()
        wanted = ("restore", "files", "SG1/priv1", "null", "su", "--json", "--to")
        plain = nightferry(site, *wanted, tmp_path / "p")
        assert plain.code == 3
        assert [r["path"] for r in plain.document["refused"]] == ["null"]
        assert plain.document["losses"] == [{"path": "su", "what": "setuid: needs --privileged"}]
        assert nightferry(site, *wanted, tmp_path / "q", "--privileged").code == 0
        facts = subprocess.run(
            ["stat", "-c", "%n %a %t,%T %F", "null", "su"], cwd=tmp_path / "q", capture_output=True, text=True
        )
        assert facts.stdout == "null 600 1,3 character special file\nsu 4755 0,0 regular file\n"


class TestInPlace:
    """Restoring beside the store, then exchanging by rename."""

    def test_yes_is_needed_and_nothing_happens_without(
        self, kept_night: CommandSite, nightferry: Command
    ) -> None:
        before = sorted(os.listdir(kept_night.priv1.parent))
        ran = nightferry(kept_night, "restore", "store", "SG1/priv1", "--in-place", "--json")
        assert ran.code == 2
        assert "--yes" in ran.error["hint"]
        dry = nightferry(kept_night, "restore", "store", "SG1/priv1", "--in-place", "--dry-run", "--json")
        assert dry.code == 0
        assert (dry.document["to"], dry.document["in_use"]) == (str(kept_night.priv1), [])
        assert sorted(os.listdir(kept_night.priv1.parent)) == before

    @pytest.mark.parametrize("options", [[], ["--to", "x", "--in-place"]])
    def test_where_to_is_said_once(
        self, kept_night: CommandSite, nightferry: Command, options: list[str]
    ) -> None:
        assert nightferry(kept_night, "restore", "store", "SG1/priv1", *options, "--json").error["hint"]

    def test_a_directory_is_exchanged_and_the_old_content_stays(
        self, site: CommandSite, nightferry: Command
    ) -> None:
        run = site.night().run
        wanted = content(site.priv1)
        del wanted["scrap.tmp"]
        (site.priv1 / "in" / "letter.txt").write_text("spoiled")
        (site.priv1 / "new").write_text("since")
        ran = nightferry(site, "restore", "store", "SG1/priv1", "--in-place", "--yes", "--json")
        assert ran.code == 0
        assert ran.document["previous"] == f"{site.priv1}.before-{run}"
        assert content(site.priv1) == wanted
        assert content(Path(ran.document["previous"]))["in/letter.txt"] == b"spoiled"
        assert content(Path(ran.document["previous"]))["new"] == b"since"
        again = nightferry(site, "restore", "store", "SG1/priv1", "--in-place", "--yes", "--json")
        assert again.document["previous"] == f"{site.priv1}.before-{run}-2"

    def test_a_store_that_is_gone_comes_back(self, site: CommandSite, nightferry: Command) -> None:
        site.night()
        wanted = content(site.priv1)
        del wanted["scrap.tmp"]
        shutil.rmtree(site.priv1)
        site.ledger.unlink()
        ran = nightferry(site, "restore", "store", "SG1/priv1", "--in-place", "--yes", "--json")
        assert (ran.code, ran.document["previous"]) == (0, None)
        assert content(site.priv1) == wanted
        assert nightferry(site, "restore", "store", "SG1/ledger", "--in-place", "--yes").code == 0
        assert site.ledger.read_text() == "day,sum\n1,100\n"

    def test_a_single_file_is_exchanged(self, site: CommandSite, nightferry: Command) -> None:
        run = site.night().run
        site.ledger.write_text("spoiled")
        ran = nightferry(site, "restore", "store", "SG1/ledger", "--in-place", "--yes")
        assert ran.code == 0
        assert f"{site.ledger}.before-{run}" in ran.out
        assert site.ledger.read_text() == "day,sum\n1,100\n"
        assert Path(f"{site.ledger}.before-{run}").read_text() == "spoiled"
        assert sorted(os.listdir(site.ledger.parent)) == [
            "ledger.csv",
            f"ledger.csv.before-{run}",
            "mailbox.db",
            "priv1",
        ]

    @needs("sqlite3")
    def test_a_database_is_exchanged_and_the_old_one_keeps_what_waits_in_its_log(
        self, site: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        run = site.night().run
        _crash_with_a_log(site.mailbox)
        ran = nightferry(site, "restore", "store", "SG2/mailbox", "--in-place", "--yes", "--json")
        assert ran.code == 0
        assert not site.mailbox.with_name("mailbox.db-wal").exists()
        assert _sqlite(site.mailbox, "pragma integrity_check; select count(*) from mail") == "ok\n500\n"
        old = Path(ran.document["previous"])
        assert old == site.mailbox.with_name(f"mailbox.db.before-{run}")
        assert _sqlite(old, "pragma integrity_check; select count(*) from mail") == "ok\n501\n"

    @needs("sqlite3")
    def test_a_database_never_lands_beside_anothers_log(
        self, site: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        site.night()
        _crash_with_a_log(site.mailbox)
        site.mailbox.unlink()
        wanted = ("restore", "store", "SG2/mailbox", "--json", "--to")
        ran = nightferry(site, *wanted, site.mailbox.parent)
        assert ran.code == 2
        assert "mailbox.db-wal would be replayed" in ran.error["message"]
        assert not site.mailbox.exists()
        assert nightferry(site, *wanted, tmp_path / "r").code == 0
        assert _sqlite(tmp_path / "r" / "mailbox.db", "pragma integrity_check") == "ok\n"

    def test_a_store_in_use_is_refused_and_the_user_of_it_named(
        self, site: CommandSite, nightferry: Command
    ) -> None:
        site.night()
        for store, path in (("SG1/priv1", site.priv1 / "in" / "letter.txt"), ("SG2/mailbox", site.mailbox)):
            program = f"import sys; f = open({str(path)!r}); print('open', flush=True); sys.stdin.read()"
            with subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as user:
                assert user.stdout is not None
                assert user.stdout.readline() == "open\n"
                wanted = ("restore", "store", store, "--in-place")
                ran = nightferry(site, *wanted, "--yes", "--json")
                assert ran.code == 10
                assert f"(pid {user.pid})" in ran.error["message"]
                dry = nightferry(site, *wanted, "--dry-run", "--json")
                assert dry.code == 10
                assert f"(pid {user.pid})" in dry.document["in_use"][0]
                assert user.stdin is not None
                user.stdin.close()
            assert sorted(os.listdir(site.priv1.parent)) == ["ledger.csv", "mailbox.db", "priv1"]
            assert nightferry(site, *wanted, "--yes").code == 0
            for left in site.priv1.parent.glob("*.before-*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def test_a_copy_that_is_damaged_leaves_the_store_alone(
        self, site: CommandSite, nightferry: Command
    ) -> None:
        site.night()
        before = content(site.priv1)
        image = nightferry(site, "images", "--store", "SG1/priv1", "--json").document["images"][0]["image"]
        data = site.root / "objects" / "images" / image / "data"
        _flip(data, data.stat().st_size // 2)
        ran = nightferry(
            site, "restore", "store", "SG1/priv1", "--in-place", "--yes", "--copy", "objects", "--json"
        )
        assert ran.code == 30
        assert ran.error["hint"]
        assert content(site.priv1) == before
        again = nightferry(site, "restore", "store", "SG1/priv1", "--in-place", "--yes", "--json")
        assert again.code == 0, again.document


def _crash_with_a_log(database: Path) -> None:
    """One more row, committed, that only the write-ahead log holds: the writer dies before a checkpoint."""
    program = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("pragma journal_mode = wal")
db.execute("pragma wal_autocheckpoint = 0")
db.execute("insert into mail (body) values ('only in the log')")
db.commit()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program, database], check=True)
    assert database.with_name(database.name + "-wal").stat().st_size > 0


def _sqlite(database: Path, sql: str) -> str:
    return subprocess.run(["sqlite3", database, sql], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_an_ordinary_user_runs_a_night_and_restores() -> None:
    import tempfile

    program = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(SOURCES)!r})
from nightferry.cli.app import main
from tests.support.command_site import build_site
def night_and_back(folder):
    site = build_site(folder / "site")
    assert site.night().result == "whole"
    wanted = ["restore", "store", "SG1/priv1", "--to", str(folder / "r"), "--json"]
    return main(["--site", str(site.file), *wanted])
# Once as root, so that all is imported: this Python may lie where only root can read.
night_and_back(Path(sys.argv[1]) / "root")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(night_and_back(Path(sys.argv[1]) / "nobody"))
"""
    base = folder = Path(tempfile.mkdtemp(prefix="nightferry-nobody-"))
    try:
        os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder)],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        folder = folder / "nobody"
        same_trees(folder / "site" / "stores" / "priv1", folder / "r", "--exclude=*.tmp")
        assert {p.stat().st_uid for p in (folder / "site" / "backup").rglob("*")} == {65534}
    finally:
        shutil.rmtree(base)


def test_a_restore_works_as_a_process_of_its_own(kept_night: CommandSite, tmp_path: Path) -> None:
    ran = process(kept_night.file, *LETTER, "--to", str(tmp_path / "r"), "--json")
    assert ran.code == 0
    assert ran.document["files"] == 1
    assert all(line.startswith('{"progress"') for line in ran.err.splitlines())
