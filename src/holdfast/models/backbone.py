"""Fine-tuning by depth: freeze all but the head, or let earlier layers learn more slowly (layer-wise decay)."""

from __future__ import annotations

from torch import Tensor, nn

from holdfast.errors import require
from holdfast.models.heads import find_heads

STRETCHES = 12
"""How many depths a network has that does not say itself how it is layered; as many as timm takes then."""


def freeze_backbone(model: nn.Module) -> list[Tensor]:
    """Let only the layer that makes logits be trained; what was frozen, to be thawed later.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> len(freeze_backbone(net)), [p.requires_grad for p in net.parameters()]
    (2, [False, False, True, True])
    """
    head = _head_parameters(model)
    frozen: list[Tensor] = [p for p in model.parameters() if p.requires_grad and id(p) not in head]
    for p in frozen:
        p.requires_grad_(False)
    trained = any(p.requires_grad for p in model.parameters())
    require(trained, f"the head of this {type(model).__name__} is frozen too, so nothing is trained; leave out freeze")
    return frozen


def rest_frozen(model: nn.Module) -> None:
    """Put parts that are not trained into evaluation mode: their statistics stay, and nothing in them drops out."""
    for child in model.children():
        parameters = list(child.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            child.eval()
        else:
            rest_frozen(child)


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """What the learning rate of each parameter is multiplied by: 1 in the head, ``decay`` once more per layer below it.

    Models of timm say themselves what a layer is. Of others the weights before the head, in the order in which they
    were registered, are divided into 12 stretches, or fewer.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    >>> layer_scales(net, 0.5)
    {'0.weight': 0.25, '0.bias': 0.25, '1.weight': 0.5, '1.bias': 0.5, '2.weight': 1.0, '2.bias': 1.0}
    """
    depths = _stated_depths(model) or _counted_depths(model)
    deepest = max(depths.values())
    return {name: decay ** (deepest - depths.get(name, deepest)) for name, _ in model.named_parameters()}


def _stated_depths(model: nn.Module) -> dict[str, int]:
    for prefix, module in model.named_modules():
        if callable(matcher := getattr(module, "group_matcher", None)):
            from timm.models import group_parameters

            depths: dict[str, int] = group_parameters(module, matcher(coarse=False), reverse=True)
            return {f"{prefix}.{name}".lstrip("."): depth for name, depth in depths.items()}
    return {}


def _counted_depths(model: nn.Module) -> dict[str, int]:
    head = _head_parameters(model)
    layers: dict[str, int] = {}
    count = 0
    for name, p in model.named_parameters():
        if id(p) not in head:
            count += p.ndim > 1  # biases and normalisation belong to the weights before them
            layers[name] = max(0, count - 1)
    count, stretches = max(1, count), min(STRETCHES, max(1, count))
    depths = {name: layer * stretches // count for name, layer in layers.items()}
    return depths | {name: stretches for name, p in model.named_parameters() if id(p) in head}


def _head_parameters(model: nn.Module) -> set[int]:
    return {id(p) for _, head in find_heads(model) for p in head.parameters()}
