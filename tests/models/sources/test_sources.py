"""Every source opens to the same numbers as the network it was made from; what cannot be opened says why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.models import IMAGENET, LoadedModel, ModelCard, Normalised, build_model, open_model, save_model
from holdfast.models.weights import hash_tensors
from tests.models.sources.small import Small

CLASSES = tuple("abc")
X = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def network() -> Normalised:
    torch.manual_seed(3)
    return build_model("convnet", num_classes=3, in_channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)).model.eval()


def opened(spec: Any, **options: Any) -> LoadedModel:
    return open_model(str(spec), **{"shape": (3, 16, 16), **options})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_run_folder(tmp_path: Path) -> None:
    model = network()
    card = ModelCard("convnet", 3, CLASSES, 3, 16, mean=(0.0,) * 3, std=(1.0,) * 3)
    save_model(tmp_path / "run", model, card=card)
    found = opened(tmp_path / "run")
    assert torch.allclose(found.model(X), model(X), atol=1e-6)
    assert (found.source, found.classes, found.size, found.gradients) == ("run", CLASSES, (16, 16), True)
    assert found.preprocessing is not None
    assert found.preprocessing.mean == pytest.approx((0.1, 0.2, 0.3))
    assert found.hash == hash_tensors(model.state_dict())
    with pytest.raises(HoldfastError, match=f"no model in {tmp_path}, but in {tmp_path / 'run'}"):
        opened(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(HoldfastError, match="model.json is missing"):
        opened(tmp_path / "empty")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.model."])
@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a_weight_file_with_its_architecture(tmp_path: Path, prefix: str, kind: str) -> None:
    model = network()
    tensors = {f"{prefix}{name}": value for name, value in model.net.state_dict().items()}
    path = tmp_path / f"weights.{kind}"
    torch.save(tensors, path) if kind == "pth" else save_file(tensors, path)
    found = opened(path, model="convnet", num_classes=7)  # the file's own head counts, not the data's
    assert torch.allclose(found.model(X), model.net(X), atol=1e-6)
    assert found.preprocessing is None  # such a file does not say
    assert any("no normalisation in the weights" in note for note in found.notes)
    assert any("stripped" in note for note in found.notes) == bool(prefix)


def test_normalisation_beside_the_weights_is_what_the_model_states(tmp_path: Path) -> None:
    model = network()
    torch.save(model.state_dict(), tmp_path / "w.pth")
    found = opened(tmp_path / "w.pth", model="convnet")
    assert torch.allclose(found.model(X), model(X), atol=1e-6)
    assert found.preprocessing is not None
    assert found.preprocessing.std == pytest.approx((0.5, 0.6, 0.7))


def test_an_architecture_brings_its_librarys_normalisation(tmp_path: Path) -> None:
    net = build_model("timm:test_resnet", num_classes=4).model.net
    torch.save({"state_dict": net.state_dict()}, tmp_path / "w.pth")
    found = opened(tmp_path / "w.pth", model="timm:test_resnet", shape=(3, 32, 32))
    assert found.model(torch.rand(1, 3, 32, 32)).shape == (1, 4)
    assert found.preprocessing is not None
    assert found.preprocessing.mean == pytest.approx((0.5, 0.5, 0.5))  # timm's settings of test_resnet


def test_an_architecture_of_one_size_has_images_brought_to_it(tmp_path: Path) -> None:
    net = build_model("timm:test_vit", num_classes=4).model.net
    torch.save(net.state_dict(), tmp_path / "w.pth")
    found = opened(tmp_path / "w.pth", model="timm:test_vit")
    assert found.size == (160, 160)
    assert found.model(X).shape == (5, 4)
    net = build_model("timm:test_vit", num_classes=4, image_size=(32, 32)).model.net.eval()
    torch.save(net.state_dict(), tmp_path / "w.pth")
    found = opened(tmp_path / "w.pth", model="timm:test_vit", image_size=(32, 32), shape=(3, 32, 32))
    x = torch.rand(2, 3, 32, 32)
    assert torch.allclose(found.model(x), net((x - 0.5) / 0.5), atol=1e-5)


def test_weight_files_that_do_not_do(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "w.pth"
    tensors = model.net.state_dict()
    torch.save(tensors, path)
    with pytest.raises(HoldfastError, match="name the architecture they belong to with --model"):
        opened(path)
    with pytest.raises(HoldfastError, match="exists in timm and torchvision"):
        opened(path, model="resnet18")
    torch.save({k: v for k, v in tensors.items() if "features.0" not in k}, path)
    with pytest.raises(HoldfastError, match=r"1 missing \(features.0.weight\)"):
        opened(path, model="convnet")
    torch.save({k: v for k, v in tensors.items() if "fc." not in k}, path)
    with pytest.raises(HoldfastError, match="lacks the classifier of convnet"):
        opened(path, model="convnet", num_classes=3)
    torch.save(model, path)
    for asked in ({}, {"model": "convnet"}):  # to name an architecture would not help
        with pytest.raises(HoldfastError, match="a whole pickled model perhaps.*python:module:function"):
            opened(path, **asked)


SOURCE = """
import torch
from torch import nn

