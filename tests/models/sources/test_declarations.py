"""What every source of models must do, whoever registered it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.models import model_names
from holdfast.models.resolution import find_source, resolve, source_of
from holdfast.models.source_types import ModelSource
from holdfast.parts import MODEL_SOURCES, model_syntax

TRAINABLE = [name for name, part in MODEL_SOURCES.items() if part.made.trains()]


@pytest.mark.parametrize("name", MODEL_SOURCES)
def test_it_says_what_it_is(name: str) -> None:
    part = MODEL_SOURCES[name]
    assert part.about.endswith(".")
    assert "\n" not in part.about
    assert len(part.about) <= 100
    assert issubclass(part.made, ModelSource)
    assert part.made.trains() or part.made.opens()
    assert all(suffix.startswith(".") for suffix in part.suffixes)
    for prefix in filter(None, (part.prefix, *part.more_prefixes)):
        assert prefix.endswith(":")
        assert prefix in part.syntax
    reachable = part.prefix or part.suffixes or part.folders
    assert bool(part.syntax) == bool(reachable and part.made.opens())
    assert part.syntax in model_syntax()


@pytest.mark.parametrize("name", [name for name in TRAINABLE if name in model_names()])
def test_its_names_resolve_to_it(name: str) -> None:
    part, names = MODEL_SOURCES[name], model_names()[name]
    for inner in (names[0], names[-1]):
        assert source_of(part).has(inner)
        assert resolve(f"{part.prefix}{inner}") == (part, inner)
    with pytest.raises(HoldfastError, match="unknown model"):
        resolve(f"{part.prefix}{names[0]}-that-nobody-has")


@pytest.mark.parametrize("name", [n for n in MODEL_SOURCES if MODEL_SOURCES[n].suffixes or MODEL_SOURCES[n].folders])
def test_its_files_are_found(name: str, tmp_path: Path) -> None:
    part = MODEL_SOURCES[name]
    if part.folders:
        assert find_source(str(tmp_path))[0] is part
    else:
        (tmp_path / f"m{part.suffixes[0]}").write_bytes(b"x")
        assert find_source(str(tmp_path / f"m{part.suffixes[0]}"))[0] is part


@pytest.mark.parametrize("module", sorted({part.made.__module__ for part in MODEL_SOURCES.values()}))
def test_its_declaration_is_read_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'timm', 'torchvision'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
