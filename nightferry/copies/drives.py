"""How the drives of tape libraries did: each one's rate and waits, and what that lets the next night expect."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nightferry.model.destinations import TapeSettings
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.plan.balance import Lanes, predict_finish
from nightferry.plan.restore_order import TAPE_SPEED
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite
from nightferry.units import counted, format_duration, format_size

_LAST = 200
"""Copies whose rates tell what is to be expected."""


@dataclass(frozen=True, slots=True)
class DriveWork:
    """What one drive did in one run."""

    destination: str
    drive: str
    copies: int
    size_bytes: int
    rate_bytes_per_s: float
    """While an image was on its way: without mounts and reading back."""
    waits: int
    waited_s: float
    repositions: int

    def as_json(self) -> dict[str, Any]:
        return {
            "destination": self.destination,
            "drive": self.drive,
            "copies": self.copies,
            "size_bytes": self.size_bytes,
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "waits": self.waits,
            "waited_s": self.waited_s,
            "backhitches": self.repositions,
        }


def work_of(copies: Iterable[CopyRecord]) -> tuple[DriveWork, ...]:
    """What each drive did for these copies, by destination and drive; nothing of copies that no drive wrote."""
    by_drive: dict[tuple[str, str], list[CopyRecord]] = {}
    for copy in copies:
        if copy.streamed is not None:
            by_drive.setdefault((copy.destination, copy.lane), []).append(copy)
    found = []
    for (destination, drive), of_drive in sorted(by_drive.items()):
        streamed = [copy.streamed for copy in of_drive if copy.streamed is not None]
        size, seconds = sum(s.size_bytes for s in streamed), sum(s.seconds for s in streamed)
        found.append(
            DriveWork(
                destination,
                drive,
                len(of_drive),
                size,
                round(size / seconds, 1) if seconds else 0.0,
                sum(s.waits for s in streamed),
                round(sum(s.waited_s for s in streamed), 3),
                sum(s.repositions for s in streamed),
            )
        )
    return tuple(found)


def expectation(opened: OpenSite, images: Sequence[ImageRecord], destination: str) -> str:
    """When the drives of a tape library will be done with these images, in this order; empty for other kinds.

    By the median rate of what was written there last, else by the plan's figure for tape. Every image is read back
    at that rate too.
    """
    settings = opened.site.destination(destination)
    if not images or not isinstance(settings, TapeSettings):
        return ""
    rates = [
        c.streamed.size_bytes / c.streamed.seconds
        for c in opened.catalog.all(CopyRecord)[-_LAST:]
        if c.destination == destination and c.streamed is not None and c.streamed.seconds > 0
    ]
    rate = statistics.median(rates) if rates else TAPE_SPEED.bytes_per_s
    count = destination_of(opened, destination).lanes
    lanes = Lanes(count, rate / 2)
    sizes = {image.image: image.size_bytes for image in images}
    forecast = predict_finish([image.image for image in images], sizes, lanes)
    return (
        f"{counted(len(images), 'image')}, {format_size(sum(sizes.values()))} to {destination}: "
        f"about {format_duration(forecast.seconds)} on {counted(count, 'drive')}, read back included"
    )
