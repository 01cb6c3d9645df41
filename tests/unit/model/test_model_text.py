"""Foreign text on its way to a terminal, a log or an artifact."""

import pytest

from nightferry.model.text import path_fields, safe, safe_lines, safe_markdown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain näme 漢字", "plain näme 漢字"),
        (b"caf\xe9\xff", "caf\\xe9\\xff"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("evil\u202etxt.exe", "evil\\u202etxt.exe"),
        ("\u200bzero\u2028line\u0085next", "\\u200bzero\\u2028line\\u0085next"),
        ("\U000e0041tag", "\\U000e0041tag"),
        ("\udce9", "\\xe9"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_nothing_but_showing_happens(text, shown):
    assert safe(text) == shown
    assert safe(shown) == shown


def test_long_text_is_cut():
    assert safe("x" * 5000, longest=10) == "x" * 9 + "…"
    assert safe("x" * 10, longest=10) == "x" * 10
    assert len(safe("\x00" * 5000, longest=100)) == 100


def test_our_own_line_breaks_stay():
    assert safe_lines("one\n  two\x1b\n") == "one\n  two\\x1b\n"


def test_markdown_shows_the_marks():
    shown = safe_markdown("<img src=x>|**b**`c`[l](http://e)\n# h")
    assert "\\<img" in shown
    assert "\\|\\*\\*b\\*\\*" in shown
    assert "\\[l\\]\\(http\\:\\/\\/e\\)" in shown
    assert "\n" not in shown


def test_paths_that_are_not_utf8_come_with_their_bytes():
    assert path_fields("näme".encode()) == {"path": "näme"}
    assert path_fields(b"caf\xe9") == {"path": "caf\\xe9", "path_b64": "Y2Fm6Q=="}
