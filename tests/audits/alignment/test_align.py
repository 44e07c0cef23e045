"""Models that are right raise no alarm; their broken twins do. Real digits, networks trained here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from holdfast.audits.alignment.align import Aligned, align
from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset, load
from holdfast.errors import HoldfastError
from holdfast.models import HALF, IMAGENET, Normalised, Preprocessing, open_model
from tests.audits.checks.run_checks import accuracy as clean
from tests.models.sources.small import Small, digits, trained


@cache
def plain_net() -> Small:
    """Wants images in [0, 1] as they are."""
    return trained(digits(), (0.0,), (1.0,), epochs=8)


@cache
def half_net() -> Small:
    return trained(digits(), HALF.mean, HALF.std, epochs=8)


def run(
    model: Callable[..., Any],
    data: Dataset | None = None,
    *,
    stated: Preprocessing | None = None,
    classes: tuple[str, ...] | None = tuple("0123456789"),
    **options: Any,
) -> Aligned:
    data = data or digits()
    opened = open_model(model, shape=data.shape, preprocessing=stated)
    return align(replace(opened, classes=classes), data, **options)


def accuracy(found: Aligned, reading: str) -> float:
    one = found.readings[reading]
    value = clean(Subject(one.model, one.data, torch.device("cpu"), workers=0))[0].value
    assert value is not None
    return value


def truth(net: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(outputs, labels) of the test digits, by hand."""
    split = digits().test
    assert isinstance(split, ArraySplit)
    with torch.no_grad():
        return net(split.images / 255), split.labels


def alarms(found: Aligned) -> list[str]:
    return [text for text in map(str, found.warnings) if "preprocessing is probably wrong" in text]


def test_a_right_model_raises_no_alarm_and_is_left_as_it_is() -> None:
    found = run(plain_net())
    outputs, labels = truth(plain_net())
    assert found.warnings == ()
    assert (found.classes.kind, found.output, list(found.readings)) == ("full", "logits", ["all"])
    assert accuracy(found, "all") == pytest.approx(float((outputs.argmax(1) == labels).double().mean()))
    assert accuracy(found, "all") > 0.95


@pytest.mark.parametrize(
    ("net", "stated", "best"),
    [
        (lambda: plain_net(), IMAGENET, "none"),  # normalised outside though the network needs none
        (lambda: Normalised(half_net(), HALF.mean, HALF.std), HALF, "none"),  # inside and outside
        (lambda: nn.Sequential(*[Normalised(nn.Identity(), [0.5], [0.5])] * 2, half_net()), None, "undo-half"),
        (lambda: half_net(), None, "half"),  # its settings say nothing
    ],
)
def test_broken_preprocessing_is_caught_with_the_remedy(
    net: Callable[[], nn.Module], stated: Preprocessing | None, best: str
) -> None:
    found = run(net(), stated=stated)
    (text,) = alarms(found)
    assert f"give --preprocessing {best}" in text
    assert found.rivals[0].name == best
    fixed = run(net(), stated=stated, preprocessing=best)
    assert alarms(fixed) == []
    assert fixed.accuracy is not None
    assert found.accuracy is not None
    assert fixed.accuracy > found.accuracy + 0.1


@pytest.mark.parametrize(
    ("net", "stated"),
    [(lambda: half_net(), HALF), (lambda: Normalised(half_net(), HALF.mean, HALF.std), None)],
)
def test_their_right_twins_raise_none(net: Callable[[], nn.Module], stated: Preprocessing | None) -> None:
    for seed in range(3):
        assert run(net(), stated=stated, sample=300, seed=seed).warnings == ()


