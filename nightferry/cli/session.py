"""One invocation of the command line: its global options, its output and its wish to stop."""

from __future__ import annotations

import signal
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from nightferry.cli.output import Output
from nightferry.progress import Cancel

if TYPE_CHECKING:
    from nightferry.model.load import LoadedSite


@dataclass(slots=True)
class Session:
    """What every command may ask for."""

    out: Output
    verb: str = ""
    """The command's words without its options: ``gate retry``."""
    dry_run: bool = False
    site_path: Path | None = None
    stopped_by: signal.Signals | None = None
    server_is_gone: bool = False
    """Prefect's threads still hold events for a server that does not answer any more."""
    _cancel: Cancel | None = field(default=None, repr=False)

    @property
    def cancel(self) -> Cancel:
        """Handed to an op, it makes the first signal a request to stop at the next chunk.

        Without it, and from the second signal on, a signal interrupts at once.
        """
        if self._cancel is None:
            self._cancel = Cancel()
        return self._cancel

    def load_site(self) -> LoadedSite:
        """The site file that `--site` and its defaults name.

        Raises:
            ConfigError: there is none, or it is not as it must be.
        """
        from nightferry.model.load import load_site
        from nightferry.model.secrets import use_blocks

        loaded = load_site(self.site_path)
        use_blocks(partial(_read_block, loaded))
        return loaded

    def stop(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT and SIGTERM."""
        again = self.stopped_by is not None
        self.stopped_by = signal.Signals(number)
        if self._cancel is not None:
            # This thread may hold the very lock that setting takes: another thread can wait for it.
            reason = f"{self.stopped_by.name} received"
            threading.Thread(target=self._cancel.set, args=(reason,), daemon=True).start()
        if again or self._cancel is None:
            raise KeyboardInterrupt
        self.out.say_now("stopping at the next chunk; once more stops at once")


def _read_block(loaded: LoadedSite, name: str) -> str:
    from nightferry.cli.prefect_server import authenticate_to_own, state_folder

    authenticate_to_own(state_folder(loaded.site.name, loaded.path))
    from blocks.secret import read_secret_block

    return read_secret_block(name)


_current: ContextVar[Session] = ContextVar("nightferry_session")


def begin(session: Session) -> None:
    """Makes ``session`` the one that `current` returns."""
    _current.set(session)


def current() -> Session:
    """This invocation's session."""
    return _current.get()
