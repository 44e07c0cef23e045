"""What training steps report, gathered on the device and read now and then; and what to do when it is not finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.errors import HoldfastError


class Meters:
    """Sums of the loss and of what else a method measures, the number of steps, and the first loss not finite."""

    def __init__(self, device: torch.device, measures: Sequence[str] = ("accuracy",)) -> None:
        self.measures = measures
        self.sums = torch.zeros(1 + len(measures), dtype=torch.float64, device=device)
        self.steps = torch.zeros(2, dtype=torch.int64, device=device)  # done, first bad one
        self.seen = 0

    def reset(self) -> None:
        self.sums.zero_()
        self.seen = 0

    def update(self, loss: Tensor, sums: Sequence[Tensor], count: int) -> None:
        """Count one step; on the device alone, so it can be part of a CUDA graph.

        loss: mean over the batch. sums: over the batch, one per measure. count: images in the batch.
        """
        done, bad = self.steps[0], self.steps[1]
        done += 1
        bad.copy_(torch.where(loss.isfinite() | (bad > 0), bad, done))
        self.sums += torch.stack((loss.detach() * count, *sums))

    def read(self) -> dict[str, float]:
        """The loss and the measures, averaged since the last reset. Waits for the device."""
        averages = [value / max(1, self.seen) for value in self.sums.tolist()]
        return dict(zip(("loss", *self.measures), averages, strict=True))

    @property
    def bad_step(self) -> int:
        """The first step with a loss that is not finite, counted from 1, or 0. Waits for the device."""
        return int(self.steps[1])

    def state_dict(self) -> dict[str, object]:
        return {"sums": self.sums, "steps": self.steps, "seen": self.seen}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.sums.copy_(state["sums"])  # type: ignore[arg-type]
        self.steps.copy_(state["steps"])  # type: ignore[arg-type]
        self.seen = int(state["seen"])  # type: ignore[call-overload]


class Diverged(HoldfastError):
    """Numbers that are not finite came out of a training."""


def all_finite(networks: Iterable[nn.Module]) -> bool:
    """Whether everything that the networks have learned is finite. Waits for the device."""
    learned = {id(value): value.isfinite().all() for network in networks for value in _learned(network)}
    found = list(learned.values())
    return not found or bool(torch.stack([one.to(found[0].device) for one in found]).all())


def _learned(network: nn.Module) -> Iterator[Tensor]:
    """What steps move, and the statistics of normalisation. Other buffers may hold -inf by right, such as masks."""
    yield from (p for p in network.parameters() if p.requires_grad)
    for module in network.modules():
        if isinstance(module, _NormBase):
            yield from module.buffers()
