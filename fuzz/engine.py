"""Runs a target in a process of its own, and finds out what became of it: an exit by a signal, an error that is not
ours, a case that takes too long or too much memory."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from fuzz.targets import Target
from nightferry.image.guard import data_bytes

ROOT = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"
PROGRAM = (sys.executable, "-m", "fuzz")
CASE_S = 10.0
"""A hostile file costs at most so long ..."""
CASE_BYTES = 300 << 20
"""... and so much memory beyond what the process has before the first case (docs/image-format.md)."""


@dataclass
class Result:
    """``faults``: what went wrong, with the case that did it."""

    target: str
    cases: int = 0
    refused: int = 0
    seconds: float = 0.0
    faults: list[tuple[str, bytes]] = field(default_factory=list)


def fuzz(name: str, seconds: float, seed: int) -> Result:
    """Mutates for so many seconds; goes on after each fault with another process."""
    result = Result(name)
    begun = time.monotonic()
    until = begun + seconds
    with TemporaryDirectory(prefix="fuzz-") as folder:
        while time.monotonic() < until and len(result.faults) < 20:
            fault = _one_process(name, seed, until, Path(folder), result)
            if fault is not None:
                result.faults.append(fault)
            seed += 1
    result.seconds = time.monotonic() - begun
    return result


def _one_process(
    name: str, seed: int, until: float, folder: Path, result: Result
) -> tuple[str, bytes] | None:
    case, state = folder / "case", folder / "state"
    case.write_bytes(b"")
    state.write_text("0 0")
    words = [*PROGRAM, name, "--child", str(folder), "--seed", str(seed)]
    words += ["--seconds", str(max(until - time.monotonic(), 1.0))]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    why = ""
    last, since = "", time.monotonic()
    while child.poll() is None:
        time.sleep(0.2)
        now = state.read_text()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > CASE_S + 20:
            child.kill()
            why = f"took more than {CASE_S:.0f} s"
    out, err = child.communicate()
    counted = [int(word) for word in state.read_text().split()] or [0, 0]
    result.cases += counted[0]
    result.refused += counted[-1]
    if child.returncode == 0:
        return None
    if not why and child.returncode == 3:
        why = json.loads(out)["why"]
    return why or f"exit {child.returncode}: {err.decode(errors='replace')[-600:]}", case.read_bytes()


def child(target: Target, folder: Path, seed: int, seconds: float) -> int:
    """The process that decodes. Before each case it writes down what it is about to do."""
    random = Random(seed)
    samples = target.samples()
    kept = corpus(target.name)
    case, state = (os.open(folder / name, os.O_RDWR) for name in ("case", "state"))
    cases = refused = 0
    for sample in samples:
        if not target.accepts(sample):
            print(json.dumps({"why": "a valid sample was refused"}))
            return 3
    if target.memory_bytes:
        limit = data_bytes() + target.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    before = _peak()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        # What was found before is where more is found.
        data = target.mutate(random.choice(samples), random)
        if kept and random.random() < 0.05:
            data = target.mutate_raw(random.choice(kept), random)
        os.pwrite(case, data, 0)
        os.ftruncate(case, len(data))
        begun = time.monotonic()
        try:
            refused += not target.accepts(data)
        except BaseException as error:  # noqa: BLE001 - that it is not ours is the finding
            print(json.dumps({"why": f"{type(error).__name__}: {str(error)[:300]}"}))
            return 3
        cases += 1
        os.pwrite(state, f"{cases} {refused}".encode(), 0)
        if time.monotonic() - begun > CASE_S:
            print(json.dumps({"why": f"took {time.monotonic() - begun:.1f} s"}))
            return 3
        if _peak() - before > CASE_BYTES:
            print(json.dumps({"why": f"took {(_peak() - before) >> 20} MiB"}))
            return 3
    return 0


def replay(target: Target) -> list[str]:
    """Decodes every file of the target's corpus in this process; what is not as it must be, by the file's name."""
    wrong = []
    for path in sorted((CORPUS / target.name).glob("*")):
        try:
            target.accepts(path.read_bytes())
        except BaseException as error:  # noqa: BLE001 - as above
            wrong.append(f"{path.name}: {type(error).__name__}: {error}")
    return wrong


def corpus(name: str) -> list[bytes]:
    """The files kept of a target: a sample or two, and each case that once was a fault."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def keep(name: str, data: bytes, folder: Path) -> Path:
    """Writes a case down under its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def _peak() -> int:
    """This process's highest resident memory. (``ru_maxrss`` begins with what the parent had.)"""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) << 10
