"""`nightferry init`: a site file that parses, whatever the machine looks like."""

import json
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from nightferry.cli import init as init_module
from nightferry.cli import machine as machine_module
from nightferry.cli.app import main
from nightferry.cli.machine import Machine, Volume, find_sqlite, likely_stores, mounts, timezone
from nightferry.model.load import load_site


def machine(**changes):
    fields = {
        "hostname": "mail1.example",
        "timezone": "UTC",
        "mounts": (),
        "sqlite_files": (),
        "has_postgres": False,
    }
    return Machine(**{**fields, **changes})


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").write_text("x")
    return folder


def test_the_file_is_accepted_as_it_is_written(tmp_path, data, capsys):
    target = tmp_path / "new" / "site"
    assert main(["init", str(target), "--store", str(data), "--name", "MY-SITE", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    loaded = load_site(target / "nightferry.toml")
    assert document["site_file"] == str(target / "nightferry.toml")
    assert document["stores"] == [{"store": "SG1/data", "kind": "files", "path": str(data)}]
    assert loaded.site.name == "MY-SITE"
    assert loaded.site.store("SG1/data").store.path == data
    loaded.site.require_delivered()


def test_the_real_machine_gets_a_file_without_any_option(tmp_path, capsys):
    assert main(["init", str(tmp_path)]) == 0
    assert load_site(tmp_path / "nightferry.toml").site.stores
    assert "mkdir -p" in capsys.readouterr().out


def test_a_file_that_is_there_stays_as_it_is(tmp_path, data, capsys):
    (tmp_path / "nightferry.toml").write_text("mine")
    assert main(["init", str(tmp_path), "--store", str(data)]) == 2
    assert (tmp_path / "nightferry.toml").read_text() == "mine"
    assert "already there" in capsys.readouterr().err


def test_a_folder_with_a_space_in_its_name_is_the_one_that_copies_go_to(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setattr("nightferry.cli.init.inspect_machine", lambda: machine(mounts=()))
    assert main(["init", str(tmp_path / "my site"), "--store", str(data), "--json"]) == 0
    copies = json.loads(capsys.readouterr().out)["copies"]
    assert copies == str(tmp_path / "my site" / "copies")
    loaded = load_site(tmp_path / "my site" / "nightferry.toml")
    assert loaded.site.destination("copies").url == f"file://{copies}"


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path, data, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["init", str(tmp_path / "taken"), "--store", str(data)]) == 2
    assert f"{tmp_path}/taken is not a folder" in capsys.readouterr().err


def test_nobody_else_may_write_the_file_whatever_the_umask(tmp_path, data):
    before = os.umask(0)
    try:
        assert main(["init", str(tmp_path / "s"), "--store", str(data)]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "s" / "nightferry.toml").stat().st_mode) == 0o600


def test_databases_are_proposed_by_what_is_in_them(tmp_path):
    path = tmp_path / "erp.dat"
    with sqlite3.connect(path) as database:
        database.execute("create table t (x)")
    assert main(["init", str(tmp_path / "s"), "--store", str(path)]) == 0
    assert load_site(tmp_path / "s" / "nightferry.toml").site.store("SG1/erp").store.kind == "sqlite"


def test_odd_names_become_safe_ones(tmp_path):
    paths = []
    for name in ('we"ird $dir\\', "...", "a b", "a-b"):
        (tmp_path / name).mkdir()
        paths += ["--store", str(tmp_path / name)]
    assert main(["init", str(tmp_path / "s"), *paths]) == 0
    stores = load_site(tmp_path / "s" / "nightferry.toml").site.stores
    assert [str(ref.store.path) for ref in stores] == paths[1::2]
    assert len({ref.store.name for ref in stores}) == 4


def test_a_store_that_is_not_there_is_refused_and_nothing_is_written(tmp_path, capsys):
    assert main(["init", str(tmp_path / "s"), "--store", str(tmp_path / "gone")]) == 2
    assert "gone" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_staging_and_copies_go_to_disks_of_their_own(tmp_path, data, monkeypatch):
    big, small = tmp_path / "big", tmp_path / "small"
    big.mkdir()
    small.mkdir()
    found = machine(
        mounts=(Volume(big, "xfs", -1, 10**12), Volume(small, "ext4", -2, 10**9)),
        sqlite_files=(Path("/var/lib/x\x1b.db"),),
        has_postgres=True,
    )
    monkeypatch.setattr(init_module, "inspect_machine", lambda: found)
    assert main(["init", str(tmp_path / "s"), "--store", str(data)]) == 0
    loaded = load_site(tmp_path / "s" / "nightferry.toml")
    assert loaded.site.back_groups[0].path == big / "nightferry-staging"
    assert loaded.site.destination("copies").url == f"file://{small}/nightferry-copies"
    assert "/var/lib/x\\x1b.db" in loaded.text


def test_mounts_are_writable_disks_once_each(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    info = tmp_path / "mountinfo"
    escaped = str(folder).replace(" ", "\\040")
    info.write_text(
        f"1 0 8:1 / {escaped} rw,noatime shared:1 - ext4 /dev/sda1 rw\n"
        f"2 0 8:1 / {escaped} rw - ext4 /dev/sda1 rw\n"
        f"3 0 0:5 / {tmp_path} rw - proc proc rw\n"
        f"4 0 8:2 / {tmp_path}/gone rw - xfs /dev/sdb1 rw\n"
        f"5 0 8:2 / {tmp_path} ro,relatime - xfs /dev/sdb1 ro\n"
        "garbage\n"
    )
    assert [(m.path, m.kind) for m in mounts(info)] == [(folder, "ext4")]
    assert mounts(tmp_path / "none") == ()


def test_the_time_zone_is_the_machines(tmp_path):
    assert timezone(tmp_path) == "UTC"
    (tmp_path / "timezone").write_text("Europe/Berlin\n")
    assert timezone(tmp_path) == "Europe/Berlin"
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/America/Chicago")
    assert timezone(tmp_path) == "America/Chicago"


def test_the_search_for_databases_ends_and_opens_no_fifo(tmp_path):
    os.mkfifo(tmp_path / "a.db")
    (tmp_path / "b.db").write_bytes(b"SQLite format 3\0rest")
    (tmp_path / "c.db").write_text("something else")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(find_sqlite([tmp_path, tmp_path / "gone"])) == [tmp_path / "b.db"]
    assert list(find_sqlite([tmp_path], entries=1)) == []


def test_what_holds_the_backups_is_not_proposed_as_a_store(tmp_path, data):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert likely_stores([tmp_path / "staging"], [empty, data]) == (data,)
    assert likely_stores([data / "staging"], [data]) == ()
    assert likely_stores([tmp_path], [data]) == ()


def test_looking_changes_nothing_and_names_this_machine():
    assert machine_module.inspect_machine().hostname
