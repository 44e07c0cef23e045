"""Captured attacks look at values before a graph is recorded and never while it is. Needs a CUDA device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks import CapturedAttack, QueuedPgd, bias_adversarial, fgsm, pgd
from holdfast.attacks.objectives import check_answers, check_examples
from holdfast.devices import capture, fetch
from holdfast.errors import HoldfastError
from tests.attacks.small import make_images, make_net

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def problem(n: int = 8, seed: int = 2) -> tuple[nn.Module, Tensor, Tensor]:
    return make_net(1, 3).cuda().eval(), make_images(seed, n).cuda(), (torch.arange(n) % 3).cuda()


def broken(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, str]]:
    """Images and labels that no attack can work on, and what is said of them."""
    nan, outside = x.clone(), y.clone()
    nan[5, 0, 0, 0] = torch.nan
    outside[2] = 3
    return [
        (nan, y, "image 5 has NaN or infinite pixels"),
        (x, outside, "label 3 of image 2 is not a class of the model, which are 0 to 2"),
    ]


def test_bad_images_and_labels_are_named_and_a_good_batch_is_captured_afterwards() -> None:
    model, x, y = problem()
    attack = CapturedAttack(model, attack=pgd, radius=0.1, steps=3)
    for images, labels, says in broken(x, y):
        with pytest.raises(HoldfastError, match=says):
            attack(images, labels)
    for seed in (2, 3):  # recorded, replayed
        images = make_images(seed, 8).cuda()
        torch.testing.assert_close(attack(images, y), pgd(model, images, y, radius=0.1, steps=3))
        for bad, labels, says in broken(x, y):
            with pytest.raises(HoldfastError, match=says):
                attack(bad, labels)


def test_values_are_fetched_before_what_is_queued_after_them() -> None:
    """The host waits for the value alone: the long work behind it is not done when the value is here."""
    x, done = torch.rand(4096, 4096, device="cuda"), torch.cuda.Event()
    x @ x
    torch.cuda.synchronize()
    value = fetch(x[0, 0] > -1)
    for _ in range(200):
        x = x @ x
    done.record()
    assert bool(value())
    assert not done.query()


def test_a_queue_names_bad_images_of_a_later_set_too() -> None:
    model, x, y = problem()
    attack = QueuedPgd(model, radius=0.1, steps=3, batch=4)
    attack(x, y)
    images, labels, says = broken(x, y)[0]
    with pytest.raises(HoldfastError, match=says):
        attack(images, labels)


def test_nothing_is_looked_at_while_a_graph_is_recorded() -> None:
    """A look would wait for the device, which ends the recording; outside of one the same values are refused."""
    _, x, y = problem()
    images, labels = broken(x, y)[0][0], broken(x, y)[1][1]
    logits = torch.full((8, 3), torch.nan, device="cuda")

    def look() -> Tensor:
        check_examples(images, y)
        check_answers(logits, labels)
        return images + 1

    with pytest.raises(HoldfastError, match="image 5"):
        look()
    recorded = capture(look, device=torch.device("cuda"))
    torch.testing.assert_close(recorded(), images + 1, equal_nan=True)


@pytest.mark.parametrize("loss", ["ce", "margin"])
def test_fgsm_and_pgd_are_recorded_as_they_are(loss: str) -> None:
    model, _, y = problem()
    for attack, settings in ((fgsm, {}), (pgd, {"steps": 4, "loss": loss})):
        captured = CapturedAttack(model, attack=attack, radius=0.1, **settings)
        for seed in (2, 3):
            images = make_images(seed, 8).cuda()
            torch.testing.assert_close(captured(images, y), attack(model, images, y, radius=0.1, **settings))


def test_the_attack_of_biasadv_can_be_recorded() -> None:
    model, x, y = problem()
    biased = make_net(4, 3).cuda().eval()

    def work(images: Tensor) -> Tensor:
        return bias_adversarial(images, y, model, biased, radius=0.4, lam=0.5, steps=3)

    recorded = capture(work, x.clone(), device=torch.device("cuda"), rehearsals=2)
    torch.testing.assert_close(recorded(), work(x))
