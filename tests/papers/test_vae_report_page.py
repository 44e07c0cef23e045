"""The page of the VAE study: every figure of the report is drawn, from numbers that are in the results."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from sklearn import metrics
from vae_report.charts import histogram, panel, ranking
from vae_report.page import render_study_page, sentences, verdict
from vae_report.study import JOBS, in_order
from vae_report.tables import FAITHFUL, intervals, markdown, squared_error, training

from holdfast.errors import HoldfastError
from holdfast.reports.renderings import markdown_table
from holdfast.reports.svg.lines import Line

PNG = "iVBORw0KGgo="


def judged(auroc: float) -> dict[str, Any]:
    names = ("ap", "fpr95", "precision", "recall", "f1", "false_alarm_rate")
    return {
        "auroc": [auroc, auroc - 0.1, auroc + 0.05],
        **{name: [0.5, 0.4, 0.6] for name in names},
        "threshold": 1.25,
        "confusion": {"true_positive": 3, "false_positive": 2, "false_negative": 1, "true_negative": 14},
        "auroc by kind": {"corrupted": auroc},
    }


def result(job: str, seed: int, *, score: str = "elbo", auroc: float = 0.9, **more: Any) -> dict[str, Any]:
    draw = random.Random(seed)
    values = {"normal": [draw.gauss(0, 1) for _ in range(16)], "anomalous": [draw.gauss(2, 1) for _ in range(4)]}
    return {
        "job": job,
        "seed": seed,
        "scores": {score: {split: judged(auroc) for split in ("set 1", "set 2", "pooled")}},
        "values": {score: {"set 1": values, "set 2": values}},
        **more,
    }


@pytest.fixture
def records() -> list[dict[str, Any]]:
    history = [{"loss": 30.0 / n, "reconstruction": 20.0 / n, "kl": 10.0 / n} for n in (1, 2, 3)]
    heads = {
        "accuracy": {"frozen, all mistakes": 0.81, "frozen, no mistakes": 0.94},
        "loss": {"frozen, all mistakes": 1.098, "frozen, no mistakes": 0.2},
        "history": {"frozen, all mistakes": [{"loss": 1.2, "validation_loss": 1.3}, {"loss": 1, "validation_loss": 1}]},
    }
    points = {"mean": [[0.0, 1.0], [2.0, 3.0]], "drawn": [[0.1, 1.0], [2.0, 2.0]], "labels": [0, 1]}
    places = {z: {"silhouette": 0.5, "linear": 0.9, "knn": 0.8} for z in ("mean", "drawn")}
    trained = {"history": history, "sigma": 0.7071, "train_seconds": 9.0, "reconstructions": [PNG, PNG]}
    cut = {"anomalies found": 23, "anomalies": 52, "normal passed": 995, "normal": 1000}
    made = []
    for seed in (10, 11):
        settings = {"latent": 16, "lr": 1e-3, "sigma": 0.7071, "shape": [1, 32, 32]}
        made.append(
            result(FAITHFUL, seed, settings=settings, heads=heads, map=places, report_cut={"set 1": cut}, **trained)
        )
        flat = {"latent": 2, "lr": 1e-3, "sigma": 0.7071, "shape": [1, 32, 32]}
        made.append(result("report-latent2-lr0.001", seed, settings=flat, map={**places, "points": points}, **trained))
        made.append(result("ours", seed, score="fused", auroc=0.97 + 0.01 * (seed - 10)))
        made.append({"job": "labels-fixmatch", "seed": seed, "accuracy": {"fixmatch": 0.96}, "loss": {"fixmatch": 0.1}})
    return made


def test_every_figure_is_there(records: list[dict[str, Any]]) -> None:
    page = render_study_page(records, name="fashion-anomalies")
    for text in (
        "Training at its end (the report&#39;s Table 1)",
        "Latent dimensions: Reconstruction",
        "Learning rate: KL",
        "images, and what is made of them",
        "Where the scores lie (ours, fused, seed 10, set 2)",
        "ROC (report-latent16-lr0.001, elbo, seed 10, set 1)",
        "Precision and recall (ours",
        "23 of 52",
        "At the random draw of z",
        "frozen, all mistakes: cross-entropy",
        "0.975 ± 0.007",
        "seeds 10, 11",
    ):
        assert text in page
    assert page.count(f"data:image/png;base64,{PNG}") == 4
    ids = [part.split('"')[0] for part in page.split('<svg id="')[1:]]
    assert len(ids) == len(set(ids))
    assert page == render_study_page(records, name="fashion-anomalies")


def test_rates_of_adam_and_of_sgd_are_apart(records: list[dict[str, Any]]) -> None:
    assert "SGD" not in render_study_page(records, name="fashion-anomalies")
    slow = {**records[0]["settings"], "lr": 3e-5, "optimizer": "sgd"}
    page = render_study_page(
        [*records, {**records[0], "job": "report-latent16-sgd-lr3e-05", "settings": slow}], name="x"
    )
    adam, sgd = (
        page.split(f'<title id="study-learning-rate{of}-kl-title"')[1].split("</svg>")[0] for of in ("", "-of-sgd")
    )
    assert ("3e-05" in adam, "0.001" in adam) == (False, True)
    assert ("3e-05" in sgd, "0.001" in sgd) == (True, False)


def test_the_verdict_and_the_tables_say_the_same(records: list[dict[str, Any]]) -> None:
    assert verdict(records) == "AUROC 0.900 ± 0.000 the report's way, 0.975 ± 0.007 ours"
    said = dict(sentences(records))
    assert said["ours, fused"] == "AUROC 0.975 ± 0.007, average precision 0.500 ± 0.000."
    assert said["head on the frozen encoder"] == (
        "81.0 ± 0.0 % right with the report's mistakes, 94.0 ± 0.0 % without."
    )
    assert verdict(records[3:4]) == "1 results of a study"
    text = markdown(records)
    assert "| ours | fused | 0.975 ± 0.007 |" in text.replace("\\", "")
    assert "| fixmatch | 0.9600 ± 0.0000 |" in text


def test_every_seed_has_its_interval(records: list[dict[str, Any]]) -> None:
    text = markdown(records).replace("\\", "")
    assert "| ours | fused | 10 | 0.970 [0.870, 1.020] | 0.500 [0.400, 0.600] |" in text
    assert "| ours | fused | 11 | 0.980 [0.880, 1.030] |" in text


def test_the_squared_error_is_what_the_gaussian_leaves_beside_its_constant(records: list[dict[str, Any]]) -> None:
    """scipy's density of 1,024 pixels, 13.77 squared away from their means in all, gives 13.77 back."""
    for sigma in (0.5**0.5, 0.2):
        off = math.sqrt(13.77 / 1024)
        nll = -1024 * stats.norm.logpdf(off, scale=sigma)
        own = records[0] | {"history": [{"loss": nll, "reconstruction": nll, "kl": 0.0}], "held_out": 600.0}
        own["settings"] = own["settings"] | {"sigma": sigma}
        assert squared_error(own) == pytest.approx(13.77)
    assert "| 13.770 |" in markdown([own])
    own["history"] = [own["history"][0] | {"kl": 8.08}]
    assert "| 21.850 | 13.770 | 8.080 |" in markdown(
        [own]
    )  # ELBO, reconstruction, KL: a column of the report's Table 1
    assert "| 600.000 |" in markdown([own])
    assert squared_error(own | {"settings": own["settings"] | {"sigma": None}}) is None


