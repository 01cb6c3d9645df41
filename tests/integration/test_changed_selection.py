"""A changed list of stores: it is shown, and the fixed one runs until somebody fixes the new one."""

from __future__ import annotations

from tests.support import night
from tests.support.command_site import BACK, Command, CommandSite


def findings(site: CommandSite, nightferry: Command) -> dict[str, str]:
    document = nightferry(site, "check", "--json").document
    return {f["id"]: f["severity"] for f in document["findings"] if f["id"].startswith("NF-SEL")}


def test_a_new_store_is_not_backed_up_before_it_is_fixed(site: CommandSite, nightferry: Command) -> None:
    site.edit(site.ledger_toml, "")
    site.night()
    site.edit('exclude = ["*.tmp"]\n', f'exclude = ["*.tmp"]\n{site.ledger_toml}')
    assert findings(site, nightferry) == {"NF-SEL-001": "warn"}
    assert nightferry(site, "selection", "show", "SG1").out.startswith("SG1: 1 store, fixed")
    assert site.night(new=True).selection["SG1"] == ("priv1",)
    assert nightferry(site, "selection", "fix", "SG1").code == 0
    assert findings(site, nightferry) == {}
    assert site.night(new=True).selection["SG1"] == ("priv1", "ledger")


def test_a_store_gone_from_the_site_file_is_never_dropped_in_silence(
    site: CommandSite, nightferry: Command
) -> None:
    site.night()
    site.edit(site.ledger_toml, "")
    assert findings(site, nightferry) == {"NF-SEL-002": "fail"}
    with site.opened() as here:
        night.stage_one(here, BACK, new=True)
    held = nightferry(site, "gate", "show", "--json")
    assert held.code == 50
    (missing,) = held.document["gates"][0]["missing"]
    assert missing["store"] == "SG1/ledger"
    assert "no longer in the site file" in missing["reason"]
    assert nightferry(site, "selection", "fix", "SG1").code == 0
    assert site.night(new=True).state == "ended"
