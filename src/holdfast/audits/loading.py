"""How the data of an audit is loaded: a run's own as the run loaded it, so that it meets no image it learned from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import torch

from holdfast.audits.request import Note, Plan
from holdfast.data import Dataset, load
from holdfast.data.splits import ArraySplit, Split
from holdfast.errors import HoldfastError
from holdfast.train.run_data import DataTerms, is_own_data, terms_of_run

Sets = Callable[[int | None, DataTerms], Dataset]
"""The data at an image size, loaded once for all models that share it."""


def opener(plan: Plan) -> Sets:
    """Sets as they are asked for."""
    sets: dict[tuple[int | None, DataTerms], Dataset] = {}

    def open_set(size: int | None, terms: DataTerms) -> Dataset:
        if (size, terms) not in sets:
            sets[size, terms] = load_as(terms, plan, size)
        return sets[size, terms]

    return open_set


def load_as(terms: DataTerms, plan: Plan, size: int | None) -> Dataset:
    return load(str(plan.data), root=plan.root, image_size=size, training=False, **asdict(terms))


def asked(plan: Plan) -> DataTerms:
    """What the command says, for models that were not trained here."""
    return DataTerms(plan.data_seed or 0, names=plan.names, label=plan.label)


def terms_of_all(specs: Sequence[str], plan: Plan, open_set: Sets, note: Note) -> list[DataTerms]:
    """The terms of every model: a run's are its own, those of other models the first run's, or what the command says.

    Where the test images would not be the same, one model would be measured on what another, or it itself, was trained
    on: that is refused.
    """
    runs = {spec: own for spec in specs if (own := _of_run(spec, plan)) is not None}
    if not runs:
        return [asked(plan)] * len(specs)
    first, usual = next(iter(runs.items()))
    if differs := usual.words(asked(plan)):
        note(f"data: loaded as {first} was trained: {differs}")
    told = {} if plan.data_seed is None else {"--data-seed": replace(usual, data_seed=plan.data_seed)}
    _require_one_test({**runs, **told}, plan, open_set)
    return [runs.get(spec, usual) for spec in specs]


def _of_run(spec: str, plan: Plan) -> DataTerms | None:
    own = terms_of_run(spec, str(plan.data))
    if own is None:
        return None
    if not is_own_data(spec, str(plan.data)):
        return replace(asked(plan), data_seed=own.data_seed if plan.data_seed is None else plan.data_seed)
    return replace(own, names=plan.names or own.names, label=plan.label or own.label)


def _require_one_test(terms: Mapping[str, DataTerms], plan: Plan, open_set: Sets) -> None:
    (first, usual), *others = terms.items()
    for other, own in others:
        if own == usual or _same_images(open_set(plan.image_size, usual).test, open_set(plan.image_size, own).test):
            continue
        if other == "--data-seed":
            raise HoldfastError(
                f"{first} was trained with {usual.words(own)}: with --data-seed {own.data_seed} it would be measured "
                "on images it was trained on; leave --data-seed out"
            )
        raise HoldfastError(
            f"{first} was trained with {usual.words(own)} and {other} with {own.words(usual)}: their test images "
            "differ, and one would be measured on what the other was trained on; audit them one by one or, "
            "on data that neither was trained on, give --data-seed"
        )


def _same_images(first: Split | None, second: Split | None) -> bool:
    if first is None or second is None or not torch.equal(first.labels, second.labels):
        return False
    if isinstance(first, ArraySplit) and isinstance(second, ArraySplit):
        return torch.equal(first.images, second.images)
    return all(first.describe(i) == second.describe(i) for i in range(len(first)))
