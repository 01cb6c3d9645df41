"""Secret references."""

import os

import pytest
from pydantic import BaseModel

from nightferry.errors import ConfigError
from nightferry.model.secrets import known_secrets, resolve_secret, use_blocks

PLANTED = "hunter2-planted"


def test_a_secret_is_never_in_its_repr():
    secret = resolve_secret("env:S", environ={"S": PLANTED})
    assert PLANTED not in f"{secret!r} {secret}"
    assert secret.get_secret_value() == PLANTED


def test_a_file_gives_its_text_without_the_last_line_break(tmp_path):
    path = tmp_path / "s"
    path.write_text(PLANTED + "\n")
    path.chmod(0o600)
    assert resolve_secret(f"file:{path}").get_secret_value() == PLANTED
    path.chmod(0o400)
    assert resolve_secret(f"file:{path}").get_secret_value() == PLANTED


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700])
def test_a_file_open_to_others_is_refused(tmp_path, mode):
    path = tmp_path / "s"
    path.write_text(PLANTED)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="open to others") as refused:
        resolve_secret(f"file:{path}")
    assert PLANTED not in str(refused.value)


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        resolve_secret(f"file:{path}")


def test_a_folder_is_refused_and_the_url_of_one_hides_no_other_secret(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="is not a regular file"):
        resolve_secret(f"file:{tmp_path}")
    monkeypatch.setenv("NF_TEST_SECRET", "of-the-bucket")

    class Settings(BaseModel):
        url: str = f"file://{tmp_path}"
        secret_key: str = "env:NF_TEST_SECRET"

    assert "of-the-bucket" in known_secrets(Settings())


def test_an_empty_or_missing_secret_is_refused(tmp_path):
    empty = tmp_path / "e"
    empty.touch(0o600)
    for reference in (f"file:{empty}", f"file:{tmp_path / 'gone'}", "env:NOT_THERE", "env:EMPTY"):
        with pytest.raises(ConfigError):
            resolve_secret(reference, environ={"EMPTY": ""})


def test_blocks_are_read_as_who_knows_them_said():
    try:
        use_blocks(lambda name: f"of {name}")
        assert resolve_secret("block:nas").get_secret_value() == "of nas"
    finally:
        use_blocks(None)
    with pytest.raises(ConfigError, match="Prefect"):
        resolve_secret("block:nas")


def test_what_is_no_reference_is_not_repeated():
    with pytest.raises(ConfigError) as refused:
        resolve_secret(PLANTED)
    assert PLANTED not in f"{refused.value} {refused.value.hint} {refused.value.subject}"
