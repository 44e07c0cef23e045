"""The tables of the documentation against the recorded results: every number is one that was measured."""

from __future__ import annotations

import json
from functools import reduce
from importlib import import_module
from statistics import fmean, stdev
from typing import Any, cast

import pytest
from evidence import read_rows
from readme_tables import Table, described

from holdfast.settings import TrainSettings
from holdfast.settings.training_defaults import TrainingFacts, choose_defaults
from tests.test_docs import ROOT, table

STEP, SECONDS = "bf16 compiled, captured", "seconds"
RECORDED: dict[tuple[str, str, str, str], dict[str, list[tuple[str, ...]]]] = {
    ("README.md", "", "step, ms", "gpu_step"): {
        row: [(key, "step_ms"), (key, "epoch_s")]
        for row, key in {
            "fp32, eager": "fp32 eager",
            "fp32, captured": "fp32 captured",
            "bf16, eager": "bf16 eager",
            "bf16, captured": "bf16 captured",
            "bf16, compiled and captured": STEP,
            "the same with SAM": f"{STEP}, SAM",
            "the same with Friendly SAM": f"{STEP}, F-SAM",
        }.items()
    },
    ("docs/methods/friendly-sam.md", "F-SAM around SGD with momentum", "ms", "optim_gpu"): {
        row: [("ResNet-18", f"F-SAM{key}", "ms")]
        for row, key in {
            "`capture=True, skip_nonfinite=False`": ", unchecked, captured",
            "`capture=True`": ", captured",
            "`skip_nonfinite=False`": ", unchecked",
            "checked (default)": "",
            "`pytorch_optimizer` 4.1": ", pytorch_optimizer 4.1.0",
            "a loop over the parameters, as the authors write it": ", plain loop",
        }.items()
    },
    ("docs/how-to/audit-any-model.md", "check", "seconds", "audit_gpu"): {
        row: [(key, SECONDS)]
        for row, key in {
            "`accuracy`": "accuracy",
            "`slices`": "slices",
            "`corruptions`": "corruptions",
            "`attacks`": "attacks",
            "`ood`": "ood",
            "`curvature`": "curvature",
            "`saliency`": "saliency",
            "all": "all",
        }.items()
    },
    ("docs/how-to/scale.md", "training", "images/s", "imagenet_cost"): {
        row: [(key, "images_per_second"), (key, "hours_per_epoch"), (key, "hours")]
        for row, key in {"plain": "plain", "with SAM": "SAM"}.items()
    },
    ("docs/how-to/scale.md", "network", "one alone", "parallel_gpu"): {
        row: [("rows", nth, "images_per_second"), ("rows", nth + 1, "images_per_second"), ("rows", nth + 1, "gain")]
        for nth, row in ((0, "ResNet-18, CIFAR stem"), (2, "ResNet-18, ImageNet stem"))
    },
    ("docs/how-to/scale.md", "", "images/s", "ranks_gpu"): {
        row: [("images_per_second", key), ("gain", key)]
        for row, key in {"one process": "one process", "one rank with NCCL": "1 ranks"}.items()
    },
    ("docs/how-to/fast-by-default.md", "images per pass, freed memory", "images/s", "cpu_inference"): {
        row: [(key, what) for what in ("images_per_second", "user_ms", "system_ms", "page_faults", "peak_mb")]
        for row, key in {
            "256, returned (the default before)": "256, returned",
            "256, kept": "256, kept",
            "64, kept": "64, kept",
            "16, kept": "16, kept",
            "4, kept (the default)": "chosen, kept",
        }.items()
    },
    ("docs/how-to/fast-by-default.md", "images, threads", "alone", "cpu_threads"): {
        f"{side}, {name}": [(side, name, what) for what in ("alone", "beside", "left")]
        for side in ("16 pixels", "28 pixels")
        for name in ("as the command sets it", "one thread", "two threads")
    },
    ("docs/how-to/shards.md", "command", "20,000 images, folder", "shards"): {
        f"`{name}`": [
            *(("peak_mib", count, kind, name) for count in ("20000", "100000") for kind in ("images", "shards")),
            *(("bytes_per_image", kind, name) for kind in ("images", "shards")),
        ]
        for name in ("train", "audit", "predict", "data check")
    },
    ("docs/how-to/shards.md", "window", "batches of 32", "shards_speed"): {
        **{
            row: [("mixing", 3 * nth + size, "window_classes") for size in range(3)]
            for nth, row in enumerate(("1024", "4096", "16384 (default)", "65536"))
        },
        "full shuffle": [("mixing", size, "full_classes") for size in range(3)],
    },
    ("docs/methods/attacks.md", "", "PGD-10, s", "attacks_pgd_gpu"): {
        row: [("pgd", key, SECONDS)]
        for row, key in {
            "torchattacks, TF32": "torchattacks",
            "foolbox / AutoAttack, TF32": "foolbox",
            "holdfast, TF32, compiled and captured": "holdfast compiled, captured",
            "holdfast, TF32, queue": "holdfast queue, compiled",
            "torchattacks, bf16": "torchattacks bf16",
            "holdfast, bf16, compiled and captured": "holdfast bf16 compiled, captured",
            "holdfast, bf16, queue (`beyond=0.5`)": "holdfast bf16 queue, compiled",
        }.items()
    },
}
"""Tables by page, head and file of results: where the numbers of each row are recorded, column by column."""


