"""A run's log for people: what came out of each file, as much of it as the site file asks for."""

from __future__ import annotations

import os
from pathlib import Path

from nightferry.image.index import Index
from nightferry.model.records import ImageRecord
from nightferry.model.text import safe
from nightferry.ops.opened import OpenSite


def log_path(opened: OpenSite, run: str) -> Path:
    """``<catalog>/logs/<run>.log``."""
    return opened.catalog.path / "logs" / f"{run}.log"


def log_image(opened: OpenSite, image: ImageRecord, index: bytes) -> None:
    """Adds an image to its run's log, the figures of the image itself on one line.

    ``[site] log``: ``full`` names every file, ``summary`` those that are not whole, ``none`` writes no log.
    """
    level = opened.site.site.log
    if level == "none":
        return
    zone = opened.site.tz
    counts = image.outcomes
    lines = [
        f"{image.ended.astimezone(zone):%Y-%m-%d %H:%M:%S} {image.image} {image.state}: {image.files} files, "
        f"{image.size_bytes} bytes, {counts.vanished} vanished, {counts.changed} changed, "
        f"{counts.unreadable} unreadable"
    ]
    for row in Index(index):
        if level == "full" or row.outcome != "whole":
            note = f" ({safe(row.note)})" if row.note else ""
            lines.append(f"  {row.outcome} {row.type} {row.size} {safe(row.path)}{note}")
    path = log_path(opened, image.run)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # One write to a file opened for appending: stores that end together do not mix lines.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", buffering=0) as log:
        log.write(("\n".join(lines) + "\n").encode())
