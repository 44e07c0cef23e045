"""What holds of the package as a whole."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
HEAVY = {"torch", "torchvision", "timm", "numpy", "sklearn", "matplotlib"}
QUICK = ["holdfast", "holdfast.errors", "holdfast.settings", "holdfast.types", "holdfast.cli"]


def public_modules() -> list[str]:
    dotted = (path.relative_to(SOURCE).with_suffix("").parts for path in sorted(SOURCE.rglob("*.py")))
    names = (parts[:-1] if parts[-1] == "__init__" else parts for parts in dotted)
    return [".".join(parts) for parts in names if not any(part.startswith("_") for part in parts)]


def test_version_is_the_one_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert holdfast.__version__ == project["version"]


def test_package_says_that_it_is_typed() -> None:
    assert files("holdfast").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", public_modules())
def test_every_public_module_imports(name: str) -> None:
    assert import_module(name).__name__ == name


def test_every_name_that_is_promised_is_there() -> None:
    for name in getattr(holdfast, "__all__", []):
        assert getattr(holdfast, name) is not None


@pytest.mark.parametrize("name", QUICK)
def test_import_is_quick(name: str) -> None:
    code = f"import sys, {name}; print(*({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_methods_and_ascents_are_listed_without_torch() -> None:
    code = "import sys; from holdfast.parts import ASCENTS as A, METHODS as M; print(len(M), len(A), "
    code += f"*({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    methods, ascents, *heavy = done.stdout.split()
    assert (int(methods), int(ascents)) >= (18, 11)
    assert heavy == []


@pytest.mark.slow
def test_a_tiny_training_begins_without_packages_that_it_does_not_need(tmp_path: Path) -> None:
    """They took 4 of 7.5 seconds before the first step. torch's optimizers import its compiler themselves, later."""
    unneeded = {"sklearn", "scipy.stats", "matplotlib", "torchvision", "timm", "pandas", "torch._dynamo"}
    code = (
        "import sys; from holdfast.train.stage_run import StageRun; from holdfast.cli import main\n"
        f"def begin(*_, **__): print('began', *({unneeded!r} & set(sys.modules))); sys.exit()\n"
        "StageRun.__init__ = begin\n"
        f"main(['train', '--data', 'digits', '--device', 'cpu', '--quiet', '--out', {str(tmp_path / 'run')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["began"], done.stderr


def test_the_module_runs_as_the_command_does() -> None:
    ran = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, f"holdfast {holdfast.__version__}")
    refused = subprocess.run([sys.executable, "-m", "holdfast", "trian"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "train" in refused.stderr
