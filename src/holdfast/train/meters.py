"""What a training step reports, gathered on the device and read when the host has time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reading:
    """Averages since the last reset. bad_step: the first step with a non-finite loss, counted from 1, or 0."""

    loss: float
    accuracy: float
    bad_step: int


class Meters:
    """Sums of loss and hits, the number of steps, and where the loss first was not finite."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)
        self.steps = torch.zeros(2, dtype=torch.int64, device=device)  # done, first bad one
        self.seen = 0

    def reset(self) -> None:
        self.sums.zero_()
        self.seen = 0

    def update(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Count one step; on the device alone, so it can be part of a CUDA graph."""
        done, bad = self.steps[0], self.steps[1]
        done += 1
        bad.copy_(torch.where(loss.isfinite() | (bad > 0), bad, done))
        hits = (logits.argmax(1) == y).sum()
        self.sums += torch.stack((loss.detach() * len(y), hits))

    def read(self) -> Reading:
        """Wait for the device and look."""
        loss, hits = self.sums.tolist()
        n = max(1, self.seen)
        return Reading(loss=loss / n, accuracy=hits / n, bad_step=int(self.steps[1]))

    def state_dict(self) -> dict[str, object]:
        return {"sums": self.sums, "steps": self.steps, "seen": self.seen}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.sums.copy_(state["sums"])  # type: ignore[arg-type]
        self.steps.copy_(state["steps"])  # type: ignore[arg-type]
        self.seen = int(state["seen"])  # type: ignore[call-overload]
