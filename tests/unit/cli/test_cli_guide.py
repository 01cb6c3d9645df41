"""`nightferry help` and `nightferry completion`, as a person and as a shell use them."""

import json
import shutil
import subprocess

import pytest

from nightferry.cli.app import main
from nightferry.cli.verbs import VERBS


def shown(capsys, *words):
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("verb", [["backup"], ["restore", "files"], ["hold"]])
def test_help_says_what_the_option_says(capsys, verb):
    assert shown(capsys, "help", *verb) == shown(capsys, *verb, "--help")


def test_help_alone_lists_every_verb(capsys):
    assert shown(capsys, "help") == shown(capsys, "--help")


@pytest.mark.parametrize("words", [["bakcup"], ["hold", "nothing"]])
def test_help_of_no_verb_is_refused(capsys, words):
    code, out, err = shown(capsys, "help", *words)
    assert (code, out) == (2, "")
    assert f"no verb is called {' '.join(words)!r}" in err


def test_help_as_json_is_one_document(capsys):
    code, out, _ = shown(capsys, "help", "restore", "files", "--json")
    document = json.loads(out)
    assert (code, document["verb"]) == (0, "restore files")
    assert "--overwrite" in document["help"]
    assert json.loads(shown(capsys, "help", "--json")[1])["verb"] == ""


def completed(script, *words):
    """What bash offers for the last word."""
    line = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nightferry; echo "${COMPREPLY[*]}"'
    )
    ran = subprocess.run(
        ["bash", "-c", line, "bash", str(script), "nightferry", *words], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


def test_bash_completes_verbs_nouns_and_options(capsys, tmp_path):
    code, out, _ = shown(capsys, "completion", "bash")
    script = tmp_path / "completion"
    script.write_text(out)
    assert code == 0
    assert set(completed(script, "")) >= {verb.name for verb in VERBS}
    assert completed(script, "hold", "") == ["add", "remove", "list"]
    assert "--in-place" in completed(script, "restore", "store", "--i")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_every_verb(capsys, tmp_path, shell):
    code, out, _ = shown(capsys, "completion", shell)
    assert code == 0
    assert [verb.name for verb in VERBS if verb.name not in out] == []
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(out)
        assert subprocess.run([shell, "-n", tmp_path / "script"]).returncode == 0


def test_a_shell_that_is_not_known_is_refused_with_those_that_are(capsys):
    code, out, err = shown(capsys, "completion", "ksh")
    assert (code, out) == (2, "")
    assert '"bash", "zsh", "fish"' in err


def test_an_option_of_a_later_release_says_so(capsys):
    code, out, _ = shown(capsys, "status", "--policy", "--json")
    assert (code, json.loads(out)["error"]["exit_code"]) == (2, 2)
    assert "not in this release" in json.loads(out)["error"]["message"]
