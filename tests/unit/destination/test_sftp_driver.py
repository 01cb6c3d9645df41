"""What a site file may say of sftp:// before anything is sent."""

from __future__ import annotations

import errno
import socket
import subprocess
from pathlib import Path

import pytest

from nightferry.destination.failure import as_destination_error
from nightferry.destination.schemes import open_driver
from nightferry.errors import ConfigError, Unavailable
from tests.conftest import needs


@pytest.fixture
def known_hosts(tmp_path: Path) -> str:
    path = tmp_path / "known_hosts"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize("url", ["sftp://host", "sftp://host/", "sftp://user@host:22"])
def test_a_folder_must_be_named(url: str, known_hosts: str) -> None:
    with pytest.raises(ConfigError, match="names no folder"):
        open_driver("remote", url, {"known_hosts": known_hosts})


@pytest.mark.parametrize("option", ["host_key_policy", "proxy_command", "config", "knownhosts"])
def test_no_option_but_ours_reaches_the_library(option: str, known_hosts: str) -> None:
    with pytest.raises(ConfigError, match=f"knows no option {option}") as caught:
        open_driver("remote", "sftp://host/x", {"known_hosts": known_hosts, option: "x"})
    assert "known_hosts" in caught.value.hint


def test_without_known_hosts_there_is_no_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no known host keys"):
        open_driver("remote", "sftp://host/x", {"known_hosts": str(tmp_path / "none")})
    monkeypatch.setattr("nightferry.destination.sftp.KNOWN_HOSTS", (tmp_path / "a", tmp_path / "b"))
    with pytest.raises(ConfigError, match="no known host keys"):
        open_driver("remote", "sftp://host/x", {})


@needs("ssh-keygen")
def test_a_key_is_read_through_its_reference_with_its_passphrase(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known_hosts: str
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "opensesame-41", "-f", key], check=True)
    monkeypatch.setenv("NF_TEST_PASSPHRASE", "opensesame-41")
    options = {"known_hosts": known_hosts, "client_keys": f"file:{key}"}
    open_driver("remote", "sftp://host/x", options | {"passphrase": "env:NF_TEST_PASSPHRASE"})
    with pytest.raises(ConfigError, match="client_keys is not a private key"):
        open_driver("remote", "sftp://host/x", options)
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        open_driver("remote", "sftp://host/x", options)


def test_a_name_that_cannot_be_resolved_is_a_destination_that_is_away() -> None:
    for number in (socket.EAI_AGAIN, socket.EAI_NONAME):
        assert isinstance(as_destination_error(socket.gaierror(number, "?"), "remote"), Unavailable)
    assert isinstance(as_destination_error(OSError(errno.ENETUNREACH, "?"), "remote"), Unavailable)
