"""The layer that makes logits from features: find it, replace it, read what it is given."""

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
