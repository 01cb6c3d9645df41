"""One real Prefect server for a session: a background server as the command line starts it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightferry.cli.prefect_server import QUIET_SERVER, Server, stop_own, use_server
from tests.support.prefect_site import NightSite

# The table of delays is read when the tasks are imported.
os.environ["NIGHTFERRY_NO_DELAYS"] = "1"


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("state")
    folder = state / "server"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTFERRY_STATE", str(state))
        patch.setenv("PREFECT_HOME", str(state / "home"))
        for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING"):
            patch.delenv(name, raising=False)
        for name, value in (QUIET_SERVER | {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}).items():
            patch.setenv(name, value)
        server = use_server(folder, lambda text: None)
        patch.setenv("PREFECT_API_URL", server.url)
        auth = server.auth_file.read_text().strip()
        patch.setenv("PREFECT_API_AUTH_STRING", auth)

        from prefect.settings import (
            PREFECT_API_AUTH_STRING,
            PREFECT_API_URL,
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
            PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
            temporary_settings,
        )

        settings = {
            PREFECT_API_URL: server.url,
            PREFECT_API_AUTH_STRING: auth,
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
            PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False,
        }
        try:
            with temporary_settings(settings):
                yield server
                # What is still on its way to the server would be waited for long after its end.
                from prefect.events.worker import EventsWorker
                from prefect.logging.handlers import APILogWorker

                APILogWorker.instance().drain()
                EventsWorker.instance().drain()
        finally:
            stop_own(folder)


@pytest.fixture
def site(prefect_server: Server, tmp_path: Path) -> NightSite:
    return NightSite.make(tmp_path)
