"""Check ``attacks``: its declaration, and how much it does on each device. The attacks are run in attack_bench.py.

How to read the numbers: docs/methods/attacks.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from holdfast.audits.checks.attacks.attack_plans import BACKWARD, BUDGETS, RADII, AttackBudget, radius_text
from holdfast.errors import require_known
from holdfast.parts import NAMES_A_MODEL, PYTHON_ONLY, check
from holdfast.settings.fields import Bounded, Within
from holdfast.types import Finding, Measure, Needs, Note, Unit

if TYPE_CHECKING:
    from holdfast.audits.sample_passes import SamplePass
    from holdfast.audits.subject import Subject

SURROGATE_LEAST: Final = 10.0
"""Seconds under which a check does not even try how long another model would train."""
SURROGATE_SHARE: Final = 1 / 3


@check(
    "attacks",
    title="Attacks",
    about="Robust accuracy under adversarial attacks, white-box and black-box, and whether it can be trusted.",
    needs=Needs.IMAGES | Needs.MODEL | Needs.GRADIENTS,
    measures=(
        Measure(
            "robust_accuracy",
            "accuracy under attack",
            gate=True,
            headline=True,
            headline_where={"radius": "8/255"},
            drop="attack_drop",
            part="radius",
            about="The share of images that is right and stays right under every attack within the radius.",
            changed_images=True,
            remedies=("holdfast train --data DATA --method adversarial # trains on attacked images",),
        ),
        Measure(
            "attack_drop",
            "drop under attack",
            Unit.POINTS,
            "lower",
            about="How many points of clean accuracy the strongest attack within the radius costs.",
        ),
        Measure(
            "attack_error",
            "error under one attack",
            better="lower",
            about="The share of images that is wrong under one attack.",
        ),
        Measure(
            "trusted",
            "trust checks passed",
            Unit.FLAG,
            headline=True,
            about="Whether all signs of masked gradients are absent; if not, robustness is overstated.",
            poor=0.5,
            remedies=("holdfast audit MODEL --data DATA --checks attacks --set attacks.images=1000 # on more images",),
        ),
        Measure(
            "trust_check",
            "trust check",
            Unit.FLAG,
            about="Whether one sign of masked gradients is absent.",
        ),
    ),
    share=0.5,
    order=50,
)
@dataclass(frozen=True)
class Attacks(Bounded):
    """Error under each attack at each radius, with the model's gradients, with another model's, and under noise.

    images: how many test images to take at random; None is 1,000 on a GPU, 100 on a CPU. radii: in pixels; None is
    2, 4, 8 and 16 of 255, or 0.25 to 2 for L2. surrogate: the model that transfer attacks are made against, named as
    MODEL is; without one a small network is trained on the training set, unless ``transfer`` is off. presets: also
    measure attacks with settings known by name, such as "alps-table-6", with the gradients of either model. Then come
    the trust checks; where one fails, every finding says so.
    """

    images: Annotated[int | None, Within(1)] = None
    radii: Annotated[tuple[float, ...] | None, Within(0, ends="()")] = None
    norm: Literal["linf", "l2"] = "linf"
    presets: tuple[str, ...] = ()
    transfer: bool = True
    surrogate: str | None = field(default=None, metadata=NAMES_A_MODEL)
    surrogate_module: Any = field(default=None, metadata=PYTHON_ONLY)
    budget: AttackBudget | None = field(default=None, metadata=PYTHON_ONLY)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.presets:
            from holdfast.attacks import PRESETS

            for name in self.presets:
                require_known("attacks.presets", name, PRESETS)

    def gate_parts(self) -> tuple[str, ...]:
        return tuple(radius_text(r, self.norm) for r in sorted(self.radii or RADII[self.norm]))

    def passes(self, device: str) -> float:
        plan = BUDGETS[device]
        steps = BACKWARD * (1 + 10 + 2 * plan.apgd_steps + 11 + 40) + plan.queries + 1
        return 4 * steps + BACKWARD * (plan.long_steps + 40)

    def usual_images(self, device: str) -> int | None:
        return BUDGETS[device].images

    def fixed_seconds(self, subject: Subject, share: float) -> float | None:
        """How long the surrogate would train, from one of its epochs; None where that is too long."""
        if self.surrogate is not None or self.surrogate_module is not None or not self.transfer:
            return 0.0
        from holdfast.audits.checks.attacks.attack_bench import surrogate_seconds

        if share < SURROGATE_LEAST or len(subject.data.train) == 0:
            return None
        seconds = surrogate_seconds(subject)
        return seconds if seconds <= SURROGATE_SHARE * share else None

    def without_fixed(self) -> tuple[Attacks, Note]:
        text = "no transfer attack: there is no time to train a surrogate model"
        return replace(self, transfer=False), Note("no-surrogate", text, "give --set attacks.surrogate=MODEL")

    def sample_passes(self, subject: Subject) -> list[SamplePass]:
        from holdfast.audits.checks.attacks.attack_bench import sample_passes

        return sample_passes(subject, self)

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.attacks.attack_bench import attack_all

        return attack_all(subject, self)
