"""What several nights, tries and site files in a row come to: nothing is taken for what it was before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

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
