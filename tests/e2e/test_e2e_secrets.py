"""Secrets of destinations in Prefect's own Secret blocks."""

import json

import pytest

from tests.servers.seaweed import KEYS
from tests.support import toml

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.xdist_group("prefect")]


def test_a_night_and_a_restore_with_a_key_from_a_block(site, seaweed):
    from prefect.blocks.system import Secret

    prefix = seaweed.prefix()
    text = site.path.read_text().replace('copies = ["tape", "objects"]', 'copies = ["cloud"]')
    cloud = toml.bucket(
        f"s3://{seaweed.bucket}/{prefix}",
        seaweed.endpoint,
        keys=("env:NF_E2E_ACCESS", f"block:nf-e2e-{prefix}"),
    )
    site.path.write_text(text + cloud)
    keys = {"NF_E2E_ACCESS": KEYS[0]}

    missing = site.cli("check", "--json", **keys)
    findings = {f["id"]: f for f in json.loads(missing.stdout)["findings"]}
    assert f"no Secret block for block:nf-e2e-{prefix}" in findings["NF-DEST-001"]["text"]

    Secret(value=KEYS[1]).save(f"nf-e2e-{prefix}")
    backup = site.cli("backup", "--json", **keys)
    assert backup.returncode == 0, backup.stderr
    back = site.here / "restored" / "one"
    restored = site.cli("restore", "store", "SG1/priv1", "--copy", "cloud", "--to", str(back), **keys)
    assert restored.returncode == 0, restored.stderr
    away = site.cli("verify", **keys, PREFECT_API_URL="http://127.0.0.1:9/api")
    assert away.returncode != 0
    assert "the Prefect server does not answer" in away.stdout + away.stderr
    for ran in (missing, backup, restored, away):
        assert KEYS[1] not in ran.stdout + ran.stderr
