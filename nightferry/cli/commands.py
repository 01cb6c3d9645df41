"""The commands for their parser: every verb of the table, the global options, and what is wrong with the words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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
from nightferry.cli.verbs import SUMMARY, VERBS
from nightferry.errors import ConfigError
from nightferry.model.text import safe

app = App(
    name="nightferry",
    help=SUMMARY,
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
    chain, _, _ = app.parse_commands(tokens)
    session.verb, session.dry_run = " ".join(chain), "--dry-run" in tokens
    if session.out.as_json:
        _require_verb(tokens)
    return app(tokens, exit_on_error=False, print_error=False)


def dispatch(arguments: Sequence[str]) -> object:
    """Runs the command that the words name; returns what it returns.

    Raises:
        ConfigError: the words are not a command.
    """
    if "--help" in arguments:
        describe_verb([word for word in arguments if word != "--help"])
    try:
        return app.meta(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise _usage(error) from None


def describe_verb(words: Sequence[str]) -> None:
    """Gives a verb all of its own words for its help page: the list of verbs has one line of them."""
    _, apps, _ = app.parse_commands(words)
    verb = apps[-1].default_command
    if verb is not None and verb.__doc__:
        apps[-1].help = verb.__doc__.partition("Parameters\n")[0]


def _require_verb(tokens: Sequence[str]) -> None:
    """A noun alone shows its help, which is not a JSON document.

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
            advice = f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(names)}"
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
