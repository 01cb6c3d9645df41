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


def throttle_of(site: OpenSite, destination: str) -> Throttle | None:
    """The destination's bandwidth timetable, shared by all its lanes; None when it has none."""
    return _throttle(site, destination, site.file.destination(destination).bandwidth)


def staging_throttle(site: OpenSite) -> Throttle | None:
    """Stage one's bandwidth timetable, shared by all its streams; None when it has none."""
    return _throttle(site, "", site.file.staging.bandwidth)


def _throttle(site: OpenSite, name: str, timetable: tuple[BandwidthStep, ...]) -> Throttle | None:
    if not timetable:
        return None
    throttles = site.part(_Throttles)
    with throttles.lock:
        if name not in throttles.by_name:
            entries = tuple((step.start, step.bytes_per_s) for step in timetable)
            throttles.by_name[name] = Throttle(Timetable(entries, site.file.tz), clock=site.clock)
        return throttles.by_name[name]
