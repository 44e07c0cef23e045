"""The first sentence of ten audits, word by word: each must read right to someone who sees nothing else."""

from __future__ import annotations

from dataclasses import replace
from statistics import harmonic_mean

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.arms import arms
from holdfast.reports.findings_file import CheckRecord
from holdfast.reports.html import render
from holdfast.reports.next_steps import next_steps
from holdfast.reports.report_tables import turned_upside_down
from holdfast.types import Finding
from tests.reports.fake_runs import COLOURS, png
from tests.reports.page import Page

DATA = {"name": "birds"}
RADIUS = {"radius": "8/255"}
CLEAN = Finding("accuracy", "accuracy", 0.931, 5794, 0.924, 0.937)
ALIGNED = Finding("groups", "bias_aligned_accuracy", 0.981, 2897, 0.975, 0.985)


def worst(value: float, n: int, low: float, high: float, drop: tuple[float, float]) -> tuple[Finding, ...]:
    cell = {"cell": {"class": "landbird", "background": "water"}}
    return (
        Finding("groups", "worst_group_accuracy", value, n, low, high, evidence=cell),
        Finding("groups", "worst_group_drop", 0.931 - value, 5794, *drop),
    )


def corrupted(value: float, low: float, high: float) -> tuple[Finding, ...]:
    lost = 0.931 - value
    return (
        Finding("corruptions", "mean_corruption_accuracy", value, 5794, value - 0.01, value + 0.01, {"strength": "1"}),
        Finding("corruptions", "mean_corruption_drop", lost, 5794, low, high, {"strength": "1"}),
    )


def attacked(value: float) -> tuple[Finding, ...]:
    low, high = max(value - 0.04, 0.0), value + 0.04
    return (
        Finding("attacks", "robust_accuracy", value, 100, low, high, RADIUS),
        Finding("attacks", "attack_drop", 0.92 - value, 100, 0.92 - high, 0.92 - low, RADIUS),
    )


def conflicting(value: float) -> tuple[Finding, ...]:
    gap = 0.981 - value
    return (
        ALIGNED,
        Finding("groups", "bias_conflicting_accuracy", value, 2897, value - 0.02, value + 0.02),
        Finding("groups", "bias_gap", gap, 5794, gap - 0.02, gap + 0.02),
    )


def gate(measure: str, threshold: float, value: float) -> dict[str, object]:
    return {
        "name": f"{measure} >= {threshold}", "kind": "fail-under", "measure": measure, "check": "", "n": 100,
        "threshold": threshold, "fail_on": "value", "value": value, "passed": value >= threshold,
    }  # fmt: skip


def audit(
    *found: Finding, name: str = "net", gates: tuple[dict[str, object], ...] = (), crashed: str = "", **model: object
) -> RunFiles:
    names = dict.fromkeys(f.check for f in found if f.check != "against")
    checks = [CheckRecord(check, "measured") for check in names]
    checks += [CheckRecord(crashed, "crashed", "CUDA out of memory")] if crashed else []
    return RunFiles(name, findings=found, checks=tuple(checks), gates=gates, data=DATA, model={"name": name, **model})


def compared(value: float, low: float, high: float, p: float) -> tuple[Finding, ...]:
    """Of "new", against "old": bias-conflicting accuracy, and clean accuracy."""
    found = []
    for measure, lead, n in (
        ("accuracy", (0.02, 0.01, 0.03), 5794),
        ("bias_conflicting_accuracy", (value, low, high), 2897),
    ):
        where = {"against": "old", "measure": measure}
        found.append(Finding("against", "lead", lead[0], n, *lead[1:], where=where))
        found.append(Finding("against", "mcnemar_p", p, n, where=where, evidence={"adjusted_p": p}))
    return tuple(found)


def attacks_compared(value: float, low: float, high: float) -> tuple[Finding, ...]:
    """Of "new", against "old": accuracy under attack, which gains, and clean accuracy, which loses."""
    where = {"against": "old", "measure": "robust_accuracy", **RADIUS}
    return (
        Finding("against", "lead", -0.032, 5794, -0.037, -0.027, {"against": "old", "measure": "accuracy"}),
        Finding("against", "lead", value, 100, low, high, where),
    )