def test_each_set_has_its_own_figures(records: list[dict[str, Any]]) -> None:
    records[0]["scores"]["elbo"]["set 2"] = judged(0.8)
    text = markdown(records)
    assert f"| {FAITHFUL} | elbo | set 1 | 0.900 ± 0.000 | 0.500 ± 0.000 |" in text
    assert f"| {FAITHFUL} | elbo | set 2 | 0.850 ± 0.071 | 0.500 ± 0.000 |" in text


def test_a_rate_that_shoots_off_leaves_the_others_to_be_seen() -> None:
    curves = [Line(str(i), (((1.0, start), (2.0, 1.0)),), i) for i, start in enumerate((9.0, 8.0, 5e6))]
    chart = panel(curves, "x", "Loss")
    assert chart.note == "Cut off above 9."
    assert "000,000" not in chart.svg
    assert panel(curves[:2], "x", "Loss").note == ""


def test_scores_far_out_share_the_last_bin() -> None:
    values = {"normal": [i / 100 for i in range(100)], "anomalous": [*(1 + i / 10 for i in range(9)), 1e4]}
    chart = histogram(values, "x", "ours", 1.0)
    assert "the last with all up to 1e+04" in chart.note
    assert "Threshold from held-out images: 1;" in chart.note
    assert "the report's cut at 0.3 of the range of this set: 3000." in chart.note


def test_a_study_that_has_only_begun_has_a_page(records: list[dict[str, Any]]) -> None:
    assert "Few labels" in render_study_page(records[3:4], name="x")
    failed = {"job": "report-latent16-lr0.01", "seed": 10, "error": "training diverged"}
    assert "training diverged" in markdown([*records, failed])
    assert "training diverged" in render_study_page([*records, failed], name="x")
    assert "<script>alert" not in render_study_page(records, name="<script>alert(1)</script>")
    with pytest.raises(HoldfastError, match="no results of a study"):
        render_study_page([], name="x")


def test_curves_are_those_of_scikit_learn() -> None:
    draw = random.Random(0)
    normal = [round(draw.gauss(0, 1), 1) for _ in range(200)]
    anomalous = [round(draw.gauss(1, 1), 1) for _ in range(30)]
    roc, pr = ranking(normal, anomalous)
    truth = [0] * 200 + [1] * 30
    alarms, recall, _ = metrics.roc_curve(truth, normal + anomalous, drop_intermediate=False)
    assert list(map(list, zip(*roc, strict=True))) == [pytest.approx(list(v)) for v in (alarms, recall)]
    precision, found, _ = metrics.precision_recall_curve(truth, normal + anomalous)
    assert list(map(list, zip(*pr, strict=True))) == [pytest.approx(list(v[-2::-1])) for v in (found, precision)]


def test_the_published_page_is_what_the_committed_results_say() -> None:
    root = Path(__file__).parents[2]
    page = (root / "papers/vae-report/README.md").read_text()
    kept = json.loads((root / "papers/vae-report/results/gpu.json").read_text())
    records = in_order(kept["records"])
    assert markdown(records) in page
    fallen = json.loads((root / "papers/vae-report/results/gpu_sigmoid.json").read_text())["records"]
    for block in (training(fallen), intervals(fallen)):
        assert block is not None
        assert "\n".join(markdown_table(block)) in page
    missing = page.partition("## Not run yet")[2]
    for job in JOBS:
        assert (f"- `{job}`\n" in missing) != any(r["job"] == job for r in records)
