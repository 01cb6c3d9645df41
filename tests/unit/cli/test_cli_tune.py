"""`nightferry tune`."""

import json
import tomllib

from nightferry.cli.app import main
from nightferry.cli.tune import proposal_toml
from nightferry.health.tune import Proposal, Tuning
from nightferry.model.site import StagingSettings


def test_the_measurement_comes_as_a_document(tmp_path, capsys):
    assert main(["tune", str(tmp_path), "--size", "4 MiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["direct"] is True
    assert document["proposal"]["buffer_bytes"] >= 1 << 20


def test_the_measurement_comes_as_tables_and_lines_for_the_site_file(tmp_path, capsys):
    assert main(["tune", str(tmp_path), "--size", "4 MiB"]) == 0
    shown = capsys.readouterr().out
    assert "buffer" in shown
    assert "[staging]" in shown


def test_a_wrong_size_is_a_configuration_error(tmp_path, capsys):
    assert main(["tune", str(tmp_path), "--size", "much"]) == 2
    assert "not a size" in capsys.readouterr().err


def test_the_proposal_is_a_staging_section(tmp_path):
    tuning = Tuning(tmp_path, 1, False, (), (), Proposal(False, 2 << 20, 16, 2))
    staging = StagingSettings.model_validate(tomllib.loads(proposal_toml(tuning))["staging"])
    assert (staging.buffer_bytes, staging.streams, staging.unbuffered) == (2 << 20, 2, False)
