"""Programs that run before and after a stage: what they are told, and what becomes of the stage."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.cluster import reader_agent
from nightferry.cluster.run import MOST_OUTPUT_BYTES
from nightferry.errors import Cancelled, GroupStopping, HookFailed
from nightferry.health import check
from nightferry.model.load import load_site
from nightferry.model.secrets import known_secrets
from nightferry.night.hooks import hooked
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import OpenSite
from tests.support import night
from tests.support.prefect_site import until
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

Make = Callable[..., OpenSite]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTFERRY_STATE", str(tmp_path / "state"))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A site with hooks; each is (name, when, shell script)."""

    def build(*hooks: tuple[str, str, str], stage: str = "stage-one", more: str = "") -> OpenSite:
        text = ""
        for name, when, script in hooks:
            program = tmp_path / f"{name}.sh"
            program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
            program.chmod(0o755)
            text += f'[[hooks]]\nname = "{name}"\nstage = "{stage}"\nwhen = "{when}"\n'
            text += f'command = ["{program}", "an argument"]\n{more}'
        return SmallSite(tmp_path, more=text).build().open(HandClock())

    return build


def run(opened: OpenSite, cancel: Cancel | None = None, fails: Exception | None = None) -> None:
    with hooked(
        opened,
        "stage-one",
        BACK_GROUP,
        run="20261110-TEX-BACK-1",
        node="TEX-ACTV-1",
        progress=QUIET,
        cancel=cancel or Cancel(),
    ) as stage:
        (opened.file.catalog_path.parent / "ran").touch()
        stage.result = "partial"
        if fails is not None:
            raise fails


def test_a_hook_is_told_everything_by_a_clean_environment(make: Make, tmp_path: Path) -> None:
    os.environ["NF_TEST_SECRET"] = "not for hooks"
    with make(("h", "before", 'env >told; echo "$1" >>told')) as opened:
        run(opened)
    del os.environ["NF_TEST_SECRET"]
    told = (tmp_path / "told").read_text().splitlines()
    assert told[-1] == "an argument"
    values = dict(line.split("=", 1) for line in told[:-1])
    del values["NIGHTFERRY_PROGRAM"]  # by which its children are found
    assert {k: v for k, v in values.items() if k.startswith("NIGHTFERRY_")} == {
        "NIGHTFERRY_SITE_NAME": "TEX",
        "NIGHTFERRY_RUN": "20261110-TEX-BACK-1",
        "NIGHTFERRY_STAGE": "stage-one",
        "NIGHTFERRY_WHEN": "before",
        "NIGHTFERRY_BACK_GROUP": BACK_GROUP,
        "NIGHTFERRY_GROUP": "SG1",
        "NIGHTFERRY_NODE": "TEX-ACTV-1",
        "NIGHTFERRY_PATH": str(tmp_path / "back"),
    }
    assert {k for k in values if not k.startswith("NIGHTFERRY_")} <= {
        "PATH",
        "LC_ALL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }


def test_hooks_run_in_order_and_after_hooks_are_told_the_result(make: Make, tmp_path: Path) -> None:
    say = 'echo "$0 $NIGHTFERRY_RESULT" | sed "s,.*/,," >>order'
    hooks = [("a", "before", say), ("z", "after", say), ("b", "before", say), ("y", "after", say)]
    with make(*hooks) as opened:
        run(opened)
        with pytest.raises(ZeroDivisionError):
            run(opened, fails=ZeroDivisionError())
    told = (tmp_path / "order").read_text().splitlines()
    assert told == [
        "a.sh ",
        "b.sh ",
        "z.sh partial",
        "y.sh partial",
        "a.sh ",
        "b.sh ",
        "z.sh failed",
        "y.sh failed",
    ]


def test_a_failed_before_hook_keeps_the_stage_from_running_and_is_cleaned_up_after(
    make: Make, tmp_path: Path
) -> None:
    with (
        make(("thaw", "after", "touch thawed"), ("freeze", "before", "exit 7")) as opened,
        pytest.raises(HookFailed) as failed,
    ):
        run(opened)
    assert failed.value.message.startswith(
        "hook freeze before stage-one failed with exit code 7; what it wrote: "
    )
    assert (failed.value.exit_code, failed.value.subject) == (50, "freeze")
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "thawed").exists()


