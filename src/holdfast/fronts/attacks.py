"""Front ``attacks``: how many images go wrong when they are nudged on purpose, and whether the numbers can be believed.

How to read them: docs/methods/attacks.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.borrow import evaluating
from holdfast.data.statistics import channel_statistics
from holdfast.errors import require, unknown
from holdfast.fronts import trust
from holdfast.fronts.drops import attack_drops
from holdfast.fronts.subject import Subject
from holdfast.fronts.trust import WARNING, Check
from holdfast.fronts.verdicts import FALLS, WRONG, encode
from holdfast.metrics import wilson_interval
from holdfast.rng import derive
from holdfast.train.api import fit
from holdfast.train.precision import autocast, kernels
from holdfast.types import Finding
from holdfast.vicinity.attacks import PRESETS, apgd, fgsm, noise, pgd, square, unbounded
from holdfast.vicinity.norms import Norm

RADII: Mapping[Norm, tuple[float, ...]] = {
    "linf": (2 / 255, 4 / 255, 8 / 255, 16 / 255),
    "l2": (0.25, 0.5, 1.0, 2.0),
}


@dataclass(frozen=True)
class Budget:
    """What a device is given to do.

    searched: images of the attack without gradients, at most. unbounded: of the checks on gradients.
    surrogate_*: its training.
    """

    images: int
    apgd_steps: int
    queries: int
    searched: int
    long_steps: int
    unbounded: int
    surrogate_images: int
    surrogate_epochs: int
    surrogate_model: str


BUDGETS: Mapping[str, Budget] = {
    "cuda": Budget(1000, 100, 1000, 1000, 100, 500, 50_000, 5, "cifar-resnet18"),
    "cpu": Budget(100, 20, 100, 100, 40, 100, 1000, 6, "convnet"),
}
"""By device: on a CPU a thousand images would take longer than many a training."""

PASSES = 4
"""How often the unmoved images are shown again, to see whether the model says the same."""
Key = tuple[str, str, float]
"""Attack, access, radius."""
WHITE, BLACK, NONE = "white-box", "black-box", "none"
GRADIENT = ("fgsm", "pgd-10", "apgd-ce", "apgd-dlr")


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
    settled by name, such as "alps-table-6". Then come the trust checks; where one fails, every finding says so.
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
    bench = _Bench(subject, plan.images if images is None else images, plan)
    other = surrogate
    if other is None and black_box:
        other = train_surrogate(subject, plan)
    with bench.kernels():
        wrong = dict(bench.bounded(chosen_radii, norm, other))
        checks = bench.checks(wrong, chosen_radii, norm)
        unlimited = bench.wrong(_early(unbounded), "unbounded", first=plan.unbounded)
        checks.append(trust.reaches_all(unlimited))
        named = {name: bench.wrong(_preset(name, subject), name) for name in presets}
    settings = {
        "norm": norm,
        "images": len(bench),
        "apgd_steps": plan.apgd_steps,
        "queries": plan.queries,
        "precision": subject.precision,
        "seed": subject.seed,
        "surrogate": "none" if other is None else "given" if surrogate is not None else plan.surrogate_model,
    }
    return _findings(bench.index, wrong, unlimited, named, checks, settings)


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


Attack = Callable[..., Tensor]


class _Bench:
    """The images under attack, and what every attack on them needs."""

    def __init__(self, subject: Subject, images: int, plan: Budget) -> None:
        require(images >= 1, f"images must be >= 1, got {images}")
        self.subject, self.plan = subject, plan
        generator = torch.Generator().manual_seed(derive(subject.seed, "attacks/images"))
        self.index = index = torch.randperm(len(subject.split), generator=generator)[:images].sort().values
        labels = subject.split.labels[index]
        require(len(index) > 0, f"{subject.data.name} has no test images to attack")
        self.batches = [
            (subject.split.read(i).to(subject.device).float().div_(255), y.to(subject.device))
            for i, y in zip(
                torch.split(index, subject.batch_size), torch.split(labels, subject.batch_size), strict=True
            )
        ]
        self.size = len(index)
        self.logits = self._logits(x for x, _ in self.batches)
        classes = subject.data.num_classes
        require(
            self.logits.shape[1:] == (classes,),
            f"the model gives outputs of shape {tuple(self.logits.shape[1:])} an image, and {subject.data.name} has "
            f"{classes} classes; they must match",
        )

    def __len__(self) -> int:
        return self.size

    def kernels(self) -> Any:
        cuda = self.subject.device.type == "cuda"
        # Attacks leave images alone that are wrong already, so batches come in every size.
        return kernels(self.subject.precision, deterministic=False, search=False) if cuda else nullcontext()

    def bounded(self, radii: Sequence[float], norm: Norm, surrogate: nn.Module | None) -> Iterator[tuple[Key, Tensor]]:
        """(N,) which images go wrong, for every attack at every radius; radius 0 is the clean image."""
        labels = torch.cat([y for _, y in self.batches])
        yield ("clean", NONE, 0.0), (self.logits.argmax(1) != labels).cpu()
        steps, queries = self.plan.apgd_steps, self.plan.queries
        for radius in radii:
            where: dict[str, Any] = {"radius": radius, "norm": norm}
            white: dict[str, Attack] = {
                "fgsm": lambda m, x, y, generator, where=where: fgsm(m, x, y, **where),
                "pgd-10": _early(pgd, **where),
                "apgd-ce": _early(apgd, steps=steps, **where),
                "apgd-dlr": _early(apgd, steps=steps, loss="dlr", **where),
                "square": _early(square, queries=queries, **where),
            }
            for name, attack in white.items():
                first = min(self.plan.searched, self.size) if name == "square" else self.size
                yield (name, WHITE, radius), self.wrong(attack, f"{name}/{radius}", first=first)
            if surrogate is not None:
                for name in ("fgsm", "pgd-10"):
                    transferred = white[name] if name == "fgsm" else _plain(pgd, **where)
                    yield (name, BLACK, radius), self.wrong(transferred, f"black/{name}/{radius}", against=surrogate)
            yield (
                ("noise", NONE, radius),
                self.wrong(lambda m, x, y, generator, where=where: noise(x, generator=generator, **where), "noise"),
            )

    def checks(self, wrong: Mapping[Key, Tensor], radii: Sequence[float], norm: Norm) -> list[Check]:
        unmoved = [pgd(self.subject.model, x, y, radius=0.0) for x, y in self.batches]
        again = torch.stack([self._logits(unmoved) for _ in range(PASSES)])
        checks = [trust.repeatable(self.logits, again, precision=self.subject.precision)]
        exact = (
            kernels("fp32", deterministic=False, search=False) if self.subject.device.type == "cuda" else nullcontext()
        )
        with exact, torch.autocast(self.subject.device.type, enabled=False):  # short steps need all digits
            checks += trust.slopes(self.subject.model, self._first(self.plan.unbounded))
        steps = {r: self._long(r, norm) for r in radii[len(radii) // 2 :][:1]}
        return [*checks, *comparisons(wrong, radii, norm, steps)]

    def _long(self, radius: float, norm: Norm) -> Tensor:
        attack = _early(pgd, radius=radius, norm=norm, steps=self.plan.long_steps)
        return self.wrong(attack, f"long/{radius}")

    def wrong(
        self, attack: Attack, purpose: str, *, against: nn.Module | None = None, first: int | None = None
    ) -> Tensor:
        """(N,) whether the model errs on what an attack makes of each image; against: whom the attack sees."""
        subject, found = self.subject, []
        seed = derive(subject.seed, f"attacks/{purpose}")
        generator = torch.Generator(subject.device).manual_seed(seed)
        for x, y in self._first(self.size if first is None else first):
            with autocast(subject.precision, subject.device):
                moved = attack(against if against is not None else subject.model, x, y, generator=generator)
            found.append(self._logits([moved]).argmax(1) != y)
        return torch.cat(found).cpu()

    def _first(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the first so many images; at least one image."""
        left = max(1, count)
        for x, y in self.batches:
            if left > 0:
                yield x[:left], y[:left]
            left -= len(y)

    @torch.no_grad()
    def _logits(self, batches: Iterable[Tensor]) -> Tensor:
        subject = self.subject
        with evaluating(subject.model), autocast(subject.precision, subject.device):
            return torch.cat([subject.model(x).float() for x in batches])


