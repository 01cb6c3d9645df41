"""What the BACK disk says of itself."""

import errno
import json
import os
from datetime import UTC, datetime

import pytest

from nightferry.cluster import disk as disk_module
from nightferry.cluster.disk import BackDisk
from nightferry.errors import ClusterError, IntegrityError, NotOwner
from nightferry.model.records import ApprovalRecord, SealedStore, SealRecord

RUN = "20261130-TEX-BACK-1"
AT = datetime(2026, 11, 30, 20, tzinfo=UTC)


@pytest.fixture
def disk(tmp_path):
    return BackDisk(tmp_path)


def seal(number=1, **changes):
    fields = {
        "run": RUN,
        "back_group": "TEX-BACK-1",
        "number": number,
        "epoch": 1,
        "node": "TEX-ACTV-1",
        "at": AT,
        "stores": (
            SealedStore(
                group="SG1",
                store="priv1",
                state="whole",
                image="20261130-TEX-BACK-1.SG1.priv1.L0",
                size_bytes=1,
                digest="00",
            ),
        ),
        "digest": "ab",
    }
    return SealRecord.model_validate({**fields, **changes})


def approval(reason="disk died", **changes):
    fields = {
        "run": RUN,
        "seal_digest": "ab",
        "stores": ("SG1/priv1",),
        "reason": reason,
        "who": "root",
        "at": AT,
    }
    return ApprovalRecord.model_validate({**fields, **changes})


def test_a_disk_that_is_away_is_named(tmp_path):
    with pytest.raises(ClusterError, match="gone"):
        BackDisk(tmp_path / "gone")


def test_a_disk_that_goes_away_is_not_written_beside(tmp_path):
    mount = tmp_path / "backup"
    mount.mkdir()
    disk = BackDisk(mount)
    mount.rmdir()
    for use in (
        disk.owner,
        lambda: disk.take("n", RUN, 0),
        lambda: disk.write_seal(seal()),
        lambda: disk.read_seal(RUN),
    ):
        with pytest.raises(ClusterError):
            use()
    assert not mount.exists()


def test_looking_at_a_fresh_disk_writes_nothing(disk, tmp_path):
    assert disk.owner() is None
    assert disk.read_seal(RUN) is None
    assert disk.read_approvals(RUN) == []
    assert list(tmp_path.iterdir()) == []


def test_each_owner_has_the_next_epoch(disk, tmp_path):
    first = disk.take("TEX-ACTV-1", RUN, 0)
    second = disk.take("TEX-PASS-1", RUN, first.epoch)
    assert (first.epoch, second.epoch) == (1, 2)
    assert BackDisk(tmp_path).owner() == second
    assert (tmp_path / ".nightferry").stat().st_mode & 0o777 == 0o700
    assert json.loads((tmp_path / ".nightferry/owner.2").read_text())["node"] == "TEX-PASS-1"


def test_who_saw_an_old_epoch_does_not_get_the_disk(disk):
    disk.take("TEX-ACTV-1", RUN, 0)
    with pytest.raises(NotOwner, match="TEX-ACTV-1 with epoch 1"):
        disk.take("TEX-PASS-1", RUN, 0)
    with pytest.raises(NotOwner):
        disk.take("TEX-PASS-1", RUN, 7)
    assert disk.owner().epoch == 1


def test_of_two_that_take_at_once_one_gets_the_disk(disk, tmp_path, monkeypatch):
    rival = BackDisk(tmp_path)
    create = disk_module.create_file

    def late(path, data):
        monkeypatch.setattr(disk_module, "create_file", create)
        rival.take("TEX-PASS-2", RUN, 0)
        create(path, data)

    monkeypatch.setattr(disk_module, "create_file", late)
    with pytest.raises(NotOwner, match="TEX-PASS-2"):
        disk.take("TEX-PASS-1", RUN, 0)
    assert disk.owner().node == "TEX-PASS-2"


def test_an_owner_confirms_until_the_disk_was_taken(disk):
    token = disk.take("TEX-ACTV-1", RUN, 0)
    disk.confirm(token)
    disk.take("TEX-PASS-1", RUN, 1)
    with pytest.raises(NotOwner, match="TEX-PASS-1"):
        disk.confirm(token)


