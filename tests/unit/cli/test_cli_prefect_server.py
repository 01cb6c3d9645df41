"""Finding the site's own Prefect server by its note, without starting one."""

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from nightferry.cli.prefect_server import _port_of_before, find_own, stop_own, use_server
from nightferry.site.prefect_api import answers


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def healthy():
    """An API that answers its health question, as any Prefect server does."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    server.server_close()


def note(folder, url, pid):
    (folder / "server.json").write_text(json.dumps({"url": url, "pid": pid}))


def test_what_answers_at_the_noted_place_is_not_ours_unless_its_process_is(tmp_path, healthy):
    note(tmp_path, healthy, os.getpid())
    assert answers(healthy)
    assert find_own(tmp_path) is None


def test_a_process_that_took_a_stopped_servers_number_is_never_stopped(tmp_path, healthy):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    note(tmp_path, healthy, other.pid)
    assert stop_own(tmp_path) is False
    assert other.poll() is None
    other.communicate(b"\n", timeout=20)
    assert other.returncode == 0


def test_a_server_that_answers_is_used_as_it_is_named(tmp_path, healthy, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", healthy)
    said = []
    assert use_server(tmp_path, said.append).url == healthy
    assert said == []


def test_the_port_of_before_is_taken_again_when_it_is_free(tmp_path, healthy):
    free = _port_of_before(tmp_path)
    note(tmp_path, f"http://127.0.0.1:{free}/api", 1)
    assert _port_of_before(tmp_path) == free
    note(tmp_path, healthy, 1)
    assert f":{_port_of_before(tmp_path)}/" not in healthy


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 1, "pid": "x"}'])
def test_a_note_that_says_nothing_is_no_server(tmp_path, text):
    (tmp_path / "server.json").write_text(text)
    assert find_own(tmp_path) is None
    assert _port_of_before(tmp_path) > 0
