"""What an audit measures: a model on the test split of a data set, and what all checks share about the two.

What is computed of single samples goes through :meth:`Subject.rows`, so that shards can compute it (sample_passes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Final

import torch
from torch import Tensor, nn

from holdfast.audits.sample_passes import Rows, SamplePass
from holdfast.data.loaders import Loader, make_loader
from holdfast.data.splits import Dataset, Split, bias_alignment
from holdfast.errors import HoldfastError, require, require_known
from holdfast.models.loaded_model import explaining_failures
from holdfast.rng import derive
from holdfast.train.evaluate import Predictions, logits_of
from holdfast.types import Note

PREDICTIONS: Final = "predictions"
"""The pass that every check rests on."""
PASSES: Final = 3
"""About how often the checks of an audit read the test images: predictions, corruptions, slices."""
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16")


def check_measuring(batch_size: int, workers: int | None, seed: int, precision: str) -> None:
    given = 0 if workers is None else workers  # where it is left open, what is chosen is right
    for name, value, least in (("batch_size", batch_size, 1), ("workers", given, 0), ("seed", seed, 0)):
        whole = isinstance(value, Integral) and not isinstance(value, bool)  # numpy's integers are not int
        require(whole and value >= least, f"{name} must be a whole number >= {least}, got {value!r}")
    require(seed < 2**63, f"seed must be in 0..2**63-1, got {seed}")
    require_known("precision", precision, PRECISIONS)


def draw(total: int, most: int, seed: int, purpose: str) -> Tensor:
    """Positions of a sample, in order; all of them where there are no more."""
    order = torch.randperm(total, generator=torch.Generator().manual_seed(derive(seed, purpose)))
    return order[:most].sort().values


def halves(total: int, seed: int, purpose: str) -> tuple[Tensor, Tensor]:
    """Positions in two random halves, each in order."""
    order = torch.randperm(total, generator=torch.Generator().manual_seed(derive(seed, purpose)))
    return order[: total // 2].sort().values, order[total // 2 :].sort().values


def word_ids(words: Sequence[str], names: Sequence[str]) -> Tensor:
    """(N,) int64 place of each word among the names; -1 for "", which is unknown."""
    number = {name: i for i, name in enumerate(names)} | {"": -1}
    return torch.tensor([number[word] for word in words], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class GroupColumn:
    """One column that splits the test samples into groups.

    ids: (N,) int64 group of every test sample, -1 where it is not known. names: of the groups, by id. train: (M,) the
    same of every training sample, None where it is not known. values: (N,) what the check ``slices`` searches in:
    numbers for a column of many numbers, else the ids.
    """

    ids: Tensor
    names: tuple[str, ...] = ()
    train: Tensor | None = None
    numbers: Tensor | None = None

    @property
    def values(self) -> Tensor:
        return self.ids if self.numbers is None else self.numbers


KeptRows = Callable[["Subject", SamplePass], "dict[str, Tensor] | None"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model under audit on the test split of a data set.

    columns: further ways to split the test samples into groups, by name. given: predictions on the test split that
    were made before, on the CPU; the model is not asked again. has_scores: whether predictions have a score for every
    class. has_images: whether the data has pictures, and not only labels. others: further models that settings of
    checks name, by specification, aligned with the same data. kept_rows: gives rows of a pass that were computed
    before, None where they were not.
    """

    model: nn.Module
    data: Dataset
    device: torch.device
    batch_size: int = 256
    precision: str = "fp32"
    seed: int = 0
    workers: int | None = None
    columns: Mapping[str, GroupColumn] = field(default_factory=dict)
    given: Predictions | None = None
    has_scores: bool = True
    has_images: bool = True
    others: Mapping[str, nn.Module] = field(default_factory=dict, repr=False)
    kept_rows: KeptRows | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_measuring(self.batch_size, self.workers, self.seed, self.precision)

    @property
    def split(self) -> Split:
        if self.data.test is None:
            raise HoldfastError(f"{self.data.name} has no test split to audit on")
        return self.data.test

    @cached_property
    def loader(self) -> Loader:
        how: dict[str, Any] = {"workers": self.workers, "passes": PASSES}
        return make_loader(self.split, batch_size=self.batch_size, device=self.device, **how)

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions on the test split, on the CPU."""
        if self.given is not None:
            return self.given
        logits = self.rows(self.predictions_pass)["logits"]
        return Predictions(logits, self.split.labels, self.split.groups)

    @property
    def predictions_pass(self) -> SamplePass:
        """Logits of the test split."""

        def compute(blocks: Sequence[int]) -> Iterator[Rows]:
            how: dict[str, Any] = {"device": self.device, "precision": self.precision}
            with explaining_failures(self.batch_size):
                for logits in logits_of(self.model, self.loader, made.order(blocks), **how):
                    self.check_outputs(logits)
                    yield {"logits": logits}

        made = SamplePass(PREDICTIONS, torch.arange(len(self.split)), self.batch_size, compute)
        return made

    def rows(self, one: SamplePass) -> dict[str, Tensor]:
        """What a pass computes, one row per sample in the order of its positions, on the CPU.

        Taken from what shards left where they did; computed now otherwise.
        """
        kept = None if self.kept_rows is None else self.kept_rows(self, one)
        return one.all_rows() if kept is None else kept

    def check_outputs(self, outputs: Tensor) -> None:
        """Refuse a model that does not give one output per class."""
        require(
            outputs.shape[1:] == (self.data.num_classes,),
            f"the model gives outputs of shape {tuple(outputs.shape[1:])} per image, and {self.data.name} has "
            f"{self.data.num_classes} classes; they must match",
        )

    @cached_property
    def sides(self) -> dict[str, Tensor]:
        """(N,) which test samples are bias-aligned and which bias-conflicting; empty where that is not known."""
        return bias_alignment(self.split.labels, self.split.groups, self.data.usual_groups)

    def with_half_the_batch(self) -> tuple[Subject, Note]:
        """The same with half the batch, and what to say of that; predictions that were computed are kept."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        given, size = self.predictions if "predictions" in vars(self) else self.given, self.batch_size // 2
        note = Note("memory", f"out of memory: batches of {size} instead of {2 * size}")
        return replace(self, batch_size=size, given=given), note
