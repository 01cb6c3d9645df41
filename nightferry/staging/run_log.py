"""A run's log for people: what came out of each file, as much of it as the site file asks for."""

from __future__ import annotations

from nightferry.image.index import Index
from nightferry.model.records import ImageRecord
from nightferry.model.text import safe
from nightferry.site.opened import OpenSite
from nightferry.transfer.spool import Content
from nightferry.units import counted


def log_image(opened: OpenSite, image: ImageRecord, index: Content) -> None:
    """Adds an image to its run's log, the figures of the image itself on one line.

    ``[site] log``: ``full`` names every file, ``summary`` those that are not whole or have a note, ``none`` writes no
    log.
    """
    level = opened.site.site.log
    if level == "none":
        return
    zone = opened.site.tz
    counts = image.outcomes
    lines = [
        f"{image.ended.astimezone(zone):%Y-%m-%d %H:%M:%S} {image.image} {image.state}: "
        f"{counted(image.files, 'file')}, "
        f"{counted(image.size_bytes, 'byte')}, {counts.vanished} vanished, {counts.changed} changed, "
        f"{counts.unreadable} unreadable"
        + (f", {counts.unlisted} of them not listed" if counts.unlisted else "")
    ]
    lines += [f"  {note}" for note in image.notes]
    for row in Index(index):
        if level == "full" or row.outcome != "whole" or (row.note and row.stored):
            note = f" ({safe(row.note)})" if row.note else ""
            lines.append(f"  {row.outcome} {row.type} {row.size} {safe(row.path)}{note}")
    opened.catalog.add_log(image.run, image.image, "\n".join(lines) + "\n")
