"""The Python surface in ten lines, as the design has it, runs in a notebook from the first cell to the last."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "ten_lines.ipynb"
SURFACE = """
import holdfast as hf
run = hf.fit("photos/", model="resnet50", pretrained=True, method="lff", ascent="fsam")
audit = hf.audit(run, "photos/", against="runs/before", fail_under={"worst_group_accuracy": 0.7})
audit["worst_group_accuracy"].value, audit.to_dataframe(), audit.passed, audit.report("report.html")
hf.attacks.pgd(model, x, y, radius=8 / 255)
hf.corruptions.corrupt(x, "gaussian_noise", severity=3)
hf.optim.FriendlySAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.05)
hf.find_shortcuts("photos/")
hf.compare(
hf.detect.fit("normal/")
hf.predict(run, "incoming/")
"""
NARROW = {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)}
STAND_IN = f"""
# What takes long is made small: timm's resnet50 has four blocks, and attacks take few steps. Its weights are in a cache
# as the hub fills it, and are found there, since this test has no network.
from dataclasses import replace
from timm.models import _registry, resnet
from holdfast.audits.checks.attacks import attack_plans

small = {{"block": resnet.BasicBlock, **{NARROW}}}
_registry._model_entrypoints["resnet50"] = lambda pretrained=False, **options: resnet._create_resnet(
    "resnet50", pretrained, **small, **options
)
few = {{"apgd_steps": 5, "queries": 10, "long_steps": 5, "surrogate_epochs": 1}}
attack_plans.BUDGETS["cpu"] = replace(attack_plans.BUDGETS["cpu"], **few)
"""


def code_of(notebook: Any) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def publish(home: Path) -> None:
    """Weights of the narrow resnet50 for ImageNet's classes, where the hub keeps what timm publishes for it."""
    from safetensors.torch import save_file
    from timm.models import resnet

    place, commit = home / "hub" / "models--timm--resnet50.a1_in1k", "0" * 40
    for folder in (place / "snapshots" / commit, place / "refs"):
        folder.mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    network = resnet.ResNet(resnet.BasicBlock, num_classes=1000, **NARROW)
    save_file(network.state_dict(), place / "snapshots" / commit / "model.safetensors")


def test_the_notebook_has_the_lines_of_the_design() -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = "\n".join(code_of(notebook))
    ast.parse(code)
    assert [line for line in SURFACE.strip().splitlines() if line not in code] == []
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "outputs stay out: they are this machine's"


@pytest.mark.slow
@pytest.mark.dev
def test_the_ten_lines_run_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    publish(tmp_path / "cache")
    surroundings = {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STAND_IN))
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    nbformat.write(notebook, tmp_path / "executed.ipynb")

    def shown(source: str, kind: str = "text/html") -> str:
        (cell,) = [cell for cell in notebook.cells if source in cell.source]
        return "".join(out["data"].get(kind, "") for out in cell.outputs if "data" in out)

    run, audit = shown("run = hf.fit"), shown("audit = hf.audit")
    assert "timm&#39;s resnet50.a1_in1k" in run, "published weights were loaded"
    assert "the weights have 1000 classes, this model 2" in run
    assert "epoch" in run
    assert "<table>" in run
    assert audit.index("worst_group_accuracy") < audit.index("<table>"), "a failed gate stands before the numbers"
    assert "Every check" in audit
    assert "before" in audit
    assert "<progress" not in run + audit, "bars go when the work is done"
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert shown("hf.attacks.pgd", "text/plain") == "torch.Size([4, 3, 16, 16])"
    assert max(len(shown(source, "text/plain")) for source in ("find_shortcuts(", "hf.compare(")) < 2000
