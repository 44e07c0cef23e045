"""Made sets: exact counts, unbiased tests, files that load, hashes that stay."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.corruptions import corrupt
from holdfast.data import ArraySplit, Dataset, FileSplit, Split, aligned_groups, load
from holdfast.data.biased import (
    COLOURS,
    VARIANTS,
    balanced_groups,
    biased_groups,
    make_biased,
    marks,
    palette,
    write_set,
)
from holdfast.data.readers.corrupted_cifar10 import KINDS, corrupted_cifar10, make_corrupted_cifar10
from holdfast.errors import HoldfastError
from tests.data.pictures import write_class_folder


def small_cifar(train: int = 400, test: int = 100, *, side: int = 32, channels: int = 3, classes: int = 10) -> Dataset:
    rng = np.random.default_rng(0)

    def split(count: int) -> ArraySplit:
        coarse = rng.integers(0, 256, (count, channels, 4, 4), dtype=np.uint8)
        images = torch.from_numpy(coarse).repeat_interleave(side // 4, 2).repeat_interleave(side // 4, 3)
        return ArraySplit(images, torch.arange(count) % classes, torch.full((count,), -1))

    return Dataset("small", tuple(f"class {k}" for k in range(classes)), train=split(train), test=split(test))


def pixels(split: Split | None) -> torch.Tensor:
    assert split is not None
    return split.read(torch.arange(len(split)))


def parts(data: Dataset) -> dict[str, Split]:
    assert data.test is not None
    return {"train": data.train, "test": data.test}


@pytest.mark.parametrize(("conflict", "count"), [(0.005, 250), (0.01, 500), (0.02, 1000), (0.05, 2500)])
def test_the_published_shares_of_cifar10_are_exact(conflict: float, count: int) -> None:
    labels = torch.arange(10).repeat_interleave(5000)
    groups = biased_groups(labels, 10, conflict, seed=0)
    contrary = groups != labels
    assert int(contrary.sum()) == count
    assert torch.bincount(labels[contrary]).tolist() == [count // 10] * 10
    offset = torch.bincount((groups - labels)[contrary] % 10, minlength=10)[1:]
    expected = count / 9
    assert ((offset - expected) ** 2 / expected).sum() < 26.1  # 99.9 % of a chi-square with 8 degrees of freedom


@pytest.mark.parametrize("kind", ["lff-0", "lff-1"])
@pytest.mark.parametrize("conflict", [0.005, 0.01, 0.02, 0.05])
def test_lff_spreads_conflicting_images_evenly_over_the_other_corruptions(kind: str, conflict: float) -> None:
    """Against LfF's own rule: each class's images in turn, up to milestones of the summed shares, rounded."""
    source = small_cifar(5000, 10, side=4)
    made = corrupted_cifar10_groups(source, kind, conflict)
    shares = np.full((10, 10), conflict / 9) + np.eye(10) * (1 - conflict - conflict / 9)
    theirs = np.diff((500 * shares.cumsum(1)).round(), axis=1, prepend=0)
    ours = torch.bincount(source.train.labels * 10 + made, minlength=100).view(10, 10).numpy()
    beside = ~np.eye(10, dtype=bool)
    for counts in (ours, theirs):
        assert counts.sum(1).tolist() == [500] * 10
        assert abs(counts.diagonal() - 500 * (1 - conflict)).max() <= 0.5
        assert set(counts[beside]) <= {np.floor(500 * conflict / 9), np.ceil(500 * conflict / 9)}


def corrupted_cifar10_groups(source: Dataset, kind: str, conflict: float) -> torch.Tensor:
    """The corruption of each training image, without corrupting any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.corruptions.corrupt", lambda x, *_, **__: x)
        return corrupted_cifar10(source, kind=kind, conflict=conflict).train.groups


