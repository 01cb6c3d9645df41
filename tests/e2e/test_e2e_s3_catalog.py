"""A night through Prefect by the command line, with its catalog in a bucket, and that catalog made again."""

import json
import shutil

import pytest

from tests.support.bucket_catalog import move_catalog
from tests.support.outside import compare_tree

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.xdist_group("prefect")]


def test_the_command_line_works_on_a_catalog_in_a_bucket_and_rebuilds_it(site, seaweed):
    prefix = move_catalog(site.path, seaweed)
    shutil.rmtree(site.here / "catalog")

    backup = site.cli("backup", "--json")
    assert backup.returncode == 0, backup.stderr
    assert json.loads(backup.stdout)["failed"] == []
    status = site.cli("status", "--json")
    assert status.returncode == 0, status.stderr
    images = json.loads(site.cli("images", "--json").stdout)["images"]
    assert sorted(f"{i['group']}/{i['store']}" for i in images) == ["SG1/priv1", "SG1/priv2", "SG2/shares"]
    back = site.here / "restored" / "one"
    restored = site.cli("restore", "store", "SG1/priv1", "--copy", "tape", "--to", str(back))
    assert restored.returncode == 0, restored.stderr
    assert compare_tree(site.here / "stores" / "priv1", back) == ""
    keys = [key.removeprefix(f"{prefix}/") for key in seaweed.keys_below(prefix)]
    assert {key.partition("/")[0] for key in keys} == {"events", "indexes", "logs", "segments"}
    assert not (site.here / "catalog").exists()

    # The copies of the catalog were made while the night still held its lease.
    new = f"s3://{seaweed.bucket}/{seaweed.prefix()}"
    for copy, to in (("tape", str(site.here / "anew")), ("objects", new)):
        rebuilt = site.cli("catalog", "rebuild", "--copy", copy, "--to", to, "--json")
        assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
        assert json.loads(rebuilt.stdout)["begun_from"].startswith("catalog-")
    shutil.rmtree(site.here / "backup")
    (site.here / "backup").mkdir()
    site.path.write_text(site.path.read_text().replace(f"s3://{seaweed.bucket}/{prefix}", new))
    back = site.here / "restored" / "two"
    restored = site.cli("restore", "store", "SG2/shares", "--to", str(back))
    assert restored.returncode == 0, restored.stderr
    assert compare_tree(site.here / "stores" / "shares", back) == ""
