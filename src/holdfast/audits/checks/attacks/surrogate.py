"""Another model for black-box attacks: images are made against it and shown to the one under audit."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from holdfast.audits.checks.attacks.plans import Budget
from holdfast.audits.subject import Subject
from holdfast.rng import derive
from holdfast.train.api import fit


def train_surrogate(subject: Subject, plan: Budget) -> nn.Module | None:
    """A small network trained plainly on a part of the training set; None where there is none."""
    data = subject.data
    if len(data.train) == 0:
        return None
    generator = torch.Generator().manual_seed(derive(subject.seed, "attacks/surrogate/images"))
    index = torch.randperm(len(data.train), generator=generator)[: plan.surrogate_images].sort().values
    part = replace(data, train=data.train.subset(index), val=None, test=None, notes=())
    return fit(
        part,
        model=plan.surrogate_model,
        epochs=plan.surrogate_epochs,
        seed=derive(subject.seed, "attacks/surrogate") % 2**31,
        device=str(subject.device),
        eval_every=0,
        precision="bf16" if subject.device.type == "cuda" else "fp32",
        channels_last=subject.device.type == "cuda",
        workers=subject.workers,
        progress=False,
    ).model
