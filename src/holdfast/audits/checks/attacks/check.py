"""Check ``attacks``: how many images go wrong when they are nudged on purpose, and whether the numbers can be believed.

How to read them: docs/methods/attacks.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from holdfast.attacks import PRESETS, unbounded
from holdfast.attacks.norms import Norm
from holdfast.audits.checks import trust
from holdfast.audits.checks.attacks.bench import Bench, preset_attack
from holdfast.audits.checks.attacks.falls import BLACK, WHITE
from holdfast.audits.checks.attacks.findings import findings
from holdfast.audits.checks.attacks.plans import BUDGETS, RADII, Budget
from holdfast.audits.checks.attacks.surrogate import train_surrogate
from holdfast.audits.subject import Subject
from holdfast.errors import require, unknown
from holdfast.types import Finding


def attacks(
    subject: Subject,
    *,
    images: int | None = None,
    radii: Sequence[float] | None = None,
    norm: Norm = "linf",
    surrogate: nn.Module | None = None,
    black_box: bool = True,
    presets: Sequence[str] = (),
    budget: Budget | None = None,
) -> tuple[Finding, ...]:
    """Error under each attack at each radius, with the model's gradients, with another model's, and under noise.

    images: how many test images to take at random; None is 1,000 on a GPU, 100 on a CPU. radii: in pixels; None is
    2, 4, 8 and 16 of 255, or 0.25 to 2 for L2. surrogate: the model that black-box images are made against; without
    one a small network is trained on the training set, unless ``black_box`` is off. presets: also measure attacks
    settled by name, such as "alps-table-6", with the gradients of either model. Then come the trust checks; where one
    fails, every finding says so.
    """
    for name in presets:
        if name not in PRESETS:
            raise unknown("preset", name, PRESETS)
    plan = budget or BUDGETS[subject.device.type]
    chosen_radii = tuple(sorted(RADII[norm] if radii is None else radii))
    require(
        len(chosen_radii) > 0 and all(0 < r < math.inf for r in chosen_radii),
        f"radii must be finite numbers > 0, got {list(chosen_radii)}",
    )
    bench = Bench(subject, plan.images if images is None else images, plan)
    other = surrogate
    if other is None and black_box:
        other = train_surrogate(subject, plan)
    with bench.kernels():
        wrong = dict(bench.bounded(chosen_radii, norm, other))
        checks = bench.checks(wrong, chosen_radii, norm)
        unlimited = bench.found(unbounded, "unbounded", first=plan.unbounded)
        checks.append(trust.reaches_all(unlimited))
        named = {
            (name, access): bench.wrong(preset_attack(name, subject), name, against=shown)
            for name in presets
            for access, shown in ((WHITE, None), *([(BLACK, other)] if other is not None else []))
        }
    settings = {
        "norm": norm,
        "images": len(bench),
        "apgd_steps": plan.apgd_steps,
        "queries": plan.queries,
        "precision": subject.precision,
        "seed": subject.seed,
        "surrogate": "none" if other is None else "given" if surrogate is not None else plan.surrogate_model,
    }
    return findings(bench.index, wrong, unlimited, named, checks, settings)