def colours(n: int, seed: int) -> ArraySplit:
    """The class is the brightest colour."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    images = torch.randint(0, 160, (n, 3, 8, 8), generator=generator)
    images[torch.arange(n), labels] += 60
    return ArraySplit(images.to(torch.uint8), labels, torch.full((n,), -1))


def test_blue_first_is_caught() -> None:
    data = Dataset("colours", ("red", "green", "blue"), train=colours(600, 0), test=colours(300, 1))
    net = trained(data, (0.0,) * 3, (1.0,) * 3, epochs=2)
    assert run(net, data, classes=data.classes).warnings == ()
    found = run(lambda x: net(x.flip(1)), data, classes=data.classes)
    assert "give --preprocessing bgr" in alarms(found)[0]


def without(label: int) -> Dataset:
    """Digits whose folder of one class is not there: nine classes, labels 0 to 8."""
    names = [name for name in digits().classes if name != str(label)]

    def cut(split: Any) -> ArraySplit:
        kept = split.subset((split.labels != label).nonzero().flatten())
        return replace(kept, labels=kept.labels - (kept.labels > label).long())

    return Dataset("nine", tuple(names), train=cut(digits().train), test=cut(digits().test))


def test_data_that_lack_a_class_are_matched_by_name() -> None:
    outputs, labels = truth(plain_net())
    kept = labels != 3
    found = run(plain_net(), without(3))
    assert found.classes.kind == "partial"
    assert any("9 of the data's 9 classes are among the model's 10" in text for text in map(str, found.warnings))
    assert any(note.startswith("class mapping: 0 = 0 [0]") and "4 = 4 [4]" in note for note in map(str, found.notes))
    right = (outputs.argmax(1) == labels)[kept]
    assert accuracy(found, "all") == pytest.approx(float(right.double().mean()))
    outputs[:, 3] = -torch.inf
    restricted = (outputs.argmax(1) == labels)[kept]
    assert accuracy(found, "restricted") == pytest.approx(float(restricted.double().mean()))
    assert found.reading.name == "restricted"
    assert found.readings["all"].data.classes == (*"012456789", "3")


def test_without_names_a_missing_class_is_refused_rather_than_shifted() -> None:
    with pytest.raises(HoldfastError, match="gives 10 outputs per image and does not name them; the data has 9"):
        run(plain_net(), without(3), classes=None)


def test_an_empty_class_raises_no_alarm_and_is_mentioned() -> None:
    """Its folder is there and empty: ten names, and no image of the 3."""
    split = digits().test
    assert split is not None
    data = replace(digits(), test=split.subset((split.labels != 3).nonzero().flatten()))
    found = run(plain_net(), data)
    assert (found.classes.kind, found.warnings) == ("full", ())
    assert "classes without a test image, of which nothing is measured: 3" in map(str, found.notes)
    assert not any("without a test image" in note for note in map(str, run(plain_net(), digits()).notes))
    assert accuracy(found, "all") > 0.95


def test_folders_on_disk_with_one_missing(tmp_path: Path) -> None:
    for part, split in (("train", digits().train), ("test", digits().test)):
        assert split is not None
        for label in (0, 1, 4, 7):
            folder = tmp_path / part / str(label)
            folder.mkdir(parents=True)
            for i in (split.labels == label).nonzero().flatten()[:12].tolist():
                Image.fromarray(split.read(torch.tensor([i]))[0, 0].numpy()).save(folder / f"{i}.png")
    found = run(plain_net(), load(tmp_path))
    assert list(found.classes.columns) == [(0,), (1,), (4,), (7,)]
    assert accuracy(found, "restricted") > 0.95


def test_samples_of_classes_the_model_does_not_know_are_set_aside() -> None:
    net = trained(without(3), (0.0,), (1.0,), epochs=8)
    found = run(net, classes=tuple("012456789"))
    split = digits().test
    assert split is not None
    threes = int((split.labels == 3).sum())
    assert any(f"does not know 3: {threes} of {len(split)} test images are set aside" in str(w) for w in found.warnings)
    assert found.n < 512  # the sample has some threes, which say nothing
    assert found.accuracy is not None
    assert found.accuracy > 0.95
    test = found.reading.data.test
    assert test is not None
    assert len(test) == len(split) - threes
    assert found.reading.data.classes == tuple("012456789")
    assert accuracy(found, "restricted") > 0.95


def test_data_of_which_the_model_knows_no_image_is_refused() -> None:
    split = digits().test
    assert split is not None
    threes = replace(digits(), test=split.subset((split.labels == 3).nonzero().flatten()))
    net = nn.Sequential(plain_net(), nn.Flatten())
    with pytest.raises(HoldfastError, match="no test image of digits is of a class the model knows"):
        run(net, threes, class_map={"0": 0, "1": 1})


def test_a_permuted_model_is_put_in_order() -> None:
    order = torch.tensor([7, 2, 9, 0, 1, 3, 8, 6, 5, 4])
    permuted = run(lambda x: plain_net()(x)[:, order], classes=tuple(str(int(i)) for i in order))
    assert permuted.warnings == ()
    assert accuracy(permuted, "all") == accuracy(run(plain_net()), "all")
    unnamed = run(lambda x: plain_net()(x)[:, order], classes=None)
    assert any("does not name its classes" in text for text in map(str, unnamed.warnings))
    assert any("seem to stand in another order" in text for text in map(str, unnamed.warnings))
    in_order = run(plain_net(), classes=None)
    assert not any("another order" in text for text in map(str, in_order.warnings))


SHIFTED = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])


def codes(found: Aligned) -> list[str]:
    return [note.code for note in found.warnings if note.code != "classes-assumed"]


@pytest.mark.parametrize("order", [SHIFTED, torch.tensor([1, 0, 2, 3, 4, 5, 6, 7, 8, 9]), torch.arange(9, -1, -1)])
def test_outputs_in_another_order_raise_no_alarm_about_preprocessing(order: Tensor) -> None:
    """They are worse than chance, and whatever confuses the model brings it closer to chance."""
    net = half_net()
    for seed in range(3):
        found = run(lambda x: net(x)[:, order], stated=HALF, classes=None, seed=seed)
        assert codes(found) == ["class-order"]
        assert not any(rival.better for rival in found.rivals)


def test_wrong_preprocessing_raises_no_alarm_about_the_order() -> None:
    """Confused answers may fit another order a little better; what explains the score is the preprocessing."""
    for net, stated in ((plain_net(), IMAGENET), (half_net(), None)):
        for seed in range(3):
            assert codes(run(net, stated=stated, classes=None, seed=seed)) == ["preprocessing"]


def test_both_may_be_wrong() -> None:
    net = half_net()
    found = run(lambda x: net(x)[:, SHIFTED], classes=None)
    assert codes(found) == ["class-order", "preprocessing"]
    assert "images in that order" in alarms(found)[0]
    assert "give --preprocessing half" in alarms(found)[0]


def test_several_outputs_for_one_class_add_up() -> None:
    outputs, labels = truth(plain_net())
    even = Dataset(
        "parity",
        ("even", "odd"),
        train=replace(digits().train, labels=digits().train.labels % 2),  # type: ignore[type-var]
        test=replace(digits().test, labels=labels % 2),  # type: ignore[type-var]
    )
    found = run(plain_net(), even, class_map={"even": [0, 2, 4, 6, 8], "odd": [1, 3, 5, 7, 9]})
    logits = found.reading.model(digits().test.images / 255)  # type: ignore[union-attr]
    expected = outputs.softmax(1).view(-1, 5, 2).sum(1)
    assert torch.allclose(logits.softmax(1), expected, atol=1e-5)
    uneven = run(plain_net(), even, class_map={"even": [0, 2, 4, 6, 8], "odd": 7}).readings["restricted"]
    logits = uneven.model(digits().test.images / 255)  # type: ignore[union-attr]
    among = outputs.softmax(1)
    assert torch.allclose(logits.softmax(1)[:, 1], among[:, 7] / (among[:, ::2].sum(1) + among[:, 7]), atol=1e-5)


@pytest.mark.parametrize("kind", ["probabilities", "log-probabilities"])
def test_kinds_of_outputs_are_found_and_undone(kind: str) -> None:
    net = {"probabilities": nn.Softmax(1), "log-probabilities": nn.LogSoftmax(1)}[kind]
    found = run(nn.Sequential(plain_net(), net))
    assert found.output == kind
    x = torch.rand(4, 1, 8, 8)
    assert torch.allclose(found.reading.model(x).softmax(1), plain_net()(x).softmax(1), atol=1e-5)
    assert run(nn.Sequential(plain_net(), net), output="logits").output == "logits"


def dropping(x: Tensor) -> Tensor:
    return nn.functional.dropout(plain_net()(x), 0.3, training=True)


def test_answers_that_change_are_refused_or_warned_of() -> None:
    with pytest.raises(HoldfastError, match="change between calls.*--allow-random"):
        run(dropping)
    found = run(dropping, allow_random=True, probe=False)
    assert any("one draw of many" in text for text in map(str, found.warnings))
    assert found.rivals == ()


def test_answers_that_depend_on_the_batch_are_warned_of() -> None:
    def batch_norm(x: Tensor) -> Tensor:
        return plain_net()(x - x.mean() + 0.3)

    assert any("depends on the other images of its batch" in text for text in map(str, run(batch_norm).warnings))


def poisoned(x: Tensor) -> Tensor:
    logits = plain_net()(x)
    return torch.where((x.mean((1, 2, 3)) > 0.35)[:, None], torch.nan, logits)


def test_bad_outputs_are_refused() -> None:
    with pytest.raises(HoldfastError, match="NaN or infinity for"):
        run(poisoned)
    with pytest.raises(HoldfastError, match="one output per image"):
        run(lambda x: x.mean((2, 3)))
    with pytest.raises(HoldfastError, match=r"gives 64 outputs .* features rather than logits"):
        run(nn.Flatten(), classes=None)
    with pytest.raises(HoldfastError, match="unknown kind of outputs 'probs'"):
        run(plain_net(), output="probs")
    with pytest.raises(HoldfastError, match="unknown preprocessing 'imagnet'; did you mean 'imagenet'"):
        run(plain_net(), preprocessing="imagnet")
    with pytest.raises(HoldfastError, match="has no test images"):
        run(plain_net(), replace(digits(), test=None))


def test_grey_data_for_a_colour_model_and_another_size() -> None:
    class Colour(nn.Module):
        input_size = 16

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 10, 3)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1:] == (3, 16, 16)
            return self.conv(x).mean((2, 3))

    found = run(Colour())
    assert any("it sees grey images three times over" in note for note in map(str, found.notes))
    assert any("resized from 8x8 to 16x16" in note for note in map(str, found.notes))
    assert found.reading.model(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_the_record_is_plain_json() -> None:
    record = json.loads(json.dumps(run(plain_net(), without(3), stated=HALF).record()))
    assert record["preprocessing"] == {"name": "stated", "mean": [0.5], "std": [0.5], "bgr": False}
    assert record["classes"]["kind"] == "partial"
    assert record["classes"]["extra"] == 1
    assert record["sample"]["n"] == 512
    assert {"name", "accuracy", "lead", "low", "high", "p", "n", "level", "better"} == set(record["rivals"][0])


def test_the_model_is_given_back_as_it_was() -> None:
    net = plain_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run(net, stated=IMAGENET)
    assert not net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
