"""What a Prefect API lets in, seen by plain HTTP; a real one is asked in tests/e2e/test_e2e_door.py."""

import http.server
import threading

import pytest

from nightferry.site.prefect_api import accepts, answers, is_open, prefect_api


class Api(http.server.BaseHTTPRequestHandler):
    """A guarded API knows one word; an open one asks for none."""

    word = ""

    def do_GET(self):
        known = not self.word or self.headers.get("Authorization") == f"Basic {self.word}"
        self.send_response(200 if self.path == "/api/health" or known else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(params=["open", "guarded"])
def api(request):
    """Its URL, and whether it lets in anybody. The word is `printf a:b | base64`."""
    handler = type("Handler", (Api,), {"word": "" if request.param == "open" else "YTpi"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api", request.param == "open"
    server.shutdown()
    server.server_close()


def test_an_api_that_lets_in_whoever_asks_is_open(api):
    url, is_free = api
    assert answers(url)
    assert is_open(url) is is_free
    assert accepts(url, "a:b")
    assert accepts(url, "a:wrong") is is_free


def test_an_open_api_on_loopback_fails_the_check_unless_nobody_else_is_there(api):
    url, is_free = api
    environment = {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": "a:b"}
    found = list(prefect_api(False, environment))
    assert [(f.id, f.severity) for f in found] == [("NF-PREFECT-001", "fail")] * is_free
    assert list(prefect_api(True, environment)) == []
    assert "a:b" not in "".join(f.text + f.fix for f in found)


def test_a_proxy_of_the_environment_is_not_asked_for_a_server_on_loopback(api, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert answers(api[0])


@pytest.mark.parametrize(
    ("environment", "fails"),
    [
        ({}, False),
        ({"PREFECT_API_URL": "http://127.0.0.1:9/api"}, False),
        ({"PREFECT_API_URL": "http://prefect.invalid:4200/api"}, True),
        ({"PREFECT_API_URL": "http://prefect.invalid:4200/api", "PREFECT_API_AUTH_STRING": "a:b"}, False),
        ({"PREFECT_API_URL": "https://prefect.invalid/api", "PREFECT_API_KEY": "k"}, False),
    ],
)
@pytest.mark.parametrize("single_user", [False, True])
def test_of_a_server_that_does_not_answer_its_clients_settings_tell(environment, fails, single_user):
    found = list(prefect_api(single_user, environment))
    assert [f.id for f in found] == ["NF-PREFECT-001"] * fails
