"""What the check ``attacks`` does: a pass over the test images for each attack; the surrogate of transfer attacks."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from holdfast.attacks import PRESETS, apgd, fgsm, noise, pgd, square, unbounded
from holdfast.attacks.norms import Norm
from holdfast.audits.checks.attacks import trust
from holdfast.audits.checks.attacks.attack_plans import BACKWARD, BUDGETS, RADII, AttackBudget
from holdfast.audits.checks.attacks.trust import AVERAGED, NONE, QUERIES, TRANSFER, WHITE, Key, TrustCheck
from holdfast.audits.sample_passes import WRONG, Rows, SamplePass, block_seed
from holdfast.audits.subject import Subject, draw
from holdfast.augment.basic import to_float
from holdfast.data.splits import channel_statistics
from holdfast.devices import autocast, exact, kernels
from holdfast.errors import require
from holdfast.module_state import evaluating
from holdfast.rng import derive
from holdfast.train.api import fit
from holdfast.types import Finding

if TYPE_CHECKING:
    from holdfast.audits.checks.attacks import Attacks


def attack_all(subject: Subject, told: Attacks) -> tuple[Finding, ...]:
    bench = bench_of(subject, told)
    plan, norm, radii = bench.plan, told.norm, radii_of(told)
    wrong = dict(bench.bounded(radii, norm))
    with bench.kernels():
        checks = bench.checks(wrong, radii, norm)
    unlimited = bench.rows(bench.unlimited())
    checks.append(trust.reaches_all(unlimited))
    named = {key: bench.rows(one) for key, one in bench.presets(told.presets).items()}
    settings: dict[str, Any] = {"norm": norm, "images": len(bench.index), "apgd_steps": plan.apgd_steps}
    settings |= {"queries": plan.queries, "precision": subject.precision, "seed": subject.seed}
    given = told.surrogate is not None or told.surrogate_module is not None
    settings["surrogate"] = "none" if bench.surrogate is None else "given" if given else plan.surrogate_model
    return trust.findings(bench.index, wrong, unlimited, named, checks, settings)


def sample_passes(subject: Subject, told: Attacks) -> list[SamplePass]:
    bench, radii = bench_of(subject, told), radii_of(told)
    own = [bench.unlimited(), bench.long(radii, told.norm), *bench.passes(radii, told.norm).values()]
    own += bench.presets(told.presets).values()
    # a surrogate in hand stays with the process that has it
    return [one for one in own if told.surrogate_module is None or TRANSFER not in one.about["access"]]


def bench_of(subject: Subject, told: Attacks) -> AttackBench:
    plan = told.budget or BUDGETS[subject.device.type]
    given = told.surrogate_module if told.surrogate is None else subject.others[told.surrogate]
    surrogate = (lambda: given) if given is not None else None
    if surrogate is None and told.transfer and len(subject.data.train):
        surrogate = cache(lambda: train_surrogate(subject, plan))  # by whoever needs it
    bench = AttackBench(subject, told.images or plan.images, plan, surrogate)
    if given is None:
        shown = plan.surrogate_epochs * min(plan.surrogate_images, len(subject.data.train))
        bench.preparing = BACKWARD * shown / len(bench.index)
    return bench


def radii_of(told: Attacks) -> tuple[float, ...]:
    return tuple(sorted(told.radii or RADII[told.norm]))


PASSES = 4
"""How often the unmoved images are shown again, to see whether the model says the same."""
POINTS = 4
NOTHING: Final[Mapping[str, Any]] = {}
STEPS: Final = 10
"""Of PGD."""
TOGETHER = 2**27
"""Numbers that the images of one search have, at most; a search keeps a few copies of them."""
Attack = Callable[..., Tensor]
Batches = list[tuple[Tensor, Tensor]]


class AttackBench:
    """The images that are attacked, and passes over them, one for every attack at every radius.

    Images come in blocks of whole batches, as many as are searched together. surrogate: gives the model that transfer
    attacks are made against. preparing: what making it costs, in forward passes per image.
    """

    preparing = 0.0

    def __init__(
        self, subject: Subject, images: int, plan: AttackBudget, surrogate: Callable[[], nn.Module] | None = None
    ) -> None:
        self.subject, self.plan, self.surrogate = subject, plan, surrogate
        self.index = draw(len(subject.split), images, subject.seed, "attacks/images")
        require(len(self.index) > 0, f"{subject.data.name} has no test images to attack")
        numbers = subject.batch_size * math.prod(subject.data.shape)
        self.size = max(1, TOGETHER // numbers) * subject.batch_size
        self._read: dict[int, Batches] = {}

    def block(self, number: int) -> Batches:
        """Batches of a block, read once."""
        if number not in self._read:
            subject, own = self.subject, self.index[number * self.size : (number + 1) * self.size]
            labels, device = subject.split.labels[own], subject.device
            parts = zip(*(torch.split(of, subject.batch_size) for of in (own, labels)), strict=True)
            self._read[number] = [(to_float(subject.split.read(i).to(device)), y.to(device)) for i, y in parts]
        return self._read[number]

    @property
    def batches(self) -> Batches:
        return [batch for number in range(-(-len(self.index) // self.size)) for batch in self.block(number)]

    @cached_property
    def logits(self) -> Tensor:
        """(N, K) of the unmoved images."""
        found = self._logits(x for x, _ in self.batches)
        self.subject.check_outputs(found)
        return found

    def kernels(self) -> AbstractContextManager[None]:
        """Attacks leave images alone that are wrong already, so batches come in every size."""
        cuda = self.subject.device.type == "cuda"
        return kernels(self.subject.precision, deterministic=False, search=False) if cuda else nullcontext()

    def rows(self, one: SamplePass) -> Tensor:
        return self.subject.rows(one)[WRONG]

    def bounded(self, radii: Sequence[float], norm: Norm) -> Iterator[tuple[Key, Tensor]]:
        """(N,) which images go wrong, for every attack at every radius; radius 0 is the clean image."""
        yield ("clean", NONE, 0.0), (self.logits.argmax(1) != torch.cat([y for _, y in self.batches])).cpu()
        for key, one in self.passes(radii, norm).items():
            yield key, self.rows(one)

    def passes(self, radii: Sequence[float], norm: Norm) -> dict[Key, SamplePass]:
        """A pass for every attack at every radius."""
        steps, queries, few = self.plan.apgd_steps, self.plan.queries, min(self.plan.searched, len(self.index))
        made: dict[Key, SamplePass] = {}
        for radius in radii:
            where: dict[str, Any] = {"radius": radius, "norm": norm}
            once: Attack = lambda m, x, y, generator, where=where: fgsm(m, x, y, **where)  # noqa: E731
            drawn: Attack = lambda m, x, y, generator, where=where: noise(x, generator=generator, **where)  # noqa: E731
            shown = partial(pgd, **where)
            made["fgsm", WHITE, radius] = self.wrong(once, f"fgsm/{radius}", about=where)
            made["pgd-10", WHITE, radius] = self.found(pgd, f"pgd-10/{radius}", cost=BACKWARD * STEPS, **where)
            for loss in ("ce", "dlr"):
                how: dict[str, Any] = {"steps": steps, "loss": loss, "cost": BACKWARD * steps}
                made[f"apgd-{loss}", WHITE, radius] = self.found(apgd, f"apgd-{loss}/{radius}", **how, **where)
            how = {"queries": queries, "first": few, "cost": queries}
            made["square", QUERIES, radius] = self.found(square, f"square/{radius}", **how, **where)
            if self.surrogate is not None:
                how = {"about": where, "cost": BACKWARD + self.preparing / len(radii)}
                made["fgsm", TRANSFER, radius] = self.transfer(once, f"black/fgsm/{radius}", **how)
                made["pgd-10", TRANSFER, radius] = self.transfer(shown, f"black/pgd-10/{radius}", about=where)
            around, cost = partial(averaged, **where), BACKWARD * STEPS * POINTS
            made[AVERAGED, WHITE, radius] = self.wrong(around, f"{AVERAGED}/{radius}", cost=cost, about=where)
            made["noise", NONE, radius] = self.wrong(drawn, "noise", cost=1, about=where, name=f"noise/{radius}")
        return made

    def unlimited(self) -> SamplePass:
        return self.found(unbounded, "unbounded", first=self.plan.unbounded, cost=BACKWARD * 40)

    def long(self, radii: Sequence[float], norm: Norm) -> SamplePass:
        """Many steps at the middle radius."""
        radius, steps = radii[len(radii) // 2], self.plan.long_steps
        return self.found(pgd, f"long/{radius}", radius=radius, norm=norm, steps=steps, cost=BACKWARD * steps)

    def presets(self, names: Sequence[str]) -> dict[tuple[str, str], SamplePass]:
        """Attacks with settings known by name, with the gradients of either model."""
        made = {}
        for name in names:
            attack = preset_attack(name, self.subject)
            made[name, WHITE] = self.wrong(attack, name, cost=BACKWARD * PRESETS[name].steps)
            if self.surrogate is not None:
                made[name, TRANSFER] = self.transfer(attack, name, cost=BACKWARD * PRESETS[name].steps)
        return made

    def checks(self, wrong: Mapping[Key, Tensor], radii: Sequence[float], norm: Norm) -> list[TrustCheck]:
        unmoved = [pgd(self.subject.model, x, y, radius=0.0) for x, y in self.batches]
        again = torch.stack([self._logits(unmoved) for _ in range(PASSES)])
        checks = [trust.repeatable(self.logits, again, precision=self.subject.precision)]
        with exact(self.subject.device):  # short steps need all digits
            checks += trust.slopes(self.subject.model, _first(self.batches, self.plan.unbounded))
        long = {radii[len(radii) // 2]: self.rows(self.long(radii, norm))}
        return [*checks, *trust.comparisons(wrong, radii, norm, long)]

    def wrong(
        self,
        attack: Attack,
        purpose: str,
        *,
        cost: float = BACKWARD,
        about: Mapping[str, Any] = NOTHING,
        name: str = "",
    ) -> SamplePass:
        """Whether the model errs on what an attack makes of each image. name: of the pass, where the purpose, which
        seeds it, is that of several."""
        own = partial(attack, self.subject.model)
        return self._pass(own, purpose, WHITE, self.index, cost, about, name=name)

    def transfer(
        self, attack: Attack, purpose: str, *, cost: float = BACKWARD, about: Mapping[str, Any] = NOTHING
    ) -> SamplePass:
        """The same for an attack that sees the surrogate."""
        assert self.surrogate is not None
        surrogate = self.surrogate
        return self._pass(
            lambda *xy, **how: attack(surrogate(), *xy, **how), purpose, TRANSFER, self.index, cost, about
        )

    def found(
        self, attack: Attack, purpose: str, *, cost: float, first: int | None = None, **settings: Any
    ) -> SamplePass:
        """The same for a search that leaves images alone once they went wrong, on the first so many images.

        It is given all of a block, so that the last ones standing are few batches and not one of every batch.
        """
        search = partial(attack, self.subject.model, early_stop=True, batch_size=self.subject.batch_size, **settings)
        few = self.index if first is None else self.index[: max(1, first)]
        return self._pass(search, purpose, WHITE, few, cost, settings, whole=True)

    def _pass(
        self,
        attack: Attack,
        purpose: str,
        access: str,
        index: Tensor,
        cost: float,
        about: Mapping[str, Any],
        whole: bool = False,
        name: str = "",
    ) -> SamplePass:
        """whole: the attack is given all of a block, not batch after batch."""

        def compute(blocks: Sequence[int]) -> Iterator[Rows]:
            if access == TRANSFER and self.surrogate is not None:
                self.surrogate()  # made before kernels are chosen for attacks
            for number in blocks:
                batches = list(_first(self.block(number), len(one.of(number))))
                with self.kernels():
                    yield {WRONG: self._errors(attack, purpose, number, [_joined(batches)] if whole else batches)}

        # a preset has one purpose with either access
        title = re.sub(r"[^\w.-]+", "-", f"attacks-{'transfer-' * (access == TRANSFER)}{name or purpose}")
        own = {"access": access, "plan": asdict(self.plan), **about}
        together = "attacks-transfer" if access == TRANSFER else ""
        one = SamplePass(title, index, self.size, compute, cost, own, together)
        return one

    def _errors(self, attack: Attack, purpose: str, block: int, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        subject, found = self.subject, []
        seed = block_seed(subject.seed, f"attacks/{purpose}", block)
        generator = torch.Generator(subject.device).manual_seed(seed)
        for x, y in batches:
            with autocast(subject.precision, subject.device):
                moved = attack(x, y, generator=generator)
            found.append(self._logits(torch.split(moved, subject.batch_size)).argmax(1) != y)
        return torch.cat(found).cpu()

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


def _first(batches: Iterable[tuple[Tensor, Tensor]], count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the first so many images; at least one image."""
    left = max(1, count)
    for x, y in batches:
        if left > 0:
            yield x[:left], y[:left]
        left -= len(y)


def _joined(batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    xs, ys = zip(*batches, strict=True)
    return torch.cat(xs), torch.cat(ys)


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
