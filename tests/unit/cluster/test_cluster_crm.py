"""Reading Pacemaker's tools: recorded answers of the real ones (pacemaker/README.md)."""

from pathlib import Path

import pytest

from nightferry.cluster.crm import Action, Pin, read_actions, read_cib, read_status
from nightferry.errors import ClusterError

ANSWERS = Path(__file__).with_name("pacemaker")


def answer(name):
    return (ANSWERS / f"{name}.xml").read_bytes()


def test_a_healthy_cluster():
    status = read_status(answer("status"))
    assert (status.dc, status.quorate, status.fencing, status.frozen) == ("TEX-ACTV-1", True, True, "")
    assert [(n.name, n.online, n.trouble) for n in status.nodes] == [
        ("TEX-ACTV-1", True, ""),
        ("TEX-PASS-1", True, ""),
        ("TEX-PASS-2", True, ""),
    ]
    back = status.group("TEX-BACK-1")
    assert [(m.name, m.role, m.nodes) for m in back.members] == [
        ("back1-disk", "Started", ("TEX-ACTV-1",)),
        ("back1-fs", "Started", ("TEX-ACTV-1",)),
        ("back1-reader", "Started", ("TEX-ACTV-1",)),
    ]
    assert [m.agent for m in status.group("fence").members] == ["stonith:fence_test"]
    assert status.failures == ()


def test_a_stop_that_failed():
    status = read_status(answer("failed"))
    assert not status.fencing
    assert {n.name: n.trouble for n in status.nodes} == {
        "TEX-ACTV-1": "",
        "TEX-PASS-1": "standby",
        "TEX-PASS-2": "offline",
    }
    back = status.group("TEX-BACK-1")
    assert [(m.name, m.failed, m.blocked, m.managed) for m in back.members] == [
        ("back1-disk", False, False, True),
        ("back1-fs", True, True, False),
        ("back1-reader", False, False, True),
    ]
    (failure,) = status.failures
    assert str(failure) == "back1-fs_stop_0 on TEX-ACTV-1: error, User-injected result"
    assert failure.is_of(back)
    assert not failure.is_of(status.group("TEX-MAIL-1"))


def test_what_the_cluster_would_do():
    assert read_actions(answer("simulated")) == tuple(
        Action("move", name, "TEX-ACTV-1", "TEX-PASS-2")
        for name in ("back1-disk", "back1-fs", "back1-reader")
    )


def test_what_is_configured():
    cib = read_cib(answer("cib"))
    assert cib.pins == (
        Pin("cli-prefer-TEX-BACK-1", "TEX-BACK-1", "TEX-PASS-2", "INFINITY"),
        Pin("cli-ban-TEX-MAIL-1-on-TEX-PASS-1", "TEX-MAIL-1", "TEX-PASS-1", "-INFINITY"),
        Pin("cli-prefer-fence", "fence", "TEX-PASS-2", "INFINITY"),
    )
    assert [str(pin) for pin in cib.pins[:2]] == [
        "cli-prefer-TEX-BACK-1 pins TEX-BACK-1 to TEX-PASS-2",
        "cli-ban-TEX-MAIL-1-on-TEX-PASS-1 keeps TEX-MAIL-1 away from TEX-PASS-1",
    ]
    assert [(p.resource, p.node, p.score) for p in cib.preferences] == [
        ("TEX-MAIL-1", "TEX-ACTV-1", "50"),
        ("TEX-BACK-1", "TEX-ACTV-1", "50"),
    ]
    assert cib.stickiness == "100"
    disk = cib.members["TEX-BACK-1"][1]
    assert (disk.name, disk.agent) == ("back1-fs", "ocf:heartbeat:Filesystem")
    assert disk.parameters["directory"] == "/srv/back1"
    assert [p.name for p in cib.elsewhere] == ["fence"]


READERS = {"crm_mon": read_status, "crm_simulate": read_actions, "cibadmin": read_cib}


@pytest.mark.parametrize("tool", READERS)
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"Connection refused\n",
        b"<pacemaker-result/>",
        b'<pacemaker-result><status code="102"/></pacemaker-result>',
        b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        answer("status")[:2000],
    ],
)
def test_anything_else_is_refused(tool, said):
    with pytest.raises(ClusterError, match=f"cannot read the answer of {tool}"):
        READERS[tool](said)


@pytest.mark.parametrize(
    "encoding", ["x", "utf-16", "idna", "punycode", "ucs4", "shift_jis", "utf-7", "mbcs"]
)
def test_an_encoding_that_the_answer_names_is_not_believed(encoding: str) -> None:
    """Python's parser raises other errors for these (found by fuzzing), or reads text in which a check saw nothing."""
    head = f'<?xml version="1.0" encoding="{encoding}"?>'
    with pytest.raises(ClusterError, match="crm_mon"):
        read_status(f"{head}<x/>".encode())
    with pytest.raises(ClusterError, match="not UTF-8"):
        read_status(f'{head}<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'.encode("utf-16"))
