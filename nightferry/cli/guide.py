"""`nightferry help` and `nightferry completion`: what the parser of commands knows of every verb."""

from __future__ import annotations

import io
from typing import Literal

from nightferry.cli.session import current
from nightferry.errors import ConfigError


def help_(*words: str) -> None:
    """Shows what a verb does and takes, as `nightferry VERB --help` does; without one, every verb.

    Parameters
    ----------
    words
        The verb, and of a noun which of its verbs: `help restore files`.
    """
    from rich.console import Console

    from nightferry.cli.app import overview
    from nightferry.cli.commands import app, describe_verb

    session = current()
    if not words:
        session.out.result({"verb": "", "help": overview()}, overview())
        return
    chain, _, rest = app.parse_commands(words)
    if rest:
        raise ConfigError(
            f"no verb is called {' '.join(words)!r}",
            hint="`nightferry help` lists them",
            subject=" ".join(words),
        )
    describe_verb(words)
    if session.out.as_json:
        page = Console(file=io.StringIO(), width=100, no_color=True)
        app.help_print(words, console=page)
        assert isinstance(page.file, io.StringIO)  # noqa: S101 - made above
        session.out.result({"verb": " ".join(chain), "help": page.file.getvalue()})
        return
    app.help_print(words)


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Prints what completes nightferry's words in a shell: `source <(nightferry completion bash)`.

    Parameters
    ----------
    shell
        Whose words: bash, zsh or fish.
    """
    from nightferry.cli.commands import app

    script = app.generate_completion(prog_name="nightferry", shell=shell)
    current().out.result({"shell": shell, "script": script}, script.rstrip("\n"))
