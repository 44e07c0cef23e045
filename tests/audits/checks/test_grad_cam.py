"""Grad-CAM against closed forms and the grad-cam package, and what it leaves behind: nothing."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.audits.checks.saliency.grad_cam import default_layer, grad_cam
from holdfast.errors import HoldfastError
from holdfast.models import build_model
from tests.conftest import same_weights


class OneFilterAClass(nn.Module):
    """Logit k is the mean over the plane of channel k: the map of class k is then channel k, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.planes = nn.Identity()
        self.head = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.planes(x).mean((2, 3)))
        return logits


def make_net(name: str, side: int, classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(name, num_classes=classes, image_size=side).model
    for p in model.parameters():  # heads that begin at zero would give maps of zeros
        if p.ndim == 2 and not p.any():
            nn.init.normal_(p, std=0.02)
    return model


def spread(maps: Tensor) -> Tensor:
    """Each map stretched to [0, 1], as the package gives it."""
    low = maps.amin((1, 2), keepdim=True)
    return (maps - low) / (maps.amax((1, 2), keepdim=True) - low).clamp_min(1e-7)


def test_closed_form() -> None:
    x = torch.rand(2, 3, 6, 4)
    target = torch.tensor([2, 0])
    expected = torch.stack([x[0, 2] / x[0, 2].max(), x[1, 0] / x[1, 0].max()])
    torch.testing.assert_close(grad_cam(OneFilterAClass(), x, target), expected)


def test_the_default_target_is_the_prediction() -> None:
    model, x = make_net("convnet", 16), torch.rand(5, 3, 16, 16)
    with torch.no_grad():
        predicted = model.eval()(x).argmax(1)
    assert torch.equal(grad_cam(model, x), grad_cam(model, x, predicted))
    assert not torch.equal(grad_cam(model, x), grad_cam(model, x, (predicted + 1) % 4))


def test_evidence_against_the_class_is_no_map() -> None:
    model = OneFilterAClass()
    with torch.no_grad():
        model.head.weight.neg_()
    assert not grad_cam(model, torch.rand(1, 3, 4, 4), torch.tensor([1])).any()


def test_the_map_lies_where_the_evidence_is() -> None:
    """A convolution that answers to bright spots, pooled: the map follows a spot around the picture."""
    net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    nn.init.ones_(net[0].weight)  # type: ignore[arg-type]
    model = nn.Sequential(net, nn.Linear(1, 2, bias=False))
    nn.init.ones_(model[1].weight)  # type: ignore[arg-type]
    for row, column in ((2, 11), (13, 4)):
        x = torch.zeros(1, 1, 16, 16)
        x[0, 0, row, column] = 1
        found = grad_cam(model, x)[0]
        assert found[row - 1 : row + 2, column - 1 : column + 2].min() == 1
        assert found.sum() == 9


def test_channels_last_planes_and_any_proportions() -> None:
    class LastAxis(OneFilterAClass):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.planes(x.permute(0, 2, 3, 1)).mean((1, 2)))
            return logits

    x = torch.rand(2, 3, 12, 5)
    torch.testing.assert_close(grad_cam(LastAxis(), x), grad_cam(OneFilterAClass(), x))


@pytest.mark.parametrize(
    ("name", "side", "layer"),
    [
        ("convnet", 16, "net.features"),
        ("torchvision:resnet18", 32, "net.layer3"),  # layer4 has a single place left
        ("torchvision:resnet18", 64, "net.layer4"),
        ("torchvision:vgg11", 32, "net.features.19"),  # the adaptive pooling after it only repeats one place
        ("timm:vit_tiny_patch16_224", 48, "net.blocks.11.norm1"),
        ("timm:convnext_atto", 64, "net.norm_pre"),
    ],
)
def test_default_layers(name: str, side: int, layer: str) -> None:
    model = make_net(name, side)
    assert default_layer(model, torch.rand(2, 3, side, side)) in [model.get_submodule(layer)]


