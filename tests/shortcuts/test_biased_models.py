"""How biased models score the training samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.data import ArraySplit, Dataset
from holdfast.settings import TrainSettings, build
from holdfast.shortcuts.biased_models import EpochScorer, held_out_logits, relative_difficulty, train_biased_model
from holdfast.shortcuts.search import biased_training
from holdfast.train.progress import Progress
from tests.conftest import Heard, make_data


def test_relative_difficulty_is_lffs_weight() -> None:
    """The formula of the authors' code, sample by sample."""
    biased, main = torch.tensor([1.0, 4.0, 0.5, 0.25]), torch.tensor([2.0, 1.0, 0.125, 0.5])
    labels = torch.tensor([0, 0, 1, 1])
    expected = []
    for i in range(4):
        own = labels == labels[i]
        b, d = biased[i] / biased[own].max(), main[i] / main[own].max()
        expected.append(b / (b + d + 1e-8))
    torch.testing.assert_close(relative_difficulty(biased, main, labels), torch.stack(expected))
    unseen = torch.tensor([1.0, torch.nan, 0.5, 0.25])
    assert relative_difficulty(unseen, main, labels)[1] == 0.5


class Sure(nn.Module):
    """Says class 0 of every image, as surely as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.p = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([self.p, 1 - self.p]).log().expand(len(x), 2)


@pytest.mark.parametrize(
    ("said", "score", "wrong"),
    [((0.9,), (0.1, 0.9), (0, 1)), ((0.1, 0.9), (0.1, 0.9), (0, 1)), ((0.9, 0.8, 0.4), (0.4, 0.6), (0.5, 0.5))],
)
def test_every_epoch_but_the_first_counts_the_same(
    said: tuple[float, ...], score: tuple[float, float], wrong: tuple[float, float]
) -> None:
    """1 - p of either label, the mean over the epochs after the first; a single one counts."""
    images, labels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1])
    data = Dataset("two", ("a", "b"), ArraySplit(images, labels, torch.full((2,), -1)))
    model = Sure()
    scorer = EpochScorer(build(TrainSettings, {"batch_size": 4}), data, model, device=torch.device("cpu"))
    for model.p in said:
        scorer.score_epoch()
    seen = scorer.result()
    torch.testing.assert_close(seen.score, torch.tensor(score))
    torch.testing.assert_close(seen.wrong, torch.tensor(wrong).float())
    torch.testing.assert_close(seen.probabilities, torch.tensor([[said[-1], 1 - said[-1]]] * 2))


def test_what_a_biased_model_says_of_others_is_the_same_without_the_debiased_one() -> None:
    """The mean over the second half of the epochs: of one, its end; of two, the second; of three, the last two."""
    data, held_out = make_data(48), make_data(40).train
    said = {}
    for epochs in (1, 2, 3):
        training = biased_training(48, epochs=epochs, batch_size=16, device="cpu")
        both_views = held_out_logits(
            training,
            data,
            held_out,
            views=lambda x, mean: (x, mean.expand_as(x)),
            device=torch.device("cpu"),
            progress=Progress(),
        )
        said[epochs], of_the_mean = both_views
        both = train_biased_model(training, data, device=torch.device("cpu"), progress=Progress())
        with torch.no_grad():
            images = held_out.read(torch.arange(40)).float() / 255
            said[-epochs] = both.biased(images)
            if epochs < 3:  # the other view, of the mean image
                torch.testing.assert_close(of_the_mean, both.biased(images.mean(0, keepdim=True)).expand(40, -1))
    torch.testing.assert_close(said[1], said[-1])
    torch.testing.assert_close(said[2], said[-2])
    torch.testing.assert_close(said[3], (said[-2] + said[-3]) / 2)


def test_what_is_shown_of_a_half_is_the_biased_model_and_not_the_layer_beside_it() -> None:
    heard, cpu = Heard(), torch.device("cpu")
    training = biased_training(96, epochs=8, batch_size=16, device="cpu")
    held_out_logits(training, make_data(), make_data(8).train, views=lambda x, mean: (x,), device=cpu, progress=heard)
    losses = [record["train_loss"] for record in heard.records]
    assert not any("train_accuracy" in record for record in heard.records)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
