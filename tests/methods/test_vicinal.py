"""Methods that train on neighbours: what they draw and what they make of it, against the formulas of their papers.

Image i is a picture of the number i alone, so that every neighbour tells which images it was made of, and how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.data import ArraySplit, Dataset
from holdfast.methods.alps import Alps
from holdfast.methods.manifold_mixup import first_blocks
from holdfast.models import build_model
from holdfast.settings import TrainSettings, build
from holdfast.train import Interrupted, fit, train
from holdfast.train.step import Step, captured
from holdfast.types import Batch, Views
from tests.conftest import SignalAt, make_data, same_weights
from tests.methods.made import draws, evaluate, make_batch, make_method

N, CLASSES = 12, 3
LABELS = torch.arange(N) % CLASSES


def marked() -> Tensor:
    """(N, N, 4, 4): image i is 1 in channel i and 0 elsewhere."""
    return torch.eye(N)[:, :, None, None].expand(N, N, 4, 4).contiguous()


def made_of(image: Tensor) -> dict[int, float]:
    """Which images a mixture is made of, and the share of each."""
    return {k: float(v) for k, v in enumerate(image.mean((1, 2))) if v > 0}


def net(inputs: int = N * 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def label_of(shares: dict[int, float]) -> Tensor:
    label = torch.zeros(CLASSES)
    for number, share in shares.items():
        label[int(LABELS[number])] += share
    return label


def alps_partners(monkeypatch: pytest.MonkeyPatch, batch_size: int = 2, **settings: object) -> list[tuple[int, int]]:
    """(image, its partner) for every image of a training, read from what the network was shown."""
    images = (torch.eye(N)[:, :, None].repeat_interleave(3, 2) * 255).to(torch.uint8)[:, None]  # image i: stripe i
    data = Dataset("marked", ("a", "b", "c"), ArraySplit(images, LABELS, torch.full((N,), -1)))
    found, views = [], Alps.views

    def watched(self: Alps, batch: Batch, **others: Any) -> Views:
        drawn = views(self, batch, **others)
        for number, image in zip(batch.index.tolist(), drawn.items[0].x[:, 0, :, 0], strict=True):
            shares = {k: float(v) for k, v in enumerate(image) if v > 0}
            assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
            found.append((number, next((k for k in shares if k != number), number)))
        return drawn

    monkeypatch.setattr(Alps, "views", watched)
    fit(data, model=net(N * 3), method={"name": "alps", **settings}, epochs=15, batch_size=batch_size, device="cpu")
    return found


def test_alps_meets_any_image_of_the_set_or_only_those_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithm 1 samples x' from the whole set uniformly: itself once in n. In a batch of two, every second time."""
    within = alps_partners(monkeypatch)
    assert sum(a == b for a, b in within) / len(within) == pytest.approx(1 / 2, abs=0.12)
    anywhere = alps_partners(monkeypatch, partners="set")
    assert len(anywhere) == 15 * N
    counts = torch.zeros(N, N)
    for pair in anywhere:
        counts[pair] += 1
    assert counts.sum(0).tolist() == [15] * N, "every image is a partner once per epoch"
    expected = 15 / N
    # over permutations this has the mean N (N - 1) = 132 and a deviation of about 17
    assert float(((counts - expected) ** 2 / expected).sum()) < 132 + 3 * 17


def test_a_step_that_is_to_be_captured_is_given_all_its_batches() -> None:
    """A graph takes tensors, so batches are taken apart and put together again; the first calls are not captured."""
    given: list[tuple[Batch, ...]] = []

    class Recorded:
        rng: ClassVar[dict[str, torch.Generator]] = {}

        def __call__(self, *batches: Batch) -> None:
            given.append(batches)

    batches = [Batch(torch.arange(4) + i, torch.rand(4, 1, 2, 2), LABELS[:4], LABELS[:4] - i) for i in range(3)]
    captured(cast("Step", Recorded()), torch.device("cpu"), None)(*batches)
    ((*found,),) = given
    assert len(found) == 3
    for own, one in zip(found, batches, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own.tensors(), one.tensors(), strict=True))
        assert own.others is None