@pytest.mark.parametrize("where", RECORDED, ids=lambda where: f"{where[0]}-{where[3]}")
def test_numbers_are_those_recorded(where: tuple[str, str, str, str]) -> None:
    page, *head, file = where
    figures = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text(encoding="utf-8"))["figures"]
    rows = {row[0]: row[1:] for row in table(ROOT / page, *head)}
    assert rows.keys() == RECORDED[where].keys()
    for row, places in RECORDED[where].items():
        for stated, keys in zip(rows[row], places, strict=False):
            measured = reduce(lambda inner, key: inner[key], keys, figures)
            assert stated == f"{measured:.{len(stated.partition('.')[2])}f}", row


def test_the_table_of_peers_is_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    peers_table = import_module("peers").table
    found = json.loads((ROOT / "benchmarks/results/peers_cpu.json").read_text(encoding="utf-8"))["figures"]
    page = (ROOT / "docs/results/peers.md").read_text(encoding="utf-8")
    assert f"\n{peers_table(found['rows'])}\n" in page
    assert all(number in page for number in found["versions"].values())


COLUMNS = {"average": "average", "bias-aligned": "aligned", "bias-conflicting": "conflicting"}
"""Columns of the tables of BiasAdv, and what they are called in the results."""
READINGS = {
    "erm": "erm",
    "lff, raw difficulty": "lff raw",
    "lff+biasadv, L2 0.5": "l2 0.5",
    **{f"L2 {r}": f"l2 {r}" for r in (1, 2, 5)},
    **{f"L∞ {k}/255": f"linf {k}/255" for k in (4, 8, 16)},
    **{f"L∞ {r} of the deviation": f"linf normalised {r}" for r in (0.1, 0.3, 0.5)},
    "L2 1, statistics of the batch in the attack": "l2 1, batch statistics",
    "L∞ 8/255, statistics of the batch in the attack": "linf 8/255, batch statistics",
    "L2 2, running statistics of clean images alone": "l2 2, clean running statistics",
    "L2 1, λ 0": "l2 1, lambda 0",
    "L∞ 8/255, λ 0": "linf 8/255, lambda 0",
    "L2 1, λ 1": "l2 1, lambda 1",
    "L2 1, β 0.5": "l2 1, beta 0.5",
}
"""Rows of the table of BiasAdv's readings, and what they are called in the results."""


def test_the_table_of_readings_is_what_was_measured() -> None:
    def results(name: str, reading: str) -> list[dict[str, float]]:
        path = ROOT / f"papers/biasadv/results/readings_20_epochs{name}.json"
        return [r for r in json.loads(path.read_text(encoding="utf-8"))["figures"] if r["reading"] == reading]

    rows = {row[0]: row[1:] for row in table(ROOT / "papers/biasadv/README.md", "", *COLUMNS)}
    expected = {}
    for row, reading in READINGS.items():
        (only,) = results("", reading)
        expected[row] = [f"{100 * only[column]:.1f}" for column in COLUMNS.values()]
    for row, name in {"lff, three seeds": "", "lff, three seeds, fp32": "_fp32"}.items():
        seeds = [[100 * r[column] for r in results(name, "lff")] for column in COLUMNS.values()]
        assert [len(values) for values in seeds] == [3, 3, 3]
        expected[row] = [f"{fmean(values):.1f} ± {stdev(values):.1f}" for values in seeds]
    assert {row: [cell.strip("*") for cell in cells] for row, cells in rows.items()} == expected