SEVEN_FORMS = r"""
secret="$(cat known)"
echo "password $secret" >&2; echo "TOKEN=$secret" >&2; echo "curl -u u:$secret" >&2
echo "{'pass': '$secret'}"; printf %s "$secret" | base64 >&2; printf %s "$secret" | od -An -tx1 | tr -d ' \n'; echo
echo "http://u:$secret@host/" >&2; echo "unknown to us: hunter2" >&2; exit 3
"""


def test_what_a_failed_hook_wrote_goes_to_a_private_file_without_the_secrets_we_know(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NF_TEST_SECRET", secret := "kP9+x/3vQ==")
    (tmp_path / "known").write_text(secret)
    said = []
    with make(("h", "before", SEVEN_FORMS)) as opened:
        monkeypatch.setattr(
            "nightferry.night.hooks.known_secrets", lambda site: {os.environ["NF_TEST_SECRET"]}
        )
        with pytest.raises(HookFailed) as failed:
            run(opened)
        said += [failed.value.message, failed.value.hint, caplog.text]
    _, _, where = failed.value.message.partition("what it wrote: ")
    path = Path(where.partition(":")[2])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    kept = path.read_text()
    encoded = subprocess.run(
        ["base64"], input=secret, capture_output=True, text=True, check=True
    ).stdout.strip()
    for form in (secret, encoded, secret.encode().hex()):
        assert form not in kept
    assert kept.count("‹redacted›") == 7
    assert "unknown to us: hunter2" in kept
    assert not any("hunter2" in text or secret in text for text in said)


def test_a_hook_may_write_more_than_any_answer_and_the_end_of_it_is_kept(make: Make, tmp_path: Path) -> None:
    much = f"head -c {MOST_OUTPUT_BYTES + 1} /dev/zero; echo the end"
    with make(("h", "before", much)) as opened:
        run(opened)
    with make(("h", "before", f"{much}; exit 1")) as opened, pytest.raises(HookFailed) as failed:
        run(opened)
    kept = Path(failed.value.message.partition("what it wrote: ")[2].partition(":")[2]).read_bytes()
    assert b"--- stdout, its last 256" in kept
    assert b"\0the end\n--- stderr" in kept


@pytest.mark.parametrize(
    "line", ["A" * (1 << 20), "a=" * (1 << 19), "://" * (1 << 18), "bearer " * (1 << 17)]
)
def test_a_megabyte_in_one_line_costs_nothing(make: Make, tmp_path: Path, line: str) -> None:
    (tmp_path / "line").write_text(line)
    with make(("h", "before", "cat line >&2; exit 1")) as opened, pytest.raises(HookFailed):
        run(opened)


def test_secrets_of_a_site_file_are_found_wherever_it_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NF_ACCESS", "an access key")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "user:its word")
    (tmp_path / "word").write_text("a secret key")
    (tmp_path / "word").chmod(0o600)
    keys = f'access_key = "env:NF_ACCESS"\nsecret_key = "file:{tmp_path}/word"\n'
    more = f'[[destinations]]\nname = "cloud"\nkind = "s3"\nurl = "s3://b/p"\nendpoint = "http://127.0.0.1:9"\n{keys}'
    site = SmallSite(tmp_path, more=more).build()
    model = load_site(site.file).site
    assert known_secrets(model) >= {"an access key", "a secret key", "its word", "user:its word"}


def test_a_failed_after_hook_fails_a_stage_that_ran_and_keeps_no_other_from_running(
    make: Make, tmp_path: Path
) -> None:
    with make(("bad", "after", "exit 1"), ("good", "after", "touch good")) as opened:
        with pytest.raises(HookFailed, match="hook bad after stage-one failed with exit code 1"):
            run(opened)
        (tmp_path / "good").unlink()
        # The stage's own error says more than that of a hook after it.
        with pytest.raises(ZeroDivisionError):
            run(opened, fails=ZeroDivisionError())
    assert (tmp_path / "good").exists()


def test_a_hook_past_its_deadline_is_killed_with_its_children(make: Make, tmp_path: Path) -> None:
    script = "sleep 600 & echo $! >child; wait"
    with (
        make(("slow", "before", script), more='deadline = "1s"\n') as opened,
        pytest.raises(HookFailed) as failed,
    ):
        run(opened)
    assert "did not end within 1 s and was killed" in failed.value.message
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    # Killed at once; whoever adopted it reads its end a little later.
    until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z", 10)


def test_a_cancelled_stage_runs_its_after_hooks(make: Make, tmp_path: Path) -> None:
    cancel = Cancel()
    cancel.set("an operator")
    hooks = [("b", "before", "sleep 600"), ("a", "after", 'echo "$NIGHTFERRY_RESULT" >after')]
    with make(*hooks) as opened, pytest.raises(Cancelled):
        run(opened, cancel)
    assert (tmp_path / "after").read_text() == "failed\n"


def test_hooks_of_other_back_groups_do_not_run(make: Make, tmp_path: Path) -> None:
    with make(("h", "before", "exit 1"), more='back_groups = ["TEX-BACK-1"]\n') as opened:
        (hook,) = opened.file.hooks
        assert hook.is_for("TEX-BACK-1")
        assert not hook.is_for("TEX-BACK-2")


def test_a_move_runs_its_hooks_when_the_disk_really_moves(make: Make, tmp_path: Path) -> None:
    say = 'echo "$NIGHTFERRY_WHEN $NIGHTFERRY_NODE $NIGHTFERRY_RUN" >>moves'
    with make(("b", "before", say), ("a", "after", say), stage="move") as opened:
        record = night.night(opened, BACK_GROUP)
    assert (tmp_path / "moves").read_text().splitlines() == [
        f"before TEX-PASS-2 {record.run}",
        f"after TEX-PASS-2 {record.run}",
    ]


def test_a_failed_hook_before_the_move_leaves_the_disk_where_it_is(make: Make) -> None:
    with make(("b", "before", "exit 1"), stage="move") as opened:
        with pytest.raises(HookFailed):
            night.night(opened, BACK_GROUP)
        assert opened.cluster.where(BACK_GROUP) == "TEX-ACTV-1"


def test_check_names_hooks_that_are_missing_or_belong_to_others(make: Make, tmp_path: Path) -> None:
    with make(
        ("gone", "before", ""), ("open", "before", ""), ("plain", "before", ""), ("good", "before", "")
    ) as opened:
        (tmp_path / "gone.sh").unlink()
        (tmp_path / "open.sh").chmod(0o777)
        (tmp_path / "plain.sh").chmod(0o644)
        found = [(f.id, f.severity, f.text.split(":")[0]) for f in check.hooks(opened)]
    assert found == [
        ("NF-HOOK-001", "fail", "hook gone"),
        ("NF-HOOK-002", "fail", "hook open"),
        ("NF-HOOK-001", "fail", "hook plain"),
    ]


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Started reader agents of the BACK group and of the service that is staged on it."""
    folder = tmp_path / "agents"
    for group in ("TEX-MAIL-1", BACK_GROUP):
        (folder / group).mkdir(parents=True)
        (folder / group / "here").touch()
    monkeypatch.setattr(reader_agent, "RUN_FOLDER", folder)
    return folder


def test_a_hook_and_all_in_its_session_have_a_lease_on_every_group_of_the_night(
    make: Make, agents: Path, tmp_path: Path
) -> None:
    # Its lease comes a moment after its start.
    waits = f"until ls {agents}/{BACK_GROUP} | grep session; do :; done"
    lists = f"{waits}; echo $$ > pid; ls {agents}/TEX-MAIL-1 > on-mail; ls {agents}/{BACK_GROUP} > on-back"
    with make(("h", "before", lists)) as opened:
        run(opened)
    pid = (tmp_path / "pid").read_text().strip()
    for name in ("on-mail", "on-back"):
        of_hook = [n for n in (tmp_path / name).read_text().split() if n.startswith(f"{pid}.")]
        assert len(of_hook) == 1
        assert of_hook[0].endswith(".session.lease")
    assert list(agents.rglob("*.lease")) == []


def test_a_hook_ends_when_the_cluster_takes_a_group_away_and_after_hooks_still_run(
    make: Make, agents: Path, tmp_path: Path
) -> None:
    stops = f"rm {agents}/TEX-MAIL-1/here; sleep 600"
    site = make(("h", "before", stops), ("then", "after", "touch ran-after"))
    with site as opened, pytest.raises(GroupStopping, match="TEX-MAIL-1 is not on this node"):
        run(opened)
    assert (tmp_path / "ran-after").exists()