@pytest.mark.slow
def test_alps_of_the_whole_set_splits_batches_and_resumes(tmp_path: Path) -> None:
    options = {"method": {"name": "alps", "partners": "set"}, "epochs": 2, "batch_size": 16, "device": "cpu", "crop": 1}
    settings = build(TrainSettings, {**options, "accumulate": 3, "ascent": "sam-db"})
    whole = train(settings, data=make_data())
    with pytest.raises(Interrupted):
        train(settings, data=make_data(), out=tmp_path / "run", progress=SignalAt(8))
    assert same_weights(whole.model, train(settings, data=make_data(), out=tmp_path / "run", resume=True).model)
    within = build(TrainSettings, {**options, "method": "alps", "accumulate": 3, "ascent": "sam-db"})
    assert not same_weights(whole.model, train(within, data=make_data()).model)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
@pytest.mark.parametrize("each", [False, True])
def test_images_and_labels_are_mixed_alike(name: str, each: bool) -> None:
    method, state = make_method(LABELS, name=name, alpha=1.0, per_sample=each)
    shares_drawn = set()
    for seed in range(5):
        (view,) = method.views(make_batch(marked(), LABELS), model=net(), state=state, rng=draws(seed)).items
        partners = []
        for number, (image, label) in enumerate(zip(view.x, view.label, strict=True)):
            shares = made_of(image)
            assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
            torch.testing.assert_close(label, label_of(shares))
            partners += [k for k in shares if k != number] or [number]
            if len(shares) == 2:
                shares_drawn.add((seed, round(shares.get(number, 0.0), 5)))
        if name == "mixup":
            assert sorted(partners) == list(range(N)), "every image is somebody's partner once"
    seeds = [seed for seed, _ in shares_drawn]
    assert len(set(seeds)) > 2
    if name == "mixup":  # boxes are cut at the border, each where it lies
        assert (max(seeds.count(seed) for seed in seeds) > 2) == each, "one share for the batch, or one an image"


def test_cutmix_pastes_a_box_and_mixup_blends() -> None:
    made = (make_method(LABELS, name=name) for name in ("cutmix", "mixup"))
    cut, blended = (
        method.views(make_batch(marked(), LABELS), model=net(), state=state, rng=draws(3)).items[0].x
        for method, state in made
    )
    assert set(cut.unique().tolist()) == {0.0, 1.0}
    assert bool(((blended > 0) & (blended < 1)).any())
    assert float((blended - blended[:, :, :1, :1]).abs().max()) == 0


