"""What the check ``attacks`` measures: every attack on the test images, the surrogate of transfer attacks, findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from holdfast.attacks import PRESETS, apgd, fgsm, noise, pgd, square, unbounded
from holdfast.attacks.arguments import Norm
from holdfast.audits.checks.attacks import trust
from holdfast.audits.checks.attacks.attack_plans import BUDGETS, RADII, AttackBudget, radius_text
from holdfast.audits.checks.attacks.trust import AVERAGED, NONE, QUERIES, TRANSFER, WHITE, Key, TrustCheck, any_of
from holdfast.audits.per_image import FALLS, WRONG, encode
from holdfast.audits.subject import Subject, draw
from holdfast.augment.basic import to_float
from holdfast.data.splits import channel_statistics
from holdfast.devices import autocast, exact, kernels
from holdfast.errors import require
from holdfast.metrics import paired_difference, proportion
from holdfast.module_state import evaluating
from holdfast.rng import derive
from holdfast.train.api import fit
from holdfast.types import Finding

if TYPE_CHECKING:
    from holdfast.audits.checks.attacks import Attacks


def attack_all(subject: Subject, told: Attacks) -> tuple[Finding, ...]:
    plan = told.budget or BUDGETS[subject.device.type]
    norm: Norm = told.norm
    chosen_radii = tuple(sorted(told.radii or RADII[norm]))
    bench = AttackBench(subject, told.images or plan.images, plan)
    given = told.surrogate_module if told.surrogate is None else subject.others[told.surrogate]
    other = train_surrogate(subject, plan) if given is None and told.transfer else given
    cuda = subject.device.type == "cuda"
    # Attacks leave images alone that are wrong already, so batches come in every size.
    with kernels(subject.precision, deterministic=False, search=False) if cuda else nullcontext():
        wrong = dict(bench.bounded(chosen_radii, norm, other))
        checks = bench.checks(wrong, chosen_radii, norm)
        unlimited = bench.found(unbounded, "unbounded", first=plan.unbounded)
        checks.append(trust.reaches_all(unlimited))
        named = {
            (name, access): bench.wrong(preset_attack(name, subject), name, against=shown)
            for name in told.presets
            for access, shown in ((WHITE, None), *([(TRANSFER, other)] if other is not None else []))
        }
    settings: dict[str, Any] = {"norm": norm, "images": len(bench.index), "apgd_steps": plan.apgd_steps}
    settings |= {"queries": plan.queries, "precision": subject.precision, "seed": subject.seed}
    settings["surrogate"] = "none" if other is None else "given" if given is not None else plan.surrogate_model
    return findings(bench.index, wrong, unlimited, named, checks, settings)


PASSES = 4
"""How often the unmoved images are shown again, to see whether the model says the same."""
POINTS = 4
TOGETHER = 2**27
"""Numbers that the images of one search have, at most; a search keeps a few copies of them."""
Attack = Callable[..., Tensor]


class AttackBench:
    def __init__(self, subject: Subject, images: int, plan: AttackBudget) -> None:
        self.subject, self.plan = subject, plan
        self.index = index = draw(len(subject.split), images, subject.seed, "attacks/images")
        labels = subject.split.labels[index]
        require(len(index) > 0, f"{subject.data.name} has no test images to attack")
        parts = zip(*(torch.split(of, subject.batch_size) for of in (index, labels)), strict=True)
        device = subject.device
        self.batches = [(to_float(subject.split.read(i).to(device)), y.to(device)) for i, y in parts]
        self.logits = self._logits(x for x, _ in self.batches)
        subject.check_outputs(self.logits)

    def bounded(self, radii: Sequence[float], norm: Norm, surrogate: nn.Module | None) -> Iterator[tuple[Key, Tensor]]:
        """(N,) which images go wrong, for every attack at every radius; radius 0 is the clean image."""
        yield ("clean", NONE, 0.0), (self.logits.argmax(1) != torch.cat([y for _, y in self.batches])).cpu()
        steps, queries = self.plan.apgd_steps, self.plan.queries
        for radius in radii:
            where: dict[str, Any] = {"radius": radius, "norm": norm}
            once: Attack = lambda m, x, y, generator, where=where: fgsm(m, x, y, **where)  # noqa: E731
            yield ("fgsm", WHITE, radius), self.wrong(once, f"fgsm/{radius}")
            searches: dict[str, tuple[Attack, dict[str, Any]]] = {
                "pgd-10": (pgd, {}),
                "apgd-ce": (apgd, {"steps": steps}),
                "apgd-dlr": (apgd, {"steps": steps, "loss": "dlr"}),
                "square": (square, {"queries": queries, "first": min(self.plan.searched, len(self.index))}),
            }
            for name, (attack, more) in searches.items():
                access = QUERIES if attack is square else WHITE
                yield (name, access, radius), self.found(attack, f"{name}/{radius}", **where, **more)
            if surrogate is not None:
                shown: dict[str, Attack] = {"fgsm": once, "pgd-10": partial(pgd, **where)}
                for name, attack in shown.items():
                    yield (name, TRANSFER, radius), self.wrong(attack, f"black/{name}/{radius}", against=surrogate)
            yield (AVERAGED, WHITE, radius), self.wrong(partial(averaged, **where), f"{AVERAGED}/{radius}")
            drawn: Attack = lambda m, x, y, generator, where=where: noise(x, generator=generator, **where)  # noqa: E731
            yield ("noise", NONE, radius), self.wrong(drawn, "noise")

    def checks(self, wrong: Mapping[Key, Tensor], radii: Sequence[float], norm: Norm) -> list[TrustCheck]:
        unmoved = [pgd(self.subject.model, x, y, radius=0.0) for x, y in self.batches]
        again = torch.stack([self._logits(unmoved) for _ in range(PASSES)])
        checks = [trust.repeatable(self.logits, again, precision=self.subject.precision)]
        with exact(self.subject.device):  # short steps need all digits
            checks += trust.slopes(self.subject.model, self._first(self.plan.unbounded))
        middle = radii[len(radii) // 2]
        long = self.found(pgd, f"long/{middle}", radius=middle, norm=norm, steps=self.plan.long_steps)
        return [*checks, *trust.comparisons(wrong, radii, norm, {middle: long})]

    def wrong(self, attack: Attack, purpose: str, *, against: nn.Module | None = None) -> Tensor:
        """(N,) whether the model errs on what an attack makes of each image; against: whom the attack sees."""
        return self._errors(partial(attack, self.subject.model if against is None else against), purpose, self.batches)

    def found(self, attack: Attack, purpose: str, *, first: int | None = None, **settings: Any) -> Tensor:
        """(N,) the same, for a search that leaves images alone once they went wrong, on the first so many images.

        It is given as many as fit, so that the last ones standing are few batches and not one of every batch.
        """
        search = partial(attack, self.subject.model, early_stop=True, batch_size=self.subject.batch_size, **settings)
        return self._errors(search, purpose, _joined(self._first(len(self.index) if first is None else first)))

    def _errors(self, attack: Attack, purpose: str, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        subject, found = self.subject, []
        generator = torch.Generator(subject.device).manual_seed(derive(subject.seed, f"attacks/{purpose}"))
        for x, y in batches:
            with autocast(subject.precision, subject.device):
                moved = attack(x, y, generator=generator)
            found.append(self._logits(torch.split(moved, subject.batch_size)).argmax(1) != y)
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


class Averaged(nn.Module):
    """The mean of a model's logits over points around each image, at several distances within the radius."""

    def __init__(self, model: nn.Module, **around: Any) -> None:
        super().__init__()
        self.model, self.radius, self.around = model, around.pop("radius"), around

    def forward(self, x: Tensor) -> Tensor:
        clean, lengths = x.detach(), [(i + 0.5) / POINTS * self.radius for i in range(POINTS)]
        moved = torch.cat([x + (noise(clean, radius=length, **self.around) - clean) for length in lengths])
        return torch.stack(self.model(moved).chunk(POINTS)).mean(0)