@pytest.mark.parametrize("kind", KINDS)
def test_the_severity_of_lff_is_that_of_its_images(kind: str) -> None:
    """Its generator passes severity + 1: the published 4 brightens by 0.3 as Hendrycks' 5, not by 0.2."""
    source = small_cifar(100, 40)
    data = corrupted_cifar10(source, kind=kind, conflict=0.0)
    for name, expected in (("brightness", 0.3), ("gaussian-noise", 0.1)):
        if name not in KINDS[kind]:
            continue
        own = data.train.groups == KINDS[kind].index(name)
        clean, made = (pixels(split)[own].double() / 255 for split in (source.train, data.train))
        if name == "brightness":
            brighter, unclipped = made.amax(1) - clean.amax(1), clean.amax(1) < 0.69
            assert (brighter[unclipped] - expected).abs().max() < 1 / 255
        else:
            inside = ((clean > 0.4) & (clean < 0.6)).nonzero(as_tuple=True)
            assert float((made - clean)[inside].std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("evenly", [False, True])
def test_a_larger_share_keeps_the_conflicts_of_a_smaller_one(evenly: bool) -> None:
    labels = torch.arange(1000) % 10
    few, many = (biased_groups(labels, 10, share, seed=4, evenly=evenly) for share in (0.02, 0.2))
    contrary = few != labels
    assert torch.equal(few[contrary], many[contrary])


def test_test_groups_are_balanced_in_every_class() -> None:
    labels = torch.arange(1003) % 7
    groups = balanced_groups(labels, 10, seed=0)
    for label in range(7):
        counts = torch.bincount(groups[labels == label], minlength=10)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_has_the_corruption_of_its_group(kind: str) -> None:
    source = small_cifar()
    data = corrupted_cifar10(source, kind=kind, conflict=0.1, severity=5, seed=3)
    assert data.group_names == KINDS[kind]
    assert int((data.train.groups != data.train.labels).sum()) == 40
    assert aligned_groups(data.train.labels, data.train.groups, 10).tolist() == list(range(10))
    assert torch.equal(data.train.labels, source.train.labels)
    clean, made = pixels(source.train).double(), pixels(data.train).double()
    draws_nothing = {
        "brightness",
        "contrast",
        "gaussian-blur",
        "defocus-blur",
        "zoom-blur",
        "pixelate",
        "saturate",
        "jpeg",
    }
    for group, name in enumerate(KINDS[kind]):
        own = data.train.groups == group
        if name == "original":
            assert torch.equal(clean[own], made[own])
        elif name in draws_nothing:
            expected = corrupt(clean[own] / 255, name, severity=5, generator=torch.Generator())
            assert (expected * 255 - made[own]).abs().max() < 0.5 + 1e-6
        else:
            assert (clean[own] - made[own]).abs().mean() > 1


def test_a_seed_gives_the_same_bytes_and_another_gives_others() -> None:
    source = small_cifar(100, 40)
    first, again, other = (pixels(corrupted_cifar10(source, kind="dfa", seed=s).train) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", list(KINDS))
def test_threads_change_no_byte(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    told: list[tuple[int, int]] = []
    alone = corrupted_cifar10(small_cifar(100, 40), kind=kind, conflict=0.2)
    monkeypatch.setattr("holdfast.data.readers.corrupted_cifar10._threads", lambda device: 4)
    together = corrupted_cifar10(small_cifar(100, 40), kind=kind, conflict=0.2, progress=lambda *a: told.append(a))
    for part, split in parts(alone).items():
        assert torch.equal(pixels(split), pixels(parts(together)[part]))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (140, 140)


def test_by_name_it_is_made_of_the_cifar10_in_the_root_folder(tmp_path: Path) -> None:
    source = small_cifar(100, 40)
    arrays = {f"x_{part}": pixels(split).permute(0, 2, 3, 1).numpy() for part, split in parts(source).items()}
    np.savez(tmp_path / "cifar10.npz", **arrays, **{f"y_{p}": s.labels.numpy() for p, s in parts(source).items()})
    data = load("corrupted-cifar10-lff-1", root=tmp_path, conflict=0.1, data_seed=5)
    expected = corrupted_cifar10(source, kind="lff-1", conflict=0.1, seed=5)
    assert torch.equal(pixels(data.train), pixels(expected.train))
    assert torch.equal(pixels(data.test), pixels(expected.test))


def test_the_test_set_does_not_depend_on_the_share() -> None:
    source = small_cifar(100, 100)
    few, many = (corrupted_cifar10(source, conflict=c) for c in (0.0, 0.5))
    assert torch.equal(pixels(few.test), pixels(many.test))


HASHES = {
    "lff-0": "4fd2e451c4a66ad6",
    "lff-1": "0cc81755f5a97e38",
    "dfa": "f5342dbe48841cfc",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
        ),
    ],
)
def test_hashes_are_the_same_on_every_machine(kind: str, device: str) -> None:
    """JPEG is left out of the comparison: its bytes are those of the installed libjpeg."""
    source = small_cifar(200, 50)
    data = corrupted_cifar10(source, kind=kind, conflict=0.05, seed=0, device=device)
    groups = data.train.groups
    kept = groups != (KINDS[kind].index("jpeg") if "jpeg" in KINDS[kind] else -1)
    assert hashlib.sha256(pixels(data.train)[kept].numpy().tobytes()).hexdigest()[:16] == HASHES[kind]


def test_the_file_loads_as_it_was_made_and_the_manifest_tells_the_truth(tmp_path: Path) -> None:
    source = small_cifar(200, 50)
    heard: list[tuple[int, int]] = []
    out = tmp_path / "new" / "cc.npz"
    manifest = make_corrupted_cifar10(
        source, kind="lff-1", conflict=0.05, seed=1, out=out, progress=lambda *told: heard.append(told)
    )
    assert heard[-1] == (250, 250)
    data, made = load(out), corrupted_cifar10(source, kind="lff-1", conflict=0.05, seed=1)
    assert data.classes == source.classes
    assert data.group_names == KINDS["lff-1"]
    for own, expected in ((data.train, made.train), (data.test, made.test)):
        assert own is not None
        assert expected is not None
        assert torch.equal(pixels(own), pixels(expected))
        assert torch.equal(own.groups, expected.groups)
        assert torch.equal(own.labels, expected.labels)
    stored = json.loads((tmp_path / "new" / "cc.manifest.json").read_text())
    assert stored["settings"] == {"kind": "lff-1", "conflict": 0.05, "severity": 5, "seed": 1, "frost": "grown"}
    assert stored["counts"]["train"]["conflicting"] == 10
    assert stored["counts"]["train"]["samples"] == 200
    table = np.array(stored["counts"]["test"]["by_class_and_group"])
    assert table.sum() == 50
    assert table.max() - table.min() <= 1
    with np.load(out) as arrays:
        for name, digest in manifest.sha256.items():
            assert hashlib.sha256(np.ascontiguousarray(arrays[name]).tobytes()).hexdigest() == digest
    assert [path.name for path in (tmp_path / "new").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (small_cifar(20, 10), {"kind": "lff-2"}, "unknown kind of corrupted CIFAR-10 'lff-2'; did you mean"),
        (small_cifar(20, 10), {"severity": 0}, "severity must be 1, 2, 3, 4 or 5, got 0"),
        (small_cifar(20, 10), {"conflict": 1.5}, r"conflict must be in \[0, 1\], got 1.5"),
        (small_cifar(20, 10, classes=5), {}, "small has 5 classes; there is a corruption for each of 10"),
        (small_cifar(20, 10, channels=1), {}, "small is grey"),
    ],
)
def test_bad_requests_are_named(source: Dataset, settings: dict[str, object], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        corrupted_cifar10(source, **settings)  # type: ignore[arg-type]


def test_a_file_of_another_kind_or_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="out must end in .npz"):
        make_biased(small_cifar(20, 10), "coloured", out=tmp_path / "a.zip")
    (tmp_path / "file").write_text("")
    with pytest.raises(HoldfastError, match="cannot write .*; free some room or choose another place"):
        make_biased(small_cifar(20, 10), "coloured", out=tmp_path / "file" / "a.npz")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_variants_bias_training_by_exact_counts_and_balance_the_test(variant: str, channels: int) -> None:
    source = small_cifar(200, 100, channels=channels)
    data = VARIANTS[variant](source, conflict=0.1, seed=2)
    assert int((data.train.groups != data.train.labels).sum()) == 20
    assert data.test is not None
    table = torch.bincount(data.test.labels * 10 + data.test.groups, minlength=100)
    assert table.max() - table.min() <= 1
    assert len(data.group_names) == 10
    assert data.name == f"small-{variant}"
    assert torch.equal(data.train.labels, source.train.labels)