@pytest.mark.parametrize(
    ("name", "side", "layer", "prefix"),
    [
        ("convnet", 16, "net.features", None),
        ("convnet", 16, "net.features.4", None),  # an in-place ReLU follows
        ("torchvision:resnet18", 64, "net.layer2", None),
        ("timm:vit_tiny_patch16_224", 48, "net.blocks.11.norm1", 1),
        ("timm:vit_tiny_patch16_224", 48, "net.blocks.5.norm1", 1),
        ("timm:deit_tiny_distilled_patch16_224", 48, "net.blocks.11.norm1", 2),
    ],
)
@pytest.mark.dev
@pytest.mark.filterwarnings("ignore")
def test_against_the_grad_cam_package(name: str, side: int, layer: str, prefix: int | None) -> None:
    package = pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model, x = make_net(name, side).eval(), torch.rand(2, 3, side, side).repeat(4, 1, 1, 1)
    target = torch.arange(4).repeat_interleave(2)  # fresh nets predict one class, against which all may speak
    grid = side // 16

    def planes(tokens: Tensor) -> Tensor:
        return tokens[:, prefix:].reshape(len(tokens), grid, grid, -1).permute(0, 3, 1, 2)

    ours = grad_cam(model, x, target, layer=layer)
    reshape = planes if prefix is not None else None
    with package.GradCAM(model, [model.get_submodule(layer)], reshape_transform=reshape) as cam:
        theirs = torch.from_numpy(cam(input_tensor=x, targets=[ClassifierOutputTarget(int(t)) for t in target]))
    assert spread(ours).std() > 0.05  # else equality would say little
    torch.testing.assert_close(spread(ours), theirs, atol=1e-5, rtol=1e-4)


def test_tokens_return_to_their_places() -> None:
    """Patches without mixing: the map of a bright patch is that patch, with a class token in front."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(1, 2, 4, stride=4, bias=False)
            nn.init.ones_(self.cut.weight)
            self.norm1 = nn.Identity()
            self.head = nn.Linear(2, 2, bias=False)
            nn.init.ones_(self.head.weight)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.cut(x).flatten(2).transpose(1, 2)
            tokens = self.norm1(torch.cat([9 * torch.ones_like(tokens[:, :1]), tokens], 1))
            logits: Tensor = self.head(tokens.mean(1))
            return logits

    x = torch.zeros(1, 1, 8, 12)
    x[0, 0, 4:, 8:] = 1
    expected = F.interpolate(torch.tensor([[[[0.0, 0, 0], [0, 0, 1]]]]), size=(8, 12), mode="bilinear")[0]
    torch.testing.assert_close(grad_cam(Patches(), x), expected / expected.max())


@pytest.mark.parametrize("frozen", [False, True])
def test_leaves_everything_as_it_was(frozen: bool) -> None:
    model, x = make_net("torchvision:resnet18", 32), torch.rand(2, 3, 32, 32)
    model.train()
    model.get_submodule("net.layer1").eval()
    model.requires_grad_(not frozen)
    model(x).sum().backward() if not frozen else None
    before, modes = copy.deepcopy(model), [m.training for m in model.modules()]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    with torch.no_grad():
        maps = grad_cam(model, x)
    assert maps.any()
    assert not maps.requires_grad
    assert not x.requires_grad
    assert same_weights(model, before)
    assert [m.training for m in model.modules()] == modes
    assert all(p.requires_grad is not frozen for p in model.parameters())
    for p, grad in zip(model.parameters(), grads, strict=True):
        assert (p.grad is None) if grad is None else torch.equal(p.grad, grad)  # type: ignore[arg-type]
    assert not any(m._forward_hooks for m in model.modules())


def test_hooks_go_also_when_the_model_fails() -> None:
    model = make_net("convnet", 16)
    with pytest.raises(RuntimeError):
        grad_cam(model, torch.rand(1, 5, 16, 16), layer="net.features")
    with pytest.raises(RuntimeError):
        grad_cam(model, torch.rand(1, 5, 16, 16))
    assert not any(m._forward_hooks for m in model.modules())


BAD = [
    ({"layer": "net.featurs"}, "unknown layer 'net.featurs'; did you mean 'net.features'"),
    ({"layer": nn.ReLU()}, "layer ReLU is not part of the model"),
    ({"layer": "net.fc"}, r"the layer gives \(2, 4\); Grad-CAM needs planes"),
    ({"target": torch.tensor([0, 4])}, r"target classes must be in 0\.\.3, got 0\.\.4"),
    ({"target": torch.tensor([0])}, r"one class an image, \(2,\), got \(1,\)"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_input(given: dict[str, object], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        grad_cam(make_net("convnet", 16), torch.rand(2, 3, 16, 16), **given)  # type: ignore[arg-type]


def test_a_net_without_planes_says_so() -> None:
    with pytest.raises(HoldfastError, match="no layer of Sequential keeps the plane of a 4×4 picture; name one"):
        grad_cam(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), torch.rand(1, 3, 4, 4))
