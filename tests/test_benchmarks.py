"""Scripts of benchmarks and papers read no option that they do not declare."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted({*ROOT.glob("benchmarks/*.py"), *ROOT.glob("papers/*.py"), *ROOT.glob("papers/*/*.py")})


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
    assert read <= declared


@pytest.mark.parametrize("touched", [False, True])
def test_a_copy_without_git_knows_its_commit_and_whether_it_was_changed(tmp_path: Path, touched: bool) -> None:
    """.commit travels with the files; a file that changed on the way is told."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from record import current_commit, note_commit

    here, there = tmp_path / "here", tmp_path / "there"
    (here / "src").mkdir(parents=True)
    (here / "src/code.py").write_text("a = 1\n")
    words = ("-c", "user.name=me", "-c", "user.email=me@here")
    for line in (("init", "-q"), ("add", "."), ("commit", "-qm", "One")):
        subprocess.run(["git", *words, *line], cwd=here, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, check=True, capture_output=True, text=True).stdout
    note_commit(here)
    shutil.copytree(here, there, ignore=shutil.ignore_patterns(".git"))
    assert current_commit(there) == current_commit(here) == head.strip()
    if touched:
        for place in (here, there):
            (place / "src/code.py").write_text("a = 2\n")
        assert current_commit(there) == current_commit(here) == f"{head.strip()} + changes"
    (there / ".commit").unlink()
    assert current_commit(there) == "unknown"
