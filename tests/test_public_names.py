"""Every public function, optimiser and detector has a runnable example and a page in the API reference.

Nothing here names a function: what is public is what ``holdfast`` and its modules list in ``__all__``.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.optim import Optimizer

import holdfast
from holdfast.detect import Detector

PAGES = Path(__file__).parents[1] / "docs" / "reference" / "api"
FOR_PARTS = {"ascents", "audits", "methods", "parts", "reports", "settings"}
"""Modules for those who write parts; docs/reference documents them by other pages."""
MODULES = [
    name for name in holdfast.__all__ if isinstance(getattr(holdfast, name), ModuleType) and name not in FOR_PARTS
]


def public(module: ModuleType) -> dict[str, Any]:
    """What a module offers: its ``__all__`` or, without one, the functions that it defines."""
    if hasattr(module, "__all__"):
        found = {name: getattr(module, name) for name in module.__all__}
    else:
        found = {name: own for name, own in vars(module).items() if getattr(own, "__module__", "") == module.__name__}
    kinds = (name for name, own in found.items() if inspect.isfunction(own) or inspect.isclass(own))  # no aliases
    return {name: found[name] for name in kinds if not name.startswith("_")}


OBJECTS = {
    f"{module.__name__}.{name}": own
    for module in (holdfast, *(import_module(f"holdfast.{name}") for name in MODULES))
    for name, own in public(module).items()
}


def is_called(own: Any) -> bool:
    """Whether a user calls it: a function, an optimiser or a detector, and not what one returns."""
    kinds = (Optimizer, Detector)
    return inspect.isfunction(own) or (inspect.isclass(own) and issubclass(own, kinds) and own not in kinds)


CALLED = [name for name, own in OBJECTS.items() if is_called(own)]


def test_the_list_is_not_empty() -> None:
    assert {"holdfast.fit", "holdfast.attacks.pgd", "holdfast.optim.SAM", "holdfast.detect.KNN"} <= {*CALLED}
    assert len(CALLED) > 120


@pytest.mark.parametrize("name", CALLED)
def test_it_has_a_runnable_example(name: str) -> None:
    """The doctests of the suite run what stands after the prompts."""
    assert ">>> " in (OBJECTS[name].__doc__ or ""), "give its docstring an example"


@pytest.mark.parametrize(
    "name", [n for n in CALLED if OBJECTS[n].__module__.startswith("holdfast") and inspect.isfunction(OBJECTS[n])]
)
def test_its_arguments_and_result_have_types(name: str) -> None:
    signature = inspect.signature(OBJECTS[name])
    bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert bare == []
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", OBJECTS)
def test_it_has_a_description(name: str) -> None:
    own = OBJECTS[name]
    assert (own.__doc__ or "").strip(), "say what it is"
    made_up = rf"{own.__name__}\((\w+: .*)?\)$"
    assert not re.match(made_up, own.__doc__), "this is what dataclass makes up"


@pytest.mark.parametrize("name", ["", *MODULES])
def test_the_api_reference_documents_every_public_name_of_a_module(name: str) -> None:
    page = PAGES / f"{name or 'holdfast'}.md"
    assert page.is_file(), f"write {page}"
    module = re.escape(f"holdfast.{name}" if name else "holdfast")
    text = page.read_text(encoding="utf-8")
    assert re.search(rf"^\.\. automodule:: {module}\n(   :.*\n)*   :members:$", text, re.M), "all of __all__"
    assert ":exclude-members:" not in text
    own = import_module(f"holdfast.{name}" if name else "holdfast")
    assert {*public(own)} <= {*dir(own)}, "Sphinx, and completion, see what dir() lists"
    assert f"\n{page.stem}\n" in (PAGES / "index.md").read_text(encoding="utf-8"), "in the table of contents"
