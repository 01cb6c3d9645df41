"""Measuring a disk."""

import errno
import os
import time

import pytest

from nightferry.cluster import reader_agent
from nightferry.errors import Cancelled, ConfigError, GroupStopping, SourceError, StagingFull
from nightferry.health import tune as tune_module
from nightferry.health.tune import BUFFER_SIZES, STREAMS, tune
from nightferry.progress import QUIET, Cancel
from nightferry.transfer.ring import RingSettings
from nightferry.units import MIB


class Tally:
    """A clock on which every look takes a second."""

    def __init__(self):
        self.seconds = 0.0

    def monotonic(self):
        self.seconds += 1
        return self.seconds

    def now(self):
        raise AssertionError("not asked for")

    def sleep(self, seconds):
        raise AssertionError("not asked for")


def test_every_setting_is_measured_and_the_smallest_good_one_proposed(tmp_path):
    tuning = tune(tmp_path, trial_bytes=9 * MIB, clock=Tally())
    assert tuning.trial_bytes == 8 * MIB
    assert tuning.direct
    assert [t.buffer_bytes for t in tuning.buffers] == list(BUFFER_SIZES)
    assert {t.write_bytes_per_s for t in tuning.buffers} == {8 * MIB}
    assert [t.streams for t in tuning.streams] == list(STREAMS)
    assert tuning.proposal.buffer_bytes == BUFFER_SIZES[0]
    for size in BUFFER_SIZES:
        RingSettings(buffer_bytes=size)  # stage one takes whatever may be proposed
    assert (tuning.proposal.streams, tuning.proposal.buffers, tuning.proposal.unbuffered) == (1, 16, True)


def test_nothing_is_left_behind(tmp_path):
    tune(tmp_path, trial_bytes=4 * MIB)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_nameless_files_is_measured_and_left_clean(tmp_path, monkeypatch):
    real = os.open

    def without(path, flags, *rest):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", without)
    assert tune(tmp_path, trial_bytes=4 * MIB).direct
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_refuses_direct_access_gets_buffered_settings(tmp_path, monkeypatch):
    real = os.open

    def buffered(path, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", buffered)
    tuning = tune(tmp_path, trial_bytes=4 * MIB)
    assert not tuning.direct
    assert not tuning.proposal.unbuffered


def test_a_cancel_stops_it(tmp_path):
    cancel = Cancel()
    cancel.set("test")
    with pytest.raises(Cancelled):
        tune(tmp_path, trial_bytes=4 * MIB, cancel=cancel)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="gone"):
        tune(tmp_path / "gone")


def test_a_disk_without_room_is_left_alone(tmp_path):
    with pytest.raises(StagingFull):
        tune(tmp_path, trial_bytes=1 << 60)


def test_a_failing_disk_is_an_error_of_its_own(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(tune_module.os, "preadv", fail)
    with pytest.raises(SourceError, match="input/output error"):
        tune(tmp_path, trial_bytes=4 * MIB, progress=QUIET)


def test_it_ends_when_the_cluster_takes_any_group_away_from_this_node(tmp_path, monkeypatch):
    group = tmp_path / "agents" / "TEX-BACK-1"
    group.mkdir(parents=True)
    (group / "here").touch()
    monkeypatch.setattr(reader_agent, "RUN_FOLDER", tmp_path / "agents")
    write, looked = os.pwrite, []

    def taken_away(fd, data, offset):
        looked.append(list(group.glob("*.lease")))
        (group / "here").unlink(missing_ok=True)
        time.sleep(0.02)
        return write(fd, data, offset)

    monkeypatch.setattr(tune_module.os, "pwrite", taken_away)
    with pytest.raises(GroupStopping, match="TEX-BACK-1"):
        tune(tmp_path, trial_bytes=64 * MIB)
    assert all(len(leases) == 1 for leases in looked)
    assert list(group.glob("*.lease")) == []
