"""Which engine moves the bytes of a ring."""

from __future__ import annotations

from nightferry.errors import ConfigError
from nightferry.transfer.ring import Engine, EngineName, ThreadEngine


def open_engine(name: EngineName, depth: int, *, readers: int, writers: int) -> Engine:
    """An engine for ``depth`` transfers at once; ``auto`` is io_uring where it works, else threads.

    Raises:
        ConfigError: io_uring was asked for by name and does not work here.
    """
    if name == "threads":
        return ThreadEngine(readers, writers)
    from nightferry.transfer.uring import UringEngine, why_not

    reason = why_not()
    if not reason:
        return UringEngine(depth)
    if name == "io_uring":
        raise ConfigError(
            f"io_uring does not work here: {reason}",
            hint="install uring-api, or set the engine to auto or threads",
        )
    return ThreadEngine(readers, writers)
