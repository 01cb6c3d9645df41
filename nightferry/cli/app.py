"""The command line: its verbs, its global options, and how it ends.

A verb is one line in `VERBS`; its module is imported only when it is asked for, so that `nightferry --help`
loads neither pyarrow, Prefect nor pydantic.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

from nightferry import __version__
from nightferry.cli import session as sessions
from nightferry.cli.output import Output, StdoutClosed
from nightferry.cli.session import Session
from nightferry.errors import Cancelled, ConfigError, NightferryError
from nightferry.model.text import safe


class Verb(NamedTuple):
    """``target`` is ``module:attribute`` below nightferry.cli: a function, or for a noun its App."""

    name: str
    target: str
    help: str
    delivered: bool = True


VERBS = (
    Verb("init", "init:init", "Write a commented site file after looking at this machine."),
    Verb("check", "check:check", "Look for everything that could fail tonight."),
    Verb("backup", "backup:backup", "Run the night now, or go on with it."),
    Verb("gate", "gate:app", "Look at a held gate, try again, or approve."),
    Verb("status", "status:status", "Say of every store whether it is restorable."),
    Verb("runs", "records:runs", "List the runs."),
    Verb("images", "records:images", "List the images."),
    Verb("copies", "records:copies", "List an image's copies."),
    Verb("files", "records:files", "List the files in an image."),
    Verb("restore", "restore:app", "Bring back files, a store, a storage group."),
    Verb("verify", "verify:verify", "Read copies back and compare."),
    Verb("copy", "verify:copy", "Make copies again."),
    Verb("media", "media:app", "Look after cartridges."),
    Verb("selection", "selection:app", "Show and fix a storage group's stores."),
    Verb("cluster", "cluster:app", "Show who owns what; move a BACK group."),
    Verb("tune", "tune:tune", "Measure a disk and propose staging settings."),
    Verb("deploy", "deploy:deploy", "Publish the site as Prefect deployments."),
    Verb("server", "server:app", "The site's own background Prefect server."),
    Verb("support", "support:support", "Write a redacted bundle for whoever helps."),
    # Named by the contract, delivered later: they say so and exit 2.
    Verb("plan", "later:plan", "Predict tonight's window.", False),
    Verb("expire", "later:expire", "Apply the retention.", False),
    Verb("hold", "later:hold", "Keep an image from expiring.", False),
    Verb("ndmp", "later:ndmp", "Look at a NAS.", False),
    Verb("log", "later:log", "Look at a storage group's log.", False),
    Verb("catalog", "later:catalog", "Rebuild the catalog from media.", False),
)
"""Every verb, in the order that help shows."""

app = App(
    name="nightferry",
    help="Two-stage backup: disk to disk, a gate on proof, then tape and object stores.",
    version=__version__,
    result_action="return_value",
    # Markdown help would import a whole Markdown parser before the first line is shown.
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)
# The meta app, which takes the global options, is made by cyclopts and does not inherit this.
app.meta.suppress_keyboard_interrupt = False
_LATER = Group("Not in this release", sort_key=1000)
for _position, _verb in enumerate(VERBS):
    app.command(
        f"nightferry.cli.{_verb.target}",
        name=_verb.name,
        help=_verb.help,
        sort_key=_position,
        group=None if _verb.delivered else _LATER,
    )


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    site: Annotated[Path | None, Parameter(help="The site file.")] = None,
    json: Annotated[bool, Parameter(help="Results as JSON.", show_default=False)] = False,
) -> object:
    """Takes the global options from wherever they stand and hands the rest to the verb."""
    session = sessions.current()
    session.site_path = site
    session.out.as_json = session.out.as_json or json
    if session.out.as_json:
        _require_verb(tokens)
    return app(tokens, exit_on_error=False, print_error=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns what the process exits with."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Errors of the command line itself are JSON, too, so this is known before anything is parsed.
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    session = Session(Output("--json" in options))
    sessions.begin(session)
    handlers = {number: signal.signal(number, session.stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = _run(arguments, session)
        if session.server_is_gone:
            # At a normal exit Prefect would try each event for five seconds, for minutes in all.
            os._exit(code)
        return code
    except StdoutClosed:
        # The interpreter flushes stdout once more at its end; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _run(arguments: Sequence[str], session: Session) -> int:
    out = session.out
    try:
        returned = app.meta(list(arguments), exit_on_error=False, print_error=False)
        out.close()
        out.flush()
        return returned if isinstance(returned, int) else 0
    except CycloptsError as error:
        return _fail(_usage(error), session)
    except NightferryError as error:
        return _fail(error, session)
    except KeyboardInterrupt:
        return _fail(Cancelled("stopped"), session)
    except StdoutClosed:
        raise
    except Exception as error:  # noqa: BLE001 - the last place that can still tell the user something
        return _fail(
            NightferryError(
                f"unexpected {type(error).__name__}: {error}",
                hint="run again with NIGHTFERRY_DEBUG=1 and report what it prints",
            ),
            session,
        )


def _fail(error: NightferryError, session: Session) -> int:
    code = error.exit_code
    if isinstance(error, Cancelled) and session.stopped_by is signal.SIGTERM:
        code = 128 + signal.SIGTERM
    if os.environ.get("NIGHTFERRY_DEBUG"):
        import traceback

        session.out.close()
        traceback.print_exc(file=sys.stderr)
    session.out.error(error, code)
    return code


def _require_verb(tokens: Sequence[str]) -> None:
    """A noun alone shows its help, which is no JSON document.

    Raises:
        ConfigError: the words name no command.
    """
    chain, apps, rest = app.parse_commands(tokens)
    if apps[-1].default_command is None and not rest:
        raise ConfigError(
            f"{_called(chain)} needs a verb: {', '.join(_verbs_of(apps[-1]))}",
            hint=f"see {_called((*chain, '--help'))}",
        )


def _usage(error: CycloptsError) -> ConfigError:
    """What is wrong with the words of a command, in ours."""
    chain = error.command_chain or ()
    called = _called(chain)
    hint = f"see {_called((*chain, '--help'))}"
    match error:
        case UnknownCommandError():
            import difflib

            # cyclopts would import every verb's module to say this.
            names = _verbs_of(error.app) if chain and error.app else [v.name for v in VERBS]
            verb = safe(error.unused_tokens[0]) if error.unused_tokens else ""
            near = difflib.get_close_matches(verb, names, n=1)
            of = f" of {called}" if chain else ""
            advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
            return ConfigError(f"no verb{of} is called {verb!r}; {advice}", hint=hint)
        case MissingArgumentError() if error.argument is not None and not error.tokens_so_far:
            option = error.argument.name
            return ConfigError(f"{called} needs {option}", hint=hint, subject=option)
        case UnusedCliTokensError():
            return ConfigError(
                f"{called} does not take {', '.join(repr(safe(t)) for t in error.unused_tokens or ())}",
                hint=hint,
            )
    text = str(error).strip().rstrip(".")
    return ConfigError(text[:1].lower() + text[1:], hint=hint)


def _called(chain: Sequence[str]) -> str:
    return f"`{' '.join(('nightferry', *(safe(word) for word in chain)))}`"


def _verbs_of(noun: App) -> list[str]:
    return [name for name in noun if not name.startswith("-")]
