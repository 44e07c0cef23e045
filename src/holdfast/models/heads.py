"""The layer that makes logits from features: find it, replace it, read what it is given; and what is trained below
it: freeze all but the head, or let earlier layers learn more slowly (layer-wise decay)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from holdfast.errors import HoldfastError, require


def find_head(net: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d]:
    """The classifier layer of a network and its dotted name: a Linear, or a Conv2d where the net ends in one.

    >>> find_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ('2', Linear(in_features=3, out_features=2, bias=True))
    """
    return find_heads(net)[0]


def find_heads(net: nn.Module) -> list[tuple[str, nn.Linear | nn.Conv2d]]:
    """Every classifier layer; more than one where a net averages several, as distilled transformers do."""
    layers = [(name, m) for name, m in net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    declared = _declared(net)
    if declared is None:
        heads = ([item for item in layers if isinstance(item[1], nn.Linear)] or layers)[-1:]
    else:
        inside = {id(module) for part in declared for module in part.modules()}
        heads = [item for item in layers if id(item[1]) in inside]
        # A declared head may have hidden layers; only those as wide as the last one make logits.
        heads = [item for item in heads if width(item[1]) == width(heads[-1][1])]
    require(bool(heads), f"{type(net).__name__} has no layer that makes logits; a classifier is needed")
    return heads


def width(head: nn.Linear | nn.Conv2d) -> int:
    """How many classes a head has."""
    return head.out_features if isinstance(head, nn.Linear) else head.out_channels


def head_note(head: str, theirs: int, ours: int) -> str:
    """What to tell the user where a head does not fit its weights.

    >>> head_note("fc", 1000, 10)
    'head fc: the weights have 1000 classes, this model 10; replaced'
    """
    return f"head {head}: the weights have {theirs} classes, this model {ours}; replaced"


def replace_head(net: nn.Module, num_classes: int) -> str:
    """Put a fresh head of the given size in the old one's place; its name."""
    name, old = find_head(net)
    bias = old.bias is not None
    if isinstance(old, nn.Linear):
        fresh: nn.Module = nn.Linear(old.in_features, num_classes, bias=bias)
    else:
        fresh = nn.Conv2d(old.in_channels, num_classes, old.kernel_size, bias=bias)  # type: ignore[arg-type]
    net.set_submodule(name, fresh)
    return name


class HeadInput:
    """What the head was given at the last forward pass."""

    def __init__(self) -> None:
        self.latest: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """(B, D), with its graph; the mean over space where the head is a convolution."""
        if self.latest is None:
            hint = "(a compiled model skips hooks: run the one it was compiled from)"
            raise HoldfastError(f"no forward pass has reached the head; run the model inside the with {hint}")
        return self.latest.mean((2, 3)) if self.latest.ndim == 4 else self.latest


@contextmanager
def penultimate(model: nn.Module) -> Iterator[HeadInput]:
    """While open, every forward pass leaves the head's input in ``.features``.

    >>> import torch
    >>> net = nn.Sequential(nn.ReLU(), nn.Linear(2, 3))
    >>> with penultimate(net) as seen:
    ...     _ = net(torch.tensor([[-1.0, 2.0]]))
    >>> seen.features
    tensor([[0., 2.]])
    """
    seen = HeadInput()
    with find_head(model)[1].register_forward_pre_hook(lambda _, inputs: setattr(seen, "latest", inputs[0])):
        yield seen


def _declared(net: nn.Module) -> list[nn.Module] | None:
    """The classifier as the network itself names it (timm's convention), or None."""
    for module in net.modules():
        if callable(ask := getattr(module, "get_classifier", None)):
            answer = ask()
            return list(answer) if isinstance(answer, tuple) else [answer]
    return None


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
