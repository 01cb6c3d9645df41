"""The command line: its verbs and how it ends.

A verb is one line in `VERBS`; its module is imported only when it is asked for, and even the parser of commands
is not for `nightferry --help`, which therefore answers at once.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence

from nightferry.cli import session as sessions
from nightferry.cli.output import Output
from nightferry.cli.session import Session
from nightferry.cli.streams import StandardStreams, tolerant
from nightferry.cli.verbs import SUMMARY, VERBS
from nightferry.destination.hosts import keep_direct
from nightferry.errors import Cancelled, NightferryError
from nightferry.signals import prompt_signals

# fmt: off
ACTS = frozenset((
    "init", "backup", "verify", "copy", "expire", "forget", "deploy", "support", "gate retry", "gate approve",
    "restore files", "restore store", "restore group", "hold add", "hold remove", "selection fix", "selection adopt",
    "cluster move", "cluster install-agent", "media inventory", "media label", "media erase", "media retire",
    "media move", "media import", "media export", "media adopt", "media enable", "catalog rebuild", "catalog accept",
    "catalog move", "server start", "server stop",
))
# fmt: on
"""The verbs that do something: whether it was done is their exit code, shown or not. The others only show."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns what the process exits with.

    Args:
        arguments: The command's words; None takes the process's own, which then ends with the command.
    """
    ending = _Ending() if arguments is None else None
    keep_direct()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    with tolerant() as streams, prompt_signals():
        # Errors of the command line itself are JSON, too, so this is known before anything is parsed.
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        session = Session(Output("--json" in options))
        sessions.begin(session)
        handlers = {number: signal.signal(number, session.stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = _shown(_run(arguments, session), session, streams)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if session.server_is_gone:
        # At a normal exit Prefect would try each event for five seconds, for minutes in all.
        os._exit(code)
    if ending is not None:
        ending.code = code
    return code


class _Ending:
    """Ends the process with the command's exit code once everything that is due at an exit has run.

    By then every thread that is waited for has ended, and the streams are flushed. Taking the interpreter down after
    that can only do harm: a thread of Prefect's that nobody waits for may be in native code, and when it comes back
    to an interpreter that is gone, the process aborts.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        # The first one registered is the last one called.
        atexit.register(self._end)

    def _end(self) -> None:
        if self.code is not None:
            os._exit(self.code)


def _shown(code: int, session: Session, streams: StandardStreams) -> int:
    """The exit code, in view of whether the result could be shown.

    What a command did, or found wrong, is its exit code whatever became of its words. One that only shows fails when
    it cannot: quietly, as by SIGPIPE, when its reader had enough.
    """
    streams.stdout.flush()
    lost = streams.stdout.lost
    if lost is None:
        return code
    only_shows = session.dry_run or session.verb not in ACTS
    if isinstance(lost, BrokenPipeError):
        return 128 + signal.SIGPIPE if only_shows and code == 0 else code
    streams.stderr.write(f"nightferry: cannot write the result to stdout: {lost.strerror}\n")
    return 1 if only_shows and code == 0 else code


def _run(arguments: Sequence[str], session: Session) -> int:
    out = session.out
    try:
        if list(arguments) in ([], ["--help"], ["-h"]):
            out.result({}, overview())
            return 0
        from nightferry.cli.commands import dispatch
        from nightferry.site.state import keep_private

        undo = keep_private()
        try:
            returned = dispatch(arguments)
        finally:
            undo()
        out.close()
        return returned if isinstance(returned, int) else 0
    except NightferryError as error:
        return _fail(error, session)
    except KeyboardInterrupt:
        return _fail(Cancelled("stopped"), session)
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


def overview() -> str:
    """What `nightferry --help` shows: every verb, those of later releases apart."""
    width = max(len(verb.name) for verb in VERBS)
    lines = ["Usage: nightferry VERB [OPTIONS]", "", SUMMARY, "", "Verbs:"]
    lines += [f"  {verb.name:{width}}  {verb.help}" for verb in VERBS if verb.delivered]
    lines += ["", "Not in this release:"]
    lines += [f"  {verb.name:{width}}  {verb.help}" for verb in VERBS if not verb.delivered]
    lines += [
        "",
        "Everywhere:",
        "  --site PATH  The site file; otherwise NIGHTFERRY_SITE, ./nightferry.toml, /etc/nightferry/nightferry.toml.",
        "  --json       Results as JSON (docs/cli-json.md).",
        "  --help       What a verb does and its options: nightferry VERB --help.",
        "  --version    The version.",
    ]
    return "\n".join(lines)
