"""What the pages point at is there: files, headings, verbs of the command line."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from nightferry.cli.verbs import VERBS

TOP = Path(__file__).parents[2]
PAGES = sorted([*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")])
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", unicodedata.normalize("NFC", h).lower()).replace(" ", "-") for h in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/rules.md", "docs/security.md"]
)
def test_every_module_and_test_named_is_there(page: str) -> None:
    named = re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)`", (TOP / page).read_text())
    roots = [TOP, TOP / "nightferry", TOP / "tests"]
    assert named
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_command_shown_is_a_verb(page: Path) -> None:
    shown = "\n".join(CODE.findall(page.read_text()))
    verbs = {verb.name for verb in VERBS}
    commands = re.findall(r"(?:^|[`$] ?|^ *|api )nightferry ([a-z]+)\b", shown, re.MULTILINE)
    text_in_images = {"index"}  # the pax comment `nightferry index`
    assert set(commands) <= verbs | text_in_images