def guess(value: float) -> Finding:
    return Finding("accuracy", "accuracy", value, 600, value - 0.02, value + 0.02)


def classes(count: int) -> tuple[Finding, ...]:
    """Test images by class, 600 in all; most of them of c3."""
    ns = [66 if i == 3 else 59 if i else 62 for i in range(count)]
    return tuple(Finding("accuracy", "accuracy", 0.1, n, 0.0, 0.3, {"class": f"c{i}"}) for i, n in enumerate(ns))


def corruptions_compared() -> tuple[Finding, ...]:
    """Of "new", against "old", which guesses: ahead everywhere."""
    where = {"against": "old", "measure": "mean_corruption_accuracy", "strength": "1"}
    return (
        Finding("against", "lead", 0.801, 5794, 0.78, 0.82, {"against": "old", "measure": "accuracy"}),
        Finding("against", "lead", 0.712, 5794, 0.69, 0.73, where),
    )


CLEAN_TEXT = "net on birds: 93.1 % clean accuracy on 5,794 images"
OLD = audit(CLEAN, *conflicting(0.445), name="old")
AUDITS: dict[str, tuple[tuple[RunFiles, ...], str]] = {
    "all good": (
        (audit(CLEAN, *worst(0.94, 642, 0.92, 0.96, (-0.02, 0.01)), *corrupted(0.931, -0.01, 0.01),
               gates=(gate("accuracy", 0.9, 0.931), gate("worst_group_accuracy", 0.7, 0.94))),),
        f"{CLEAN_TEXT}, and no drop in worst-group accuracy and accuracy under corruptions. Gates: all 2 passed.",
    ),
    "worst group at zero": (
        (audit(CLEAN, *worst(0.0, 642, 0.0, 0.012, (0.91, 0.94)), *attacked(0.0)),),
        f"{CLEAN_TEXT}, but 0.0 % worst-group accuracy (class landbird, background water; 95 % interval 0.0 to 1.2, "
        "n = 642)",
    ),
    "tiny n": (
        (audit(CLEAN, *worst(0.0, 3, 0.0, 0.71, (-0.06, 0.94))),),
        f"{CLEAN_TEXT}, no clear failure; lowest: 0.0 % worst-group accuracy (class landbird, background water; "
        "95 % interval 0.0 to 71.0, n = 3), which chance may explain",
    ),
    "failed gate": (
        (audit(CLEAN, *conflicting(0.445),
               gates=(gate("accuracy", 0.9, 0.931), gate("bias_conflicting_accuracy", 0.7, 0.445))),),
        f"{CLEAN_TEXT}; 98.1 % bias-aligned accuracy, but 44.5 % bias-conflicting accuracy (95 % interval 42.5 to "
        "46.5, n = 2,897). Gates: 1 of 2 failed (bias_conflicting_accuracy >= 0.7).",
    ),
    "only attacks measured": (
        (audit(*attacked(0.05)),),
        "net on birds: 92.0 % clean accuracy on the 100 images measured, but 5.0 % accuracy under attack (radius "
        "8/255; 95 % interval 1.0 to 9.0, n = 100)",
    ),
    "two models": (
        (OLD, audit(CLEAN, *conflicting(0.677), *compared(0.232, 0.205, 0.258, 1e-9), name="new")),
        "old has 98.1 % bias-aligned accuracy, but 44.5 % bias-conflicting accuracy. new reaches 67.7 % (+23.2 points, "
        "95 % interval 20.5 to 25.8, on the same 2,897 images).",
    ),
    "two models, one robust": (
        (audit(CLEAN, *attacked(0.3), name="old"),
         audit(CLEAN, *attacked(0.83), *attacks_compared(0.53, 0.42, 0.62), name="new")),
        "old has 92.0 % clean accuracy on 100 images, but 30.0 % accuracy under attack (radius 8/255). new reaches "
        "83.0 % (+53.0 points, 95 % interval 42.0 to 62.0, on the same 100 images). On all 5,794 images its clean "
        "accuracy is 3.2 points lower (95 % interval 2.7 to 3.7).",
    ),
    "two models that do not differ": (
        (OLD, audit(CLEAN, *conflicting(0.451), *compared(0.006, -0.012, 0.024, 0.5), name="new")),
        "old has 98.1 % bias-aligned accuracy, but 44.5 % bias-conflicting accuracy. new has 45.1 % (+0.6 points, "
        "95 % interval -1.2 to 2.4, on the same 2,897 images): no clear difference.",
    ),
    "missing groups": (
        (audit(CLEAN, Finding("groups", "worst_group_accuracy", None, 0, evidence={"reason": "no groups"}),
               *corrupted(0.652, 0.262, 0.296)),),
        f"{CLEAN_TEXT}, but 65.2 % accuracy under corruptions (strength 1; 95 % interval 64.2 to 66.2, n = 5,794)",
    ),
    "hostile names": (
        (audit(CLEAN, *conflicting(0.445), name="<script>alert(1)</script>\x1b[31m"),),
        "<script>alert(1)</script>\\x1b[31m on birds: 93.1 % clean accuracy on 5,794 images; 98.1 % bias-aligned "
        "accuracy, but 44.5 % bias-conflicting accuracy (95 % interval 42.5 to 46.5, n = 2,897)",
    ),
    "a named shortcut": (
        (replace(audit(CLEAN, *conflicting(0.445)), data={"name": "birds", "group_attribute": "background"}),),
        f"{CLEAN_TEXT}; 98.1 % bias-aligned accuracy, but 44.5 % bias-conflicting accuracy (95 % interval 42.5 to "
        "46.5, n = 2,897): the model relies on background",
    ),
    "warnings": (
        (audit(CLEAN, *conflicting(0.445), warnings=["preprocessing is probably wrong", "few images"]),),
        f"{CLEAN_TEXT}; 98.1 % bias-aligned accuracy, but 44.5 % bias-conflicting accuracy (95 % interval 42.5 to "
        "46.5, n = 2,897). Read the 2 warnings first.",
    ),
    "crashed check": (
        (audit(CLEAN, *corrupted(0.652, 0.262, 0.296), crashed="attacks"),),
        f"{CLEAN_TEXT}, but 65.2 % accuracy under corruptions (strength 1; 95 % interval 64.2 to 66.2, n = 5,794). "
        "Crashed checks: attacks.",
    ),
    "a model that guesses": (
        (audit(guess(0.102), *classes(10), *corrupted(0.931, -0.01, 0.01)),),
        "net on birds: 10.2 % clean accuracy on 600 images (not clearly better than always answering c3, which is "
        "right on 11.0 %)",
    ),
    "worse than one answer": (
        (audit(guess(0.05), *classes(10)),),
        "net on birds: 5.0 % clean accuracy on 600 images (worse than always answering c3, which is right on 11.0 %)",
    ),
    "one class": (
        (audit(guess(0.95), Finding("accuracy", "accuracy", 0.95, 600, 0.93, 0.97, {"class": "cat"})),),
        "net on birds: 95.0 % clean accuracy on 600 images (all of class cat)",
    ),
    "only corruptions": (
        (audit(*corrupted(0.652, 0.262, 0.296)),),
        "net on birds: 93.1 % clean accuracy on the 5,794 images measured, but 65.2 % accuracy under corruptions "
        "(strength 1; 95 % interval 64.2 to 66.2, n = 5,794)",
    ),
    "corruptions and attacks": (
        (audit(*corrupted(0.652, 0.262, 0.296), *attacked(0.05)),),
        "net on birds: 65.2 % accuracy under corruptions (strength 1; from 93.1 % clean accuracy on the same 5,794 "
        "images; 95 % interval 64.2 to 66.2, n = 5,794), 5.0 % accuracy under attack (radius 8/255; from 92.0 % clean "
        "accuracy on the same 100 images; 95 % interval 1.0 to 9.0, n = 100); the check accuracy was not run",
    ),
    "only curvature": (
        (audit(Finding("curvature", "top_eigenvalue", 11.64, 250)),),
        "net on birds: largest Hessian eigenvalue λ1 11.64; clean accuracy was not measured",
    ),
    "a baseline that guesses": (
        (audit(guess(0.13), *attacked(0.04), *corrupted(0.121, -0.01, 0.02), name="old"),
         audit(CLEAN, *corrupted(0.833, 0.08, 0.12), *corruptions_compared(), name="new", crashed="attacks")),
        "new is 80.1 points ahead of old in clean accuracy (95 % interval 78.0 to 82.0) on the same 5,794 images; new "
        "has 93.1 %. Largest failure of new: 83.3 % accuracy under corruptions (strength 1; 95 % interval 82.3 to "
        "84.3, n = 5,794). Crashed checks of new: attacks.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AUDITS)
def test_the_first_sentence(name: str) -> None:
    runs, said = AUDITS[name]
    assert "".join(Page(render(runs)).text("h1")).replace("\u00a0", " ") == said


def test_a_failure_on_unmodified_images_comes_before_a_larger_one_under_attack() -> None:
    run = audit(CLEAN, *conflicting(0.677), *attacked(0.0))
    assert "but 67.7 % bias-conflicting accuracy" in Page(render([run])).text("h1")[0].replace("\u00a0", " ")


SKILL = {
    "erm": (0.98, 0.445), "lff": (0.9, 0.677), "group-dro": (0.9, 0.6), "jtt": (0.95, 0.5),
    "logit-correction": (0.152, 0.946),
}  # fmt: skip


def trained(method: str, seed: int, *, spread: float = 0.01) -> RunFiles:
    aligned, other = (share + spread * (seed - 1) for share in SKILL[method])
    found = (
        Finding("accuracy", "accuracy", 0.1 * aligned + 0.9 * other, 600, 0.4, 0.7),
        Finding("groups", "bias_aligned_accuracy", aligned, 60, aligned - 0.05, aligned + 0.01),
        Finding("groups", "bias_conflicting_accuracy", other, 540, other - 0.04, other + 0.04),
    )
    return RunFiles(f"{method}-{seed}", settings={"method": method, "seed": seed, "data": "digits"}, findings=found)


@pytest.mark.parametrize(
    ("methods", "seeds", "said"),
    [
        (("erm", "lff", "jtt"), 3,
         "Plain training (erm) relies on a shortcut: 98.0 ± 1.0 % on bias-aligned samples, but 44.5 ± 1.0 % on "
         "bias-conflicting ones. On these, lff, the best of 2 others, reaches 67.7 ± 1.0 % (+23.2 points, over 3 "
         "seeds) without group labels, and has 90.0 ± 1.0 % on bias-aligned ones."),
        (("erm", "group-dro"), 1,
         "Plain training (erm) relies on a shortcut: 97.0 % on bias-aligned samples, but 43.5 % on bias-conflicting "
         "ones. On these, group-dro reaches 59.0 % (+15.5 points, one seed), and has 89.0 % on bias-aligned ones."),
        (("erm", "jtt"), 3,
         "Plain training (erm) relies on a shortcut: 98.0 ± 1.0 % on bias-aligned samples, but 44.5 ± 1.0 % on "
         "bias-conflicting ones. On these, jtt reaches 50.0 ± 1.0 % (+5.5 points, over 3 seeds) without group "
         "labels."),
    ],
)  # fmt: skip
def test_a_comparison_tells_the_story_against_plain_training(methods: tuple[str, ...], seeds: int, said: str) -> None:
    runs = [trained(method, seed) for method in methods for seed in range(seeds)]
    assert Page(render(runs)).text("h1")[0].replace("\u00a0", " ") == said


def test_a_comparison_names_the_shortcut_where_the_data_does() -> None:
    named = {"name": "digits", "group_attribute": "colour"}
    runs = [replace(trained(method, seed), data=named) for method in ("erm", "lff") for seed in range(3)]
    (said,) = Page(render(runs)).text("h1")
    assert said.startswith("Plain training (erm) relies on colour: ")
    assert " without colour labels, and has 90.0 ± 1.0 % on bias-aligned ones." in said.replace("\u00a0", " ")
    long = [replace(run, data={**named, "group_attribute": "x" * 400}) for run in runs]
    assert Page(render(long)).text("h1")[0].startswith("Plain training (erm) relies on a shortcut: ")


def on_both(method: str, seed: int, classes: int = 2) -> RunFiles:
    """With the harmonic mean of both sides, and with classes, so that chance is known."""
    run = trained(method, seed)
    aligned, other = (f.value or 0.0 for f in run.findings[1:])
    mean = Finding("groups", "harmonic_mean", harmonic_mean([aligned, other]), 600, 0.0, 1.0)
    data = {"name": "digits", "classes": [str(i) for i in range(classes)]}
    return replace(run, data=data, findings=(*run.findings, mean), folder=f"runs/{run.name}")


def test_the_best_is_best_on_both_sides() -> None:
    """Logit correction has the highest accuracy on bias-conflicting samples, and loses nearly all others."""
    runs = [on_both(method, seed, 10) for method in ("erm", "logit-correction", "lff") for seed in range(3)]
    (said,) = Page(render(runs)).text("h1")
    assert "On these, lff, the best of 2 others, reaches 67.7" in said
    (step,) = next_steps(runs)
    assert "Audit lff, the best here, against erm." in step.why
    unmarked = [run for run in runs if run.settings["method"] != "erm"]
    (said,) = Page(render(unmarked)).text("h1")
    assert said.startswith("lff is ahead in the harmonic mean of bias-aligned and bias-conflicting accuracy: ")


def test_a_shortcut_upside_down_is_no_gain() -> None:
    """Of two classes, 15 % on bias-aligned samples is worse than guessing: what is learned is the shortcut."""
    runs = [on_both(method, seed) for method in ("erm", "logit-correction") for seed in range(3)]
    page = Page(render(runs))
    (said,) = page.text("h1")
    assert said.replace("\u00a0", " ") == (
        "Plain training (erm) relies on a shortcut: 98.0 ± 1.0 % on bias-aligned samples, but 44.5 ± 1.0 % on "
        "bias-conflicting ones. logit-correction turned the shortcut upside down: 15.2 ± 1.0 % on bias-aligned "
        "samples, where guessing has 50.0 %, and 94.6 ± 1.0 % on bias-conflicting ones. Read the warning first."
    )
    (step,) = next_steps(runs)
    assert [command.line for command in step.commands] == ["holdfast audit runs/erm-0"], "what failed is not the best"
    _, turned = arms(runs)
    note = turned_upside_down(turned)
    assert note is not None
    assert (note.code, note.level) == ("shortcut-upside-down", "warning")
    assert note.remedy
    _, better = arms([on_both(method, 0) for method in ("erm", "lff")])
    _, of_ten = arms([on_both(method, 0, 10) for method in ("erm", "logit-correction")])
    assert turned_upside_down(better) is turned_upside_down(of_ten) is None, "guessing of ten classes has 10 %"


def test_pictures_are_of_the_model_that_the_sentence_begins_with() -> None:
    """Of an audit against another model: the other's failures, wherever it stands in the list."""
    wrong = {"png": png("7", COLOURS["red"]), "label": "7", "prediction": "1", "confidence": 0.9}
    shown = Finding("accuracy", "samples", None, 0, evidence={"pictures": [wrong]})
    new = audit(CLEAN, *conflicting(0.677), *compared(0.232, 0.205, 0.258, 1e-9), shown, name="new")
    old = audit(CLEAN, *conflicting(0.445), shown, name="old")
    assert "What old gets wrong" in Page(render([new, old])).text("h3")


def test_a_gain_that_the_seeds_do_not_show_is_not_called_one() -> None:
    """Seeds that spread by 20 points, in opposite order: t on the paired differences covers zero."""
    erm = [trained("erm", seed, spread=0.0) for seed in range(3)]
    jtt = [trained("jtt", seed, spread=0.2) for seed in range(3)]
    (said,) = Page(render([*erm, *jtt])).text("h1")
    assert said.replace("\u00a0", " ").endswith(
        "jtt has 50.0 ± 20.0 % (+5.5 points, 95 % interval -44.2 to 55.2, over 3 seeds): no clear gain."
    )