def make():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 3))
    model.classes = ["a", "b", "c"]
    model.mean, model.std = [0.1, 0.2, 0.3], [0.5, 0.5, 0.5]
    return model

def function():
    return lambda x: torch.from_numpy(x.detach().numpy().mean((2, 3)))

def needs(argument):
    pass

def fails():
    raise ValueError("no such table")

def number():
    return 3

CONSTANT = 4
"""


def test_python_code_of_the_user(here: Path) -> None:
    (here / "my_models.py").write_text(SOURCE)
    found = opened("python:my_models:make")
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 3))
    expected = Normalised(net, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    assert torch.allclose(found.model(X), expected(X), atol=1e-6)
    assert (found.classes, found.gradients, found.channels) == (CLASSES, True, 3)
    assert any(f"ran code of yours, from {here}" in note for note in found.notes)
    assert str(here) not in sys.path


def test_a_plain_callable_has_no_gradients_and_no_hash(here: Path) -> None:
    (here / "my_models.py").write_text(SOURCE)
    found = opened("python:my_models:function")
    assert torch.allclose(found.model(X), X.mean((2, 3)))
    assert not found.gradients
    assert found.no_gradients is not None
    assert found.hash is None
    assert any("not a torch module" in note for note in found.notes)


def test_a_timm_network_states_its_own_settings(here: Path) -> None:
    (here / "hub.py").write_text("import timm\ndef make():\n    return timm.create_model('test_resnet')\n")
    found = opened("python:hub:make", shape=(1, 20, 20))
    assert found.preprocessing is not None
    assert found.preprocessing.mean == pytest.approx((0.5, 0.5, 0.5))
    assert (found.size, found.channels) == ((160, 160), 3)
    assert "images are resized from 20x20 to 160x160 for python:hub:make" in found.notes
    assert "python:hub:make takes colour: it sees grey images three times over" in found.notes


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("python:my_models", "names no function; write python:package.module:function"),
        (
            "python:code/my_models.py:make",
            "is a path; give the module's name and start in its folder: python:my_models:",
        ),
        ("python:my_model:make", "no Python module 'my_model'; did you mean 'my_models'?"),
        ("python:my_models:mak", "unknown function of my_models 'mak'; did you mean 'make'"),
        ("python:my_models:needs", "must take nothing and return a model"),
        ("python:my_models:fails", "failed: ValueError: no such table"),
        ("python:my_models:number", "returned a int; it must return a torch module"),
        ("python:my_models:CONSTANT", "is a int, not a function"),
        ("python:broken:make", "importing broken failed: SyntaxError"),
        ("python:lacking:make", "needs the package 'surely_not_installed'"),
    ],
)
def test_what_python_code_may_do_wrong(here: Path, spec: str, message: str) -> None:
    (here / "my_models.py").write_text(SOURCE)
    (here / "broken.py").write_text("def make(:\n")
    (here / "lacking.py").write_text("import surely_not_installed\n")
    with pytest.raises(HoldfastError) as caught:
        opened(spec)
    assert message in str(caught.value)


def test_torchscript(tmp_path: Path) -> None:
    net = Small(3, 3, 16).eval()
    with pytest.warns((FutureWarning, DeprecationWarning)):
        torch.jit.save(torch.jit.script(net), tmp_path / "m.pt")  # type: ignore[no-untyped-call]
    found = opened(tmp_path / "m.pt")
    assert torch.allclose(found.model(X), net(X), atol=1e-6)
    assert (found.source, found.gradients, found.channels, found.preprocessing) == ("torchscript", True, 3, None)
    (tmp_path / "bad.torchscript").write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match="cannot read .*bad.torchscript as TorchScript"):
        opened(tmp_path / "bad.torchscript")


def test_what_a_model_returns_is_said_or_refused(here: Path) -> None:
    (here / "odd.py").write_text(
        "def two():\n    return lambda x: (x.mean((2, 3)), x)\n"
        "def one():\n    return lambda x: {'scores': x.mean((2, 3))}\n"
        "def maps():\n    return lambda x: x\n"
    )
    assert "took the only tensor of a dict that the model returns" in opened("python:odd:one").notes
    with pytest.raises(HoldfastError, match="a tuple with 2 tensors"):
        opened("python:odd:two")
    with pytest.raises(HoldfastError, match="feature maps"):
        opened("python:odd:maps")


def test_the_user_may_state_preprocessing_and_size(here: Path) -> None:
    (here / "my_models.py").write_text("from torch import nn\ndef make():\n    return nn.Flatten()\n")
    found = opened("python:my_models:make", preprocessing=IMAGENET, image_size=(2, 2))
    assert found.preprocessing == IMAGENET
    assert found.model(X).shape == (5, 12)


def test_half_precision_weights_take_the_same_images(here: Path) -> None:
    (here / "halves.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(768, 3)).to(torch.bfloat16)\n"
    )
    found = opened("python:halves:make")
    outputs = found.model(X)
    assert outputs.dtype == torch.float32
    exact = nn.functional.linear(X.flatten(1), *(p.float() for p in found.model.net.parameters()))
    assert torch.allclose(outputs, exact, atol=0.05)
    assert "weights are bfloat16: images are turned into that" in found.notes


def test_names_as_transformers_keeps_them(here: Path) -> None:
    (here / "hf.py").write_text(
        "from types import SimpleNamespace as S\nfrom torch import nn\n"
        "class Net(nn.Module):\n    config = S(id2label={1: 'dog', 0: 'cat', 2: 'owl'})\n"
        "    def forward(self, x):\n        return S(logits=x.mean((2, 3)), loss=None)\n"
    )
    found = opened("python:hf:Net")
    assert found.classes == ("cat", "dog", "owl")
    assert "took 'logits' of a SimpleNamespace that the model returns" in found.notes


def test_names_that_nobody_gave_are_none(here: Path) -> None:
    (here / "unnamed.py").write_text(
        "from types import SimpleNamespace as S\nfrom torch import nn\n"
        "class Net(nn.Module):\n    config = S(id2label={0: 'LABEL_0', 1: 'LABEL_1', 2: 'LABEL_2'})\n"
        "    def forward(self, x):\n        return x.mean((2, 3))\n"
    )
    assert opened("python:unnamed:Net").classes is None


HEADS = ("num_classes=7)", ")\n    net.reset_classifier(7)", ")\n    net.fc = nn.Linear(net.fc.in_features, 7)")


@pytest.mark.parametrize(("head", "outputs"), [*((head, 7) for head in HEADS), (")", 1000)])
def test_names_of_published_classes_are_those_of_as_many_outputs(here: Path, head: str, outputs: int) -> None:
    """However the head came there: the names of ImageNet's classes are not those of seven outputs."""
    body = f'    net = timm.create_model("test_resnet", {head}\n    return net\n'
    (here / f"headed{outputs}.py").write_text(f"import timm\nfrom torch import nn\ndef make():\n{body}")
    found = opened(f"python:headed{outputs}:make")
    assert (found.classes is None) == (outputs == 7)
    assert found.preprocessing is not None
    said = "gives 7 outputs, so the 1000 class names" in " ".join(found.notes)
    assert said == (outputs == 7)


def test_names_that_the_user_gave_are_kept(here: Path) -> None:
    """A wrong number of them is a mistake that is refused later, not one to be passed over."""
    (here / "wrong.py").write_text(
        "import timm\ndef make():\n    net = timm.create_model('test_resnet', num_classes=7)\n"
        "    net.classes = ('cat', 'dog')\n    return net\n"
    )
    assert opened("python:wrong:make").classes == ("cat", "dog")


def test_hashes_follow_the_numbers() -> None:
    a, b = network(), network()
    assert hash_tensors(a.state_dict()) == hash_tensors(b.state_dict())
    with torch.no_grad():
        next(b.parameters())[0, 0, 0, 0] += 1e-7
    assert hash_tensors(a.state_dict()) != hash_tensors(b.state_dict())
    assert hash_tensors({}) is None
    assert hash_tensors({"n": torch.tensor(3), "e": torch.zeros(0)}) is not None
