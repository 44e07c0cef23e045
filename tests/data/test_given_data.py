"""Data that a user has in hand in Python: what of it is used, and that it is used as a plain folder would be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import v2

import holdfast
from holdfast.data import ArraySplit, FileSplit, load
from holdfast.data.item_split import ItemSplit
from holdfast.data.splits import all_images
from holdfast.errors import HoldfastError

TO_FLOAT = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
NORMALISED = v2.Compose([TO_FLOAT, v2.Normalize([0.5] * 3, [0.25] * 3)])


def one_hot(label: int) -> Tensor:
    return torch.eye(2)[label]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures of cats and dogs, 12x12: dogs are brighter."""
    place = tmp_path_factory.mktemp("given") / "pets"
    draw = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog")):
        (place / name).mkdir(parents=True)
        for i in range(20):
            pixels = draw.integers(0, 150, (12, 12, 3)) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(place / name / f"{i:02}.png")
    return place


def hugging_face(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    paths = sorted(folder.glob("*/*.png"))
    columns = {"picture": [str(p) for p in paths], "kind": [p.parent.name for p in paths]}
    columns["site"] = [f"site {i % 2}" for i in range(len(paths))]
    features = datasets.Features(
        picture=datasets.Image(), kind=datasets.ClassLabel(names=["cat", "dog"]), site=datasets.Value("string")
    )
    return datasets.Dataset.from_dict(columns, features=features)


FORMS: dict[str, Callable[[Path], Any]] = {
    "ImageFolder": ImageFolder,
    "ImageFolder as floats": lambda folder: ImageFolder(folder, transform=TO_FLOAT),
    "DataLoader": lambda folder: DataLoader(ImageFolder(folder), batch_size=7, shuffle=True),
    "Hugging Face": hugging_face,
    "Hugging Face with a transform": lambda folder: hugging_face(folder).with_transform(
        lambda rows: {"image": [TO_FLOAT(x) for x in rows["picture"]], "label": rows["kind"]}
    ),
    "arrays": lambda folder: _arrays(folder),
}


def _arrays(folder: Path) -> tuple[Tensor, np.ndarray[Any, Any]]:
    whole = ImageFolder(folder)
    images = torch.stack([torch.from_numpy(np.array(x)).permute(2, 0, 1) for x, _ in whole])
    return images, np.array([whole.classes[y] for y in whole.targets])


QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "device": "cpu", "workers": 0, "progress": False}


