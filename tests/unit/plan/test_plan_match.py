import subprocess
from pathlib import Path

import pytest

from nightferry.errors import ConfigError
from nightferry.plan.match import Matcher


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
    for pattern in patterns:
        (tmp_path / ".gitignore").write_text(pattern + "\n")
        git = ["git", "-C", str(tmp_path), "check-ignore", "--stdin", "-z", "--no-index"]
        answer = subprocess.run(git, input="\0".join(paths).encode(), capture_output=True)
        ignored = {name.decode() for name in answer.stdout.split(b"\0") if name}
        matcher = Matcher([pattern])
        assert {p for p in paths if matcher.matches(p.encode())} == ignored, pattern