def averaged(
    model: nn.Module, x: Tensor, y: Tensor, *, radius: float, norm: Norm, generator: torch.Generator
) -> Tensor:
    """PGD on averaged logits.

    Where a model rounds smoothly, its gradients follow the steps of the rounding. Averaged over some steps they point
    where the network's own do, as if the identity took the place of the rounding (BPDA; Athalye et al., 2018).
    """
    around = Averaged(model, radius=radius, norm=norm, generator=generator, bounds=(0.0, 1.0))
    return pgd(around, x, y, radius=radius, norm=norm, keep="last")


def _joined(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same images in batches as large as TOGETHER allows."""
    groups: list[list[tuple[Tensor, Tensor]]] = [[]]
    for x, y in batches:
        if groups[-1] and sum(b.numel() for b, _ in groups[-1]) + x.numel() > TOGETHER:
            groups.append([])
        groups[-1].append((x, y))
    for held in groups:
        xs, ys = zip(*held, strict=True)
        yield torch.cat(xs), torch.cat(ys)


def preset_attack(name: str, subject: Subject) -> Attack:
    preset = PRESETS[name]
    scale = channel_statistics(subject.data.train)[1] if preset.space == "normalised" else None
    return lambda m, x, y, generator: preset(m, x, y, scale=scale)


def surrogate_seconds(subject: Subject) -> float:
    plan = BUDGETS[subject.device.type]
    started = time.perf_counter()
    train_surrogate(subject, replace(plan, surrogate_epochs=1))
    return plan.surrogate_epochs * (time.perf_counter() - started)


def train_surrogate(subject: Subject, plan: AttackBudget) -> nn.Module | None:
    """A small network trained plainly on a part of the training set; None where there is none."""
    data = subject.data
    if len(data.train) == 0:
        return None
    index = draw(len(data.train), plan.surrogate_images, subject.seed, "attacks/surrogate/images")
    part = replace(data, train=data.train.subset(index), val=None, test=None, notes=())
    cuda, seed = subject.device.type == "cuda", derive(subject.seed, "attacks/surrogate") % 2**31
    how: dict[str, Any] = {"model": plan.surrogate_model, "epochs": plan.surrogate_epochs, "eval_every": 0}
    how |= {"optimizer": "sgd", "lr": 0.05, "batch_size": 128}  # whatever the defaults: findings stay comparable
    how |= {"precision": "bf16" if cuda else "fp32", "channels_last": cuda, "compile": False}
    return fit(part, seed=seed, workers=subject.workers, device=str(subject.device), progress=False, **how).model


def fallen(wrong: Mapping[Key, Tensor], norm: Norm) -> list[str]:
    """What each image can bear: the smallest radius at which some attack brings it down."""
    radii = sorted({key[2] for key in wrong if key[2]})
    said = [f"withstands {radius_text(radii[-1], norm)}"] * len(wrong["clean", NONE, 0.0])
    for radius in reversed(radii):
        for i in any_of(wrong, radius, lambda key: True).nonzero().flatten().tolist():
            said[i] = f"{FALLS}{radius_text(radius, norm)}"
    for i in wrong["clean", NONE, 0.0].nonzero().flatten().tolist():
        said[i] = WRONG
    return said


def findings(
    positions: Tensor,
    wrong: Mapping[Key, Tensor],
    unlimited: Tensor,
    presets: Mapping[tuple[str, str], Tensor],
    checks: Sequence[TrustCheck],
    settings: Mapping[str, Any],
) -> tuple[Finding, ...]:
    norm: Norm = settings["norm"]
    verdict = trust.verdict(checks)

    def share(values: Tensor, where: Mapping[str, str], more: Mapping[str, Any]) -> Finding:
        e = proportion(values)
        return Finding("attacks", "attack_error", e.value, e.n, e.low, e.high, where, settings, {**more, **verdict})

    def error(values: Tensor, attack: str, access: str, radius: float | None) -> Finding:
        at = {"radius": radius_text(radius, norm)} if radius else {}
        return share(values, {"attack": attack, "access": access, **at}, {"radius": radius, "norm": norm})

    made = [error(values, *key) for key, values in wrong.items()]
    fallen_by_now = clean = wrong["clean", NONE, 0.0]
    for radius in sorted({key[2] for key in wrong if key[2]}):
        fallen_by_now = fallen_by_now | any_of(wrong, radius, lambda key: True)  # a ball holds the smaller ones
        made.append(error(fallen_by_now, "strongest", "any", radius))
    made += withstood(made)
    made.append(error(unlimited, "unbounded", WHITE, None))
    for (name, access), values in presets.items():
        preset = PRESETS[name]
        told = {"radius": preset.radius, "norm": "linf", "space": preset.space, "steps": preset.steps}
        made.append(share(values, {"preset": name, "access": access}, told))
    for check in checks:
        value, of = None if check.passed is None else float(check.passed), {"check": check.name}
        evidence = {"passed": check.passed, "says": check.says, **check.numbers, **verdict}
        made.append(Finding("attacks", "trust_check", value, check.n, None, None, of, settings, evidence))
    failed = [check.name for check in checks if check.passed is False]
    said = {"failed": failed, "verdicts": encode(positions, fallen(wrong, norm)), **verdict}
    trusted = float(verdict["trusted"])
    return (*made, Finding("attacks", "trusted", trusted, len(clean), settings=settings, evidence=said))


STRONGEST: Final = {"attack": "strongest", "access": "any"}
UNMOVED: Final = {"attack": "clean", "access": "none"}


def withstood(findings: Sequence[Finding]) -> Iterator[Finding]:
    """``robust_accuracy`` and ``attack_drop`` at every radius, from errors under the strongest attack and without one.

    The images are the same, and what is wrong as it is counts as wrong under attack. So the pairs that differ are known
    from the two errors alone: as many as were lost, and none that was won.
    """
    own = [(f, f.value) for f in findings if f.name == "attack_error" and f.value is not None]
    clean = next((error for f, error in own if f.where == UNMOVED), None)
    for f, error in own:
        if clean is None or not f.where.items() >= STRONGEST.items():
            continue
        image, where = torch.arange(f.n), {"radius": f.where["radius"]}
        lost = paired_difference(image < f.n - round(clean * f.n), image < f.n - round(error * f.n))
        low, high = (None if end is None else 1 - end for end in (f.high, f.low))
        yield Finding("attacks", "robust_accuracy", 1 - error, f.n, low, high, where, f.settings, f.evidence)
        yield Finding("attacks", "attack_drop", lost.lead, f.n, lost.low, lost.high, where, f.settings, f.evidence)
