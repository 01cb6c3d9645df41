"""The commands of the presets word for word, and how output is read."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightferry.cluster.verbs import WordList, cluster_exe, powershell, quoted, read, verbs
from nightferry.errors import ConfigError
from nightferry.model.nodes import CommandClusterSettings, Reading

VALUES = {"group": "TEX-BACK-1", "node": "TEX-PASS-2", "source": "TEX-ACTV-1"}

TABLE = (
    "Listing status for resource group 'TEX-BACK-1':\r\n\r\n"
    "Group                Node            Status\r\n"
    "-------------------- --------------- ------\r\n"
    "TEX-BACK-10          TEX-PASS-1      Failed\r\n"
    "TEX-BACK-1           TEX-ACTV-1      Partially Online\r\n"
    "\r\n"
)


def script(argv):
    assert argv[:-1] == ("ps", "-NoProfile", "-NonInteractive", "-EncodedCommand")
    return base64.b64decode(argv[-1]).decode("utf-16-le")


def test_cluster_exe_is_run_as_in_2003():
    preset = cluster_exe(("/opt/cluster.exe",))
    assert preset.where.argv(VALUES) == ("/opt/cluster.exe", "group", "TEX-BACK-1")
    assert preset.move.argv(VALUES) == ("/opt/cluster.exe", "group", "TEX-BACK-1", "/move:TEX-PASS-2")
    assert preset.view.argv(VALUES) == ("/opt/cluster.exe", "node", "TEX-PASS-2", "/status")


def test_powershell_moves_without_waiting_and_asks_for_names():
    preset = powershell(("ps",))
    head = "$ErrorActionPreference='Stop'; $ProgressPreference='SilentlyContinue'; "
    assert script(preset.move.argv(VALUES)) == (
        head + "Move-ClusterGroup -Name 'TEX-BACK-1' -Node 'TEX-PASS-2' -Wait 0 | Out-Null"
    )
    assert script(preset.where.argv(VALUES)) == (
        head + "Get-ClusterGroup -Name 'TEX-BACK-1' | Select-Object @{n='owner';e={$_.OwnerNode.Name}},"
        "@{n='state';e={$_.State.ToString()}} | ConvertTo-Json -Compress"
    )
    assert script(preset.view.argv(VALUES)) == (
        head + "Get-ClusterNode -Name 'TEX-PASS-2' | Select-Object @{n='state';e={$_.State.ToString()}}"
        " | ConvertTo-Json -Compress"
    )


def test_an_encoded_command_is_what_iconv_and_base64_make_of_it():
    # printf %s "$ErrorActionPreference='Stop'; " | iconv -t UTF-16LE | base64
    begins = "JABFAHIAcgBvAHIAQQBjAHQAaQBvAG4AUAByAGUAZgBlAHIAZQBuAGMAZQA9ACcAUwB0AG8AcAAnADsAIA"
    assert powershell(("ps",)).move.argv(VALUES)[-1].startswith(begins)


def test_quotes_and_their_look_alikes_are_doubled():
    assert quoted("group", "O'Brien") == "'O''Brien'"
    assert (
        quoted("group", "a\u2018b\u2019c\u201ad\u201be")
        == "'a\u2018\u2018b\u2019\u2019c\u201a\u201ad\u201b\u201be'"
    )


@pytest.mark.parametrize("value", ["", "-Force", "a\nb", "a\x00b", "a\x85b", "\x1b[0m"])
def test_values_that_could_be_more_than_a_name_are_refused(value):
    with pytest.raises(ConfigError):
        quoted("node", value)
    with pytest.raises(ConfigError):
        WordList(("/bin/x", "{node}")).argv({"node": value})


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1).filter(lambda t: t[0] != "-"))
def test_a_quoted_value_ends_where_it_ends(value):
    inside = quoted("group", value)[1:-1]
    marks = "'\u2018\u2019\u201a\u201b"
    position = 0
    plain = ""
    while position < len(inside):
        char = inside[position]
        if char in marks:
            assert inside[position + 1] == char
            position += 1
        plain += char
        position += 1
    assert plain == value


def test_placeholders_are_filled_once_and_other_braces_stay():
    argv = WordList(("/bin/x", "{group}:{node}", "{$_.Name}", "{{group}}")).argv(
        {"group": "{node}", "node": "n"}
    )
    assert argv == ("/bin/x", "{node}:n", "{$_.Name}", "{{node}}")


def test_the_table_of_cluster_exe_is_read_by_the_groups_own_line():
    preset = cluster_exe(("cluster.exe",))
    assert read(preset.owner, TABLE, VALUES) == "TEX-ACTV-1"
    assert read(preset.state, TABLE, VALUES) == "Partially Online"
    assert read(preset.owner, TABLE, {"group": "TEX-BACK-2"}) is None
    nodes = "Node           Node ID Status\r\n-------------- ------- ---\r\nTEX-PASS-2           3 Up\r\n"
    assert read(preset.up, nodes, VALUES) == "Up"


def test_json_is_read_by_a_path_of_keys():
    reading = Reading(json="OwnerNode.Name")
    assert read(reading, '{"OwnerNode": {"Name": " n1 "}}', {}) == "n1"
    for output in ("", "[]", "null", "{}", '{"OwnerNode": 3}', '{"OwnerNode": {"Name": 3}}', "{" * 9):
        assert read(reading, output, {}) is None


@given(st.text())
def test_no_output_is_more_than_an_answer_or_none(output):
    for preset in (cluster_exe(("c",)), powershell(("p",))):
        for reading in (preset.owner, preset.state, preset.up):
            found = read(reading, output, VALUES)
            assert found is None or isinstance(found, str)


def test_a_presets_program_is_found_by_its_whole_path_or_run_by_another(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    here = CommandClusterSettings(kind="command", preset="windows-cluster-exe")
    with pytest.raises(ConfigError, match=r"the program cluster\.exe is not on this machine"):
        verbs(here)
    (tmp_path / "cluster.exe").write_text("")
    (tmp_path / "cluster.exe").chmod(0o755)
    assert verbs(here).where.argv(VALUES)[0] == f"{tmp_path}/cluster.exe"
    there = here.model_copy(update={"via": ("/usr/bin/ssh", "backup@TEX-ACTV-1")})
    assert verbs(there).where.argv(VALUES) == (
        "/usr/bin/ssh",
        "backup@TEX-ACTV-1",
        "cluster.exe",
        "group",
        "TEX-BACK-1",
    )


def test_what_the_site_file_says_takes_the_presets_place():
    settings = CommandClusterSettings.model_validate(
        {
            "kind": "command",
            "preset": "windows-powershell",
            "via": ("/usr/bin/ssh", "n"),
            "release": ("/bin/true", "{group}"),
            "states": {"Aktiv": "started"},
            "state": {"json": "Zustand"},
        }
    )
    made = verbs(settings)
    assert made.release.argv(VALUES) == ("/bin/true", "TEX-BACK-1")
    assert (made.state.json_field, made.owner.json_field) == ("Zustand", "owner")
    assert dict(made.states) == {"Aktiv": "started"}
