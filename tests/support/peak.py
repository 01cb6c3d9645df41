"""How much memory a process took at most."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """This process's highest resident memory, but for pages of files. (``ru_maxrss`` of a child begins with what its
    parent had.)

    Pages of files are the libraries': 50 to 100 MiB by how the page cache holds them, shared and taken back as the
    kernel likes. What it has of them now is taken off; they come while modules are imported, and stay.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    highest, files = (int(status[name].split()[0]) for name in ("VmHWM", "RssFile"))
    return (highest - files) << 10
