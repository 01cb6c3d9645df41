"""How a command's process ends: by what it did, whatever becomes of its words, and never by an abort."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_site import SOURCES, CommandSite, build_site
from tests.support.refusals import refusals

PROGRAM = "import sys; from nightferry.cli.app import main; sys.exit(main())"


def ended(site: CommandSite, words: str, where: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command whose streams a shell has arranged; ``where`` is what stands behind it."""
    script = f'set -o pipefail; "$0" -c "$1" --site "$2" {words} {where}'
    return subprocess.run(
        ["bash", "-c", script, sys.executable, PROGRAM, str(site.file)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(SOURCES)} | environment,
    )


@pytest.mark.parametrize("words", ["images", "files IMAGE --json", "expire --dry-run", "status --help"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")])
def test_what_only_shows_something_fails_when_it_cannot(
    kept_night: CommandSite, words: str, where: str, why: str
) -> None:
    done = ended(kept_night, words.replace("IMAGE", kept_night.image("SG1/priv1")), where)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"cannot write the result to stdout: {why}" in done.stderr


def test_a_reader_that_had_enough_ends_it_quietly(kept_night: CommandSite) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        quiet = subprocess.run(
            [sys.executable, "-c", PROGRAM, "--site", str(kept_night.file), "images"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(SOURCES)},
        )
    assert (quiet.returncode, quiet.stderr) == (141, b"")


@pytest.fixture(scope="module")
def own_night(tmp_path_factory: pytest.TempPathFactory) -> CommandSite:
    """A site after a night, for the tests of this file, which change its records."""
    site = build_site(tmp_path_factory.mktemp("own") / "site")
    (site.priv1 / os.fsdecode(b"caf\xe9")).write_text("not UTF-8")
    (site.priv1 / "\N{EURO SIGN}").write_text("not ASCII")
    site.night()
    return site


@pytest.mark.parametrize("where", [">/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full", "| true"])
@pytest.mark.parametrize("more", ["", "--json"])
def test_what_was_done_is_the_exit_code_whatever_became_of_the_words(
    own_night: CommandSite, where: str, more: str
) -> None:
    image = own_night.image("SG1/priv1")
    reason = f"{where} {more}"
    assert ended(own_night, f"hold add {image} --reason '{reason}' {more}", where).returncode == 0
    with own_night.opened() as here:
        here.catalog.refresh()
        assert reason in [hold.reason for hold in here.catalog.holds()]


def test_what_was_found_wrong_is_the_exit_code_whatever_became_of_the_words(tmp_path: Path) -> None:
    site = build_site(tmp_path / "site")
    site.night()
    data = next((site.root / "objects").rglob("data"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert ended(site, "verify --copy objects", ">/dev/full 2>&1").returncode == 30
    assert ended(site, "restore files SG1/nothing x --to /nowhere --json", ">&- 2>&-").returncode == 2


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_what_the_encoding_lacks_is_shown_as_escapes(
    own_night: CommandSite, environment: dict[str, str]
) -> None:
    image = own_night.image("SG1/priv1")
    shown = ended(own_night, f"files {image}", "", **environment)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "caf\\xe9" in shown.stdout
    assert "\\u20ac" in shown.stdout
    document = json.loads(ended(own_night, f"files {image} --json", "", **environment).stdout)
    assert "\N{EURO SIGN}" in {file["path"] for file in document["files"]}
    helped = ended(own_night, "restore --help", "", **environment)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.isascii()


def test_thirty_refusals_end_with_their_exit_code(kept_night: CommandSite) -> None:
    """Five hundred: ``tests/soak``."""
    assert refusals(kept_night, 30) == {2: 30}
