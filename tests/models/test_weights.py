"""Weight files of every kind, good and bad, into models."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.models import Normalised, build_model, load_weights
from tests.models.test_networks import shake


def convnet(num_classes: int = 4, seed: int = 0, mean: float = 0.5) -> Normalised:
    torch.manual_seed(seed)
    return build_model("convnet", num_classes=num_classes, in_channels=1, mean=[mean], std=[0.25]).model


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0)))


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


KEPT = "no normalisation in the weights; kept: mean (0.5), std (0.25)"


def plain(model: Normalised, prefix: str = "") -> dict[str, Tensor]:
    return {prefix + name: value for name, value in model.net.state_dict().items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_our_own_file_brings_everything(tmp_path: Path, suffix: str) -> None:
    source, target = convnet(seed=1, mean=0.3), convnet(seed=2, mean=0.5)
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(source.state_dict(), path)
    notes = load_weights(target, path)
    assert torch.equal(logits(target), logits(source))
    assert notes == ("normalisation from the weights: mean (0.3), std (0.25)",)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "model.", "_orig_mod.", "net.", "module._orig_mod.", "module.model."]
)
@pytest.mark.parametrize("nest", [(), ("state_dict",), ("model",), ("model_state",), ("model", "state_dict")])
def test_prefixes_and_nests_of_training_scripts_are_undone(tmp_path: Path, prefix: str, nest: tuple[str, ...]) -> None:
    source, target = convnet(seed=1), convnet(seed=2)
    content: Any = plain(source, prefix)
    for key in nest:
        content = {key: content, "epoch": 3, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "w.pth")
    notes = load_weights(target, tmp_path / "w.pth")
    assert torch.equal(logits(target), logits(source))
    assert notes == (KEPT, *([f"prefix {prefix!r} stripped from the names in the weights"] if prefix else []))


def test_our_own_model_under_ddp_and_averaging_keeps_its_normalisation(tmp_path: Path) -> None:
    source, target = convnet(seed=1, mean=0.3), convnet(seed=2)
    state = {f"module.{name}": value for name, value in source.state_dict().items()}
    save_file(state | {"n_averaged": torch.tensor(3)}, tmp_path / "w.safetensors")
    notes = load_weights(target, tmp_path / "w.safetensors")
    assert torch.equal(logits(target), logits(source))
    assert "prefix 'module.' stripped from the names in the weights" in notes


def test_a_head_of_another_size_stays_fresh(tmp_path: Path) -> None:
    source, target = convnet(num_classes=1000, seed=1), convnet(num_classes=10, seed=2)
    fresh = target.net.fc.weight.clone()
    torch.save(plain(source), tmp_path / "w.pth")
    notes = load_weights(target, tmp_path / "w.pth")
    assert notes == ("head fc: the weights have 1000 classes, this model 10; replaced", KEPT)
    assert torch.equal(target.net.fc.weight, fresh)
    assert torch.equal(target.net.features[0].weight, source.net.features[0].weight)


def test_a_file_without_a_head_is_a_backbone(tmp_path: Path) -> None:
    source, target = convnet(seed=1), convnet(seed=2)
    fresh = target.net.fc.bias.clone()
    torch.save({k: v for k, v in plain(source).items() if not k.startswith("fc.")}, tmp_path / "w.pth")
    assert load_weights(target, tmp_path / "w.pth") == (
        "head fc: not in the weights; left as freshly initialised",
        KEPT,
    )
    assert torch.equal(target.net.fc.bias, fresh)


def test_both_heads_of_a_distilled_net_are_replaced(tmp_path: Path) -> None:
    name = "deit_tiny_distilled_patch16_224"
    torch.save(timm.create_model(name, num_classes=9, img_size=32, depth=1).state_dict(), tmp_path / "w.pth")
    target = Normalised(timm.create_model(name, num_classes=3, img_size=32, depth=1), [0.5] * 3, [0.5] * 3)
    notes = load_weights(target, tmp_path / "w.pth")
    assert [note.split(":")[0] for note in notes] == [
        "head head",
        "head head_dist",
        "no normalisation in the weights; kept",
    ]


def test_counters_may_be_missing(tmp_path: Path) -> None:
    source, target = convnet(seed=1), convnet(seed=2)
    torch.save({k: v for k, v in plain(source).items() if "num_batches" not in k}, tmp_path / "w.pth")
    assert load_weights(target, tmp_path / "w.pth") == (KEPT,)
    assert torch.equal(logits(target), logits(source))


Spoil = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "features.4.weight"}, "1 missing (features.4.weight)"),
        (lambda s: {k: v for k, v in s.items() if k != "fc.bias"}, "1 missing (fc.bias)"),
        (lambda s: s | {"extra": torch.ones(1)}, "1 unexpected (extra)"),
        (
            lambda s: s | {"features.4.weight": torch.ones(64, 16, 3, 3)},
            "1 of another shape (features.4.weight 64x16x3x3 instead of 64x32x3x3)",
        ),
        (lambda s: s | {"fc.weight": torch.ones(4, 64)}, "(fc.weight 4x64 instead of 4x128)"),
        (lambda s: {f"other.{k}": v for k, v in s.items()}, "15 missing (features.0.weight, features.1.weight, "),
        (lambda s: {f"net.{k}": v for k, v in s.items()} | {"mean": torch.ones(1, 1, 1)}, "1 unexpected (mean)"),
        (
            lambda s: {f"net.{k}": v for k, v in s.items()} | {"mean": torch.ones(3), "std": torch.ones(3)},
            "2 of another shape (mean 3 instead of 1x1x1, ",
        ),
        (
            lambda s: {f"net.{k}": v for k, v in s.items()} | dict.fromkeys(["mean", "std"], torch.zeros(1, 1, 1)),
            "std not above 0",
        ),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(tmp_path: Path, spoil: Spoil, message: str) -> None:
    target = convnet(seed=2)
    before = snapshot(target)
    torch.save(spoil(plain(convnet(seed=1))), tmp_path / "w.pth")
    with pytest.raises(HoldfastError, match=re.escape(message)):
        load_weights(target, tmp_path / "w.pth")
    assert unchanged(target, before)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w.to(torch.complex64), "weights {} hold fc.weight as complex64, where plain numbers are needed"),
        (lambda w: w.to(torch.float8_e4m3fn), "weights {} hold fc.weight as float8_e4m3fn"),
        (lambda w: w.to_sparse(), "weights {} hold fc.weight as float32 in sparse_coo layout"),
        (lambda w: w.to("meta"), "weights {} hold fc.weight as float32 without values"),
        (lambda w: w.to(torch.int8), "1 in whole numbers, quantised perhaps (fc.weight int8)"),
        (lambda w: w > 0, "1 in whole numbers, quantised perhaps (fc.weight bool)"),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_numbers_that_are_no_weights_are_refused(
    tmp_path: Path, spoil: Callable[[Tensor], Tensor], message: str, suffix: str
) -> None:
    model, path = convnet(), tmp_path / f"odd{suffix}"
    before, tensors = snapshot(model), plain(convnet(seed=1))
    tensors["fc.weight"] = odd = spoil(tensors["fc.weight"])
    if suffix == ".pth":
        torch.save(tensors, path)
    elif odd.layout == torch.strided and not odd.is_meta:
        save_file(tensors, path)
    else:
        pytest.skip("safetensors cannot hold it")
    with pytest.raises(HoldfastError, match=re.escape(message.format(path))):
        load_weights(model, path)
    assert unchanged(model, before)


def test_weights_of_any_precision_are_taken(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        save_file({name: value.to(dtype) for name, value in plain(convnet(seed=1)).items()}, tmp_path / "w.safetensors")
        model = convnet()
        load_weights(model, tmp_path / "w.safetensors")
        assert torch.allclose(logits(model), logits(convnet(seed=1)), atol=0.05)


def test_a_long_list_of_misfits_is_counted_not_printed(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "w.pth")
    with pytest.raises(HoldfastError, match=r"unexpected \(conv1.weight, bn1.weight, bn1.bias, ...\)") as caught:
        load_weights(convnet(), tmp_path / "w.pth")
    assert len(str(caught.value)) < 600


class Bomb:
    """Unpickling it writes a file: what a hostile weights file would do."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.target, "boom"))


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))])
def test_code_in_a_weights_file_does_not_run(tmp_path: Path, save: Callable[[Any, Path], None]) -> None:
    save({"state_dict": plain(convnet()), "extra": Bomb(tmp_path / "boom")}, tmp_path / "w.pth")
    target = convnet(seed=2)
    before = snapshot(target)
    with pytest.raises(HoldfastError, match=r"hold more than tensors.*torch.save\(model.state_dict\(\)"):
        load_weights(target, tmp_path / "w.pth")
    assert not (tmp_path / "boom").exists()
    assert unchanged(target, before)


