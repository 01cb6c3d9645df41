"""What a pattern means: git's own answer, for names that no reasonable person would choose."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from nightferry.errors import ConfigError
from nightferry.model.patterns import Ignore, Matcher, pattern


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


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("docs/a.txt", b"docs/a.txt", True),
        ("docs/a.txt", b"x/docs/a.txt", False),
        ("docs/a.txt", b"docs/a.txt.old", False),
        ("a.txt", b"docs/a.txt", True),
        ("docs", b"docs/deep/a.txt", True),
        ("docs/", b"docs/deep/a.txt", True),
        ("docs/", b"docs", False),
        ("docs", b"docs2/a.txt", False),
        ("./docs", b"docs/a.txt", True),
        ("/docs", b"docs/a.txt", True),
        ("*.txt", b"docs/deep/a.txt", True),
        ("docs/*.txt", b"docs/a.txt", True),
        ("docs/*.txt", b"docs/deep/a.txt", False),
        ("docs/**/*.txt", b"docs/deep/er/a.txt", True),
        ("*.d", b"conf.d/below/x", True),
        ("a?c", b"abc", True),
        ("[ab].txt", b"b.txt", True),
        ("[ab].txt", b"[ab].txt", True),
        ("#*", b"#draft", True),
        ("/", b"anything/at/all", True),
        (".", b"anything", True),
        ("caf\udce9", b"caf\xe9", True),
        ("caf*", b"caf\xe9/menu", True),
        ("tab\tnew\nline", b"tab\tnew\nline", True),
        ("x*", b"x\n/below\nit", True),
        ("*.txt", b"a.txt\n", False),
    ],
)
def test_patterns_mean(pattern: str, path: bytes, expected: bool) -> None:
    assert Matcher([pattern]).matches(path) is expected


def test_a_trailing_slash_means_directories_only() -> None:
    assert Matcher(["docs/"]).matches(b"docs", directory=True)
    assert Matcher(["d*/"]).matches(b"docs", directory=True)
    assert not Matcher(["d*/"]).matches(b"docs")


def test_the_last_pattern_that_fits_counts() -> None:
    matcher = Matcher(["docs", "!*.tmp", "docs/keep.tmp"])
    assert matcher.matches(b"docs/a.txt")
    assert not matcher.matches(b"docs/a.tmp")
    assert matcher.matches(b"docs/keep.tmp")
    assert not matcher.matches(b"other/a.txt")


def test_what_is_no_pattern_is_still_a_name() -> None:
    for name in (b"[z-a]", b"x\\"):
        assert Matcher([name.decode()]).matches(name)
    assert not Matcher(["[z-a]"]).matches(b"a")


def test_no_pattern_means_everything() -> None:
    assert Matcher([]).matches(b"any/thing")


@pytest.mark.parametrize("pattern", ["", "!", "//"])
def test_an_empty_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="empty pattern"):
        Matcher([pattern])


def test_wildcards_agree_with_git(tmp_path: Path) -> None:
    paths = ["a.txt", "b/a.txt", "b/c/d.log", "b/c/e.txt", "x1/y", "x12/y", "logs/2026-03/one", "logs/two"]
    patterns = ["*.txt", "b/*.txt", "**/c/*", "x?/", "logs/**/one", "/*.txt", "b/c/[de].*", "*"]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for line in patterns:
        (tmp_path / ".gitignore").write_text(line + "\n")
        git = ["git", "-C", str(tmp_path), "check-ignore", "--stdin", "-z", "--no-index"]
        answer = subprocess.run(git, input="\0".join(paths).encode(), capture_output=True)
        ignored = {name.decode() for name in answer.stdout.split(b"\0") if name}
        matcher = Matcher([line])
        assert {p for p in paths if matcher.matches(p.encode())} == ignored, line
