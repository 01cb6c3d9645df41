"""Finding and trusting the site file."""

import hashlib
import os

import pytest

from nightferry.errors import ConfigError
from nightferry.model import load
from nightferry.model.load import load_site

TEXT = """\
schema = 1
site = { name = "T", catalog = "/srv/c" }
cluster = { nodes = ["T-ACTV-1", "T-PASS-1"] }
staging = { path = "/backup" }
[[groups]]
name = "G"
start = "20:00"
copies = []
stores = [{ name = "s", kind = "files", path = "/srv/s" }]
"""


@pytest.fixture
def site_file(tmp_path):
    path = tmp_path / "nightferry.toml"
    path.write_text(TEXT)
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    return path


def test_the_given_file_is_read_with_its_digest(site_file):
    loaded = load_site(site_file)
    assert loaded.site.name == "T"
    assert loaded.path == site_file
    assert loaded.text == TEXT
    assert loaded.digest == hashlib.sha256(TEXT.encode()).hexdigest()


def test_the_search_goes_from_option_to_environment_to_here_to_the_machine(site_file, tmp_path, monkeypatch):
    elsewhere = tmp_path / "etc.toml"
    monkeypatch.delenv("NIGHTFERRY_SITE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert load_site().path == site_file
    monkeypatch.setenv("NIGHTFERRY_SITE", str(elsewhere))
    with pytest.raises(ConfigError, match=r"etc\.toml"):
        load_site()
    assert load_site(site_file).path == site_file
    monkeypatch.delenv("NIGHTFERRY_SITE")
    site_file.rename(elsewhere)
    monkeypatch.setattr(load, "SEARCHED", (load.SEARCHED[0], elsewhere))
    assert load_site().path == elsewhere
    monkeypatch.setattr(load, "SEARCHED", load.SEARCHED[:1])
    with pytest.raises(ConfigError, match="no site file") as refused:
        load_site()
    assert "nightferry init" in refused.value.hint


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o664])
def test_a_file_that_others_can_write_is_refused(site_file, mode, monkeypatch):
    monkeypatch.setattr(load, "_is_private_group", lambda gid, caller: False)
    site_file.chmod(mode)
    with pytest.raises(ConfigError, match="cannot be trusted") as refused:
        load_site(site_file)
    assert "chmod" in refused.value.hint


def test_a_file_in_a_folder_that_others_can_write_is_refused(site_file):
    site_file.parent.chmod(0o757)
    with pytest.raises(ConfigError, match="folder"):
        load_site(site_file)
    site_file.parent.chmod(0o1757)
    assert load_site(site_file).site.name == "T"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(site_file):
    os.chown(site_file, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        load_site(site_file)


def test_a_link_is_judged_by_what_it_points_to(site_file, tmp_path):
    link = tmp_path / "link.toml"
    link.symlink_to(site_file)
    assert load_site(link).path == site_file
    site_file.chmod(0o646)
    with pytest.raises(ConfigError, match="cannot be trusted"):
        load_site(link)


def test_bytes_that_are_not_utf8_are_told_with_their_line(site_file):
    site_file.write_bytes(TEXT.encode() + b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8 at line 10"):
        load_site(site_file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_site(tmp_path / "nowhere.toml")