@pytest.fixture(scope="module")
def of_folder(folder: Path) -> tuple[Any, Any]:
    run = holdfast.fit(str(folder), flip=True, **QUICK)
    return run, holdfast.audit(run.model, str(folder), checks=["accuracy", "corruptions"], device="cpu", workers=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:there is no test split")
def test_training_and_audit_are_those_of_the_plain_folder_bit_for_bit(
    form: str, folder: Path, of_folder: tuple[Any, Any]
) -> None:
    run = holdfast.fit(FORMS[form](folder), flip=True, **QUICK)
    expected, audited = of_folder
    assert run.history[-1]["train_loss"] == expected.history[-1]["train_loss"]
    ours, theirs = run.model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert run.data.classes == ("cat", "dog")
    own = holdfast.audit(run.model, FORMS[form](folder), checks=["accuracy", "corruptions"], device="cpu", workers=0)
    assert [(f.name, f.where, f.value, f.n) for f in own] == [(f.name, f.where, f.value, f.n) for f in audited]


def test_images_of_a_plain_image_folder_stay_files_and_others_are_asked_for(folder: Path) -> None:
    assert isinstance(load(ImageFolder(folder)).train, FileSplit)
    asked: list[int] = []

    class Counted(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            asked.append(index)
            return super().__getitem__(index)

    data = load(Counted(folder, transform=TO_FLOAT))
    before = len(asked)
    assert isinstance(data.train, ItemSplit)
    assert data.train.describe(0).endswith(".png")
    data.train.read(torch.tensor([3, 5]))
    assert len(asked) - before == 2
    assert not data.notes or all(note.code != "items-read-for-labels" for note in data.notes)


def test_splits_are_named_by_a_mapping_or_by_the_data_itself(folder: Path) -> None:
    whole = ImageFolder(folder)
    data = load({"train": Subset(whole, range(10, 40)), "valid": Subset(whole, [0, 39]), "test": Subset(whole, [1, 2])})
    assert [len(split) for split in data.splits.values()] == [30, 2, 2]
    assert data.splits["test"].describe(0).endswith("cat/01.png")
    with pytest.raises(HoldfastError, match="unknown split 'night'; call the splits train, val and test"):
        load({"train": whole, "night": whole})

    class Tested(FakeData):
        train = False

    only = load(Tested(12, (3, 8, 8), 2), training=False)
    assert (len(only.train), len(only.splits["test"])) == (0, 12)
    with pytest.raises(
        HoldfastError, match="no training sample; all 12 images are of the test split: to train on them"
    ):
        load(Tested(12, (3, 8, 8), 2))


def test_a_set_goes_by_the_folder_that_holds_its_splits(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "train").symlink_to(folder, target_is_directory=True)
    whole = ImageFolder(tmp_path / "photos" / "train")
    assert load({"train": whole, "test": Subset(whole, [1, 30])}).name == "photos"
    assert load(DataLoader(ImageFolder(folder))).name == folder.name


def test_labels_are_taken_from_attributes_of_subsets_and_sums_and_else_from_every_item(folder: Path) -> None:
    both = ConcatDataset(
        [ImageFolder(folder, TO_FLOAT), ImageFolder(folder, TO_FLOAT, target_transform=lambda y: 1 - y)]
    )
    data = load({"train": both, "test": both})
    assert data.train.labels.tolist() == [0] * 20 + [1] * 40 + [0] * 20
    assert not [note for note in data.notes if note.code == "items-read-for-labels"]

    class Mine(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, i: int) -> Any:
            return {"img": np.full((6, 6), i, dtype=np.uint8), "label": f"kind {i % 3}", "group": i % 2}

    own = load(Mine())
    assert (own.classes, own.group_names, own.shape) == (("kind 0", "kind 1", "kind 2"), ("0", "1"), (1, 6, 6))
    assert [note.code for note in own.notes] == ["items-read-for-labels", "test-held-out"]
    assert torch.equal(own.train.labels, own.train.read(torch.arange(len(own.train)))[:, 0, 0, 0] % 3)


def test_of_a_loader_everything_else_is_said_to_be_unused(folder: Path) -> None:
    def note(**settings: Any) -> Any:
        loader = DataLoader(ImageFolder(folder), **settings)
        return next(note for note in load(loader).notes if note.code == "loader-parts-unused")

    plain = note(batch_size=16, shuffle=True)
    assert "batch size (16), workers, shuffling" in plain.text
    assert plain.level == "note"
    weighted = note(sampler=WeightedRandomSampler([1.0] * 40, 40))
    assert "sampler (WeightedRandomSampler)" in weighted.text
    assert weighted.level == "warning"
    assert "collate function (mine)" in note(collate_fn=lambda_named("mine")).text
    part = load(
        {"train": DataLoader(ImageFolder(folder), sampler=SubsetRandomSampler([30, 1, 2])), "test": ImageFolder(folder)}
    )
    assert part.train.labels.tolist() == [0, 0, 1]


def lambda_named(name: str) -> Callable[[Any], Any]:
    def own(batch: Any) -> Any:
        return batch

    own.__name__ = name
    return own


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda f: ImageFolder(f, NORMALISED), "it is normalised; leave Normalize out of the transforms"),
        (lambda f: ImageFolder(f, target_transform=one_hot), r"label of item 0 is \(2,\); give one class"),
        (lambda f: ImageFolder(f, lambda x: 7.5), "is a float; images must be a Pillow image"),
        (lambda f: Streamed(), "has its images in one order only; give a map-style one"),
        (lambda f: (torch.rand(4, 3, 8, 8), torch.arange(3)), "there are 4 images and 3 labels"),
        (lambda f: torch.rand(4, 3, 8, 8), "the train images have no labels; items must be"),
        (lambda f: 7, "data must be a name, a path, .* got int"),
        (lambda f: {}, "an empty dict is not a data set"),
        (lambda f: Failing(), "item 0 of this Failing cannot be read: ValueError: broken; repair or remove it"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_remedy(
    data: Callable[[Path], Any], message: str, folder: Path
) -> None:
    with pytest.raises(HoldfastError, match=message):
        load(data(folder))


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Failing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        raise ValueError("broken")


def test_random_transforms_are_drawn_anew_and_warned_of(folder: Path) -> None:
    data = load(ImageFolder(folder, v2.Compose([TO_FLOAT, v2.GaussianNoise(), v2.RandomCrop(8)])))
    assert [note.level for note in data.notes if note.code == "random-transforms"] == ["warning"]
    assert not torch.equal(all_images(data.train), all_images(data.train))
    run = holdfast.fit(ImageFolder(folder, v2.Compose([TO_FLOAT, v2.RandomCrop(8)])), **QUICK | {"epochs": 1})
    assert run.data.shape == (3, 8, 8)


def test_a_large_data_set_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from holdfast.data import item_split
    from holdfast.data.loaders import ResidentLoader, StreamLoader, make_loader

    how: dict[str, Any] = {"batch_size": 8, "device": torch.device("cpu")}
    images = load(ImageFolder(folder, TO_FLOAT)).train
    assert isinstance(make_loader(images, **how), ResidentLoader)
    monkeypatch.setattr(item_split, "SMALL", 1000)
    assert isinstance(make_loader(images, **how), StreamLoader)


def test_arrays_of_every_split_may_come_by_the_names_of_an_npz_file() -> None:
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 2
    data = load({"x_train": x, "y_train": y, "x_test": torch.from_numpy(x), "y_test": y})
    assert (len(data.train), data.shape) == (6, (1, 8, 8))
    pair = load(TensorDataset(torch.rand(20, 3, 8, 8), torch.arange(20) % 2), image_size=4)
    assert isinstance(pair.train, ArraySplit)
    assert pair.shape == (3, 4, 4)


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> holdfast.Run:
    return holdfast.fit(ImageFolder(folder), out=tmp_path_factory.mktemp("objects") / "run", **QUICK)


def test_predict_takes_objects(folder: Path, trained: holdfast.Run) -> None:
    whole = holdfast.predict(trained.out, str(folder), device="cpu", workers=0)
    loader = DataLoader(ImageFolder(folder, TO_FLOAT))
    assert torch.equal(holdfast.predict(trained.out, loader, device="cpu").labels, whole.labels)
    images = torch.stack([x for x, _ in ImageFolder(folder, TO_FLOAT)])
    assert torch.equal(holdfast.predict(trained.out, images, device="cpu").confidence, whole.confidence)


def test_detect_takes_objects(folder: Path, trained: holdfast.Run) -> None:
    loader = DataLoader(ImageFolder(folder, TO_FLOAT))
    scores: dict[str, Any] = {"scores": ["energy"], "false_alarm_rate": 0.4, "device": "cpu"}
    detector = holdfast.detect.fit(loader, classifier=trained.model, **scores)
    report = holdfast.detect.score(detector, ImageFolder(folder), device="cpu", workers=0)
    assert repr(report) == f"<ScoreReport of 40 images: {report.flagged} flagged>"


@pytest.mark.slow
def test_find_shortcuts_takes_objects(folder: Path) -> None:
    quick: dict[str, Any] = {"epochs": 1, "seeds": 1, "clusters": 1, "resamples": 2, "test": False, "device": "cpu"}
    assert holdfast.find_shortcuts(DataLoader(ImageFolder(folder, TO_FLOAT)), **quick).order.shape == (32,)


@pytest.mark.slow
def test_compare_takes_objects(folder: Path, tmp_path: Path) -> None:
    loader = DataLoader(ImageFolder(folder, TO_FLOAT))
    once = QUICK | {"epochs": 1}
    made = holdfast.compare(loader, out=tmp_path / "compared", methods=["erm", "mixup"], seeds=1, **once)
    assert len(made.arms) == 2


def test_audit_takes_objects_and_says_what_of_them_it_measures(folder: Path, trained: holdfast.Run) -> None:
    loader = DataLoader(ImageFolder(folder, TO_FLOAT))
    how: dict[str, Any] = {"checks": ["accuracy"], "device": "cpu", "workers": 0}
    assert holdfast.audit(trained.out, loader, **how)["accuracy"].n == 8
    with pytest.warns(RuntimeWarning, match="to measure all of it, give {'test': data}"):
        holdfast.audit(trained.model, loader, **how)
    assert holdfast.audit(trained.model, {"test": loader}, **how)["accuracy"].n == 40
