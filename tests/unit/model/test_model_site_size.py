"""Site files that are too much: an error at once, and a short one. A dotted key of 50,000 parts once took minutes."""

from pathlib import Path

import pytest

from nightferry.cli.app import main
from nightferry.errors import ConfigError
from nightferry.model.load import parse_site

MUCH = {
    "arrays in arrays": "x = " + "[" * 50_000 + "]" * 50_000,
    "tables in tables": "x = " + "{a = " * 50_000 + "1" + "}" * 50_000,
    "a dotted key": "a" + ".a" * 50_000 + " = 1",
    "a dotted header": "[a" + ".a" * 50_000 + "]",
    "a dotted key in a table": "x = {a" + ".a" * 50_000 + " = 1}",
    "a number": "schema = " + "1" * 20_000,
    "a string": 'schema = 1\n[site]\nname = "' + "x" * (10 << 20) + '"',
    "a string that fits": 'schema = 1\n[site]\nname = "' + "x" * 1_000_000 + '"',
    "a key": '"' + "k" * 1_000_000 + '" = 1',
    "many tables": "[[groups]]\n" * 20_000,
    "quotes that end nowhere": 'x = "' + '\\"' * 500_000,
    "many keys": "".join(f"a{number}.b = 1\n" for number in range(60_000)),
    "empty tables": "groups = [" + "{}," * 300_000 + "]",
}


@pytest.mark.parametrize("what", MUCH)
def test_it_is_refused_in_a_few_words(what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_site(MUCH[what])
    assert len(refused.value.message) < 20_000


def test_the_command_line_refuses_each_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for what, text in MUCH.items():
        path = tmp_path / "nightferry.toml"
        path.write_text(text)
        path.chmod(0o600)
        assert main(["check", "--site", str(path)]) == 2, what
        told = capfd.readouterr().err
        assert str(path) in told.replace("\n", ""), what
        assert "Traceback" not in told
        assert "unexpected" not in told


def test_what_stands_in_quotes_and_comments_counts_for_nothing() -> None:
    text = "x = [" + '"[[{{....}}]].a.b.c.d.e",' * 1000 + "] # " + "[.{" * 1000
    with pytest.raises(ConfigError, match="unknown key"):
        parse_site(text)


def test_a_key_of_as_many_parts_as_a_site_has_is_no_deep_one() -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        parse_site("groups.a.b.c.d = 1\nx = [" + '"*.tmp", ' * 1000 + "]")


def test_of_many_errors_the_first_are_told_and_the_rest_counted() -> None:
    with pytest.raises(ConfigError, match=r"\d{3,} errors:") as refused:
        parse_site("[[groups]]\n" * 100)
    assert refused.value.message.count("\n") == 21
    assert " more" in refused.value.message


def test_a_site_of_two_thousand_stores_is_far_below_the_bounds() -> None:
    text = """
        schema = 1
        [site]
        name = "TEX"
        catalog = "/c"
        [cluster]
        kind = "local"
        nodes = ["TEX-ACTV-1", "TEX-PASS-1"]
        [staging]
        path = "/b"
        [[destinations]]
        name = "d"
        kind = "fsspec"
        url = "file:///o"
    """
    for number in range(20):
        text += f"""
        [[groups]]
        name = "SG{number}"
        mail_group = "TEX-MAIL-1"
        back_group = "TEX-BACK-1"
        start = "20:05"
        copies = ["d"]
        """
        for store in range(100):
            text += f"""
            [[groups.stores]]
            name = "s{store}"
            kind = "files"
            path = "/srv/{number}/{store}"
            exclude = ["*.tmp", "cache/", "*.bak"]
            """
    assert sum(len(group.stores) for group in parse_site(text).groups) == 2_000


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"k{number} = 1\n" for number in range(49_000)),
        "".join(f"[[k{number}{'.b' * 28}]]\n" for number in range(12_000)),
        "x = [" + '"*.t",' * 40_000 + "]",
    ],
)
def test_more_keys_and_values_than_can_be_read_in_a_second_are_refused_before_they_are_read(
    text: str,
) -> None:
    with pytest.raises(ConfigError, match="more than 30,000 keys and values"):
        parse_site(text)