def test_grey_images_are_coloured_as_the_digits_are() -> None:
    data = VARIANTS["coloured"](replace(load("digits")), conflict=0.3, seed=0)
    grey = pixels(load("digits").train).double()
    colours = torch.tensor(list(COLOURS.values())).double()[data.train.groups][:, :, None, None]
    assert (pixels(data.train) - grey * colours / 255).abs().max() <= 0.5


def test_colour_images_are_tinted_by_their_brightness() -> None:
    source = small_cifar(100, 20)
    data = VARIANTS["coloured"](source, conflict=0.3, seed=0, tint=0.4)
    clean = pixels(source.train).double()
    colours = torch.tensor(list(COLOURS.values())).double()[data.train.groups][:, :, None, None]
    expected = 0.6 * clean + 0.4 * clean.mean(1, keepdim=True) * colours / 255
    assert (pixels(data.train) - expected).abs().max() <= 0.5 + 1e-4


def test_a_watermark_changes_the_corner_alone_and_tells_the_group() -> None:
    source = small_cifar(100, 20)
    data = VARIANTS["watermark"](source, conflict=0.2, seed=0)
    clean, made = pixels(source.train), pixels(data.train)
    assert torch.equal(clean[..., :-4, :], made[..., :-4, :])
    assert torch.equal(clean[..., :-4], made[..., :-4])
    corner = made[:, 0, -4:, -4:].bool()
    for group in range(10):
        assert (corner[data.train.groups == group] == marks(10)[group].bool()).all()


