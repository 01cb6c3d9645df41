"""What every test may ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.ftp import ftp
from tests.servers.moto import moto
from tests.servers.pacemaker import pacemaker
from tests.servers.seaweed import seaweed
from tests.servers.sshd import sshd
from tests.servers.tgtd import tgtd

# Examples are judged by what they show, never by how long they took: the machine may be busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a program that failed had to say: ``CalledProcessError`` keeps it to itself."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, subprocess.CalledProcessError):
        said = error.stderr or error.stdout or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        report.sections.append((f"said by {Path(str(error.cmd[0])).name}", text[-4000:]))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests that were all skipped or deselected proved nothing: the run fails as one that found none."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.config.option.collectonly or hasattr(session.config, "workerinput"):
        return
    if session.exitstatus == pytest.ExitCode.OK and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips a test, visibly, where a program is missing; with NIGHTFERRY_REQUIRE_SERVERS=1 it fails there."""
    missing = [name for name in programs if shutil.which(name) is None]
    required = os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1"
    return pytest.mark.skipif(
        bool(missing) and not required, reason=f"not on this machine: {', '.join(missing)}"
    )


__all__ = ["ftp", "moto", "needs", "pacemaker", "seaweed", "sshd", "tgtd"]
