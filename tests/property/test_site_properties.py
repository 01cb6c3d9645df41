"""Names, texts and site files of any shape."""

import string
import tomllib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightferry.cli.init import _toml
from nightferry.errors import ConfigError
from nightferry.model.load import parse_site
from nightferry.model.names import (
    ImageName,
    RunName,
    image_name,
    is_back_group,
    parse_image_name,
    parse_run,
    run_name,
)
from nightferry.model.text import safe, safe_markdown
from nightferry.model.toml_lines import TomlLines

safe_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)
back_groups = st.one_of(
    st.builds(
        lambda code, n: f"{code}-BACK-{n}",
        st.text(string.ascii_uppercase, min_size=1, max_size=5),
        st.integers(0, 9999),
    ),
    safe_names.filter(is_back_group),
)
windows = st.dates().map(lambda day: f"{day:%Y%m%d}").filter(lambda text: len(text) == 8)


@given(windows, back_groups, st.integers(1, 9999))
def test_a_run_name_says_what_it_was_made_of(window, back_group, number):
    name = run_name(window, back_group, number)
    assert parse_run(name) == RunName(window, back_group, number)
    assert str(parse_run(name)) == name


@given(windows, back_groups, safe_names, safe_names, st.integers(0, 9), st.none() | st.integers(0, 9999))
def test_an_image_name_says_what_it_was_made_of(window, back_group, group, store, level, shard):
    run = run_name(window, back_group, 2)
    name = image_name(run, group, store, level, shard)
    assert parse_image_name(name) == ImageName(run, group, store, level, shard)
    # With ".tar" and the longest suffix of a draft it still is a file's name.
    assert len(name) <= 255 - len(".meta.json.partial")


@given(st.text())
def test_whatever_parses_as_a_name_is_written_the_same_way(text):
    for parse in (parse_run, parse_image_name):
        try:
            parsed = parse(text)
        except ConfigError:
            continue
        assert str(parsed) == text


@given(st.binary() | st.text(), st.integers(1, 200))
def test_safe_text_is_short_plain_and_stays_itself(text, longest):
    shown = safe(text, longest)
    assert len(shown) <= longest
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} for c in shown)
    assert safe(shown, longest) == shown
    shown.encode()
    assert "\n" not in safe_markdown(text)


@given(st.text())
def test_init_writes_any_text_as_a_toml_string(text):
    if any("\ud800" <= c <= "\udfff" for c in text):
        return
    assert tomllib.loads(f"x = {_toml(text)}") == {"x": text}


scalars = st.one_of(
    st.integers(-(2**60), 2**60), st.booleans(), st.text(st.characters(codec="utf-8"), max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(string.ascii_lowercase, min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def written(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _toml(value)
    if isinstance(value, list):
        return "[\n" + "".join(f"  {written(entry)}, # ] = [x]\n" for entry in value) + "]"
    return "{ " + ", ".join(f"{key} = {written(entry)}" for key, entry in value.items()) + " }"


inline_values = values.filter(lambda value: not _has_list_in_table(value))


def _has_list_in_table(value, inside=False) -> bool:
    # An inline table is one line before TOML 1.1, and `written` breaks lists over lines.
    if isinstance(value, list):
        return inside or any(_has_list_in_table(entry, inside) for entry in value)
    if isinstance(value, dict):
        return any(_has_list_in_table(entry, True) for entry in value.values())
    return False


@given(
    st.lists(
        st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=6), inline_values, max_size=4),
        max_size=4,
    )
)
def test_every_key_is_found_on_the_line_it_was_written_on(tables):
    lines, expected = ["# head = [x]"], {}
    for position, table in enumerate(tables):
        expected["t", position] = len(lines) + 1
        lines.append("[[t]]")
        for key, value in table.items():
            expected["t", position, key] = len(lines) + 1
            lines += f"{key} = {written(value)}".split("\n")
    text = "\n".join(lines)
    tomllib.loads(text)
    found = TomlLines(text)
    assert {path: found.line(path) for path in expected} == expected


SECTIONS = st.sampled_from(
    [
        "schema",
        "site",
        "cluster",
        "nodes",
        "staging",
        "back_groups",
        "groups",
        "destinations",
        "retention",
        "x",
    ]
)
KEYS = st.sampled_from(
    [
        "name",
        "kind",
        "path",
        "catalog",
        "nodes",
        "stores",
        "copies",
        "start",
        "library",
        "pool",
        "url",
        "role",
        "targets",
    ]
)
raw_values = st.recursive(
    scalars
    | st.sampled_from(
        ["files", "tape", "virtual", "local", "fsspec", "s3", "/a", "20:00", "TEX-ACTV-1", "file:///x"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(SECTIONS, raw_values, max_size=6))
def test_any_toml_is_a_site_or_a_clear_refusal(raw):
    text = "".join(f"{key} = {written_inline(value)}\n" for key, value in raw.items())
    tomllib.loads(text)
    with pytest.raises(ConfigError) as refused:
        parse_site(text, "s.toml")
    assert refused.value.message.startswith("s.toml, ")


def written_inline(value) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(written_inline(entry) for entry in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {written_inline(entry)}" for key, entry in value.items()) + " }"
    return written(value)
