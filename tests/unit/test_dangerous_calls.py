"""No call that hands text to a shell, or bytes to something that runs what is in them, stands anywhere in the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = (
    "nightferry",
    "blocks",
    "tasks",
    "flows",
    "deployments",
    "bench",
    "fuzz",
    "demo.py",
    "tests/servers",
)
CALLS = {
    *("eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("asyncio.create_subprocess_shell", "tempfile.mktemp", "yaml.load", "yaml.unsafe_load", "numpy.load"),
}
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "commands", "pty"}
NEVER_EXCUSED = re.compile(r"noqa:.*\bS(?:102|30[12678]|31[5-9]|50\d|60[2456]|609|70\d)\b")


def sources() -> list[Path]:
    found = [
        path
        for name in OURS
        for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"))
    ]
    assert len(found) > 200
    return found


def dangerous(text: str) -> list[str]:
    """What of it stands in a program's text, with its line."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS:
                found.append(f"{node.lineno}: {name}")
            shell = [k.value for k in node.keywords if k.arg == "shell"]
            safe = isinstance(shell[0], ast.Constant) and shell[0].value is False if shell else True
            # The command line's completion asks which shell it is for; it starts none.
            if not safe and not name.endswith(".generate_completion"):
                found.append(f"{node.lineno}: shell=")
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"{node.lineno}: {name}" for name in names if name.partition(".")[0] in MODULES]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    "text",
    [
        *(
            "subprocess.run(x, shell=True)",
            "subprocess.run(x, shell=y)",
            "os.system(x)",
            "yaml.load(x)",
            "eval(x)",
        ),
        *("exec(x)", "import pickle", "from pickle import loads", "import a, marshal"),
    ],
)
def test_such_a_call_is_found(text: str) -> None:
    assert dangerous(text)


def test_there_is_none() -> None:
    found = {str(path.relative_to(ROOT)): dangerous(path.read_text()) for path in sources()}
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_no_rule_against_them_is_excused_in_the_product() -> None:
    product = [path for path in sources() if "tests" not in path.parts]
    excused = [
        f"{path.name}: {line}"
        for path in product
        for line in path.read_text().splitlines()
        if NEVER_EXCUSED.search(line)
    ]
    assert excused == []