def test_marks_differ_in_at_least_six_cells_for_ten_classes_and_are_distinct_for_a_thousand() -> None:
    ten, thousand = marks(10).flatten(1), marks(1000).flatten(1)
    distance = (ten[:, None] != ten[None]).sum(-1) + 99 * torch.eye(10, dtype=torch.long)
    assert distance.min() >= 6
    assert len({tuple(row) for row in thousand.tolist()}) == 1000


def test_a_background_frames_the_shrunken_image() -> None:
    source = small_cifar(100, 20)
    data = VARIANTS["background"](source, conflict=0.2, seed=0, keep=0.75)
    made = pixels(data.train)
    frames = made.clone()
    frames[..., 4:28, 4:28] = 0
    for group in range(10):
        own = frames[data.train.groups == group]
        assert (own == own[0]).all()
    assert len({tuple(frames[data.train.groups == g][0].flatten().tolist()) for g in range(10)}) == 10
    flat = replace(source, train=replace(source.train, images=torch.full_like(source.train.images, 77)))  # type: ignore[type-var,attr-defined]
    assert (pixels(VARIANTS["background"](flat).train)[..., 4:28, 4:28] == 77).all()


def test_stripes_have_a_direction_for_every_group() -> None:
    data = VARIANTS["background"](small_cifar(100, 20), conflict=0.2, seed=0, keep=0.75)
    strongest = pixels(data.train).amax(1)
    strongest[:, 4:28, 4:28] = 0
    bright = [own[0] > 0.9 * own[0].max() for own in (strongest[data.train.groups == g] for g in range(10))]
    # the first of ten angles, and the one at right angles to it, whose cosine is zero but for rounding
    upright, level = bright[0][:4], bright[5][1:, 1:4]
    assert (upright == upright[0]).all()
    assert (level == level[:, :1]).all()
    assert 8 < int(upright[0].sum()) < 24
    assert 8 < int(level[:, 0].sum()) < 24
    assert len({tuple(b.flatten().tolist()) for b in bright}) == 10


def test_colours_are_distinct_also_for_a_hundred_classes() -> None:
    assert len(set(palette(100).values())) == 100
    assert list(palette(3)) == list(COLOURS)[:3]


def test_files_are_painted_as_they_are_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_class_folder(tmp_path / "train" / name, 10, seed=ord(name), side=20)
        write_class_folder(tmp_path / "test" / name, 4, seed=ord(name) + 5, side=20)
    source = load(tmp_path)
    data = VARIANTS["watermark"](source, conflict=0.25, seed=0)
    assert isinstance(source.train, FileSplit)
    assert not isinstance(data.train, ArraySplit)
    assert data.train.shape == (3, 20, 20)
    assert int((data.train.groups != data.train.labels).sum()) == 5
    everything = pixels(data.train)
    index = torch.tensor([7, 2, 11])
    assert torch.equal(data.train.read(index), everything[index])
    assert torch.equal(pixels(data.train.subset(index)), everything[index])
    assert data.train.describe(7) == source.train.describe(7)
    corner = everything[:, 0, -4:, -4:].bool()
    assert (corner == marks(2)[data.train.groups].bool()).all()
    manifest = make_biased(source, "background", out=tmp_path / "made.npz", conflict=0.25)
    assert manifest.counts["train"]["conflicting"] == 5
    without = make_biased(source, "background", out=tmp_path / "even.npz", conflict=0.5)  # no usual group to find
    assert without.counts["train"]["conflicting"] == 10
    assert load(tmp_path / "made.npz").shape == (3, 20, 20)


@pytest.mark.parametrize(("kind", "word"), [("coloured", "colour"), ("watermark",) * 2, ("background",) * 2])
def test_a_variant_says_what_its_groups_are_and_its_file_keeps_it(kind: str, word: str, tmp_path: Path) -> None:
    made = VARIANTS[kind](load("digits"))
    assert made.group_attribute == word
    write_set(made, tmp_path / "set.npz", made_from="digits", settings={})
    assert load(tmp_path / "set.npz").group_attribute == word


def test_an_attribute_may_be_a_text_of_its_own(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((4, 8, 8), np.uint8), "y": np.array([0, 1, 0, 1]), "group": np.array([0, 1, 1, 0])}
    plain = {f"{key}_{split}": value for key, value in arrays.items() for split in ("train", "test")}
    np.savez(tmp_path / "set.npz", **plain, group_attribute=np.array("colour"))
    assert load(tmp_path / "set.npz").group_attribute == "colour"
