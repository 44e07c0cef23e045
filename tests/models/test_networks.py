"""holdfast's own networks, against published sizes and against forward passes written out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchvision.models import vgg16_bn

from holdfast.models import Normalised, build_model
from holdfast.models.sources.holdfast_networks import NETWORKS, network

LIGHT = [name for name in NETWORKS if name != "cifar-wrn-28-10"]


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [
        ("cifar-resnet18", 10, 11_173_962),
        ("cifar-preactresnet18", 10, 11_172_170),
        ("cifar-vgg16-bn", 10, 14_728_266),
        ("cifar-vgg16", 10, 14_719_818),
        ("cifar-wrn-28-10", 10, 36_479_194),
        ("cifar-wrn-28-10", 100, 36_536_884),
    ],
)
def test_sizes_are_the_published_ones(name: str, classes: int, count: int) -> None:
    with torch.device("meta"):
        assert parameters(network(name)(classes, 3)) == count


PICTURES = [(1, 16, 3), (3, 28, 2), (3, 33, 11), (3, 16, 10), (1, 28, 7), (1, 32, 4)]


@pytest.mark.parametrize(
    ("name", "channels", "side", "classes"),
    [("convnet", *picture) for picture in PICTURES] + [(n, *p) for n in LIGHT[1:] for p in PICTURES[:3]],
)
def test_every_net_learns_from_every_plausible_picture(name: str, channels: int, side: int, classes: int) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=classes, in_channels=channels, image_size=side).model
    logits = model(torch.rand(2, channels, side, side))
    assert logits.shape == (2, classes)
    F.cross_entropy(logits, torch.tensor([0, classes - 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(p.grad.abs().sum() > 0 for n, p in model.named_parameters() if n.endswith("weight"))
    assert model.eval()(torch.rand(1, channels, side, side)).isfinite().all()


def test_the_wide_net_runs_both_ways() -> None:
    net = network("cifar-wrn-28-10")(5, 1)
    net(torch.rand(2, 1, 8, 8)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("name", LIGHT)
def test_convolutions_start_with_he_variance_over_the_fan_out(name: str) -> None:
    torch.manual_seed(0)
    for module in network(name)(10, 3).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.03)


def shake(net: nn.Module) -> nn.Module:
    """Batch norm that does something: running statistics and scales away from 0 and 1."""
    torch.manual_seed(1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)
    return net.eval()


def conv(x: Tensor, state: dict[str, Tensor], name: str, stride: int = 1) -> Tensor:
    weight = state[f"{name}.weight"]
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def bn(x: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    mean, var, weight, bias = (
        state[f"{name}.{k}"][:, None, None] for k in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


@torch.no_grad()
def test_resnet18_is_the_textbook_one_for_cifar() -> None:
    net = shake(network("cifar-resnet18")(4, 3))
    s = net.state_dict()
    x = torch.rand(2, 3, 12, 12)
    out = bn(conv(x, s, "conv1"), s, "bn1").relu()
    for stage in range(1, 5):
        for block in range(2):
            stride = 2 if block == 0 and stage > 1 else 1
            at = f"layer{stage}.{block}"
            inner = bn(conv(out, s, f"{at}.conv1", stride), s, f"{at}.bn1").relu()
            inner = bn(conv(inner, s, f"{at}.conv2"), s, f"{at}.bn2")
            if stride == 2:
                out = bn(conv(out, s, f"{at}.downsample.0", stride), s, f"{at}.downsample.1")
            out = (inner + out).relu()
    expected = out.mean((2, 3)) @ s["fc.weight"].T + s["fc.bias"]
    assert torch.allclose(net(x), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize(("name", "stages", "blocks"), [("cifar-preactresnet18", 4, 2), ("cifar-wrn-28-10", 3, 4)])
def test_preactivation_nets_follow_the_papers(name: str, stages: int, blocks: int) -> None:
    net = shake(network(name)(4, 3))
    s = net.state_dict()
    x = torch.rand(1, 3, 8, 8)
    out = conv(x, s, "conv1")
    for stage in range(stages):
        for block in range(blocks):
            at = f"stages.{stage}.{block}"
            stride = 2 if block == 0 and stage > 0 else 1
            active = bn(out, s, f"{at}.bn1").relu()
            inner = bn(conv(active, s, f"{at}.conv1", stride), s, f"{at}.bn2").relu()
            projected = f"{at}.shortcut.weight" in s
            assert projected == (block == 0 and (stage > 0 or name == "cifar-wrn-28-10"))
            shortcut = conv(active, s, f"{at}.shortcut", stride) if projected else out
            out = shortcut + conv(inner, s, f"{at}.conv2")
    expected = bn(out, s, "bn").relu().mean((2, 3)) @ s["fc.weight"].T + s["fc.bias"]
    assert torch.allclose(net(x), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@torch.no_grad()
def test_vgg_has_torchvisions_features() -> None:
    with torch.device("meta"):
        reference = vgg16_bn().features
    net = shake(network("cifar-vgg16-bn")(4, 3))
    reference = reference.to_empty(device="cpu").eval()
    reference.load_state_dict(net.features.state_dict())
    x = torch.rand(2, 3, 64, 64)
    assert torch.equal(net.features(x), reference(x))
    assert torch.allclose(net(x), net.classifier(reference(x).mean((2, 3))))


@pytest.mark.slow
def test_convnet_reads_digits_within_seconds() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x = F.interpolate(torch.tensor(digits.images / 16).float()[:, None], size=16)
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y))
    train, test = order[:1400], order[1400:]
    model = Normalised(network("convnet")(10, 1), [x[train].mean().item()], [x[train].std().item()])
    epochs, batches = 6, 22
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs * batches)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].chunk(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        accuracy = (model.eval()(x[test]).argmax(1) == y[test]).float().mean().item()
    assert accuracy >= 0.97
