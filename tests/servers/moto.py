"""moto's S3 on loopback, for the one thing no real server here does: archived classes that must be recalled.

It accepts wrong digests and any key: nothing else is tested against it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.servers.ports import free_port

KEYS = ("moto", "motosecret-51c0")
_STARTED_S = 60


@dataclass
class Moto:
    """A running server with one bucket; every test takes a prefix of its own in it."""

    endpoint: str
    bucket: str = "copies"
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 30)))

    def prefix(self) -> str:
        return f"t{next(self._numbers)}"

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS[0],
            aws_secret_access_key=KEYS[1],
        )

    def arrive_after(self, looks: int) -> None:
        """From now on a recalled object arrives after it was looked at so often; for all objects of the server."""
        body = {
            "model_name": "s3::keyrestore",
            "transition": {"progression": "manual", "times": looks},
        }
        url = f"{self.endpoint}/moto-api/state-manager/set-transition"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """One server for the session of this process."""
    if importlib.util.find_spec("moto") is None:
        missing = "not on this machine: moto (pip install 'moto[server]')"
        if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with serving(tmp_path_factory.mktemp("moto")) as server:
        yield server


@contextmanager
def serving(home: Path) -> Iterator[Moto]:
    """A server of one's own; ``home`` keeps what it prints."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (home / "moto.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        server = Moto(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + _STARTED_S
        while True:
            try:
                urllib.request.urlopen(f"{server.endpoint}/moto-api/", timeout=2).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((home / "moto.out").read_text(errors="replace")[-2000:]) from None
                time.sleep(0.1)
        server.client().create_bucket(Bucket=server.bucket)
        yield server
    finally:
        process.kill()
        process.wait()
