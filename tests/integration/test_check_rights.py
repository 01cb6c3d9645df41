"""`check` looks with the rights a night has: a service with a capability is not told that it may not read."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import needs

SITE = """\
schema = 1
[site]
name = "CAP"
catalog = "{here}/catalog"
[cluster]
nodes = ["CAP-ACTV-1", "CAP-PASS-1"]
[staging]
path = "{here}/staging"
[[groups]]
name = "SG1"
start = "20:00"
copies = ["copies"]
  [[groups.stores]]
  name = "secret"
  kind = "files"
  path = "{here}/secret"
[[destinations]]
name = "copies"
kind = "fsspec"
url = "file://{here}/copies"
"""

CHECK = "from nightferry.cli.app import main; raise SystemExit(main(['check']))"


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that another user can reach; pytest's own are for root alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.chown(folder, 65534, 65534)
        yield Path(folder)


@needs("setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot become another user with a capability")
def test_check_counts_the_capability_to_read_everything(reachable: Path) -> None:
    here = reachable
    (here / "secret").mkdir(mode=0o700)
    for folder in ("catalog", "staging", "copies"):
        (here / folder).mkdir()
        os.chown(here / folder, 65534, 65534)
    file = here / "nightferry.toml"
    file.write_text(SITE.format(here=here))

    def check(*capability: str) -> str:
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *capability]
        done = subprocess.run(
            [*user, sys.executable, "-c", CHECK],
            cwd=here,
            env=os.environ
            | {"NIGHTFERRY_SITE": str(file), "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(here)},
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    assert "NF-STORE-002" in check()
    assert "no problem found that would make tonight fail" in check(
        "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"
    )
