"""The commands that docs/ shows for reading images without nightferry, run as they are printed there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import demo
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.virtual import VirtualLibrary, create
from nightferry.model.load import load_site
from nightferry.progress import QUIET, Cancel
from nightferry.site.destinations import CatalogRegister
from nightferry.site.opened import OpenSite
from nightferry.staging.images import files_of
from nightferry.staging.staged import StagedOutgoing
from tests.conftest import needs
from tests.support.night import night

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^ *```sh tested=(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
RUN_IN_DOCS = "20261130-DEMO-BACK-1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's site after one night."""
    here = tmp_path_factory.mktemp("docs") / "demo-site"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "HERE", here)
        demo.make_stores()
    for folder in ("backup", "objects", "restored"):
        (here / folder).mkdir()
    file = here / "nightferry.toml"
    file.write_text(demo.SITE_FILE.format(here=here))
    file.chmod(0o600)
    with OpenSite(load_site(file)) as opened:
        run = night(opened, "DEMO-BACK-1")
        assert run.result == "whole"
        (here / "run").write_text(run.run)
    return here


def blocks(page: str) -> dict[str, str]:
    return dict(BLOCK.findall((DOCS / page).read_text()))


def follow(site: Path, page: str, name: str, *, progress: bool = False) -> str:
    """Runs a block in the site's folder; returns stdout. A failed command is an error, and so is a word on stderr,
    unless ``progress`` goes there."""
    commands = blocks(page)[name].replace(RUN_IN_DOCS, (site / "run").read_text())
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=site,
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "" if progress else done.stderr) == (0, ""), commands + done.stderr
    return done.stdout


def test_every_command_shown_is_run_here() -> None:
    shown = {(page.name, name) for page in DOCS.glob("*.md") for name in blocks(page.name)}
    assert shown == {
        ("operations.md", "staged"),
        ("operations.md", "restore"),
        ("operations.md", "folder"),
        ("operations.md", "cartridge"),
        ("operations.md", "spanned"),
        ("operations.md", "digest"),
        ("recovery.md", "catalog"),
    }


def test_tar_lists_a_staged_image(site: Path) -> None:
    listed = follow(site, "operations.md", "staged").splitlines()
    assert listed[:2] == [".nightferry/image.json", "./"]
    assert listed[-2:] == [".nightferry/index.parquet", ".nightferry/end"]
    assert "reports/report-07.txt" in listed


def test_tar_alone_restores_a_store_and_one_file(site: Path) -> None:
    store = site / "stores/SG2/shares"
    told = follow(site, "operations.md", "restore")
    assert '"store": "shares"' in told
    same = subprocess.run(["diff", "-r", "--no-dereference", store, site / "whole"], capture_output=True)
    assert same.stdout == b""
    assert os.readlink(site / "whole/latest") == "reports/report-29.txt"
    for name in ("first.txt", "reports/report-29.txt"):
        was, is_now = (store / name).stat(), (site / "whole" / name).stat()
        assert (was.st_mtime_ns, was.st_mode, was.st_nlink) == (
            is_now.st_mtime_ns,
            is_now.st_mode,
            is_now.st_nlink,
        )
    assert [p.name for p in (site / "one").rglob("*") if p.is_file()] == ["report-07.txt"]


def test_a_folder_copy_is_the_staged_tar(site: Path) -> None:
    assert "reports/report-07.txt" in follow(site, "operations.md", "folder").splitlines()


def test_a_tape_file_of_a_virtual_cartridge_is_a_tar(site: Path) -> None:
    lines = follow(site, "operations.md", "cartridge").splitlines()
    assert lines[:2] == ["NIGHTFERRY TAPE LABEL 1", "barcode: A00001L9"]
    assert ' "kind": "image",' in lines
    # The trailer's JSON ends without a newline; then cat and dd give the same listing of a whole image.
    by_cat, by_dd = "\n".join(lines).split(".nightferry/image.json\n")[1:]
    assert by_cat.strip() == by_dd.strip()
    assert by_dd.endswith(".nightferry/end")


def test_the_label_of_a_cartridge_explains_it_and_holds_no_secret(site: Path) -> None:
    label = (site / "vtl/cartridges/A00001L9/0000.tape").read_text()
    assert "# You have found a cartridge of nightferry" in label
    assert "[[destinations]]" in label
    trailers = [
        subprocess.run(["tar", "-tf", tape], capture_output=True, text=True, check=True).stdout.split()
        for tape in sorted((site / "vtl/cartridges/A00001L9").glob("*[02468].tape"))[1:]
    ]
    assert all(names[0] == ".nightferry/trailer.json" for names in trailers)


def test_an_image_that_spans_three_cartridges_is_its_parts_in_order(site: Path) -> None:
    with OpenSite(load_site(site / "nightferry.toml")) as opened:
        image = opened.catalog.images("SG1", "priv1")[0]
        create(site / "small", 1, 3, 6 << 20)
        register = CatalogRegister(opened.catalog, "small")
        tape = TapeDestination(
            "small", VirtualLibrary(site / "small"), Pool("p", wait_for_media_s=0), register
        )
        outgoing = StagedOutgoing(image, files_of(opened, image), cancel=Cancel())
        with tape.lane(progress=QUIET, cancel=Cancel()) as lane:
            lane.put(outgoing, 1, progress=QUIET, cancel=Cancel())
        tape.close()
    named = re.findall(r"A0000\dL9", follow(site, "operations.md", "spanned"))
    assert set(named) == {"A00001L9", "A00002L9", "A00003L9"}
    same = ["diff", "-r", "--no-dereference", site / "stores/SG1/priv1", site / "spanned"]
    assert subprocess.run(same, capture_output=True).stdout == b""


@needs("b3sum")
def test_b3sum_agrees_with_the_index(site: Path) -> None:
    shutil.rmtree(site / "whole", ignore_errors=True)
    shutil.rmtree(site / "one", ignore_errors=True)
    follow(site, "operations.md", "restore")
    summed, indexed = follow(site, "operations.md", "digest").splitlines()
    assert summed.split()[0] == indexed


def test_a_catalog_copy_makes_a_catalog_again(site: Path) -> None:
    with OpenSite(load_site(site / "nightferry.toml")) as opened:
        from nightferry.copies.delivery import deliver_catalog

        deliver_catalog(opened, "objects", opened.clock.now())
        images = [image.image for image in opened.catalog.images()]
    lost = site / "catalog"
    lost.rename(site / "catalog.lost")
    try:
        follow(site, "recovery.md", "catalog", progress=True)
        with OpenSite(load_site(site / "nightferry.toml")) as opened:
            assert [image.image for image in opened.catalog.images()] == images
            assert all(opened.catalog.index(image) and opened.catalog.chunks(image) for image in images)
    finally:
        shutil.rmtree(lost, ignore_errors=True)
        (site / "catalog.lost").rename(lost)
