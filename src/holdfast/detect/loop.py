"""A small training loop for label-free models, which the engine of classifiers does not fit.

Images lie on the device; on a GPU a whole step is one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.devices import CaptureAfterWarmUp, own_stream
from holdfast.errors import HoldfastError, require
from holdfast.rng import derive


class Diverged(HoldfastError):
    """The loss became infinite or no number."""


@dataclass(frozen=True)
class LoopSettings:
    """How to train.

    schedule: ``constant`` or ``cosine`` to 0. precision: ``fp32``, ``tf32`` or ``bf16``. seed: of order and draws.
    capture: on a GPU, make a step one CUDA graph. optimizer: ``adam``, or ``sgd`` with a momentum of 0.9.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.0
    schedule: str = "constant"
    precision: str = "fp32"
    seed: int = 0
    capture: bool = True
    optimizer: str = "adam"

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"epochs must be >= 1, got {self.epochs}")
        require(self.batch_size >= 1, f"batch_size must be >= 1, got {self.batch_size}")
        require(math.isfinite(self.lr) and self.lr > 0, f"lr must be > 0, got {self.lr}")
        require(self.optimizer in ("adam", "sgd"), f"optimizer must be adam or sgd, got {self.optimizer!r}")
        require(self.schedule in ("constant", "cosine"), f"schedule must be constant or cosine, got {self.schedule!r}")
        require(
            self.precision in ("fp32", "tf32", "bf16"), f"precision must be fp32, tf32 or bf16, got {self.precision!r}"
        )


Losses = dict[str, Tensor]
"""Mean of each term over a batch; ``loss`` is what is minimised."""


def optimise(
    losses: Callable[[Tensor], Losses],
    parameters: Iterable[nn.Parameter],
    n: int,
    settings: LoopSettings,
    *,
    device: torch.device,
    generators: Sequence[torch.Generator] = (),
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
    after_step: Callable[[], None] | None = None,
) -> tuple[dict[str, float], ...]:
    """Minimise ``losses(index)``, index being the positions of a batch among n samples. One record an epoch.

    generators: on the device, those that ``losses`` draws from; a captured step must know them.
    """
    require(n >= 1, "there is nothing to train on; give at least one image")
    cuda = device.type == "cuda"
    optimizer = _optimizer(list(parameters), settings, device)
    totals: dict[str, Tensor] = {}

    def step(index: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        terms = losses(index)
        terms["loss"].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if after_step is not None:
            after_step()
        for name, value in terms.items():
            if name not in totals:
                totals[name] = torch.zeros((), device=device)
            totals[name].add_(value.detach().float() * len(index))

    run: Callable[[Tensor], None] = step
    if cuda and settings.capture:
        run = CaptureAfterWarmUp(step, device=device, generators=generators)
    size = min(settings.batch_size, n)
    order = torch.Generator().manual_seed(derive(settings.seed, "order"))
    steps = settings.epochs * (n // size)
    done, history = 0, []
    with own_stream(device):
        for epoch in range(settings.epochs):
            for total in totals.values():
                total.zero_()
            shuffled = torch.randperm(n, generator=order).to(device)
            for index in torch.split(shuffled[: n // size * size], size):  # what is left over waits for another epoch
                _set_rate(optimizer, settings, done / steps)
                run(index)
                done += 1
            record = {name: float(total) / (n // size * size) for name, total in totals.items()}
            if not all(map(math.isfinite, record.values())):
                raise Diverged(
                    f"training diverged in epoch {epoch + 1} (loss {record['loss']}); lower lr {settings.lr:g}"
                )
            history.append(record)
            if on_epoch is not None:
                on_epoch(epoch + 1, record)
    optimizer.zero_grad(set_to_none=True)
    return tuple(history)


def _optimizer(parameters: list[nn.Parameter], settings: LoopSettings, device: torch.device) -> torch.optim.Optimizer:
    cuda = device.type == "cuda"
    rate: float | Tensor = torch.tensor(settings.lr, device=device) if cuda else settings.lr
    common: dict[str, Any] = {"lr": rate, "weight_decay": settings.weight_decay, "fused": cuda}
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=0.9, **common)
    return torch.optim.AdamW(parameters, capturable=cuda, **common)


def _set_rate(optimizer: torch.optim.Optimizer, settings: LoopSettings, done: float) -> None:
    if settings.schedule == "constant":
        return
    rate = settings.lr * 0.5 * (1 + math.cos(math.pi * done))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
