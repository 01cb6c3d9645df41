"""Results on stdout, words on stderr, both as JSON on demand."""

import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nightferry.cli.output import Column, Output, dump_json, table
from nightferry.errors import IntegrityError
from nightferry.model.records import Outcomes


def output(as_json=False):
    return Output(as_json, io.StringIO(), io.StringIO())


def written(out):
    return out._stdout.getvalue(), out._stderr.getvalue()


def test_a_result_is_shown_as_text_or_as_one_json_document():
    out = output()
    out.result({"a": 1}, "one", table(["name", Column("size", right=True)], [("x", 10), ("longer", None)]))
    stdout, stderr = written(out)
    assert stdout.startswith("one\n")
    assert "longer" in stdout
    assert stderr == ""
    out = output(as_json=True)
    out.result({"a": 1}, "one")
    assert written(out) == ('{"a": 1}\n', "")


def test_foreign_text_in_a_result_neither_commands_nor_styles():
    out = output()
    name = b"\x1b]0;owned\x07[bold]x[/bold]\xff"
    out.result({}, "line\n\x1b[31mred", table(["name"], [(name,)], title="\x1b[1m[red]t"))
    stdout, _ = written(out)
    assert "\x1b" not in stdout
    assert "\\x1b]0;owned\\x07[bold]x[/bold]\\xff" in stdout
    assert "\\x1b[1m[red]t" in stdout


def test_a_long_name_is_not_broken_in_a_pipe():
    out = output()
    out.result({}, table(["path"], [("x" * 300,)]))
    assert "x" * 300 in written(out)[0]


def test_an_error_names_itself_and_says_what_to_do():
    error = IntegrityError("bytes differ\x1b[2J", hint="restore from another copy", subject="img")
    out = output()
    out.error(error)
    assert written(out) == ("", "nightferry: bytes differ\\x1b[2J\n  hint: restore from another copy\n")
    out = output(as_json=True)
    out.error(error, 143)
    stdout, stderr = written(out)
    assert json.loads(stdout) == {
        "error": {
            "exit_code": 143,
            "message": "bytes differ\x1b[2J",
            "hint": "restore from another copy",
            "subject": "img",
        }
    }
    assert stderr == ""
    assert "\x1b" not in stdout


@dataclass
class Thing:
    when: datetime
    where: Path
    spent: timedelta
    raw: bytes
    outcome: Outcomes


def test_documents_hold_times_paths_and_records():
    thing = Thing(
        datetime(2026, 11, 30, 20, tzinfo=UTC), Path("/x\udcff"), timedelta(minutes=1), b"\xff", Outcomes()
    )
    assert json.loads(dump_json({"t": thing, "s": {"b", "a"}})) == {
        "t": {
            "when": "2026-11-30T20:00:00Z",
            "where": "/x\\xff",
            "spent": 60.0,
            "raw": "/w==",
            "outcome": {"whole": 0, "vanished": 0, "changed": 0, "unreadable": 0, "unlisted": 0},
        },
        "s": ["a", "b"],
    }
    with pytest.raises(TypeError):
        dump_json({"x": object()})


def test_documents_are_ascii_so_that_no_terminal_obeys_them():
    assert dump_json({"p": "\u202eevil\x1b"}).isascii()


def test_a_table_has_no_lines_that_its_streams_encoding_lacks():
    class Ascii(io.StringIO):
        encoding = "ascii"

    out = Output(False, Ascii(), io.StringIO())
    out.result({}, table(["name"], [["x"]]))
    assert written(out)[0].isascii()
