"""Resident and streamed data are the same data; streaming holds a bounded number of batches."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import holdfast
from holdfast.augment.basic import Augment, crop_and_flip, cutout
from holdfast.cli import main
from holdfast.data import ArraySplit, Dataset, FileSplit, loaders
from holdfast.data.loaders import (
    PREFETCH,
    ResidentLoader,
    StreamLoader,
    choose_reading,
    decoding_seconds,
    make_loader,
)
from holdfast.data.splits import WrappedSplit
from holdfast.errors import HoldfastError
from holdfast.settings import AugmentSettings
from holdfast.train import fit
from tests.conftest import make_data, make_split, same_weights

CPU = torch.device("cpu")


def as_files(split: ArraySplit, folder: Path) -> FileSplit:
    folder.mkdir()
    paths = [folder / f"{i}.png" for i in range(len(split))]
    for path, image in zip(paths, split.images, strict=True):
        Image.fromarray(np.asarray(image.permute(1, 2, 0).squeeze())).save(path)
    return FileSplit(paths, split.labels, split.groups, size=split.shape[1:], channels=split.shape[0])


@pytest.mark.parametrize("workers", [0, 2, None])
def test_training_from_files_equals_training_from_memory(workers: int, tmp_path: Path) -> None:
    resident = make_data(channels=3)
    files = Dataset("files", resident.classes, as_files(resident.train, tmp_path / "a"), None,
                    as_files(resident.test, tmp_path / "b"))  # fmt: skip
    settings = {"device": "cpu", "epochs": 2, "batch_size": 16, "crop": 1, "flip": True, "cutout": 3}
    from_memory, from_files = (fit(d, workers=workers, **settings) for d in (resident, files))
    assert same_weights(from_memory.model, from_files.model)
    assert from_memory.history[-1]["test_loss"] == from_files.history[-1]["test_loss"]


def test_few_files_are_decoded_once_and_many_by_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "usable_cores", lambda: 4)
    few = as_files(make_split(20, 3, seed=0), tmp_path / "few")
    many = FileSplit([few.paths[0]] * 200_000, torch.zeros(200_000, dtype=torch.int64), torch.zeros(200_000), (8, 8), 1)
    assert (choose_reading(few).kind, choose_reading(few).workers) == ("resident", 0)
    assert "20 files take about 0.0012 s" in choose_reading(few).why
    assert (choose_reading(many).kind, choose_reading(many).workers) == ("stream", 4)
    some = many.subset(torch.arange(30_000))  # 1.8 s: more than workers take for one pass, and less than for ten
    assert choose_reading(some).kind == "stream"
    assert choose_reading(some, passes=10).kind == "resident"
    large = replace(some, size=(256, 256))  # 2 GB
    assert (choose_reading(large, passes=10).kind, choose_reading(large, passes=10).workers) == ("stream", 4)
    huge = replace(few, size=(4096, 4096))  # 336 MB, of which no file takes long
    assert (choose_reading(huge).kind, choose_reading(huge).workers) == ("stream", 0)
    painted = WrappedSplit(few, few.labels, few.groups)
    assert choose_reading(painted).kind == "resident"


def test_workers_of_batches_that_nobody_takes_are_ended() -> None:
    loader = StreamLoader(make_split(64, 3, seed=0), batch_size=4, device=CPU, workers=2)
    before = len(multiprocessing.active_children())
    for _ in range(3):
        batches = loader.batches(torch.arange(64))
        next(batches)
        del batches
    assert len(multiprocessing.active_children()) == before
    assert len([batch.index for batch in loader.batches(torch.arange(64))]) == 16
    assert len([batch.index for batch in loader.batches(torch.arange(64))]) == 16
    assert len(multiprocessing.active_children()) == before + loader.workers  # of whole passes they wait for the next


def test_to_choose_how_to_read_leaves_the_start_method_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = as_files(make_split(20, 3, seed=0), tmp_path / "few")
    context = multiprocessing.get_start_method.__self__  # type: ignore[attr-defined]
    monkeypatch.setattr(context, "_actual_context", None)
    choose_reading(files)
    assert multiprocessing.get_start_method(allow_none=True) is None


def test_what_is_asked_for_is_done(tmp_path: Path) -> None:
    few = as_files(make_split(20, 3, seed=0), tmp_path / "few")
    for workers in (0, 3):
        found = choose_reading(few, workers=workers)
        assert (found.kind, found.workers) == ("stream", workers)
    assert choose_reading(few, kind="stream").kind == "stream"
    assert choose_reading(few, decode="gpu").kind == "stream"
    assert choose_reading(few, kind="resident", workers=3).kind == "resident"
    assert decoding_seconds(make_split(20, 3, seed=0)) is None
    with pytest.raises(HoldfastError, match="workers must be >= 0, got -1"):
        make_loader(few, batch_size=4, device=CPU, workers=-1)


def test_no_command_starts_workers_for_a_small_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(channels=3)
    assert data.test is not None
    for name, split in (("train", data.train), ("test", data.test)):
        for i, (image, label) in enumerate(zip(split.images, split.labels.tolist(), strict=True)):
            path = tmp_path / "photos" / name / data.classes[label] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(image.permute(1, 2, 0))).save(path)
    started: list[int] = []
    of_torch = loaders.DataLoader

    def counted(*args: Any, num_workers: int = 0, **kwargs: Any) -> Any:
        started.append(num_workers)
        return of_torch(*args, num_workers=num_workers, **kwargs)

    monkeypatch.setattr(loaders, "DataLoader", counted)
    photos, run = str(tmp_path / "photos"), str(tmp_path / "run")
    words = ["train", "--data", photos, "--device", "cpu", "--epochs", "1"]
    assert main([*words, "--plan"]) == 0
    assert "--workers 0: decoded once, into memory: 96 files take about" in capsys.readouterr().out
    assert main([*words, "--out", run]) == 0
    assert "decoded once, into memory: 96 files" in (tmp_path / "run" / "run.yaml").read_text()
    assert main(["audit", run, "--checks", "accuracy", "--device", "cpu", "--out", str(tmp_path / "audit")]) == 0
    table = str(tmp_path / "table.csv")
    assert main(["predict", run, "--data", photos + "/test", "--device", "cpu", "--out", table]) == 0
    holdfast.find_shortcuts(photos, epochs=1, device="cpu", test=False, progress=False)
    assert not any(started)
    assert main([*words, "--out", str(tmp_path / "asked"), "--workers", "1"]) == 0
    assert 1 in started
    assert "chosen_workers" not in (tmp_path / "asked" / "run.yaml").read_text()


@pytest.mark.parametrize("kind", ["resident", "stream"])
def test_batches_follow_the_order_and_carry_the_index(kind: str) -> None:
    split = make_split(20, 3, seed=0, groups=2)
    order = torch.randperm(20)
    loader = (
        ResidentLoader(split, batch_size=6, device=CPU)
        if kind == "resident"
        else StreamLoader(split, batch_size=6, device=CPU, workers=0)
    )
    batches = list(loader.batches(order, start=1))
    assert [len(b) for b in batches] == [6, 6, 2]
    index = torch.cat([b.index for b in batches])
    assert torch.equal(index, order[6:])
    assert torch.equal(torch.cat([b.x for b in batches]), split.images[index])
    assert torch.equal(torch.cat([b.y for b in batches]), split.labels[index])
    assert torch.equal(torch.cat([b.group for b in batches]), split.groups[index])
    assert list(loader.batches(order, start=4)) == []


@dataclass(frozen=True, eq=False)
class Counting(ArraySplit):
    """Leaves a file for each batch that was read."""

    log: Path = Path()

    def read(self, index: Tensor) -> Tensor:
        (self.log / str(int(index[0]))).touch()
        return super().read(index)


def test_streaming_reads_no_further_ahead_than_its_prefetch(tmp_path: Path) -> None:
    plain = make_split(400, 2, seed=0)
    split = Counting(plain.images, plain.labels, plain.groups, log=tmp_path)
    loader = StreamLoader(split, batch_size=4, device=CPU, workers=2)
    most = 0
    for taken, _ in enumerate(loader.batches(torch.arange(400)), start=1):
        time.sleep(0.02)  # a slow device: workers have all the time to run ahead
        most = max(most, len(list(tmp_path.iterdir())) - taken)
        if taken == 20:
            break
    assert 1 <= most <= 2 * PREFETCH


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_file_is_named_not_buried(workers: int, tmp_path: Path) -> None:
    split = as_files(make_split(12, 2, seed=0), tmp_path / "a")
    broken = split.paths[7]
    broken.write_bytes(broken.read_bytes()[:50])
    data = Dataset("files", ("a", "b"), split, None, split)
    with pytest.raises(HoldfastError, match="^cannot read image .*7.png: .*'holdfast data check'") as error:
        fit(data, device="cpu", epochs=1, workers=workers)
    assert "Traceback" not in str(error.value)


def test_resident_files_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = as_files(make_split(12, 2, seed=0), tmp_path / "a")
    reads = []
    original = FileSplit.read
    monkeypatch.setattr(FileSplit, "read", lambda self, index: reads.append(len(index)) or original(self, index))
    loader = ResidentLoader(split, batch_size=5, device=CPU)
    for _ in range(3):
        list(loader.batches(torch.arange(12)))
    assert reads == [12]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_crop_is_a_shift_and_every_shift_and_mirror_occurs() -> None:
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5)
    out = crop_and_flip(image.expand(600, 1, 5, 5), pad=1, flip=True, generator=generator())
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    possible = [padded[..., top : top + 5, left : left + 5] for top in range(3) for left in range(3)]
    possible += [p.flip(3) for p in possible]
    counts = [int((out == p).flatten(1).all(1).sum()) for p in possible]
    assert sum(counts) == 600
    assert min(counts) > 600 / 18 / 2.5


def test_no_augmentation_is_the_identity() -> None:
    x = make_split(4, 2, seed=0).images
    augment = Augment(AugmentSettings(), (1, 8, 8), torch.zeros(1))
    assert torch.equal(augment(x, generator()), x.float() / 255)


def test_cutout_fills_one_square_clipped_at_the_border_with_its_probability() -> None:
    x = torch.zeros(2000, 3, 8, 8)
    fill = torch.tensor([0.25, 0.5, 0.75])
    out = cutout(x, side=4, p=0.3, fill=fill, generator=generator())
    hit = (out != 0).flatten(1).any(1)
    assert hit.double().mean().item() == pytest.approx(0.3, abs=0.04)
    areas = (out[hit] == fill[:, None, None]).sum((2, 3))
    assert torch.equal(areas[:, 0], areas[:, 2])
    # a square of 4 centred anywhere on 8 pixels keeps 2, 3 or 4 of each side: expectation (2+3+4*5+3)/8
    assert areas[:, 0].max() == 16
    assert areas[:, 0].min() == 4
    assert areas[:, 0].double().mean().item() == pytest.approx(3.5**2, rel=0.05)


def test_cutout_lies_around_its_centre() -> None:
    out = cutout(torch.zeros(4000, 1, 8, 12), side=5, p=1.0, fill=torch.ones(1), generator=generator())
    for length, dim in ((8, 3), (12, 2)):
        shares = out.amax(dim).mean((0, 1))  # how often a row, a column is touched: by all centres up to two away
        expected = torch.tensor([3, 4, *[5] * (length - 4), 4, 3]) / length
        torch.testing.assert_close(shares, expected, rtol=0, atol=0.03)


def test_impossible_crops_are_refused() -> None:
    with pytest.raises(HoldfastError, match=r"crop \(9\) cannot exceed the image side \(8\)"):
        fit(make_data(), device="cpu", epochs=1, crop=9)


def test_a_split_keeps_its_groups_in_a_subset() -> None:
    split = make_split(10, 2, seed=0, groups=3)
    part = replace(split).subset(torch.tensor([3, 1]))
    assert part.groups.tolist() == [split.groups[3].item(), split.groups[1].item()]
