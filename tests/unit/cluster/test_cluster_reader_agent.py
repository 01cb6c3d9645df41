"""Work on a group's disks, and the reader agent that may ask for its end."""

import os
import shutil
import subprocess
import threading
import time

import pytest

from nightferry.cluster.reader_agent import AGENT_PATH, install_agent, registered_work
from nightferry.errors import Cancelled, ClusterError, GroupStopping
from nightferry.progress import Cancel
from tests.conftest import needs

MAIL, BACK = "TEX-MAIL-1", "TEX-BACK-1"


@pytest.fixture
def folder(tmp_path):
    """As two started agents leave it."""
    for group in (MAIL, BACK):
        (tmp_path / group).mkdir()
        (tmp_path / group / "here").touch()
    return tmp_path


def wait_for_stop(cancel):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        cancel.wait(0.05)
    raise AssertionError("nobody asked for a stop")


def test_work_is_registered_by_process_and_start_time_while_it_lasts(folder):
    with registered_work([MAIL, BACK], Cancel(), folder=folder):
        for group in (MAIL, BACK):
            (lease,) = folder.glob(f"{group}/*.lease")
            pid, began, _, _ = lease.name.split(".")
            assert int(pid) == os.getpid()
            # As the agent finds it: the fields after the name, which may hold blanks.
            line = f"sed 's/.*) //' /proc/{pid}/stat | cut -d ' ' -f 20"
            found = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
            assert began == found.stdout.strip()
    assert list(folder.glob("*/*.lease")) == []


def test_a_group_that_stops_ends_the_work_on_it_and_nothing_else(folder):
    whole = Cancel()

    def work():
        with registered_work([MAIL, BACK], whole, folder=folder) as cancel:
            (folder / MAIL / "here").unlink()
            wait_for_stop(cancel)

    with pytest.raises(GroupStopping, match="TEX-MAIL-1 is not on this node, or is being stopped on it"):
        work()
    assert not whole.is_set()
    assert list(folder.glob("*/*.lease")) == []


def test_a_wish_to_stop_the_whole_reaches_the_work_as_what_it_is(folder):
    whole = Cancel()
    threading.Timer(0.05, whole.set, ["enough"]).start()
    with pytest.raises(Cancelled, match="enough"), registered_work([MAIL], whole, folder=folder) as cancel:
        wait_for_stop(cancel)


def test_work_on_a_group_that_is_not_here_does_not_begin(folder):
    (folder / BACK / "here").unlink()
    with pytest.raises(GroupStopping, match=BACK), registered_work([MAIL, BACK], Cancel(), folder=folder):
        raise AssertionError("it began")
    assert list(folder.glob("*/*.lease")) == []


def test_what_is_not_here_may_be_none_of_the_works_business(folder):
    (folder / BACK / "here").unlink()
    with registered_work([MAIL, BACK], Cancel(), if_here=True, folder=folder):
        assert [lease.parent.name for lease in folder.glob("*/*.lease")] == [MAIL]


def test_without_an_agent_on_this_node_nothing_is_registered(tmp_path):
    whole = Cancel()
    with registered_work([MAIL], whole, folder=tmp_path) as cancel:
        assert cancel is whole
    assert list(tmp_path.iterdir()) == []


def test_the_agent_is_installed_for_everybody_to_run(tmp_path):
    path = install_agent(tmp_path)
    assert path == tmp_path / "nightferry" / "nightferry-reader"
    assert path.read_bytes() == AGENT_PATH.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o755
    assert install_agent(tmp_path) == path


def test_where_it_cannot_be_installed_is_named(tmp_path):
    (tmp_path / "nightferry").touch()
    with pytest.raises(ClusterError, match="nightferry-reader: "):
        install_agent(tmp_path)


@needs("xmllint")
def test_the_agents_description_is_valid(tmp_path):
    functions = tmp_path / "ocf-shellfuncs"
    functions.write_text("OCF_SUCCESS=0 OCF_ERR_UNIMPLEMENTED=3\n")
    environment = {"OCF_FUNCTIONS_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    said = subprocess.run([AGENT_PATH, "meta-data"], env=environment, capture_output=True, check=True).stdout
    dtd = "/usr/share/resource-agents/ra-api-1.dtd"
    valid = ["--dtdvalid", dtd] if os.path.exists(dtd) else []
    subprocess.run([shutil.which("xmllint"), "--noout", "--nonet", *valid, "-"], input=said, check=True)
