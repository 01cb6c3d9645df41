"""Reading many copies at once: cartridge by cartridge, each mounted once, the drives in parallel."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from typing import TypeVar

from nightferry.errors import BusyError, DestinationError, IntegrityError
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import CopyRecord
from nightferry.plan.restore_order import by_cartridge, stops
from nightferry.progress import Cancel
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite

T = TypeVar("T")
R = TypeVar("R")


def in_passes(
    site: OpenSite,
    work: Sequence[T],
    copy_of: Callable[[T], CopyRecord | None],
    do: Callable[[T], R],
    cancel: Cancel,
) -> Iterator[R]:
    """Does each piece of work once, in the order in which it can be read best; gives the results as they come.

    On each tape library as many passes run at once as it has drives, everywhere else one piece after the other.

    Args:
        site: The site.
        work: What is to be done.
        copy_of: The copy that a piece reads; None for staging.
        do: Does a piece; it holds the cartridge's drive meanwhile.
        cancel: Ends it between two pieces.

    Raises:
        Cancelled: between two pieces. Whatever ``do`` raises ends all the others at their next piece.
    """
    tapes = {d.name for d in site.file.destinations if isinstance(d, TapeSettings)}
    places: dict[str, list[T]] = {}
    for each in work:
        copy = copy_of(each)
        name = copy.destination if copy is not None else ""
        places.setdefault(name if name in tapes and copy is not None and stops(copy) else "", []).append(each)
    with ExitStack() as pools:
        pending: set[Future[list[R]]] = set()
        stop = threading.Event()
        for name, pieces in places.items():
            passes = by_cartridge(pieces, copy_of)
            lanes = _lanes(site, name) if name else 1
            pool = pools.enter_context(ThreadPoolExecutor(min(lanes, len(passes)), f"read {name}"))
            pools.callback(pool.shutdown, cancel_futures=True)
            for one in passes:
                context = contextvars.copy_context()
                pending.add(pool.submit(context.run, _one_pass, site, name, one, copy_of, do, cancel, stop))
        pools.callback(stop.set)
        for future in as_completed(pending):
            yield from future.result()


def _lanes(site: OpenSite, library: str) -> int:
    """Its drives. A library that cannot be opened has none: each piece then says so for itself."""
    try:
        return destination_of(site, library).lanes
    except DestinationError:
        return 1


def _one_pass(
    site: OpenSite,
    name: str,
    pieces: Sequence[T],
    copy_of: Callable[[T], CopyRecord | None],
    do: Callable[[T], R],
    cancel: Cancel,
    stop: threading.Event,
) -> list[R]:
    with ExitStack() as drive:
        first = copy_of(pieces[0])
        if name and first is not None and len(pieces) > 1:
            from nightferry.destination.tape.library.destination import TapeDestination

            # A library or cartridge that cannot be had: each piece says so for itself.
            with suppress(DestinationError, IntegrityError, BusyError):
                tape = destination_of(site, name)
                if isinstance(tape, TapeDestination):
                    drive.enter_context(tape.kept_in_drive(stops(first)[0].barcode))
        done = []
        for piece in pieces:
            cancel.check()
            if stop.is_set():
                break
            done.append(do(piece))
        return done