def comparisons(
    wrong: Mapping[Key, Tensor], radii: Sequence[float], norm: Norm, long: Mapping[float, Tensor]
) -> list[Check]:
    """The checks that set one error against another, image by image."""
    at = {r: radius_text(r, norm) for r in radii}
    ladder = [0.0, *radii]

    def climbing(name: str) -> dict[str, tuple[Tensor, Tensor]]:
        found = {r: wrong["clean", NONE, 0.0] if r == 0 else wrong[name, WHITE, r] for r in ladder}
        return {
            f"{name}, {at[b]} over {'clean' if a == 0 else at[a]}": (found[b], found[a]) for a, b in pairwise(ladder)
        }

    white = {r: _any(wrong, r, lambda key: key[1] == WHITE and key[0] in GRADIENT) for r in radii}
    black = {r: _any(wrong, r, lambda key: key[1] == BLACK) for r in radii}
    random = {r: wrong["noise", NONE, r] for r in radii}
    has_black = any(key[1] == BLACK for key in wrong)
    in_steps = {f"10 steps over 1, {at[r]}": (wrong["pgd-10", WHITE, r], wrong["fgsm", WHITE, r]) for r in radii}
    in_steps |= {f"more steps over 10, {at[r]}": (more, wrong["pgd-10", WHITE, r]) for r, more in long.items()}
    return [
        trust.at_least("radius-growth", climbing("pgd-10") | climbing("apgd-ce"), "error grows with the radius"),
        trust.at_least("steps-growth", in_steps, "error grows with the steps"),
        trust.at_least(
            "white-over-black",
            {at[r]: (white[r], black[r]) for r in radii} if has_black else {},
            "white-box finds no less than transfer",
        ),
        trust.at_least(
            "black-over-noise",
            {at[r]: (black[r], random[r]) for r in radii} if has_black else {},
            "transfer finds no less than noise",
        ),
        trust.at_least(
            "white-over-noise",
            {at[r]: (white[r], random[r]) for r in radii},
            "white-box finds no less than noise",
        ),
        trust.at_least(
            "gradients-over-search",
            {at[r]: (white[r][: len(found)], found) for r in radii for found in [wrong["square", WHITE, r]]},
            "gradients find no less than search without them",
        ),
    ]


