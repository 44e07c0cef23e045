"""Registries: every thread sees all parts, and a file that fails to import does not hide the others for good."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from holdfast.parts import Part, Registry

DECLARATION = """
from {package} import REGISTRY

@REGISTRY.declare("{name}", about="a part of a test")
def {name}(): ...
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Part]:
    """Of a package with the parts early and late; between the two files half a second passes."""
    package = "parts_" + tmp_path.name.replace("-", "_")
    home = tmp_path / package
    home.mkdir()
    own = 'from holdfast.parts import Part, Registry\nREGISTRY = Registry("part", Part, __name__)\n'
    (home / "__init__.py").write_text(own)
    for name in ("early", "late"):
        (home / f"{name}.py").write_text(DECLARATION.format(package=package, name=name))
    (home / "later.py").write_text("")
    (home / "in_between.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__(package)
    found: Registry[Part] = sys.modules[package].REGISTRY
    return found


def test_every_thread_sees_all_parts(registry: Registry[Part]) -> None:
    """Corrupted sets are made by many threads: one that came second was told that "frost" is unknown."""
    threads, together = 8, Barrier(8)

    def names(_: int) -> list[str]:
        together.wait()
        return list(registry)

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(names, range(threads))) == [["early", "late"]] * threads


def test_a_part_may_look_at_its_own_registry(registry: Registry[Part]) -> None:
    (Path(sys.modules[registry.home].__path__[0]) / "later.py").write_text(
        f"from {registry.home} import REGISTRY\nassert 'early' in REGISTRY\n"
    )
    assert set(registry) == {"early", "late"}


def test_what_failed_to_import_is_tried_again(registry: Registry[Part]) -> None:
    """And is not reported as an unknown name the second time."""
    between = Path(sys.modules[registry.home].__path__[0]) / "in_between.py"
    between.write_text("import no_such_library\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_library"):
            registry["late"]