def test_the_table_of_the_full_schedule_is_what_was_measured() -> None:
    path = ROOT / "papers/biasadv/results/readings_200_epochs.json"
    found = {
        (r["reading"], r["conflict"], r["seed"]): f"{100 * r['average']:.1f} ({100 * r['conflicting']:.1f})"
        for r in json.loads(path.read_text(encoding="utf-8"))["figures"]
    }
    rows = {READINGS.get(row[0], row[0]): row[1:] for row in table(ROOT / "papers/biasadv/README.md", "200 epochs")}
    cells = [(0.01, 0), (0.01, 1), (0.05, 0)]
    expected = {reading: [found.get((reading, *cell), "–") for cell in cells] for reading, _, _ in found}
    assert rows == expected


def test_the_gain_of_the_favoured_reading_is_that_of_its_three_pairs() -> None:
    path = ROOT / "papers/biasadv/results/readings_200_epochs.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["figures"]
    text = " ".join((ROOT / "papers/biasadv/README.md").read_text(encoding="utf-8").split())
    for column, words in {
        "average": "by {0:.1f} points on average (95 % interval of the paired t test {1:.1f} to {2:.1f})",
        "conflicting": "{0:.1f} on bias-conflicting samples (−{1:.1f} to {2:.1f})",
    }.items():
        by_cell = {(r["reading"], r["conflict"], r["seed"]): 100 * r[column] for r in runs}
        gains = [
            value - by_cell["lff", *cell]
            for (reading, *cell), value in by_cell.items()
            if reading == "l2 2, clean running statistics"
        ]
        half = 4.303 * stdev(gains) / len(gains) ** 0.5  # Student's t with two degrees of freedom
        assert len(gains) == 3
        assert words.format(fmean(gains), abs(fmean(gains) - half), fmean(gains) + half) in text