def test_old_tokens_are_kept_a_few_deep_and_epochs_count_as_numbers(disk, tmp_path):
    for epoch in range(12):
        disk.take("n", RUN, epoch)
    assert disk.owner().epoch == 12
    kept = {int(p.name.partition(".")[2]) for p in (tmp_path / ".nightferry").glob("owner.*")}
    assert kept == set(range(5, 13))


def test_a_token_that_cannot_be_read_is_an_error_not_an_empty_disk(disk, tmp_path):
    disk.take("n", RUN, 0)
    (tmp_path / ".nightferry/owner.2").write_text("{")
    with pytest.raises(ClusterError, match=r"owner\.2"):
        disk.owner()


def test_a_crash_while_taking_leaves_the_old_owner(disk, monkeypatch):
    disk.take("TEX-ACTV-1", RUN, 0)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", crash)
        with pytest.raises(KeyboardInterrupt):
            disk.take("TEX-PASS-1", RUN, 1)
    assert disk.owner().node == "TEX-ACTV-1"
    assert disk.take("TEX-PASS-1", RUN, 1).epoch == 2


def test_the_newest_seal_counts(disk):
    disk.write_seal(seal(1))
    disk.write_seal(seal(2, digest="cd"))
    disk.write_seal(seal(10, digest="ef"))
    assert disk.read_seal(RUN) == seal(10, digest="ef")
    assert disk.read_seal("20261201-TEX-BACK-1") is None


def test_a_seal_is_written_once(disk):
    disk.write_seal(seal())
    disk.write_seal(seal())
    with pytest.raises(IntegrityError):
        disk.write_seal(seal(digest="other"))
    assert disk.read_seal(RUN) == seal()


def test_approvals_come_back_in_order_and_once(disk):
    later = approval("second", at=AT.replace(hour=21))
    for record in (later, approval(), approval()):
        disk.write_approval(record)
    assert disk.read_approvals(RUN) == [approval(), later]


def test_a_damaged_seal_is_an_error(disk, tmp_path):
    disk.write_seal(seal())
    (tmp_path / ".nightferry/seals" / RUN / "seal.1.json").write_text('{"run": "x"}')
    with pytest.raises(ClusterError, match=r"seal\.1\.json"):
        disk.read_seal(RUN)


def test_a_run_is_no_way_out_of_the_folder(disk):
    from nightferry.errors import ConfigError

    with pytest.raises(ConfigError):
        disk.read_seal("../../etc")


def test_a_full_disk_is_told_and_not_taken(disk, tmp_path, monkeypatch):
    disk.take("TEX-ACTV-1", RUN, 0)

    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_module, "create_file", full)
    for write in (lambda: disk.take("TEX-PASS-1", RUN, 1), lambda: disk.write_seal(seal())):
        with pytest.raises(ClusterError, match="No space left"):
            write()
    assert disk.owner().node == "TEX-ACTV-1"
    assert disk.read_seal(RUN) is None


def test_of_expired_runs_what_is_ours_goes_and_of_the_others_nothing(disk, tmp_path):
    kept = "20261201-TEX-BACK-1"
    for run in (RUN, kept):
        disk.write_seal(seal(run=run))
        disk.write_approval(approval(run=run))
    seals = tmp_path / ".nightferry/seals"
    (seals / kept / ".tmp-1-0123456789abcdef").write_text("half")
    (seals / "a file").write_text("somebody's")
    disk.clear({RUN})
    assert sorted(path.name for path in seals.iterdir()) == [kept, "a file"]
    assert disk.read_seal(RUN) is None
    assert disk.read_seal(kept) == seal(run=kept)
    assert disk.read_approvals(kept) == [approval(run=kept)]
    assert not (seals / kept / ".tmp-1-0123456789abcdef").exists()
    (seals / kept / "note").write_text("somebody's")
    disk.clear({kept})
    assert [path.name for path in (seals / kept).iterdir()] == ["note"]
