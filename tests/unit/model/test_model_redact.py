"""Texts for other eyes."""

import shutil
import subprocess

import pytest

from nightferry.model.redact import redacted, scrubbed, without


def test_every_secret_goes_the_longest_first():
    said = scrubbed("key abc then abcdef, abc", ["abc", "abcdef"])
    assert said == "key ‹redacted› then ‹redacted›, ‹redacted›"
    assert scrubbed("nothing to hide", []) == "nothing to hide"


SECRET = 'pa ss/wörd?+~%"7f'


@pytest.mark.parametrize(
    "program",
    [
        ["cat"],
        ["base64", "-w0"],
        ["basenc", "--base64url", "-w0"],
        ["xxd", "-p", "-c0"],
        ["xxd", "-p", "-u", "-c0"],
        ["jq", "-sRr", "@uri"],
        ["jq", "-sR", "."],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
def test_a_secret_goes_however_other_programs_write_it(program: list[str], before: str) -> None:
    """Where base64 puts a secret into a longer text, up to two characters at each end stay: its neighbours'."""
    if shutil.which(program[0]) is None:
        pytest.skip(f"not on this machine: {program[0]}")
    written = subprocess.run(
        program, input=f"{before}{SECRET}@host".encode(), capture_output=True, check=True
    )
    text = written.stdout.decode()
    for said in (
        scrubbed(f"it sent {text}", [SECRET]),
        without(b"it sent " + written.stdout, [SECRET]).decode(),
    ):
        assert "‹redacted›" in said
        assert text[len(text) // 3 : len(text) * 2 // 3] not in said


def test_each_line_of_a_private_key_is_a_secret():
    key = "-----BEGIN KEY-----\nAAAAB3NzaC1yc2EAAA\nshort\n-----END KEY-----\n"
    assert scrubbed("in line 2: AAAAB3NzaC1yc2EAAA, and a short one", [key]) == (
        "in line 2: ‹redacted›, and a short one"
    )


def test_credentials_in_a_url_go_known_or_not():
    assert scrubbed("GET sftp://me:word@host/x failed", []) == "GET sftp://…@host/x failed"


def test_a_site_file_loses_values_references_and_comments():
    text = '# the old one: hunter2\noptions = { client_keys = "file:/etc/key", port = 22 }\nurl = "sftp://me@host/x"\n'
    assert (
        redacted(text)
        == '# …\noptions = { client_keys = "‹redacted›", port = 22 }\nurl = "sftp://…@host/x"\n'
    )
