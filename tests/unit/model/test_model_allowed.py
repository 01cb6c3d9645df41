"""Which site files a node's workers may run."""

import os
import subprocess
from datetime import UTC, datetime

import pytest

from nightferry.errors import ConfigError
from nightferry.model import allowed

AT = datetime(2026, 12, 1, 2, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The lists of this test's node, which has no site file of its own."""
    place = tmp_path / "allowed"
    monkeypatch.setattr(allowed, "folders", lambda: (place,))
    monkeypatch.delenv("NIGHTFERRY_SITE", raising=False)
    monkeypatch.chdir(tmp_path)
    return place


def digest(text, tmp_path):
    """As sha256sum tells it."""
    path = tmp_path / "text"
    path.write_text(text)
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout[:64]


def test_a_site_that_no_list_names_is_refused_by_its_digest(tmp_path):
    with pytest.raises(ConfigError) as refused:
        allowed.require_allowed("one")
    assert digest("one", tmp_path) in refused.value.message
    assert "nightferry deploy --allow" in refused.value.hint


def test_the_last_two_that_were_allowed_pass_and_the_one_before_them_does_not(tmp_path):
    for text in ("one", "two", "two", "three"):
        allowed.allow("TEX", digest(text, tmp_path), "root", AT)
    for text in ("two", "three"):
        allowed.require_allowed(text)
    with pytest.raises(ConfigError):
        allowed.require_allowed("one")


def test_the_lists_of_two_sites_leave_each_other_alone(tmp_path):
    for site, text in (("TEX", "one"), ("OHIO", "two"), ("OHIO", "three")):
        allowed.allow(site, digest(text, tmp_path), "root", AT)
    for text in ("one", "two", "three"):
        allowed.require_allowed(text)


def test_the_nodes_own_site_file_is_allowed_as_it_is_now(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    own.write_text("one")
    own.chmod(0o600)
    monkeypatch.setenv("NIGHTFERRY_SITE", str(own))
    allowed.require_allowed("one")
    own.write_text("two")
    with pytest.raises(ConfigError):
        allowed.require_allowed("one")


@pytest.mark.parametrize("mode", [0o666, 0o622])
def test_a_list_that_others_can_write_allows_nothing(tmp_path, mode):
    allowed.allow("TEX", digest("one", tmp_path), "root", AT).chmod(mode)
    with pytest.raises(ConfigError, match="cannot be trusted"):
        allowed.require_allowed("one")


def test_a_site_file_that_others_can_write_allows_nothing(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    own.write_text("one")
    own.chmod(0o666)
    monkeypatch.setenv("NIGHTFERRY_SITE", str(own))
    with pytest.raises(ConfigError, match="does not allow"):
        allowed.require_allowed("one")


def test_a_line_that_is_no_digest_is_not_passed_over(tmp_path, folder):
    path = allowed.allow("TEX", digest("one", tmp_path), "root", AT)
    path.write_text(path.read_text() + "and all others\n")
    with pytest.raises(ConfigError, match="not a SHA-256 digest"):
        allowed.require_allowed("one")


def test_a_fifo_in_the_place_of_a_list_is_never_waited_for(folder):
    folder.mkdir()
    os.mkfifo(folder / "TEX")
    with pytest.raises(ConfigError, match="does not allow"):
        allowed.require_allowed("one")
