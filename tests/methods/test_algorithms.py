"""One training step of each algorithm against a plain reference, written line by line from the pseudo-code.

In float64, with BatchNorm in both networks; the numbers in the comments are lines of the supplement's algorithms.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.attacks.bias_attack import bias_adversarial
from holdfast.errors import HoldfastError
from holdfast.methods import Context, Method, State
from holdfast.models import Normalised
from holdfast.rng import Generators
from holdfast.settings import MethodSettings
from holdfast.train.step import Step
from holdfast.train.step_parts import Meters
from holdfast.types import Batch

RATE, CLASSES, N = 0.1, 3, 12
ADAM = {"lr": 1e-2, "weight_decay": 1e-4}


def make_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, CLASSES))
    return Normalised(body, mean=(0.4, 0.5), std=(0.25, 0.2)).double()


def make_method(settings: dict[str, Any]) -> tuple[Method, State]:
    labels = torch.arange(N) % CLASSES
    context = Context(CLASSES, labels, torch.full((N,), -1), epochs=1, make_model=lambda: make_net(7))
    method = MethodSettings.choose(settings)
    assert isinstance(method, Method)
    state = method.start(context)
    state.stage = method.stages(1)[-1]
    return method, state.double() if settings["name"].startswith(("erm", "jtt")) else _wide(state)


def _wide(state: State) -> State:
    state.biased.double()
    for name in ("average", "biased_average"):
        if hasattr(state, name):
            setattr(state, name, getattr(state, name).double())
    return state


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for part in torch.arange(N).split(6):
        x = torch.rand(len(part), 2, 6, 6, generator=generator, dtype=torch.float64)
        made.append(Batch(part, x, part % CLASSES, torch.full((len(part),), -1)))
    return made


def train(method: Method, state: State, model: nn.Module, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    along = method.trained_along(state)
    beside = list(along.parameters()) if along is not None else []
    own = [p for p in state.parameters() if all(p is not other for other in beside)]
    step = Step(
        model=model,
        method=method,
        state=state,
        optimizer=make([*model.parameters(), *beside]),
        auxiliary_optimizer=make(own) if own else None,
        augment=lambda x, generator: x,  # type: ignore[arg-type]
        rng=Generators(0, torch.device("cpu")),
        meters=Meters(torch.device("cpu")),
        autocast=nullcontext,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        whole=lambda: (),
        whole_size=N,
    )
    model.train()
    state.train()
    for _ in range(2):
        for batch in batches():
            step(batch)


def cross(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def gce(logits: Tensor, y: Tensor, q: float, form: str) -> Tensor:
    p = logits.softmax(1).gather(1, y[:, None])[:, 0]
    return (1 - p**q) / q if form == "textbook" else q * p.detach() ** q * cross(logits, y)


def attack(x: Tensor, y: Tensor, f: nn.Module, g: nn.Module, s: dict[str, Any]) -> Tensor:
    """PGD on L(g) − λ·L(f), sample by sample in plain words."""
    flags = f.training, g.training
    frozen = [copy.deepcopy(m) for m in (f, g)]
    for model in frozen:
        model.train(s.get("statistics") == "batch")
    own, biased = frozen
    unit = f.std if s.get("space") == "normalised" else 1.0
    step = 2.5 * s["radius"] / s["steps"] if s["steps"] > 2 else s["radius"]
    moved = torch.zeros_like(x)
    for _ in range(s["steps"]):
        at = (x + moved).requires_grad_()
        value = (cross(biased(at), y) - s["lam"] * cross(own(at), y)).sum()
        slope = torch.autograd.grad(value, at)[0] * unit
        if s.get("norm") == "linf":
            moved = (moved + step * unit * slope.sign()).clamp(-s["radius"] * unit, s["radius"] * unit)
        else:
            size = slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            moved = moved + step * unit * slope / size
            length = (moved / unit).flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            moved = moved * (s["radius"] * (1 - 2**-22) / length).clamp(max=1)
        moved = (x + moved).clamp(0, 1) - x
    assert (f.training, g.training) == flags
    return (x + moved).detach()


def reference(
    settings: dict[str, Any], f: nn.Module, g: nn.Module, make: Callable[[Any], torch.optim.Optimizer]
) -> nn.Module:
    """Two epochs of Algorithm 1, the second half of 2, or 3, on f and g in place; f as adversarial images see it."""
    s = dataclasses.asdict(MethodSettings.choose(settings)) | settings
    base, _, adversarial = s["name"].partition("+")
    f_adv = f
    if s.get("batch_norm") == "auxiliary":  # f with another BatchNorm
        f_adv = copy.deepcopy(f)
        for i in (0, 4):
            f_adv.net[i] = f.net[i]
    attacked = f_adv if s.get("attack_batch_norm") == "auxiliary" else f
    descend_f, descend_g = (
        make([*{**dict.fromkeys(f.parameters()), **dict.fromkeys(f_adv.parameters())}]),
        make(g.parameters()),
    )
    drawn = Generators(0, torch.device("cpu"))["attack"]
    f.train()
    g.train()
    memory: dict[str, dict[int, Tensor]] = {"f": {}, "g": {}}
    for _ in range(2):
        for batch in batches():
            x, y = batch.x, batch.y
            if base == "lff":  # 3.5
                with torch.no_grad():
                    losses = {"g": cross(_peek(g, x), y), "f": cross(_peek(f, x), y)}
                omega = _relative(losses, batch, memory, s)
            x_adv = _perturbed(x, y, attacked, g, s, drawn) if adversarial else None  # 1.5, 2.12, 3.6
            if base != "jtt":  # 1.7-8, 3.9-10
                descend_g.zero_grad()
                gce(g(x), y, s["q"], s["gce"]).mean().backward()
                descend_g.step()
            descend_f.zero_grad()  # 1.9-10, 2.14-15, 3.11-12
            risk = (omega * cross(f(x), y)).mean() if base == "lff" else cross(f(x), y).mean()
            if x_adv is not None:
                weight = s["beta"] * (1 - omega) if base == "lff" else s["beta"]
                before = copy.deepcopy(dict(f.named_buffers()))
                risk = risk + (weight * cross(f_adv(x_adv), y)).mean()
                if s["running"] == "clean":
                    for name, buffer in f.named_buffers():
                        buffer.data.copy_(before[name])
            risk.backward()
            descend_f.step()
    return f_adv


def _perturbed(x: Tensor, y: Tensor, f: nn.Module, g: nn.Module, s: dict[str, Any], drawn: torch.Generator) -> Tensor:
    """x_adv, or what a control has in its place."""
    if s["perturbation"] == "noise":
        direction = torch.randn(x.shape, generator=drawn).double()
        length = direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        return (x + s["radius"] * (1 - 2**-22) * direction / length).clamp(0, 1)
    return attack(x, y, f, f, s | {"lam": 0.0}) if s["perturbation"] == "model" else attack(x, y, f, g, s)


def _peek(model: nn.Module, x: Tensor) -> Tensor:
    """A forward pass in training mode that leaves no trace."""
    return copy.deepcopy(model)(x)


def _relative(
    losses: dict[str, Tensor], batch: Batch, memory: dict[str, dict[int, Tensor]], s: dict[str, Any]
) -> Tensor:
    if s.get("difficulty", "averaged") == "raw":
        return losses["g"] / (losses["g"] + losses["f"])
    scaled = {}
    for who, own in memory.items():
        for i, loss in zip(batch.index.tolist(), losses[who], strict=True):
            own[i] = 0.7 * own[i] + 0.3 * loss if i in own else loss
        largest = {c: max(v for i, v in own.items() if i % CLASSES == c) for c in range(CLASSES)}
        scaled[who] = torch.stack([own[i] / largest[i % CLASSES] for i in batch.index.tolist()])
    return scaled["g"] / (scaled["g"] + scaled["f"] + 1e-8)


CASES: list[dict[str, Any]] = [
    {"name": "lff"},
    {"name": "lff", "difficulty": "raw", "gce": "textbook"},
    {"name": "erm+biasadv", "lam": 1.0, "radius": 1.0, "beta": 2.0},
    {"name": "erm+biasadv", "norm": "linf", "space": "normalised", "radius": 0.1, "gce": "textbook", "q": 0.5},
    {"name": "jtt+biasadv", "lam": 1.0, "steps": 3},
    {"name": "lff+biasadv"},
    {"name": "lff+biasadv", "difficulty": "raw", "norm": "linf", "radius": 0.05, "statistics": "batch"},
    {"name": "lff+biasadv", "space": "normalised", "lam": 0.0, "beta": 0.5},
    {"name": "lff+biasadv", "running": "clean"},
    {"name": "erm+biasadv", "running": "clean", "radius": 1.0},
    {"name": "lff+biasadv", "batch_norm": "auxiliary"},
    {"name": "erm+biasadv", "batch_norm": "auxiliary", "radius": 1.0},
    {"name": "jtt+biasadv", "batch_norm": "auxiliary"},
    {"name": "lff+biasadv", "batch_norm": "auxiliary", "attack_batch_norm": "auxiliary"},
    {"name": "erm+biasadv", "batch_norm": "auxiliary", "attack_batch_norm": "auxiliary", "statistics": "batch"},
    {"name": "erm+biasadv", "batch_norm": "auxiliary", "attack_batch_norm": "auxiliary", "perturbation": "model"},
    {"name": "lff+biasadv", "perturbation": "noise"},
    {"name": "erm+biasadv", "perturbation": "model", "batch_norm": "auxiliary"},
]


@pytest.mark.parametrize("settings", CASES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_equal_the_pseudo_code(settings: dict[str, Any], optimizer: str) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=RATE) if optimizer == "sgd" else torch.optim.Adam(parameters, **ADAM)

    (method, state), model = make_method(settings), make_net(1)
    f, g = copy.deepcopy(model), copy.deepcopy(state.biased)
    train(method, state, model, make)
    f_adv = reference(settings, f, g, make)
    if settings.get("batch_norm") == "auxiliary":
        for name, value in state.norms.tensors().items():
            torch.testing.assert_close(value, f_adv.state_dict()[name], rtol=1e-10, atol=1e-10)
    for ours, theirs in ((model, f), (state.biased, g)):
        expected = theirs.state_dict()
        for name, value in ours.state_dict().items():
            if "running" in name and ours is state.biased and settings["name"].startswith("jtt"):
                continue  # nobody trains it any more
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_an_attack_through_the_second_layers_follows_both_networks() -> None:
    """In half precision too, where it is on a copy: with the weights of now, and the layers that stand in."""
    settings = {"name": "erm+biasadv", "batch_norm": "auxiliary", "attack_batch_norm": "auxiliary", "steps": 2}
    (method, state), model = make_method(settings), make_net(1).float()
    state.float().train()
    batch = dataclasses.replace(batches()[0], x=batches()[0].x.float())
    for weight in (1.0, 2.0):  # the second time after a step
        with torch.no_grad():
            model.net[4].weight.mul_(weight)
            state.norms.layers[0].running_mean.add_(weight)
        expected = copy.deepcopy(model)
        expected.load_state_dict(expected.state_dict() | state.norms.tensors())
        for half in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                wanted = {"radius": method.radius, "lam": method.lam, "steps": 2}
                x_adv = bias_adversarial(batch.x, batch.y, expected, state.biased, **wanted)
                found = method.views(batch, model=model, state=state, rng=Generators(0, torch.device("cpu"))).items[1].x
            assert torch.equal(found, x_adv)


def test_an_attack_through_layers_that_there_are_not_is_refused() -> None:
    with pytest.raises(HoldfastError, match="second set of BatchNorm layers; add --method.batch-norm auxiliary"):
        make_method({"name": "lff+biasadv", "attack_batch_norm": "auxiliary"})


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_half_precision_attacks_with_the_statistics_that_were_chosen(statistics: str) -> None:
    """There the attack is on twins in evaluation mode, if running statistics are what it is to use."""
    settings = {"name": "erm+biasadv", "statistics": statistics, "radius": 1.0, "steps": 2}
    (method, state), model = make_method(settings), make_net(1).float().train()
    state.float().train()
    batch = dataclasses.replace(batches()[0], x=batches()[0].x.float())
    wanted = {"radius": 1.0, "lam": method.lam, "steps": 2}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mode = "as-is" if statistics == "batch" else "eval"
        expected = bias_adversarial(batch.x, batch.y, model, state.biased, mode=mode, **wanted)
        found = method.views(batch, model=model, state=state, rng=Generators(0, torch.device("cpu"))).items[1].x
    assert torch.equal(found, expected)
