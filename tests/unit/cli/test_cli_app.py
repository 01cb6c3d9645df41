"""How the command line ends: exit codes, error documents, signals."""

import json
import signal
import subprocess
import sys

import pytest
from cyclopts import App

from nightferry.cli import session as sessions
from nightferry.cli.app import main
from nightferry.cli.commands import app
from nightferry.cli.verbs import VERBS
from nightferry.errors import CatalogError, GateClosed, PartialResult

PROGRAM = """
import sys
from nightferry.cli import commands
from nightferry.cli.app import main
from nightferry.cli.session import current

{verb}

commands.app.command(verb, name="try")
sys.exit(main())
"""


def run(verb, *arguments, **options):
    """A process whose verb `try` is the given function."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(verb=verb), "try", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def verb():
    """Registers a verb called `try` for one test."""

    def register(function):
        app.command(function, name="try")

    yield register
    if "try" in app:
        del app["try"]


def test_help_loads_none_of_the_heavy_libraries():
    program = (
        "import sys; from nightferry.cli.app import main; code = main(['--help']);"
        "heavy = {'pyarrow', 'prefect', 'pydantic', 'cyclopts', 'rich'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(verb.name in done.stdout for verb in VERBS)


def test_every_registered_verb_can_be_imported():
    for verb in VERBS:
        assert app[verb.name] is not None


def test_the_version_is_the_packages(capsys):
    from nightferry import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("name", [verb.name for verb in VERBS if not verb.delivered])
def test_a_later_verb_says_so_whatever_its_arguments(name, capsys):
    assert main([name, "rebuild", "--copy", "tape", "--to", "/x"]) == 2
    assert "not in this release" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--json", "plan"], ["plan", "--json"]])
def test_json_is_asked_for_before_or_after_the_verb(arguments, capsys):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["exit_code"] == 2
    assert shown.err == ""


@pytest.mark.parametrize("arguments", [["--site", "/s.toml", "try", "x"], ["try", "x", "--site", "/s.toml"]])
def test_the_site_is_named_before_or_after_the_verb(arguments, verb):
    seen = []

    def look(word: str) -> None:
        seen.append((word, str(sessions.current().site_path)))

    verb(look)
    assert main(arguments) == 0
    assert seen == [("x", "/s.toml")]


def test_a_missing_site_file_is_a_configuration_error(verb, capsys):
    def load() -> None:
        sessions.current().load_site()

    verb(load)
    assert main(["try", "--site", "/nowhere.toml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["subject"] == "/nowhere.toml"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stauts"], "no verb is called 'stauts'"),
        (["tun"], "did you mean 'tune'?"),
        (["init", "--nam", "X"], "--nam"),
        (["tune"], "PATH"),
        (["\x1b[31mred"], "\\x1b[31mred"),
    ],
)
def test_a_wrong_command_exits_2_and_says_what_was_meant(arguments, said, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "\x1b" not in err


def test_an_unknown_verb_imports_no_verb(monkeypatch):
    program = (
        "import sys; from nightferry.cli.app import main; code = main(['bogus']);"
        "sys.exit(9 if 'nightferry.cli.tune' in sys.modules else code)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 2


@pytest.mark.parametrize(
    ("error", "code"), [(GateClosed("shut"), 50), (CatalogError("gone"), 60), (PartialResult("p"), 3)]
)
def test_an_error_exits_with_its_classes_code(error, code, verb, capsys):
    def fail() -> None:
        raise error

    verb(fail)
    assert main(["try"]) == code
    assert error.message in capsys.readouterr().err


def test_a_verb_may_return_its_exit_code(verb):
    def partial() -> int:
        return 3

    verb(partial)
    assert main(["try"]) == 3


def test_the_unexpected_exits_1_in_one_line_and_shows_its_trace_only_on_demand(verb, capsys, monkeypatch):
    def fail() -> None:
        raise RuntimeError("surprise\x1b")

    verb(fail)
    monkeypatch.delenv("NIGHTFERRY_DEBUG", raising=False)
    assert main(["try"]) == 1
    shown = capsys.readouterr().err
    assert "unexpected RuntimeError: surprise\\x1b" in shown
    assert "Traceback" not in shown
    monkeypatch.setenv("NIGHTFERRY_DEBUG", "1")
    assert main(["try"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_what_follows_two_dashes_is_no_option(verb, capsys):
    def show(*words: str) -> None:
        sessions.current().out.result({}, " ".join(words))

    verb(show)
    assert main(["try", "--", "--json"]) == 0
    assert capsys.readouterr().out == "--json\n"


def test_signal_handlers_are_given_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    main(["--version"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


COOPERATIVE = """
def verb() -> None:
    cancel = current().cancel
    print("ready", flush=True)
    cancel.wait(60)
"""
HEEDLESS = """
def verb() -> None:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("verb_text", [COOPERATIVE, HEEDLESS], ids=["cooperative", "heedless"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_work_and_names_itself_in_the_exit_code(verb_text, number, code):
    with run(verb_text, "--json") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert json.loads(out)["error"]["exit_code"] == code


def test_a_second_signal_does_not_wait_for_the_work():
    verb_text = """
def verb() -> None:
    current().cancel
    print("ready", flush=True)
    sys.stdin.read()
"""
    with run(verb_text) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert "once more" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_reader_that_goes_away_is_no_error():
    verb_text = """
def verb() -> None:
    sys.stdin.readline()
    for _ in range(1000):
        current().out.result({}, "x" * 1000)
"""
    with run(verb_text) as process:
        process.stdout.close()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stderr.read() == ""
    assert process.returncode == 141


NOUN = App(name="try")


@NOUN.command
def partial() -> int:
    return 3


def test_a_noun_is_an_app_that_is_imported_when_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "noun_under_test", sys.modules[__name__])
    app.command("noun_under_test:NOUN", name="try")
    try:
        assert main(["try", "partial", "--json"]) == 3
        assert main(["--site", "/x", "try", "partial"]) == 3
        assert main(["try", "bogus"]) == 2
    finally:
        del app["try"]


def test_the_table_of_verbs_is_the_contracts(capsys):
    assert len({verb.name for verb in VERBS}) == len(VERBS)
    main(["--help"])
    shown = capsys.readouterr().out
    positions = [shown.index(f"\n  {verb.name} ") for verb in VERBS]
    assert positions == sorted(positions)
    main(["--json", "--help"])
    parsed = capsys.readouterr().out
    assert all(f"│ {verb.name} " in parsed for verb in VERBS)


@pytest.mark.parametrize(
    ("verb", "codes"), [("check", "3 when there are only warnings"), ("status", "30 when one")]
)
def test_the_help_of_a_verb_says_what_its_exit_code_means(
    capsys: pytest.CaptureFixture[str], verb: str, codes: str
) -> None:
    main([verb, "--help"])
    assert codes in capsys.readouterr().out
