"""Bandwidth timetables, each shared by all streams that it is for."""

from __future__ import annotations

import threading

from nightferry.model.fields import BandwidthStep
from nightferry.site.opened import OpenSite
from nightferry.transfer.throttle import Throttle, Timetable


class _Throttles:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[str, Throttle] = {}


def throttle_of(opened: OpenSite, destination: str) -> Throttle | None:
    """The destination's bandwidth timetable, shared by all its lanes; None when it has none."""
    return _throttle(opened, destination, opened.site.destination(destination).bandwidth)


def staging_throttle(opened: OpenSite) -> Throttle | None:
    """Stage one's bandwidth timetable, shared by all its streams; None when it has none."""
    return _throttle(opened, "", opened.site.staging.bandwidth)


def _throttle(opened: OpenSite, name: str, timetable: tuple[BandwidthStep, ...]) -> Throttle | None:
    if not timetable:
        return None
    throttles = opened.part(_Throttles)
    with throttles.lock:
        if name not in throttles.by_name:
            entries = tuple((step.start, step.bytes_per_s) for step in timetable)
            throttles.by_name[name] = Throttle(Timetable(entries, opened.site.tz), clock=opened.clock)
        return throttles.by_name[name]