def _any(wrong: Mapping[Key, Tensor], radius: float, chosen: Callable[[Key], bool]) -> Tensor:
    """(N,) images that at least one of the chosen attacks of a radius gets wrong; some see the first images only."""
    found = torch.zeros_like(wrong["clean", NONE, 0.0])
    for key, value in wrong.items():
        if key[2] == radius and chosen(key):
            found[: len(value)] |= value
    return found


def radius_text(radius: float, norm: Norm) -> str:
    """A radius as people write it.

    >>> radius_text(8 / 255, "linf"), radius_text(0.5, "l2"), radius_text(0.1, "linf")
    ('8/255', '0.5', '25.5/255')
    """
    return f"{radius * 255:.4g}/255" if norm == "linf" else f"{radius:.4g}"


def fallen(wrong: Mapping[Key, Tensor], norm: Norm) -> list[str]:
    """What each image can bear: the smallest radius at which some attack brings it down."""
    radii = sorted({key[2] for key in wrong if key[2]})
    said = [f"withstands {radius_text(radii[-1], norm)}"] * len(wrong["clean", NONE, 0.0])
    for radius in reversed(radii):
        for i in _any(wrong, radius, lambda key: True).nonzero().flatten().tolist():
            said[i] = f"{FALLS}{radius_text(radius, norm)}"
    for i in wrong["clean", NONE, 0.0].nonzero().flatten().tolist():
        said[i] = WRONG
    return said


def _findings(
    positions: Tensor,
    wrong: Mapping[Key, Tensor],
    unlimited: Tensor,
    presets: Mapping[str, Tensor],
    checks: Sequence[Check],
    settings: Mapping[str, Any],
) -> tuple[Finding, ...]:
    trusted = all(check.passed is not False for check in checks)
    norm: Norm = settings["norm"]
    verdict: dict[str, Any] = {"trusted": trusted} if trusted else {"trusted": False, "warning": WARNING}

    def error(values: Tensor, attack: str, access: str, radius: float | None) -> Finding:
        n, hits = len(values), int(values.sum())
        where = {"attack": attack, "access": access}
        if radius:
            where["radius"] = radius_text(radius, norm)
        evidence = {"radius": radius, "norm": norm, **verdict}
        low, high = wilson_interval(hits, n)
        return Finding("attacks", "error", hits / n, n, low, high, where, settings, evidence)

    made = [error(values, *key) for key, values in wrong.items()]
    fallen_by_now = clean = wrong["clean", NONE, 0.0]
    for radius in sorted({key[2] for key in wrong if key[2]}):
        fallen_by_now = fallen_by_now | _any(wrong, radius, lambda key: True)  # a ball holds the smaller ones
        made.append(error(fallen_by_now, "strongest", "any", radius))
    made += attack_drops(made)
    made.append(error(unlimited, "unbounded", WHITE, None))
    made += [_preset_error(name, values, settings, verdict) for name, values in presets.items()]
    for check in checks:
        value = None if check.passed is None else float(check.passed)
        evidence = {"passed": check.passed, "says": check.says, **check.numbers, **verdict}
        made.append(Finding("attacks", "trust", value, check.n, None, None, {"check": check.name}, settings, evidence))
    failed = [check.name for check in checks if check.passed is False]
    made.append(
        Finding(
            "attacks",
            "trusted",
            float(trusted),
            len(clean),
            settings=settings,
            evidence={"failed": failed, "verdicts": encode(positions, fallen(wrong, norm)), **verdict},
        )
    )
    return tuple(made)


def _preset_error(name: str, values: Tensor, settings: Mapping[str, Any], verdict: Mapping[str, Any]) -> Finding:
    preset, n, hits = PRESETS[name], len(values), int(values.sum())
    evidence = {"radius": preset.radius, "norm": "linf", "space": preset.space, "steps": preset.steps, **verdict}
    low, high = wilson_interval(hits, n)
    return Finding("attacks", "error", hits / n, n, low, high, {"preset": name, "access": WHITE}, settings, evidence)


def _early(attack: Attack, **settings: Any) -> Attack:
    """An attack for counting errors only: images that already went wrong are left alone."""
    return lambda m, x, y, generator: attack(m, x, y, early_stop=True, generator=generator, **settings)


def _plain(attack: Attack, **settings: Any) -> Attack:
    """An attack in full: images made to be shown to another model need all their strength."""
    return lambda m, x, y, generator: attack(m, x, y, generator=generator, **settings)


def _preset(name: str, subject: Subject) -> Attack:
    preset = PRESETS[name]
    scale = channel_statistics(subject.data.train)[1] if preset.space == "normalised" else None
    return lambda m, x, y, generator: preset(m, x, y, scale=scale)
