"""Cartridges by flow: what is where, what goes out, what comes in; and a night that finds none."""

import json

import pytest

from flows.media import media_export, media_import, media_inventory
from tests.support.prefect_site import ask, until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]


def cartridges(site):
    return {c.barcode: c for c in site.opened().catalog.cartridges("tape")}


def test_cartridges_go_out_and_come_in_by_flows(site):
    assert site.night().is_completed()
    used = next(c.barcode for c in cartridges(site).values() if c.images)
    before = cartridges(site)[used].state

    listed = media_inventory(site.block(), return_state=True)
    assert (listed.is_completed(), listed.message) == (True, "4 cartridges")
    tables = {"artifacts": {"key": {"any_": ["media"]}}}
    rows = until(lambda: [a["data"] for a in ask("/artifacts/filter", tables)])[-1]
    assert used in str(rows)

    out = media_export(site.block(), [used, "NOPE"], "vault 7", return_state=True)
    assert (out.name, out.message) == ("Partial", "not exported: NOPE")
    assert (cartridges(site)[used].state, "vault 7" in cartridges(site)[used].note) == ("offsite", True)

    back = media_import(site.block(), return_state=True)
    assert (back.is_completed(), back.message) == (True, f"imported: {used}")
    assert cartridges(site)[used].state == before


def test_a_night_without_cartridges_says_how_many_are_missing(site):
    text = site.path.read_text()
    site.path.write_text(text.replace('barcodes = ["*"]', 'barcodes = ["NONE*"]'))
    done = site.cli("backup", "--json")
    assert done.returncode == 20
    said = [
        line["text"] for line in map(json.loads, done.stderr.splitlines()) if line.get("progress") == "say"
    ]
    assert [t for t in said if t.startswith("waiting for 1 scratch cartridge in pool daily")]
    owed = [c for c in json.loads(done.stdout)["missing_copies"] if c["destination"] == "tape"]
    assert len(owed) == 3
    assert all("no scratch cartridge in pool daily: 1 missing" in c["why"] for c in owed)
