"""Findings' ids are what an operator's own scripts look for."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import nightferry

FINDING = re.compile(r'Finding\(\s*"(NF-[A-Z]+-\d{3})",\s*"(fail|warn|note)"')


def test_an_id_has_one_severity() -> None:
    severities: dict[str, set[str]] = defaultdict(set)
    for file in Path(nightferry.__file__).parent.rglob("*.py"):
        for name, severity in FINDING.findall(file.read_text()):
            severities[name].add(severity)
    assert len(severities) > 20
    assert not {name: found for name, found in severities.items() if len(found) > 1}
