"""Imports point down only: the layers of docs/architecture.md, enforced over every file."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "holdfast"

# From top to bottom. A new module or package under src/holdfast joins the line it belongs to.
LINES = (
    {"__main__"},
    {"cli"},
    {"comparisons"},
    {"shortcuts", "quality", "repairs", "exports"},
    {"audits"},
    {"detect", "executors"},
    {"train"},
    {"methods", "ascents", "trackers"},
    {"optim"},
    {"models", "data"},
    {"attacks", "corruptions", "augment", "losses", "metrics", "curvature", "reports"},
    {
        "types",
        "errors",
        "module_state",
        "devices",
        "rng",
        "files",
        "printable",
        "settings",
        "parts",
        "signals",
        "machine",
    },
)
BOTTOM = LINES[-1]
SIDEWAYS = {(user, "errors") for user in ("settings", "files", "parts", "devices", "signals")}
SIDEWAYS |= {("parts", "types"), ("settings", "parts"), ("settings", "printable"), ("errors", "printable")}

# What `import holdfast` and `holdfast --help` load: nothing here may pull torch in as it is imported.
QUICK = {
    "__init__",
    "cli",
    "types",
    "errors",
    "files",
    "settings",
    "parts",
    "printable",
    "ascents",
    "signals",
    "machine",
    "trackers",
}
QUICK_LIBRARIES = {"tyro", "rich", "yaml"}


@dataclass(frozen=True)
class Import:
    """One imported name. late: not run when the module is imported (in a function, or for type checkers)."""

    target: str
    line: int
    late: bool


def problems(package: Path) -> list[str]:
    """Every import under a package folder that breaks the layers, as ``path:line: what is wrong``."""
    found = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        part = place.parts[0].removesuffix(".py")
        if part != "__init__" and not any(part in line for line in LINES):
            found.append(f"{place}: {part!r} is on no line; add it to LINES in {Path(__file__).name}")
            continue
        for item in imports(path, package):
            found += [f"{place}:{item.line}: {text}" for text in judge(part, item, package.name)]
    return found


def judge(part: str, item: Import, root: str) -> Iterator[str]:
    """What is wrong with one import in a part of the package."""
    head, *rest = item.target.split(".")
    if head != root:
        if part in QUICK and not item.late and head not in sys.stdlib_module_names | QUICK_LIBRARIES:
            yield f"{part} imports {item.target} at module level, which makes 'holdfast --help' slow"
        return
    other = rest[0] if rest else "__version__"
    if other in {part, "__version__"}:
        return
    if part in {"cli", "__init__"}:
        if not item.late and other not in QUICK:
            yield f"{part} imports {item.target} at module level; import it where it is used"
    elif not any(other in line for line in LINES):
        yield f"{part} imports {item.target}, which no line knows; import the module that defines the name"
    elif other not in allowed(part):
        yield f"{part} may not import {item.target}"


def allowed(part: str) -> set[str]:
    """The other parts that one part may import."""
    level = next(i for i, line in enumerate(LINES) if part in line)
    below = BOTTOM if part == "reports" else set().union(*LINES[level + 1 :])
    return below | {other for user, other in SIDEWAYS if user == part}


def imports(path: Path, package: Path) -> Iterator[Import]:
    """Every import of a file, wherever it stands, with relative ones made absolute.

    After ``import holdfast``, a use of ``holdfast.train`` counts as its import.
    """
    home = [package.name, *path.relative_to(package).parent.parts]
    nodes = list(_nodes(ast.parse(path.read_text(encoding="utf-8"), str(path)), late=False))
    roots = {
        alias.asname or package.name
        for node, _ in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == package.name or (alias.name.startswith(f"{package.name}.") and not alias.asname)
    }
    for node, late in nodes:
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) + 1 - node.level] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [".".join([*base, alias.name]) for alias in node.names]
        elif isinstance(node.value, ast.Name) and node.value.id in roots:
            targets = [f"{package.name}.{node.attr}"]
        yield from (Import(target, node.lineno, late) for target in targets)


def _nodes(node: ast.AST, *, late: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Attribute, bool]]:
    for child in ast.iter_child_nodes(node):
        unrun = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.If) and child in node.body:
            unrun = unrun or ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        if isinstance(child, ast.Import | ast.ImportFrom | ast.Attribute):
            yield child, unrun
        yield from _nodes(child, late=unrun)


def test_imports_of_the_package_point_down_only() -> None:
    assert problems(PACKAGE) == []


GOOD = [
    ("data/arrays.py", "import torch\nfrom holdfast.errors import require"),
    ("data/load.py", "from holdfast.data.arrays import read"),
    ("data/load.py", "from . import arrays\nfrom .arrays import read\nfrom ..types import Batch"),
    ("data/__init__.py", "from .load import load\nfrom .. import errors"),
    ("data/deep/er.py", "from ..load import load\nfrom ...errors import require"),
    ("settings/loader.py", "from holdfast.errors import unknown\nfrom tyro.conf import arg"),
    ("comparisons/running.py", "from holdfast.train import fit\nfrom holdfast.reports import html"),
    ("train/run.py", "from holdfast import __version__"),
    ("train/run.py", "import holdfast\nversion = holdfast.__version__"),
    ("train/run.py", "import holdfast.data\nload = holdfast.data.load"),
    ("types.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ("cli.py", "import sys, tyro\nfrom rich.table import Table\nfrom holdfast import __version__, errors"),
    ("cli.py", "def main():\n    import torch\n    from holdfast.train import fit"),
    ("cli.py", "import holdfast\ndef main():\n    holdfast.fit()"),
    ("__init__.py", "def __getattr__(name):\n    from holdfast.train import fit\n    return fit"),
    ("__init__.py", "import typing\nif typing.TYPE_CHECKING:\n    from holdfast.train import fit as fit"),
]


@pytest.mark.parametrize(("file", "source"), GOOD)
def test_downward_imports_pass(tmp_path: Path, file: str, source: str) -> None:
    assert problems(tree(tmp_path, file, source)) == []


BAD = [
    ("data/load.py", "from holdfast.train import fit", "data may not import holdfast.train.fit"),
    ("data/load.py", "import holdfast.train.engine as e", "data may not import holdfast.train.engine"),
    ("data/load.py", "from holdfast import models", "data may not import holdfast.models"),
    ("data/load.py", "from ..models import build", "data may not import holdfast.models.build"),
    ("data/load.py", "from .. import models", "data may not import holdfast.models"),
    ("data/__init__.py", "from ..models import build", "data may not import holdfast.models.build"),
    ("data/deep/er.py", "from ...models import build", "data may not import holdfast.models.build"),
    ("data/load.py", "def f():\n    from ..cli import main", "data may not import holdfast.cli.main"),
    ("data/load.py", "try:\n    pass\nfinally:\n    from ..cli import main", "data may not import"),
    (
        "losses.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .metrics import accuracy",
        "losses may not import holdfast.metrics.accuracy",
    ),
    ("errors.py", "from .settings import build", "errors may not import holdfast.settings.build"),
    ("settings/loader.py", "from ..types import Batch", "settings may not import holdfast.types.Batch"),
    ("reports/html.py", "from holdfast.metrics import accuracy", "reports may not import"),
    ("train/run.py", "import holdfast\nholdfast.fit()", "train imports holdfast.fit, which no line knows"),
    ("train/run.py", "import holdfast as hf\nhf.audits.audit()", "train may not import holdfast.audits"),
    ("train/run.py", "import holdfast.data\nholdfast.cli.main()", "train may not import holdfast.cli"),
    ("train/run.py", "from holdfast import fit", "train imports holdfast.fit, which no line knows"),
    ("utils.py", "", "'utils' is on no line"),
    ("tools/x.py", "", "'tools' is on no line"),
    ("cli.py", "from holdfast.train import fit", "cli imports holdfast.train.fit at module level"),
    ("cli.py", "import holdfast\nfit = holdfast.fit", "cli imports holdfast.fit at module level"),
    ("cli.py", "from holdfast import module_state", "cli imports holdfast.module_state at module level"),
    ("cli.py", "if True:\n    import torch", "cli imports torch at module level"),
    ("settings/loader.py", "import numpy as np", "settings imports numpy at module level"),
    (
        "types.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import torch",
        "types imports torch at module level",
    ),
    ("__init__.py", "from .train import fit", "__init__ imports holdfast.train.fit at module level"),
]


@pytest.mark.parametrize(("file", "source", "message"), BAD)
def test_other_imports_are_reported(tmp_path: Path, file: str, source: str, message: str) -> None:
    (problem,) = problems(tree(tmp_path, file, source))
    assert problem.startswith(file)
    assert message in problem


def test_the_line_of_an_import_is_named(tmp_path: Path) -> None:
    (problem,) = problems(tree(tmp_path, "optim/sam.py", "import torch\n\nfrom holdfast import methods\n"))
    assert problem == "optim/sam.py:3: optim may not import holdfast.methods"


def tree(folder: Path, file: str, source: str) -> Path:
    package = folder / "holdfast"
    path = package / file
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    return package


def cycles(package: Path) -> list[list[str]]:
    """Modules that import each other, directly or around corners, imports inside functions included.

    Imports for type checkers alone do not count: they are never run.
    """
    files = {dotted(path, package): path for path in sorted(package.rglob("*.py"))}
    graph = {name: {known(target, files) for target in run_imports(path, package)} - {"", name}
             for name, path in files.items()}  # fmt: skip
    ahead = {name: reached(graph, name) for name in graph}
    knots = {frozenset(other for other in graph if other in ahead[name] and name in ahead[other]) for name in graph}
    return sorted(sorted(knot) for knot in knots if knot)


def dotted(path: Path, package: Path) -> str:
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run_imports(path: Path, package: Path) -> Iterator[str]:
    source = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(source):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            node.body = [ast.Pass()]
    bare = ast.unparse(ast.fix_missing_locations(source))
    home = [package.name, *path.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(bare)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) + 1 - node.level] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            yield from (".".join([*base, alias.name]) for alias in node.names)


def known(target: str, files: Mapping[str, Path]) -> str:
    """The module that an import runs: the name itself, or where it is defined. Nothing for the package's root."""
    found = target if target in files else target.rpartition(".")[0]
    return found if found in files and "." in found else ""


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """What a module imports, directly or around corners; itself only where it comes back to itself."""
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph[name]
    return seen


def test_no_modules_import_each_other() -> None:
    assert cycles(PACKAGE) == []


def test_a_cycle_is_found_also_where_it_is_closed_inside_a_function(tmp_path: Path) -> None:
    package = tree(tmp_path, "data/a.py", "from holdfast.data import b")
    (package / "data/b.py").write_text("def late():\n    from holdfast.data.c import x")
    (package / "data/c.py").write_text("from .a import y")
    assert cycles(package) == [["holdfast.data.a", "holdfast.data.b", "holdfast.data.c"]]
    (package / "data/c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import y\nelse:\n    y = 1"
    )
    assert cycles(package) == []
