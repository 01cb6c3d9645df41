"""A night whose copies go to a bucket compressed: judged by zstd and tar, restored by range."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.staging.images import staged_path
from tests.conftest import needs
from tests.servers.seaweed import Seaweed
from tests.support import night, toml
from tests.support.brought import bring_back
from tests.support.outside import compare_tar, compare_tree
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [
    needs("zstd"),
    pytest.mark.usefixtures("bucket_keys"),
    pytest.mark.server,
    pytest.mark.xdist_group("seaweed"),
]


def test_a_night_to_a_bucket_with_zstd(
    make_site: Callable[..., SmallSite], seaweed: Seaweed, tmp_path: Path
) -> None:
    prefix = seaweed.prefix()
    compressed = 'encode = { compress = "zstd:1" }'
    bucket = toml.bucket(f"s3://{seaweed.bucket}/{prefix}", seaweed.endpoint, compressed)
    site = make_site(copies=("cloud",), more=bucket)
    digits = random.Random(3)
    with (site.store("SG1/a") / "numbers.txt").open("w") as file:
        while file.tell() < 17 << 20:
            file.write("".join(f"{digits.getrandbits(64)}\n" for _ in range(20_000)))
    (site.store("SG1/a") / "last.txt").write_text("the last one\n" * 1000)
    with site.open(HandClock()) as opened:
        record = night.night(opened, BACK_GROUP)
        assert (record.state, record.result) == ("ended", "whole")
        image = restore.find_image(opened, "SG1", "a")
        (copy,) = opened.catalog.copies(image.image)
        assert (copy.state, copy.location["encoding"]) == ("verified", "zstd")
        (key,) = [k for k in seaweed.keys_below(prefix) if k.endswith(f"{image.image}/data.zst")]
        data = tmp_path / "data.zst"
        data.write_bytes(seaweed.client().get_object(Bucket=seaweed.bucket, Key=key)["Body"].read())
        assert data.stat().st_size == copy.size_bytes < image.size_bytes * 0.6
        subprocess.run(["zstd", "-q", "-d", data, "-o", tmp_path / "image.tar"], check=True)
        assert compare_tar(tmp_path / "image.tar", site.store("SG1/a")) == ""

        staged_path(opened, image).unlink()
        for patterns, to in (((), tmp_path / "all"), (("last.txt",), tmp_path / "one")):
            assert bring_back(opened, to, patterns).copy == "cloud"
        assert compare_tree(site.store("SG1/a"), tmp_path / "all") == ""
        assert (tmp_path / "one" / "last.txt").read_text() == "the last one\n" * 1000
        checked = verify.verify_copies(opened, "cloud", progress=QUIET, cancel=Cancel())
        assert [c.error for c in checked] == ["", ""]
