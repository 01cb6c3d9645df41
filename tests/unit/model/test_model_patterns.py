"""What a pattern means: git's own answer, for names that no reasonable person would choose."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from nightferry.model.patterns import Ignore, pattern


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def ignored_by_git(repository: Path, lines: Sequence[bytes], paths: Sequence[bytes]) -> set[bytes]:
    """What ``git check-ignore`` ignores of ``paths``, below ignored directories too."""
    (repository / ".git/info/exclude").write_bytes(b"\n".join(lines) + b"\n")
    git = ["git", "-C", str(repository), "-c", "core.ignoreCase=false", "check-ignore"]
    asked = [*git, "--no-index", "-z", "--stdin", "-v", "-n"]
    done = subprocess.run(asked, input=b"".join(path + b"\0" for path in paths), capture_output=True)
    assert done.returncode in (0, 1), done.stderr
    fields = done.stdout.split(b"\0")
    answers = zip(fields[2::4], fields[3::4], strict=False)
    return {path for found, path in answers if found and not found.startswith(b"!")}


def ignored_by_us(lines: Sequence[bytes], paths: Sequence[bytes]) -> set[bytes]:
    """The same, asked as a walk asks: a directory first, and nothing below one that is ignored."""
    ignore = Ignore(line.decode("utf-8", "surrogateescape") for line in lines)
    found = set()
    for path in paths:
        names = path.split(b"/")
        above = (b"/".join(names[:depth]) for depth in range(1, len(names)))
        if any(ignore.matches(one, directory=True) for one in above) or ignore.matches(path, directory=False):
            found.add(path)
    return found


NAMES = [b"keep.tmp\n", b"x.tmp", b"d\nd/z.tmp", b"d\nd/keep", b"\n", b"a\n/b", b"data/x", b"data1/x", b"caf\xc3\xa9",
         b"caf\xe9", b"a b ", b"tab\t", b"-", b"]", b"x\r"]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [b"*.tmp", b"*.tm?", b"[!x]*", b"data[!0-9]", b"caf?", b"caf??", b"[[:alpha:]]*", b"[[:digit:]-]", b"d*/", b"**/z*",
     b"/d?d", b"*\t", b"a b\\ ", b"a b ", b"[]-]", b"[a-", b"a**/b", b"x*", b"!*.tmp", b"#", b"[[:nope:]]", b"*\r"],
)  # fmt: skip
def test_odd_names_are_ignored_as_git_ignores_them(line: bytes, repository: Path) -> None:
    assert ignored_by_us([line], NAMES) == ignored_by_git(repository, [line], NAMES)


def test_random_patterns_mean_what_git_takes_them_for(repository: Path) -> None:
    chance = random.Random(20261201)
    marks = [b"a", b"b", b".tmp", b"*", b"?", b"[ab]", b"[!a]", b"**", b"/", b"\xc3\xa9", b"\xff", b" ", b"\\*", b"[",
             b"]", b"[^b-]", b"!", b"\\", b"\r", b"[[:alpha:]]", b"$", b"(", b"|"]  # fmt: skip
    letters = [
        b"a",
        b"b",
        b"\n",
        b".tmp",
        b"\xc3\xa9",
        b"\xff",
        b" ",
        b"*",
        b"[",
        b"]",
        b"\\",
        b"\r",
        b"$",
        b"(",
    ]

    def some(of: list[bytes], most: int) -> bytes:
        return b"".join(chance.choices(of, k=chance.randint(1, most)))

    for _ in range(150):
        lines = []
        while len(lines) < 3:
            line = some(marks, 5)
            try:
                pattern(line.decode("utf-8", "surrogateescape"))
            except ValueError:
                continue
            lines.append(line)
        paths = sorted({b"/".join(some(letters, 3) for _ in range(chance.randint(1, 3))) for _ in range(50)})
        assert ignored_by_us(lines, paths) == ignored_by_git(repository, lines, paths), lines


@pytest.mark.parametrize("line", ["!", "/", "//", "x\\", "! "])
def test_what_can_mean_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a pattern"):
        pattern(line)


@pytest.mark.parametrize("line", ["", "   ", "# a comment"])
def test_empty_lines_and_comments_choose_nothing(line: str) -> None:
    assert pattern(line) is None
