"""Progress: a bar, lines, or JSON lines."""

import io
import json

from nightferry.cli.output import Output
from nightferry.cli.sinks import JsonLinesProgress, LinesProgress, TerminalProgress


class FakeTime:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines_say_rate_and_time_left_once_a_second():
    stream, time = io.StringIO(), FakeTime()
    sink = JsonLinesProgress(stream, time)
    sink.begin("SG1/priv1", "stage", 1000)
    time.now = 2.0
    sink.advance("SG1/priv1", 200, "a\x1b")
    time.now = 2.5
    sink.advance("SG1/priv1", 300)
    time.now = 4.0
    sink.advance("SG1/priv1", 500)
    sink.say("milestone", "SG1/priv1")
    sink.end("SG1/priv1", "whole")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert "\x1b" not in stream.getvalue()
    assert [line["progress"] for line in lines] == ["begin", "advance", "advance", "say", "end"]
    assert lines[1] == {
        "progress": "advance",
        "subject": "SG1/priv1",
        "phase": "stage",
        "done_bytes": 200,
        "total_bytes": 1000,
        "rate_bytes_per_s": 100,
        "left_s": 8.0,
        "current": "a\x1b",
    }
    assert (lines[2]["done_bytes"], lines[2]["left_s"]) == (500, 4.0)
    assert (lines[4]["result"], lines[4]["done_bytes"]) == ("whole", 500)


def test_nobody_guesses_the_time_left_of_an_unknown_size():
    stream, time = io.StringIO(), FakeTime()
    sink = JsonLinesProgress(stream, time)
    sink.begin("s", "stage")
    sink.advance("s", 10)
    assert json.loads(stream.getvalue().splitlines()[1])["left_s"] is None


def test_plain_lines_say_what_began_and_how_it_ended():
    stream, time = io.StringIO(), FakeTime()
    sink = LinesProgress(stream, time)
    sink.begin("SG1/\x1b[1m", "stage", 2048)
    sink.advance("SG1/\x1b[1m", 2048)
    time.now = 2.0
    sink.end("SG1/\x1b[1m", "whole")
    sink.end("never begun", "failed")
    sink.say("hello")
    assert stream.getvalue().splitlines() == [
        "stage SG1/\\x1b[1m, 2.0 KiB",
        "stage SG1/\\x1b[1m: whole, 2.0 KiB in 2.0 s",
        "never begun: failed",
        "hello",
    ]


def test_a_terminal_keeps_a_line_of_what_ended_and_shows_no_foreign_escape(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    sink = TerminalProgress(stream)
    sink.begin("SG1/priv1", "stage", 100)
    sink.advance("SG1/priv1", 50, "evil\x1b]0;owned\x07[red]name")
    sink._bars.refresh()
    sink.say("a milestone [not markup]")
    sink.end("SG1/priv1", "whole")
    sink.close()
    sink.close()
    shown = stream.getvalue()
    assert "stage SG1/priv1: whole, 50 B in" in shown
    assert "a milestone [not markup]" in shown
    assert "\x1b]0;" not in shown
    assert "\\x1b]0;owned\\x07[red]name" in shown


def test_a_terminal_may_be_used_again_after_a_result():
    stream = Terminal()
    sink = TerminalProgress(stream)
    sink.begin("a", "stage", None)
    sink.close()
    sink.advance("a", 5)
    sink.begin("b", "stage", 10)
    sink.begin("b", "verify", 10)
    sink.end("b", "whole")
    sink.close()
    assert "verify b: whole" in stream.getvalue()


def test_the_sink_follows_the_stream():
    assert isinstance(Output(False, io.StringIO(), io.StringIO()).progress, LinesProgress)
    assert isinstance(Output(False, io.StringIO(), Terminal()).progress, TerminalProgress)
    assert isinstance(Output(True, io.StringIO(), Terminal()).progress, JsonLinesProgress)
