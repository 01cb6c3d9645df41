"""What a restore asked for in the Prefect UI may not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.restore import below_a_root, require_overwrite
from nightferry.errors import ConfigError
from tests.support.command_site import build_site


def test_nothing_is_replaced_unless_the_site_allows_it(tmp_path: Path) -> None:
    site = build_site(tmp_path / "site")
    with site.opened() as here:
        require_overwrite(here, "never")
        with pytest.raises(ConfigError, match="replace nothing"):
            require_overwrite(here, "older")
    site.edit("restore_roots", "restore_overwrite = true\nrestore_roots")
    with site.opened() as here:
        require_overwrite(here, "older")


@pytest.mark.parametrize("to", ["{root}/restored/../stores", "{root}/restored-too", "/", "restored"])
def test_a_folder_that_only_looks_like_one_below_a_root_is_refused(tmp_path: Path, to: str) -> None:
    site = build_site(tmp_path / "site")
    with site.opened() as here:
        assert below_a_root(here, f"{site.root}/restored/a/b")[1] == site.root / "restored"
        with pytest.raises(ConfigError, match="not below a restore root"):
            below_a_root(here, to.format(root=site.root))
