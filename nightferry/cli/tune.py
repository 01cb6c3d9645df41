"""`nightferry tune`: measures a disk and proposes staging settings."""

from __future__ import annotations

from pathlib import Path

from nightferry.cli.output import Column, table
from nightferry.cli.session import current
from nightferry.errors import ConfigError
from nightferry.health.tune import DEFAULT_BYTES, Tuning
from nightferry.health.tune import tune as measure
from nightferry.units import MIB, format_size, parse_size


def tune(path: Path, /, *, size: str = f"{DEFAULT_BYTES // MIB} MiB") -> None:
    """Measures the disk that holds the folder PATH and proposes settings for [staging].

    Parameters
    ----------
    path
        A folder on the disk.
    size
        Bytes each trial writes; four times as much must be free.
    """
    try:
        trial_bytes = parse_size(size)
    except ValueError as error:
        raise ConfigError(str(error), subject="--size") from None
    session = current()
    tuning = measure(
        path.resolve(), trial_bytes=trial_bytes, progress=session.out.progress, cancel=session.cancel
    )
    session.out.result(
        {
            "path": tuning.path,
            "trial_bytes": tuning.trial_bytes,
            "direct": tuning.direct,
            "buffers": tuning.buffers,
            "streams": tuning.streams,
            "proposal": tuning.proposal,
        },
        table(
            [Column("buffer", right=True), Column("write", right=True), Column("read", right=True)],
            [
                (format_size(t.buffer_bytes), _rate(t.write_bytes_per_s), _rate(t.read_bytes_per_s))
                for t in tuning.buffers
            ],
        ),
        table(
            [Column("streams", right=True), Column("write, together", right=True)],
            [(t.streams, _rate(t.write_bytes_per_s)) for t in tuning.streams],
        ),
        proposal_toml(tuning),
    )


def proposal_toml(tuning: Tuning) -> str:
    """The proposal as lines of a site file."""
    proposal = tuning.proposal
    lines = [
        "[staging]",
        f"unbuffered = {str(proposal.unbuffered).lower()}",
        f'buffer_bytes = "{proposal.buffer_bytes // 1024} KiB"',
        f"buffers = {proposal.buffers}",
        f"streams = {proposal.streams}",
    ]
    if not tuning.direct:
        lines.insert(
            1, "# the file system refuses direct access; the rates above are those of the page cache"
        )
    return "\n".join(lines)


def _rate(bytes_per_s: float) -> str:
    return f"{format_size(bytes_per_s)}/s"
