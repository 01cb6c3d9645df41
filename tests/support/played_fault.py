"""A fault that a stage of the night meets in every process that starts with it: for errors that no real thing gives on
demand, the same on every node."""

from __future__ import annotations

from pathlib import Path

from tests.support.prefect_site import ROOT

_SITE = '''"""Only where a test has put a fault: the stage's name and the class of what it raises."""
from pathlib import Path
FAULT = Path({fault!r})
if FAULT.exists():
    import contextlib, importlib
    from nightferry.night import hooks
    stage, dotted = FAULT.read_text().split()
    module, _, name = dotted.rpartition(".")
    kind, hooked = getattr(importlib.import_module(module), name), hooks.hooked

    @contextlib.contextmanager
    def played(here, at, *arguments, **options):
        if at == stage:
            raise kind("what was played")
        with hooked(here, at, *arguments, **options) as around:
            yield around

    hooks.hooked = played
'''


class PlayedFault:
    """A folder for the ``PYTHONPATH`` of processes; nothing happens in them until ``play``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(_SITE.format(fault=str(self._fault)))

    @property
    def _fault(self) -> Path:
        return self._folder / "fault"

    @property
    def path(self) -> str:
        """For the variable ``PYTHONPATH``."""
        return f"{self._folder}:{ROOT}"

    def play(self, stage: str, kind: str) -> None:
        """From now on the stage raises an exception of this class, named with its module."""
        self._fault.write_text(f"{stage} {kind}")

    def stop(self) -> None:
        self._fault.unlink(missing_ok=True)
