"""`nightferry cluster view` on a cluster driven by command: what it says when an answer cannot be read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.cluster import command
from nightferry.site import opened
from tests.support.command_site import Command
from tests.support.fake_cluster import ACTIVE, BACK, MAIL, FakeCluster
from tests.support.placed_site import as_toml
from tests.support.small_site import SmallSite


class View:
    """A site whose cluster is run by command."""

    def __init__(self, site: SmallSite) -> None:
        self.site = site
        self.cluster = FakeCluster(site.home / "cluster")
        self._text = site.file.read_text()
        self.write()

    def write(self, **keys: object) -> None:
        """The site file, with other keys under ``[cluster]``."""
        lines = "".join(f"{k} = {as_toml(v)}\n" for k, v in {**self.cluster.settings(), **keys}.items())
        assert 'kind = "local"\n' in self._text
        self.site.file.write_text(self._text.replace('kind = "local"\n', lines, 1))

    def where(self, script: str) -> None:
        """Another program that says where a group is."""
        program = self.site.home / "where"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        self.write(where=[str(program), "where", "{group}"])


@pytest.fixture
def site(make_site: Callable[..., SmallSite], monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.setenv("NIGHTFERRY_NODE", ACTIVE)
    monkeypatch.setattr(command, "POLL_S", 0.05)
    return View(make_site())


def test_a_state_in_an_unknown_word_is_an_error_beside_all_that_was_seen(
    site: View, nightferry: Command
) -> None:
    site.cluster.write(groups={MAIL: [ACTIVE, "Online"], BACK: [ACTIVE, "Strange"]})
    site.write(states={"Online": "started", "Halted": "stopped"})
    ran = nightferry(site.site.file, "cluster", "view")
    assert ran.code == 50
    assert MAIL in ran.out
    assert f"{BACK} is unknown on {ACTIVE}: the cluster says Strange; known are Online, Halted" in ran.err
    assert "states under [cluster]" in ran.err
    ran = nightferry(site.site.file, "cluster", "view", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["error"]["exit_code"], document["error"]["subject"]) == (50, 50, BACK)
    assert "Strange; known are Online, Halted" in document["error"]["message"]
    assert {g["name"]: g["unread"] for g in document["cluster"]["groups"]} == {MAIL: False, BACK: True}


def test_one_failed_look_is_repeated(site: View, nightferry: Command) -> None:
    tool, once = site.cluster.bin / "groupctl", site.site.home / "once"
    site.where(f'[ -e {once} ] || {{ touch {once}; exit 1; }}\nexec {tool} "$@"')
    ran = nightferry(site.site.file, "cluster", "view", "--json")
    assert ran.code == 0, ran.out
    assert {g["state"] for g in ran.document["cluster"]["groups"]} == {"started"}


def test_a_program_that_gives_no_answer_is_an_error_whose_hint_leads_on(
    site: View, nightferry: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened.OpenSite.open_cluster, "__defaults__", (0.2,))
    site.where("exit 4")
    ran = nightferry(site.site.file, "cluster", "view", "--json")
    assert (ran.code, "exit code 4" in ran.error["message"]) == (50, True)
    assert "run the command by hand" in ran.error["hint"]
    assert "cluster view" not in ran.error["hint"]


@pytest.mark.parametrize("verb", ["view", "move"])
def test_a_program_that_writes_without_end_is_killed_and_said_at_once(
    site: View, nightferry: Command, verb: str
) -> None:
    site.where("exec yes")
    began = time.monotonic()
    words = ("view",) if verb == "view" else ("move", BACK, "--dry-run")
    ran = nightferry(site.site.file, "cluster", *words, "--json")
    assert (ran.code, Path(ran.error["subject"]).name) == (50, "where")
    assert "wrote more than 16.0 MiB and was killed" in ran.error["message"]
    assert time.monotonic() - began < 20, "the deadline was waited for"