def test_a_whole_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(convnet(), tmp_path / "w.pth")
    with pytest.raises(HoldfastError, match="a whole pickled model"):
        load_weights(convnet(), tmp_path / "w.pth")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("keep", [0, 5, 1000, -100])
def test_a_truncated_file_changes_nothing(tmp_path: Path, suffix: str, keep: int) -> None:
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(plain(convnet(seed=1)), path)
    path.write_bytes(path.read_bytes()[:keep])
    target = convnet(seed=2)
    before = snapshot(target)
    with pytest.raises(HoldfastError, match="damaged"):
        load_weights(target, path)
    assert unchanged(target, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "hold no named tensors but a list"),
        ({"epoch": 3}, "hold no named tensors but a mapping with the keys epoch"),
        ({"state_dict": {}}, "with the keys none"),
        (torch.ones(2), "but a Tensor"),
    ],
)
def test_a_file_without_weights_says_what_it_holds(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(HoldfastError, match=message):
        load_weights(convnet(), tmp_path / "w.pth")


def test_paths_that_are_no_weight_files(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("hello")
    with pytest.raises(HoldfastError, match=r"nothere.pth do not exist"):
        load_weights(convnet(), tmp_path / "nothere.pth")
    with pytest.raises(HoldfastError, match=r"is a folder; give a file, such as .*model.safetensors"):
        load_weights(convnet(), tmp_path)
    with pytest.raises(HoldfastError, match=r"must be .safetensors or .pth.* not '.txt'"):
        load_weights(convnet(), tmp_path / "w.txt")


def test_build_model_starts_from_a_file_and_says_so(tmp_path: Path) -> None:
    source = shake(torchvision.models.resnet18())
    torch.save(source.state_dict(), tmp_path / "w.pth")
    for name in ("torchvision:resnet18", "timm:resnet18"):  # they spell the same network the same way
        built = build_model(name, num_classes=10, mean=[0.4] * 3, std=[0.2] * 3, weights=tmp_path / "w.pth")
        assert built.notes[0] == "head fc: the weights have 1000 classes, this model 10; replaced"
        assert built.notes[1].startswith("no normalisation in the weights; kept: mean (0.4, 0.4, 0.4)")
        assert torch.equal(built.model.net.layer4[1].conv2.weight, source.layer4[1].conv2.weight)
        assert built.model.mean.flatten().tolist() == pytest.approx([0.4] * 3)


def test_a_librarys_weights_are_normalised_as_the_library_does_before_as_the_data_are(tmp_path: Path) -> None:
    """As --pretrained and an audit of the same file do it; what a caller states and what the file holds still win."""
    name, path = "timm:test_resnet", tmp_path / "w.pth"  # its mean and std are 0.5
    source = timm.create_model("test_resnet", num_classes=5)
    torch.save(source.state_dict(), path)
    data: dict[str, Any] = {"num_classes": 5, "statistics": ([0.4] * 3, [0.2] * 3)}

    def mean(**options: Any) -> list[float]:
        return build_model(name, **data | options).model.mean.flatten().tolist()

    assert mean(weights=path) == [0.5] * 3
    assert mean() == pytest.approx([0.4] * 3)
    assert mean(weights=path, mean=[0.3] * 3, std=[0.2] * 3) == pytest.approx([0.3] * 3)
    assert mean(weights=path, in_channels=1, statistics=([0.4], [0.2])) == [0.5] * 3
    torch.save(Normalised(source, [0.1] * 3, [0.2] * 3).state_dict(), path)
    assert mean(weights=path) == pytest.approx([0.1] * 3)


def test_colour_weights_take_grey_images(tmp_path: Path) -> None:
    source = shake(timm.create_model("resnet18", num_classes=5))
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    built = build_model(
        "timm:resnet18", num_classes=5, in_channels=1, mean=[0.0], std=[1.0], weights=tmp_path / "w.safetensors"
    )
    x = torch.rand(2, 1, 32, 32)
    assert torch.equal(built.model.eval()(x), source(x.repeat(1, 3, 1, 1)))
    assert built.notes[0] == "timm:resnet18 takes colour: it sees grey images three times over"


def test_a_transformers_weights_follow_to_another_image_size(tmp_path: Path) -> None:
    source = timm.create_model("vit_tiny_patch16_224", num_classes=5)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    built = build_model("timm:vit_tiny_patch16_224", num_classes=5, image_size=64, weights=tmp_path / "w.safetensors")
    assert torch.equal(built.model.net.blocks[3].mlp.fc1.weight, source.blocks[3].mlp.fc1.weight)
    assert torch.equal(built.model.net.pos_embed[:, 0], source.pos_embed[:, 0])
    assert built.notes[0] == "names and sizes in the weights translated to this model's"


@pytest.mark.slow
def test_torchvisions_published_densenet_names_are_understood(tmp_path: Path) -> None:
    source = torchvision.models.densenet121(num_classes=3)
    first_release = {
        re.sub(r"(denselayer\d+\.(norm|conv))([12])\.", r"\1.\3.", k): v for k, v in source.state_dict().items()
    }
    assert first_release.keys() != source.state_dict().keys()
    torch.save(first_release, tmp_path / "w.pth")
    model = build_model("torchvision:densenet121", num_classes=3, weights=tmp_path / "w.pth").model
    assert all(torch.equal(v, model.net.state_dict()[k]) for k, v in source.state_dict().items())


def test_auxiliary_classifiers_in_a_file_are_left_out(tmp_path: Path) -> None:
    source = torchvision.models.googlenet(init_weights=False, aux_logits=True, num_classes=3)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    model = build_model("torchvision:googlenet", num_classes=3, weights=tmp_path / "w.pth").model
    assert torch.equal(model.net.conv1.conv.weight, source.conv1.conv.weight)


def test_networks_that_ask_for_metadata_load_all_the_same(tmp_path: Path) -> None:
    source = torchvision.models.mnasnet0_5(num_classes=3)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    model = build_model("torchvision:mnasnet0_5", num_classes=3, weights=tmp_path / "w.safetensors").model
    assert all(torch.equal(v, model.net.state_dict()[k]) for k, v in source.state_dict().items())
