"""A public name means one thing: no two modules define it, but for what every module of a kind has."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("nightferry", "blocks", "tasks", "flows", "deployments")
EVERY_MODULES_OWN = {"log", "app", "T", "R"}


def public_names(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")} - EVERY_MODULES_OWN


def test_no_public_name_is_defined_in_two_modules() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in public_names(path):
                modules[name].append(str(path.relative_to(ROOT)))
    assert len(modules) > 1500
    # A verb has one name in every layer: the command's, the flow's, and the core's that both call.
    layers = ("nightferry/cli/", "flows/")
    core = {name: [m for m in where if not m.startswith(layers)] for name, where in modules.items()}
    assert {name: where for name, where in core.items() if len(where) > 1} == {}