class Deep(nn.Module):
    """Three blocks in a row; ``mixed`` may change what comes out of any of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(N * 16, 6), nn.Linear(6, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x.flatten(1)).tanh()).tanh())

    def by_hand(self, x: Tensor, place: int, partner: Tensor, lam: Tensor) -> Tensor:
        def mix(z: Tensor, here: int) -> Tensor:
            return lam[:, None] * z + (1 - lam[:, None]) * z[partner] if place == here else z

        hidden = mix(self.first(mix(x.flatten(1), 0)), 1).tanh()
        out: Tensor = self.head(mix(self.second(hidden), 2).tanh())
        return out


def test_manifold_mixup_mixes_at_the_place_that_was_drawn_and_nowhere_else() -> None:
    (method, state), model, x = make_method(LABELS, name="manifold-mixup", depth=2), Deep(), torch.rand(N, N, 4, 4)
    places = []
    with method.attached(state, model):
        for seed in range(12):
            views = method.views(make_batch(x, LABELS), model=model, state=state, rng=draws(seed))
            loss, logits, _ = evaluate(method, model, views, state)
            partner, shares = views.extra["partner"], views.extra["shares"]
            (place,) = [k for k, row in enumerate(shares.tolist()) if set(row) != {1.0}]
            lam = shares[place]
            expected = model.by_hand(x, place, partner, lam)
            torch.testing.assert_close(logits, expected)
            hot = F.one_hot(LABELS, CLASSES).float()
            target = lam[:, None] * hot + (1 - lam[:, None]) * hot[partner]
            torch.testing.assert_close(loss, F.cross_entropy(expected, target))
            places.append(place)
            torch.testing.assert_close(model(x), model.by_hand(x, -1, partner, lam))  # an evaluation in between
    assert set(places) == {0, 1, 2}


def test_alps_trains_on_the_worst_label_of_an_image_that_is_mostly_its_own() -> None:
    method, state = make_method(LABELS, name="alps", epsilon=0.4, mode=0.9, concentration=20.0)
    model = net()
    shares = []
    for seed in range(40):
        views = method.views(make_batch(marked(), LABELS), model=model, state=state, rng=draws(seed))
        loss, logits, _ = evaluate(method, model, views, state)
        own = logits.gather(1, LABELS[:, None])[:, 0]
        expected = F.cross_entropy(logits, LABELS) + 0.2 * (own - logits.amin(1)).mean()
        torch.testing.assert_close(loss, expected)
        shares += [made_of(image).get(number, 0.0) for number, image in enumerate(views.items[0].x)]
    drawn = torch.tensor([s for s in shares if s < 1])
    assert float(drawn.mean()) == pytest.approx((0.9 * 18 + 1) / 20, abs=0.02)  # the mean of the Beta with that mode
    assert float(drawn.var()) == pytest.approx(0.86 * 0.14 / 21, rel=0.25)


def test_alps_takes_a_beta_given_outright() -> None:
    method, state = make_method(LABELS, name="alps", alpha=3.0, beta=7.0)
    drawn = []
    for seed in range(60):
        (view,) = method.views(make_batch(marked(), LABELS), model=net(), state=state, rng=draws(seed)).items
        drawn += [made_of(image).get(number, 0.0) for number, image in enumerate(view.x) if len(made_of(image)) == 2]
    shares = torch.tensor(drawn)
    assert float(shares.mean()) == pytest.approx(0.3, abs=0.02)
    assert float(shares.var()) == pytest.approx(0.3 * 0.7 / 11, rel=0.25)


def test_blocks_are_found_inside_wrappers() -> None:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(5, CLASSES))
    wrapped = nn.Sequential(nn.Identity(), nn.Sequential(nn.ReLU(), body))
    assert first_blocks(wrapped, 2) == [body[0], body[2]]
    assert first_blocks(wrapped, 1) == [body[0]]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("cifar-preactresnet18", ["stages.0", "stages.1"]),
        ("cifar-wrn-28-10", ["stages.0", "stages.1"]),
        ("cifar-resnet18", ["layer1", "layer2"]),
        ("torchvision:resnet18", ["layer1", "layer2"]),
        ("cifar-vgg16", ["features.0", "features.2"]),
        ("convnet", ["features.0", "features.4"]),
    ],
)
def test_manifold_mixup_mixes_after_the_first_stages(name: str, places: list[str]) -> None:
    """Verma et al.: the input, or what leaves the first or second residual stage; never the stem or all features."""
    model = build_model(name, num_classes=3, mean=(0.5,) * 3, std=(0.25,) * 3).model
    names = {module: path for path, module in model.named_modules()}
    assert [names[block].removeprefix("net.") for block in first_blocks(model, 2)] == places


def test_a_residual_block_is_not_mixed_within() -> None:
    """Its way around would stay unmixed."""
    block = nn.Module()
    block.a, block.b = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    backbone = nn.Module()
    backbone.stem, backbone.block = nn.Conv2d(3, 4, 3), block
    model = nn.Module()
    model.backbone, model.head = backbone, nn.Linear(4, 2)
    assert first_blocks(model, 2) == [block]


def test_label_smoothing_is_that_of_torch() -> None:
    (method, state), model, x = make_method(LABELS, name="label-smoothing", epsilon=0.2), net(), torch.rand(N, N, 4, 4)
    views = method.views(make_batch(x, LABELS), model=model, state=state, rng=draws())
    loss, logits, _ = evaluate(method, model, views, state)
    torch.testing.assert_close(loss, F.cross_entropy(logits, LABELS, label_smoothing=0.3))  # ε K / (K − 1)


def test_gaussian_noise_has_its_size_and_keeps_the_label() -> None:
    (method, state), x = make_method(LABELS, name="gaussian", sigma=0.2), torch.rand(N, N, 16, 16)
    first, second = (
        method.views(make_batch(x, LABELS), model=net(), state=state, rng=draws(s)).items[0] for s in (0, 1)
    )
    noise = first.x - x
    assert float(noise.std()) == pytest.approx(0.2, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.004)
    assert torch.equal(first.label, LABELS)
    assert not torch.equal(first.x, second.x)


def test_dropout_drops_features_before_the_head_in_training_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 400), nn.Linear(400, CLASSES))
    nn.init.zeros_(model[1].weight)
    nn.init.ones_(model[1].bias)
    seen: list[Tensor] = []
    (method, state), x = make_method(LABELS, name="dropout", p=0.25), torch.rand(5, 1, 2, 2)
    with method.attached(state, model):
        handle = model[2].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for training in (True, False):
            model.train(training)
            model(x)
        handle.remove()
    model.train()
    model[2].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(x)
    dropped, evaluated, afterwards = seen
    assert sorted(set(dropped.flatten().tolist())) == [0.0, pytest.approx(1 / 0.75)]
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.04)
    assert bool((evaluated == 1).all())
    assert bool((afterwards == 1).all())


@pytest.mark.parametrize("clean", [0.0, 0.5])
def test_adversarial_training_is_on_images_that_are_worse_and_near(clean: float) -> None:
    (method, state), model, x = (
        make_method(LABELS, name="adversarial", radius=0.1, clean=clean),
        net(),
        torch.rand(N, N, 4, 4),
    )
    views = method.views(make_batch(x, LABELS), model=model, state=state, rng=draws())
    attacked = views.items[-1]
    each = [F.cross_entropy(model(images), LABELS, reduction="none") for images in (x, attacked.x)]
    assert bool((each[1] > each[0]).all())
    assert float((attacked.x - x).abs().max()) <= 0.1 + 1e-6
    assert 0 <= float(attacked.x.min()) <= float(attacked.x.max()) <= 1
    loss, *_ = evaluate(method, model, views, state)
    torch.testing.assert_close(loss, each[1].mean() + clean * each[0].mean())


def test_vat_adds_the_divergence_at_the_neighbour_that_differs_most() -> None:
    method, state = make_method(LABELS, name="vat", radius=0.3, weight=2.0, steps=3)
    model, x = net(), torch.rand(N, N, 4, 4) * 0.5 + 0.25  # nothing is cut to the range of pixels
    views = method.views(make_batch(x, LABELS), model=model, state=state, rng=draws())
    sample, neighbour = views.items
    assert torch.equal(sample.x, x)
    lengths = (neighbour.x - x).flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((N,), 0.3))
    with torch.no_grad():
        prediction = model(x).softmax(1)

        def divergence(images: Tensor) -> Tensor:
            return F.kl_div(model(images).log_softmax(1), prediction, reduction="none").sum(1)

        torch.testing.assert_close(neighbour.label, prediction)
        generator = torch.Generator().manual_seed(0)
        for _ in range(20):
            away = torch.randn(x.shape, generator=generator)
            away *= 0.3 / away.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            assert bool((divergence(neighbour.x) > divergence(x + away)).all())
    for border in (torch.zeros_like(x), torch.ones_like(x)):
        (_, cut) = method.views(make_batch(border, LABELS), model=model, state=state, rng=draws()).items
        assert 0 <= float(cut.x.min()) <= float(cut.x.max()) <= 1
    loss, *_ = evaluate(method, model, views, state)
    entropy = -(prediction * prediction.log()).sum(1).mean()
    expected = F.cross_entropy(model(x), LABELS) + 2.0 * (divergence(neighbour.x).mean() + entropy)
    torch.testing.assert_close(loss, expected)
