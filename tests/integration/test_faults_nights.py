"""What several nights, tries and site files in a row come to: nothing is taken for what it was before."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from nightferry.ops import gate, stage, stream
from nightferry.ops.opened import OpenSite
from nightferry.progress import QUIET, Cancel
from tests.support import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite, fill

MakeSite = Callable[..., SmallSite]


def unsteady(patched: pytest.MonkeyPatch, name: bytes = b"letter.txt") -> None:
    """From now on files of this name come out ``changed``: none is tolerated, so their images are partial."""
    original = stage.ImageWriter._add_once

    def disturbed(self: object, path: bytes, *rest: object) -> object:
        done = original(self, path, *rest)  # type: ignore[arg-type]
        return (done[0], False) if path.endswith(name) else done

    patched.setattr(stage.ImageWriter, "_add_once", disturbed)


def states(opened: OpenSite) -> dict[str, str]:
    return {i.store: i.state for i in opened.catalog.images()}


def test_an_approval_of_a_missing_store_accepts_no_image_that_comes_later(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    shutil.rmtree(site.store("SG1/b"))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        gate.approve(opened, record, ["SG1/b"], "b is being moved")
        fill(site.store("SG1/b"))
        with monkeypatch.context() as patched:
            unsteady(patched)
            stage.stage_store(opened, record, "SG1", "b", progress=QUIET, cancel=Cancel())
        assert states(opened) == {"a": "whole", "b": "partial"}
        assert {o.image.store for o in stream.owed(opened, BACK_GROUP)} == {"a"}
        # Nobody accepted that image, so a retry makes it again.
        night.stage_one(opened, BACK_GROUP, run=record.run)
        stage.stage_store(opened, record, "SG1", "b", progress=QUIET, cancel=Cancel())
        assert states(opened) == {"a": "whole", "b": "whole"}


def test_a_night_after_a_run_of_one_store_stages_all_the_others(make_site: MakeSite) -> None:
    site = make_site(stores={"SG1": ("a", "b"), "SG2": ("c",)}, copies=("folder",))
    with site.open(HandClock()) as opened:
        alone = night.stage_one(opened, BACK_GROUP, stores=["SG1/b"])
        assert states(opened) == {"b": "whole"}
        whole = night.night(opened, BACK_GROUP)
        assert (whole.run, whole.state, whole.result) == (alone.run, "ended", "whole")
        assert states(opened) == {"a": "whole", "b": "whole", "c": "whole"}


def test_an_image_made_anew_since_the_seal_closes_the_gate_until_it_is_sealed(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        assert gate.look(opened, record).state == "open"
        (tar,) = site.disk.glob("SG1/b/*.tar")
        tar.unlink()
        with monkeypatch.context() as patched:
            unsteady(patched)
            stage.stage_store(opened, record, "SG1", "b", progress=QUIET, cancel=Cancel())
        # Here the process died: the seal still says that b is whole.
        view = gate.look(opened, record)
        assert (view.state, view.reason) == ("closed", "not sealed yet: SG1/b")
        assert night.night(opened, BACK_GROUP).result == "whole"
