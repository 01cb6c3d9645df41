"""Which file system a path lies on, as other tools say it."""

import subprocess

import pytest

from nightferry.cluster.mount import mount_of
from nightferry.errors import ClusterError
from tests.support.disks import ext4, make_ext4, mount


def test_a_mount_is_what_findmnt_says(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    with ext4(folder, 8 << 20) as disk:
        (disk / "deep").mkdir()
        found = mount_of(disk / "deep")
        said = subprocess.run(
            ["findmnt", "-nro", "SOURCE,FSTYPE,ID", "--target", disk],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert [found.source, found.kind, str(found.number)] == said
        assert found.point == str(disk)
        stat = subprocess.run(["stat", "-f", "-c", "%i", disk], capture_output=True, text=True, check=True)
        words = f"{found.fsid:016x}"  # stat prints its two halves the other way round
        assert words[8:] + words[:8] == stat.stdout.strip().zfill(16)
        assert mount_of(disk) == found


def test_what_is_mounted_over_it_or_again_while_it_is_used_is_another(tmp_path):
    with ext4(tmp_path, 8 << 20) as disk:
        first = mount_of(disk)
        mount(make_ext4(tmp_path / "other.img", 8 << 20), disk)
        over = mount_of(disk)
        assert (over.point, over == first) == (first.point, False)
        subprocess.run(["umount", disk], check=True)
        assert mount_of(disk) == first
        with (disk / "open").open("w"):
            subprocess.run(["umount", "-l", disk], check=True)
            mount(tmp_path / "disk.img", disk)
            again = mount_of(disk)
        assert (again.fsid, again == first) == (first.fsid, False)


def test_a_path_that_is_not_there_is_on_no_mount(tmp_path):
    with pytest.raises(ClusterError, match="cannot find out what is mounted at"):
        mount_of(tmp_path / "gone")