def recorded(file: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((ROOT / f"benchmarks/results/{file}.json").read_bytes())["figures"]
    return found


def plain(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_what_a_step_of_each_method_costs() -> None:
    over = {name.partition("/")[2]: of["over_erm"] for name, of in recorded("gpu_methods_vicinal").items()}
    rows = {row[0].strip("`"): row[-1] for row in table(ROOT / "docs/methods/vicinal.md", "`--method`", "moves")}
    assert rows == {name: f"{over[name]:.2f}" for name in rows}
    bias = recorded("gpu_methods_bias")
    ms = {name: f"{bias[f'bias/{name}']['step_ms']:.2f}" for name in ("erm", "lff", "erm+biasadv", "lff+biasadv")}
    assert (
        f"ERM takes {ms['erm']} ms, of LfF {ms['lff']} ({bias['bias/lff']['over_erm']:.2f} ×), of ERM+BiasAdv "
        f"{ms['erm+biasadv']} and of LfF+BiasAdv {ms['lff+biasadv']} with five steps"
        in plain("docs/methods/biasadv.md")
    )
    assert (
        f"takes {over['alps']:.2f}, {over['mixup']:.2f} and {over['label-smoothing']:.2f} times as long as a plain "
        f"one; on torchvision's ResNet-18 one of LfF takes {bias['bias/lff']['over_erm']:.1f} times as long, and one "
        f"of LfF+BiasAdv {bias['bias/lff+biasadv']['step_ms']:.1f} ms" in plain("README.md")
    )


def test_how_much_a_repeated_training_on_a_gpu_differs() -> None:
    pairs = [
        (one["measures"], other["measures"])
        for one in read_rows("composition/corrupted")
        for other in read_rows("biasadv/short-schedule")
        if all(one[key] == other[key] for key in ("cell", "seed", "flags", "settings"))
    ]
    assert len(pairs) == 5
    most = {
        name: f"{max(100 * abs(one[name][0] - other[name][0]) for one, other in pairs):.1f}"
        for name in ("average_accuracy", "bias_aligned_accuracy")
    }
    average, aligned = most.values()
    assert f"differed by up to {average} points and bias-aligned accuracy by up to {aligned} (five" in plain(
        "README.md"
    )
    said = f"average accuracy differed by up to {average} points, bias-aligned accuracy by up to {aligned}."
    assert said in plain("papers/README.md")


def test_how_far_curvature_of_a_sample_is_off() -> None:
    rows: list[dict[str, Any]] = json.loads((ROOT / "benchmarks/results/curvature_sampling.json").read_bytes())[
        "figures"
    ]["rows"]
    off = {(r["parameters"], r["sureness"]): r["λ1"]["too large by"] for r in rows if r["samples"] == 250}
    text = plain("docs/methods/curvature.md")
    assert (
        f"{off[54, 1]:.2f} × λ1 of all with 54 parameters, {off[774, 1]:.1f} × with 774, and {off[774, 8]:.0f} ×"
        in text
    )

    def span(name: str) -> str:
        shares = [share for r in rows for of, share in r["coverage"].items() if of.partition(",")[0] == name]
        return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"

    held = f"hold λ1 in {span('λ1')} of draws, λ5 in {span('λ5')} and their ratio in {span('λ1/λ5')}"
    assert held in text


def test_what_attacks_find_behind_smooth_rounding() -> None:
    found = recorded("smooth_rounding")
    rows = table(ROOT / "docs/methods/attacks.md", "rounding to 16 levels", "plain attacks")
    assert len(rows) == len(found)
    keys = ("none", "sine, 16 levels", *(f"tanh, 16 levels, steepness {k}" for k in (10, 30)), "hard, 16 levels")
    for row, key in zip(rows, keys, strict=True):
        errors: Any = found[key]["32/255"]
        assert row[1:] == [f"{100 * errors[way]:.1f} %" for way in ("plain", "identity", "averaged")]


REPAIRED = {
    "digits-2": "coloured digits, 2 classes",
    "digits-10": "coloured digits, 10 classes",
    "mnist-2": "coloured MNIST, 2 classes",
    "waterbirds": "Waterbirds",
}


def percent(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", "−")


def test_what_a_new_last_layer_gains() -> None:
    found: dict[str, Any] = recorded("repair") | recorded("repair_waterbirds")
    expected = [
        [
            REPAIRED[name],
            row,
            percent(rows["erm"]["worst_group_accuracy"]),
            percent(own["worst_group_accuracy"]),
            "{} ({} to {})".format(*(percent(own["gain"][key]) for key in ("mean", "low", "high"))),
        ]
        for name, rows in found.items()
        for row, own in rows.items()
        if row != "erm"
    ]
    assert table(ROOT / "docs/how-to/repair.md", "data", "layer, held-out images") == expected
    own = found["digits-2"]["dfr, balanced"]
    assert f"took {own['processor_seconds']:.1f} processor seconds" in plain("docs/how-to/repair.md")
    assert f"fitted on {own['held_out']:.0f} images" in plain("docs/how-to/repair.md")
    birds = found["waterbirds"]
    assert f"on Waterbirds {birds['dfr, balanced']['cpu_seconds']:.0f} seconds" in plain("docs/how-to/repair.md")
    whole = [percent(birds[row]["accuracy"]) for row in ("erm", "afr, as trained, no groups")]
    assert f"accuracy of all images from {whole[0]} to {whole[1]} %" in plain("docs/how-to/repair.md")


def test_what_a_data_check_finds() -> None:
    found: dict[str, Any] = recorded("data_quality")
    fashion, cifar, text = found["fashion_mnist"], found["cifar10"], plain("docs/how-to/check-your-data.md")
    copies = [own["duplicates"] for own in (fashion, cifar)]
    others = [own["flagged"] - own["found"] for own in copies]
    assert (
        f"{copies[0]['found']} and {copies[1]['found']} are found (on Fashion-MNIST and CIFAR-10), "
        f"with {others[0]} and {others[1]} false pairs"
    ) in text
    assert [own["leaks"]["found"] for own in (fashion, cifar)] == [200, 200]
    labels, first, counted = (fashion[key] for key in ("label_errors", "precision_of_first", "counted"))
    for words in (
        f"Of {labels['planted']} flipped labels (5 %) in Fashion-MNIST {labels['found']} are found",
        f"among {labels['flagged']} flagged:",
        f"flagged: precision {100 * labels['precision']:.0f} %, recall {100 * labels['recall']:.0f} %",
        f"{100 * first['50']:.0f} % of the first 50 and {100 * first['100']:.0f} % of the first 100 are wrong",
        f"estimated at {100 * fashion['estimated_noise']:.1f} %",
        f"flags {counted['flagged']} of the same predictions, of which {100 * counted['precision']:.0f} % are wrong",
        f"held-out accuracy is {100 * fashion['held_out_accuracy']:.0f} %",
        "takes {:.0f} to {:.0f} processor seconds".format(
            *sorted(own["search"]["50000"]["processor_seconds"] for own in (fashion, cifar))
        ),
    ):
        assert words in text


def test_the_share_of_wrong_labels_that_is_printed_is_a_lower_bound() -> None:
    text, draws = plain("docs/how-to/check-your-data.md"), recorded("label_error_bound")
    for name, words in (
        ("mnist", "{} to {} % was printed on MNIST, where {} to {} % of the lists were wrong"),
        ("fashion_mnist", "{} to {} % on Fashion-MNIST, where {} to {} % were"),
    ):
        printed, measured = ([own[key] for own in draws[name]["bounds"]] for key in ("least_precision", "precision"))
        assert all(least <= real for least, real in zip(printed, measured, strict=True))
        ends = (min(printed), max(printed), min(measured), max(measured))
        assert words.format(*(f"{100 * end:.0f}" for end in ends)) in text
        assert len(printed) == 6


def test_what_a_data_check_finds_in_a_set_that_it_was_not_written_on() -> None:
    found: dict[str, Any] = recorded("data_quality_mnist")["mnist"]
    text = plain("docs/how-to/check-your-data.md")
    assert [found[kind]["found"] for kind in ("duplicates", "leaks")] == [400, 200]
    labels, first, counted = (found[key] for key in ("label_errors", "precision_of_first", "counted"))
    for words in (
        f"with {found['duplicates']['flagged'] - found['duplicates']['found']} other pairs",
        f"Of {labels['planted']} flipped labels {labels['found']} are found among {labels['flagged']} flagged",
        f"flagged: precision {100 * labels['precision']:.0f} %, recall {100 * labels['recall']:.0f} %",
        f"{100 * first['50']:.0f} % of the first 50 and {100 * first['100']:.0f} % of the first 100 are wrong",
        f"agree with {100 * found['held_out_accuracy']:.0f} % of the labels",
        f"counting does as well: precision {100 * counted['precision']:.0f} %, recall {100 * counted['recall']:.0f} %",
    ):
        assert words in text


def test_fine_tuning_beside_timm() -> None:
    found: dict[str, Any] = recorded("finetune")
    rows = table(ROOT / "docs/how-to/fine-tune.md", "", "held-out photos")
    held = {name: percent(fmean(run["held_out"] for run in runs)) for name, runs in found["runs"].items()}
    tested = [
        "{} ({} to {})".format(*(percent(own[key]) for key in ("accuracy", "low", "high")))
        for own in found["test"].values()
    ]
    assert [row[1:] for row in rows] == [[held["holdfast"], tested[0]], [held["timm"], tested[1]], ["", tested[2]]]
    gain = found["holdfast - timm"]
    said = "{} points ahead on the test photos, 95 % interval {} to {} over seeds".format(
        percent(gain["mean"]), *map(percent, gain["over seeds"])
    )
    assert said in plain("docs/how-to/fine-tune.md")


def test_what_two_ranks_gain() -> None:
    gain = cast("dict[str, Any]", recorded("ranks"))["gain"]["2 ranks"]
    assert f"at {gain:.1f} times the speed of one process with one thread" in plain("docs/how-to/scale.md")


def test_results_of_the_readme() -> None:
    text = plain("README.md")
    birds = cast("dict[str, Any]", recorded("repair_waterbirds"))["waterbirds"]
    before, own = percent(birds["erm"]["worst_group_accuracy"]), birds["dfr, balanced"]
    gain = [percent(own["gain"][key]) for key in ("mean", "low", "high")]
    assert f"worst group from {before} to {percent(own['worst_group_accuracy'])} %" in text
    assert f"DFR gains {gain[0]} points (95 % interval {gain[1]} to {gain[2]})" in text
    photos = [percent(own["accuracy"]) for own in cast("dict[str, Any]", recorded("finetune"))["test"].values()]
    assert f"{photos[0]} % against {photos[1]} % with the best of six settings of timm" in text
    names = {"Logit Correction": "logit-correction", "LfF": "lff", "ERM": "erm"}
    for study, measure in {"biasadv/full-schedule": "average_accuracy", "composition/clean": "accuracy"}.items():
        rows = [row for row in read_rows(study) if not row["flags"]]
        found = {
            cell: fmean(row["measures"][measure][0] for row in rows if row["cell"] == cell) for cell in names.values()
        }
        assert ", ".join(f"{name} {percent(found[cell])} %" for name, cell in names.items()) in text
    biasadv = Table("biasadv", described("biasadv")["gains-full"])
    gain = biasadv.gap_text(biasadv.gaps("lff+biasadv main text", "lff", "average_accuracy"))
    rare = Table("biasadv", described("biasadv")["gains-short-0.5pct"])
    more, noise = (rare.gaps(f"lff+{how} auxiliary", "lff", "average_accuracy") for how in ("biasadv", "noise"))
    spread = rare.gap_text(more).replace(")", f"; 40 epochs, {len(more)} seeds)")
    said = f"At 0.5 % {spread}, and noise of the same size {fmean(noise):.1f}; the paper 8.0 |"
    assert f"| {gain.replace(' (', ' points (')}; the paper reports a gain of 7.1. {said}" in text
    few = {name: Table("composition", described("composition")[name]) for name in ("few-labels-mnist", "few-labels")}
    shares = few["few-labels-mnist"].values("rotation fixmatch", "accuracy")
    mnist, garments = (own.gap_text(own.gaps("rotation fixmatch", "erm", "accuracy")) for own in few.values())
    gained = mnist.replace(" (", " points more than plain training (")
    reached = f"{fmean(share for share, *_ in shares.values()):.1f} %, {gained}"
    assert f"{reached}. With 250 labels of Fashion-MNIST no gain: {garments} |" in text


def test_curvature_of_a_trained_network() -> None:
    found: dict[str, Any] = recorded("curvature_trained")
    whole = found["population"]
    expected = [
        [
            f"{own['n']:,}",
            f"{fmean(own['λ1']):.1f}",
            "{:.1f} to {:.1f}".format(*own["λ1, interval"]),
            "{:.2f} to {:.2f}".format(*own["λ1/λ5, interval"]),
        ]
        for own in (found["samples of 250"], found["samples of 1000"])
    ]
    expected.append([f"{whole['n']:,}", f"{whole['λ1']:.1f}", "", f"{whole['λ1/λ5']:.2f}"])
    assert table(ROOT / "docs/methods/curvature.md", "images", "λ1, mean of eight samples") == expected


def test_how_far_defaults_are_behind_a_search() -> None:
    found: dict[str, Any] = recorded("defaults")
    rows = table(ROOT / "docs/how-to/defaults.md", "data set", "training images")
    for row, own in zip(rows, found.values(), strict=True):
        assert row[1:] == [
            f"{own['training_images']:,}",
            own["best"],
            *(f"{100 * own[key]:.1f}" for key in ("best_accuracy", "default_accuracy")),
            f"{own['points_behind']:.1f}".replace("-", "−"),
            str(len(own["cells"]["default"]["seeds"])),
        ]


def test_a_pretrained_network_is_trained_as_the_best_of_the_search_was() -> None:
    own: Any = recorded("defaults")["cifar10-pretrained"]
    searched = next(iter(own["cells"][own["best"]]["seeds"].values()))
    facts = TrainingFacts(searched["images"], pretrained=True)
    chosen = choose_defaults(TrainSettings(), facts).values
    optimizer, lr, epochs = own["best"].replace(",", "").split()[:3]
    assert chosen == {"optimizer": optimizer, "lr": float(lr), "batch_size": 64, "epochs": int(epochs), "warmup": 0.0}


def test_what_is_said_of_the_shortcut_alarm_was_counted() -> None:
    def alarms(name: str) -> list[bool]:
        found = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))["figures"]
        return [row["alarm"] for row in found.values() if isinstance(row, dict) and "alarm" in row]

    null, planted = alarms("shortcuts_null_again"), alarms("shortcuts_planted_again")
    assert (sum(null), len(null), sum(planted), len(planted)) == (0, 24, 19, 19)
    page = (ROOT / "docs/how-to/find-a-shortcut.md").read_text(encoding="utf-8")
    assert "none of 24 sets without a shortcut and on all 19 with one" in page
