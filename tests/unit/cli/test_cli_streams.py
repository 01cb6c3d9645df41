"""Streams that drop what they cannot write."""

import errno
import io
import logging
import os
import subprocess
import sys

import pytest

from nightferry.cli.streams import Stream, tolerant


def test_what_a_full_disk_does_not_take_is_dropped_and_the_reason_kept():
    with open("/dev/full", "w") as full:
        stream = Stream(full)
        assert stream.write("x" * 100_000) == 100_000
        stream.flush()
        assert stream.lost.errno == errno.ENOSPC
        stream.write("more")
        stream.flush()


def test_nothing_is_left_to_fail_when_the_stream_is_closed():
    full = open("/dev/full", "w")  # noqa: SIM115 - closing it is the test
    stream = Stream(full)
    stream.write("kept in the buffer")
    stream.flush()
    assert stream.lost is not None
    full.close()


def test_a_reader_that_has_gone_is_told_from_a_full_disk():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        stream = Stream(pipe)
        stream.write("x")
        stream.flush()
        assert isinstance(stream.lost, BrokenPipeError)


@pytest.mark.parametrize("closed", [True, False])
def test_a_stream_that_is_closed_takes_everything(closed):
    inner = io.TextIOWrapper(io.BytesIO())
    inner.close()
    stream = Stream(inner if closed else None)
    stream.write("x")
    stream.flush()
    assert stream.lost.errno == errno.EBADF


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_encoding_lacks_are_written_as_escapes(encoding):
    raw = io.BytesIO()
    stream = Stream(io.TextIOWrapper(raw, encoding=encoding, errors="strict"))
    stream.write("caf\udce9 \u20ac\n")
    stream.flush()
    assert stream.lost is None
    assert raw.getvalue().startswith(b"caf\\udce9")
    assert stream.encoding == encoding


def test_libraries_write_to_them_too_and_the_streams_are_given_back():
    before = sys.stdout, sys.stderr
    with tolerant() as streams:
        assert (sys.stdout, sys.stderr) == streams
        sys.stdout.write("x")
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": "x"}))
    assert (sys.stdout, sys.stderr) == before


def test_the_first_file_opened_does_not_become_a_closed_stdout():
    program = (
        "import os, sys; from nightferry.cli.streams import tolerant\n"
        "with tolerant() as streams: sys.exit(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program])
    assert done.returncode >= 3
