"""Planted secrets: a failing night leaves them nowhere, not in the catalog, on staging, in a log or a bundle."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest

from nightferry.cli.output import dump_json
from nightferry.errors import ConfigError, NightferryError
from nightferry.health.check import check
from nightferry.night import gate
from nightferry.night.report import night_result, report_markdown
from nightferry.site.opened import OpenSite
from tests.support import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]

BY_NAME = "xyzzy-7f3a-from-the-environment"
IN_FILE = "plugh-91cc-from-a-file"
BESIDE = "hunter2-only-planted-never-asked-for"
SECRETS = (BY_NAME, IN_FILE, BESIDE)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NF_TEST_PASSWORD", BY_NAME)
    monkeypatch.setenv("PGPASSWORD", BESIDE)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", BESIDE)
    secret = tmp_path / "token"
    secret.write_text(IN_FILE + "\n")
    secret.chmod(0o600)


def with_secrets(site: SmallSite, tmp_path: Path) -> None:
    """Gives the folder destination options with references to secrets."""
    text, url = site.file.read_text(), f'url = "file://{site.objects}"'
    options = f'options = {{ password = "env:NF_TEST_PASSWORD", token = "file:{tmp_path}/token" }}'
    assert url in text
    site.file.write_text(text.replace(url, f"{url}\n{options}"))


def failing_night(opened: OpenSite, site: SmallSite) -> list[str]:
    """A night in which a store is missing, an image is damaged and a destination is away; everything it says."""
    shutil.rmtree(site.store("SG1/b"))
    spoken = Spoken()
    record = night.stage_one(opened, BACK_GROUP, spoken)
    gate.approve(opened, record, ["SG1/b"], "b is being moved")
    (tar,) = site.disk.glob("SG1/a/*.tar")
    with tar.open("r+b") as file:
        file.seek(700_000)
        file.write(b"nonsense")
    site.library.write_text("no library")
    with pytest.raises(NightferryError) as failed:
        night.stage_two(opened, record, spoken)
    result = night_result(opened, record)
    assert result.outcome == "CopyMissing"
    said = [*spoken.said, report_markdown(result), dump_json({"result": result.as_json()})]
    return [*said, str(failed.value), dump_json(failed.value.as_json())]


class Spoken:
    """A progress sink that keeps every word."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        self.said.append(f"{phase} {subject}")

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        self.said.append(f"{subject} {current}")

    def end(self, subject: str, result: str) -> None:
        self.said.append(f"{subject} {result}")

    def say(self, text: str, subject: str = "") -> None:
        self.said.append(f"{subject} {text}")


def leaks(*folders: Path) -> list[str]:
    """Files below the folders that hold a secret, in whatever way: in bytes, or packed."""
    found = []
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
            content = path.read_bytes()
            if path.suffix == ".parquet":
                content += str(pyarrow.parquet.read_table(path).to_pylist()).encode()
            if any(secret.encode() in content for secret in SECRETS):
                found.append(str(path))
    return found


def test_a_failing_night_leaves_no_secret_anywhere(
    make_site: MakeSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site()
    with_secrets(site, tmp_path)
    with caplog.at_level(logging.DEBUG), site.open(HandClock()) as opened:
        said = failing_night(opened, site)
        said += [dump_json({"findings": check(opened.loaded)}), caplog.text]
        opened.catalog.compact()
        (site.home / "export.parquet").write_bytes(opened.catalog.export()[0])
    assert [text for text in said if any(secret in text for secret in SECRETS)] == []
    assert leaks(site.home) == []
    # The search finds what is there: in a plain file and in a packed one.
    (site.home / "note").write_text(f"so it is {IN_FILE}")
    with site.open(HandClock()) as opened:
        gate.approve(opened, opened.catalog.runs()[0], ["SG1/b"], f"the password is {BY_NAME}")
        opened.catalog.compact()
    assert len([path for path in leaks(site.home) if path.endswith((".parquet", "/note"))]) >= 2


def test_a_secret_written_into_the_site_file_is_refused_and_not_repeated(make_site: MakeSite) -> None:
    site = make_site()
    url = f'url = "file://{site.objects}"'
    text = site.file.read_text()
    for wrong in (
        f'{url}\noptions = {{ password = "{BESIDE}" }}',
        f'url = "sftp://user:{BESIDE}@host/place"',
        f'{url}\npassword = "{BESIDE}"',
    ):
        site.file.write_text(text.replace(url, wrong))
        with pytest.raises(ConfigError) as refused:
            site.open()
        assert BESIDE not in f"{refused.value} {refused.value.hint} {refused.value.as_json()}"


def test_the_support_bundle_holds_no_secret_nor_says_where_one_is(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site()
    with_secrets(site, tmp_path)
    with site.open(HandClock()) as opened:
        failing_night(opened, site)
    bundle = tmp_path / "bundle.tar.gz"
    program = "from nightferry.cli.app import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--site", site.file, "support", "--to", bundle],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NIGHTFERRY_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(bundle) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (tmp_path / "unpacked" / "said").write_text(done.stdout + done.stderr)
    assert leaks(tmp_path / "unpacked") == []
    text = (tmp_path / "unpacked/nightferry-support/site.toml").read_text()
    assert "NF_TEST_PASSWORD" not in text
    assert f"{tmp_path}/token" not in text
