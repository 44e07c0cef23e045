"""Scripts of benchmarks and papers read no option that they do not declare."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT / "papers/sweeps.py"
SCRIPTS = sorted({*ROOT.glob("benchmarks/*.py"), *ROOT.glob("papers/*/*.py")})


def options(tree: ast.Module) -> tuple[set[str], set[str]]:
    """(what add_argument declares, what is read of the result of parse_args)."""
    declared, names = set(), set()
    for node in ast.walk(tree):
        inner = node.value if isinstance(node, ast.Assign) else node
        called = inner.func.attr if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) else ""
        if isinstance(node, ast.Call) and called == "add_argument":
            declared |= {str(a.value).lstrip("-").replace("-", "_") for a in node.args if isinstance(a, ast.Constant)}
        if isinstance(node, ast.Assign) and called == "parse_args":
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    }
    return declared, read


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_option_that_is_read_is_declared(path: Path) -> None:
    declared, read = options(ast.parse(path.read_text(encoding="utf-8")))
    if path.parent.parent.name == "papers":  # which share a parser
        declared |= options(ast.parse(SHARED.read_text(encoding="utf-8")))[0]
    assert read <= declared
