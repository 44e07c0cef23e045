"""Models are compared on the same samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from holdfast.audits.checks.attacks.trust import fallen
from holdfast.audits.checks.groups.group_accuracy import TAKEN
from holdfast.audits.comparing import against
from holdfast.audits.open_models import AuditedModel as Model
from holdfast.audits.sample_passes import RANKS, encode, pack_ranks
from holdfast.cli import main
from holdfast.metrics import holm
from holdfast.reports import read_findings
from holdfast.types import Finding
from tests.audits.checks.from_logits import one_hot, split, told
from tests.audits.checks.run_checks import groups
from tests.audits.nearest import MODEL, OTHER, QUICK, table

MEAN = "mean_corruption_accuracy"
EIGHT = {"measure": MEAN, "strength": "1"}


def test_models_are_compared_on_the_same_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", MODEL, *QUICK, "--against", OTHER, "--checks", "accuracy", "--quiet", "--out", "out"]
    assert main([*words, "--max-drop", "accuracy=0.0"]) in (0, 1)
    sides = {}
    for name in ("python-nearest-make", "python-nearest-other"):
        sides[name] = [row["accuracy"] == "right" for row in table(Path("out") / name)]
    mine, theirs = sides.values()
    read = read_findings("out/python-nearest-make/findings.json")
    lead = next(f for f in read.findings if f.name == "lead")
    assert lead.value == pytest.approx((sum(mine) - sum(theirs)) / len(mine))
    assert lead.value is not None
    assert lead.low is not None
    assert lead.high is not None
    assert lead.low < lead.value < lead.high
    assert lead.evidence["only_this"] == sum(a and not b for a, b in zip(mine, theirs, strict=True))
    (gate,) = read.gates
    assert gate["value"] == pytest.approx(-lead.value)
    assert gate["passed"] == (lead.value >= 0)
    both = Path("out/report.html").read_text(encoding="utf-8")
    assert "python-nearest-other" in both
    before = Path("out/report.html").read_bytes()
    assert main(["report", "out"]) == 0
    assert Path("out/report.html").read_bytes() == before


@pytest.mark.slow
def test_groups_and_corruptions_are_compared_pair_by_pair(folder: Path) -> None:
    """A lead is the difference of the two models' own numbers; its p is a sign test on the pairs that differ."""
    words = ["audit", MODEL, *QUICK, "--against", OTHER, "--checks", "accuracy", "groups", "corruptions", "--quiet"]
    assert (
        main(
            [
                *words,
                "--max-drop",
                "mean_corruption_accuracy=1",
                "--max-drop",
                "bias_conflicting_accuracy=1",
                "--out",
                "out",
            ]
        )
        == 0
    )
    mine, theirs = (read_findings(f"out/python-nearest-{name}/findings.json") for name in ("make", "other"))
    shares = [
        {
            tuple({"measure": f.name, **f.where}.items()): f
            for f in file.findings
            if f.check in ("groups", "corruptions") and f.name.endswith("accuracy")
        }
        for file in (mine, theirs)
    ]
    found = {tuple(f.where.items())[1:]: f for f in mine.findings if f.name == "lead"}
    chances = {tuple(f.where.items())[1:]: f for f in mine.findings if f.name == "mcnemar_p"}
    keys = {key for f in mine.findings if f.check == "groups" for key in f.where}
    assert keys <= {*TAKEN, "group"}, "a column could be called so"
    compared = [key for key in found if key in shares[0]]
    assert {dict(key).get("corruption") for key in compared} > {"perspective", None}
    assert {dict(key)["measure"] for key in compared} == {
        "bias_aligned_accuracy", "bias_conflicting_accuracy", "corruption_accuracy", "group_accuracy", MEAN
    }  # fmt: skip
    for key in compared:
        lead, (a, b) = found[key], (side[key] for side in shares)
        assert a.value is not None
        assert b.value is not None
        assert lead.value == pytest.approx(a.value - b.value, abs=1e-12), key
        assert lead.n == a.n == b.n
        if dict(key)["measure"] == MEAN:
            assert key not in chances  # shares of eight answers are no pairs of one
            continue
        only, other = lead.evidence["only_this"], lead.evidence["only_other"]
        assert (only - other) / lead.n == pytest.approx(lead.value)
        p = 1.0 if only + other == 0 else stats.binomtest(only, only + other).pvalue
        assert chances[key].value == pytest.approx(p, rel=1e-6)
    every = [f for f in mine.findings if f.name in ("mcnemar_p", "delong_p")]
    assert [f.evidence["adjusted_p"] for f in every] == holm([f.value or 0.0 for f in every])
    assert {(f.evidence["correction"], f.evidence["comparisons"]) for f in every} == {("Holm", len(every))}
    assert len(every) > 10
    for gate, where in zip(mine.gates, (EIGHT, {"measure": "bias_conflicting_accuracy"}), strict=True):
        paired = found[tuple(where.items())]
        assert (gate["value"], gate["low"], gate["high"]) == pytest.approx(
            tuple(-v for v in (paired.value, paired.high, paired.low))  # type: ignore[operator]
        )


@pytest.mark.slow
def test_scores_of_foreign_images_are_compared_image_by_image(folder: Path) -> None:
    """A lead is the difference of the two models' own AUROCs, and narrower than if the images were not the same."""
    words = ["audit", MODEL, *QUICK, "--against", OTHER, "--checks", "ood", "--quiet", "--out", "out"]
    assert main([*words, "--max-drop", "ood_auroc@msp=1", "--fail-on", "low"]) == 0
    mine, theirs = (read_findings(f"out/python-nearest-{name}/findings.json") for name in ("make", "other"))
    leads = {tuple(f.where.items())[1:]: f for f in mine.findings if f.name == "lead" and "score" in f.where}
    chances = {tuple(f.where.items())[1:]: f for f in mine.findings if f.name == "delong_p"}
    owns = [
        {(("measure", f.name), *f.where.items()): f for f in file.findings if f.name == "ood_auroc"}
        for file in (mine, theirs)
    ]
    assert set(leads) == set(chances) == {key for key, f in owns[0].items() if f.value is not None}
    assert {dict(key)["score"] for key in leads} >= {"msp", "max-logit", "energy"}
    for key, lead in leads.items():
        a, b = (own[key] for own in owns)
        assert a.value is not None
        assert b.value is not None
        assert lead.value == pytest.approx(a.value - b.value, abs=1e-12)
        assert lead.n == a.n == b.n
        assert lead.low is not None
        assert lead.high is not None
        assert lead.low < lead.value < lead.high
    (gate,) = mine.gates
    paired = leads[("measure", "ood_auroc"), ("score", "msp")]
    assert (gate["value"], gate["high"]) == pytest.approx((-paired.value, -paired.low))  # type: ignore[operator]
    for rendering in ("out/report.html", "out/summary.md"):
        said = Path(rendering).read_text(encoding="utf-8")
        assert "AUROC on OOD images, score msp" in said, rendering


def test_foreign_images_count_where_both_models_saw_them() -> None:
    """Test images by what they are, foreign ones by their place in a set of the same name and kind."""
    labels = torch.zeros(4, dtype=torch.int64)
    first, second = _model("new", labels, labels), _model("old", labels, labels)
    mine = _ranked([0, 1, 2], {"noise": [0, 1], "digits": [0, 1]}, "0 3 1  2 4  5 6")
    theirs = _ranked([1, 2, 3], {"noise": [1, 2], "digits": [0, 1]}, "1 0 9  2 7  3 0.5")
    found = {f.where.get("ood"): f for f in against(first, second, mine, theirs) if "score" in f.where}
    assert set(found) == {"digits", None}  # of the noise they share one image
    # shared: test images 1 and 2, digits 0 and 1, noise 1. new: {3, 1} under {5, 6}; old: {1, 0} under {3, 0.5}.
    assert found["digits"].value is not None
    leads = {
        f.where.get("ood"): f for f in against(first, second, mine, theirs) if f.name == "lead" and "score" in f.where
    }
    assert (leads["digits"].value, leads["digits"].n) == (pytest.approx(1 - 3 / 4), 4)
    assert (leads[None].value, leads[None].n) == (pytest.approx(1 - 5 / 6), 5)
    larger = _ranked([1, 2, 3], {"noise": [1, 2], "digits": [0, 1]}, "1 0 9  2 7  3 0.5", kind="3x64x64")
    leads = {
        f.where.get("ood"): f for f in against(first, second, mine, larger) if f.name == "lead" and "score" in f.where
    }
    assert set(leads) == {"digits"}  # noise of another size is other noise, and so not all were compared


def _ranked(test: list[int], foreign: dict[str, list[int]], scores: str, kind: str = "3x32x32") -> list[Finding]:
    """Findings as the check leaves them, from scores of the test images and of the foreign ones."""
    sets = {name: (torch.tensor(own), 3, kind if name == "noise" else "") for name, own in foreign.items()}
    ranks = pack_ranks(torch.tensor([float(word) for word in scores.split()]), torch.tensor(test), 4, sets)
    return [Finding("ood", "ood_auroc", 0.5, 7, where={"score": "msp"}, evidence={RANKS: ranks})]


def test_the_worst_group_of_either_is_compared_on_its_own_samples() -> None:
    labels, groups_ = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    first = _model("new", torch.tensor([1, 1, 0, 0, 1, 1, 1, 1]), labels, groups_)
    second = _model("old", torch.tensor([0, 0, 0, 0, 1, 1, 0, 0]), labels, groups_)
    found = against(first, second, groups(first.subject), groups(second.subject))
    worst = {f.where["worst cell of"]: f for f in found if "worst cell of" in f.where and f.name == "lead"}
    assert {name: (f.value, f.n, f.where["class"], f.where["group"]) for name, f in worst.items()} == {
        "new": (-1.0, 2, "c0", "red"),
        "old": (1.0, 2, "c1", "blue"),
    }
    same = against(first, first, groups(first.subject), groups(first.subject))
    assert [f.where["worst cell of"] for f in same if "worst cell of" in f.where and f.name == "lead"] == [
        "new and new"
    ]


def test_samples_are_matched_by_what_they_are_and_not_by_their_place() -> None:
    labels = torch.tensor([0, 1, 0, 1])
    first = _model("new", torch.tensor([0, 1, 1, 1]), labels, names=["a", "b", "c", "d"])
    second = _model("old", torch.tensor([1, 0, 0, 0]), labels, names=["d", "e", "a", "c"])
    (lead, _) = against(first, second, (), ())
    # shared: a (right, right), c (wrong, wrong), d (right, wrong)
    assert (lead.value, lead.n, dict(lead.evidence)) == (1 / 3, 3, {"only_this": 1, "only_other": 0})
    stranger = _model("far", torch.tensor([0]), torch.tensor([0]), names=["z"])
    (none,) = against(first, stranger, (), ())
    assert none.value is None
    assert none.evidence["reason"] == "the two models share no test sample"


def test_what_withstands_is_compared_at_every_radius_on_images_that_both_saw() -> None:
    """An image that falls within a radius falls within every larger one; those that one model did not see are out."""
    labels = torch.zeros(6, dtype=torch.int64)
    models = [_model(name, labels, labels) for name in ("new", "old")]
    mine = _attacked([0, 1, 2, 3, 5], {2: "00001", 8: "00100"}, clean="10000")
    theirs = _attacked([0, 1, 2, 3, 4], {2: "00100", 8: "01100"}, clean="00000")
    found = against(*models, mine, theirs)
    leads = {f.where["radius"]: f for f in found if f.name == "lead" and "radius" in f.where}
    # seen by both: 0 to 3. At 2/255 new stands on 1, 2, 3 and old on 0, 1, 3; at 8/255 on 1, 3 and on 0, 3.
    assert {r: (f.value, f.n, f.evidence["only_this"], f.evidence["only_other"]) for r, f in leads.items()} == {
        "2/255": (0.0, 4, 1, 1),
        "8/255": (0.0, 4, 1, 1),
    }
    assert all(dict(f.where) == {"against": "old", "measure": "robust_accuracy", "radius": r} for r, f in leads.items())
    sooner = against(
        *models, _attacked([0, 1], {2: "10", 8: "00"}, clean="00"), _attacked([0, 1], {2: "00", 8: "00"}, clean="00")
    )
    at = {f.where["radius"]: f.value for f in sooner if f.name == "lead" and "radius" in f.where}
    assert at == {"2/255": -0.5, "8/255": -0.5}


def _attacked(positions: list[int], fall: dict[int, str], clean: str) -> list[Finding]:
    """Findings as the check leaves them, from which images fall at each radius of 255."""

    def flags(text: str) -> Tensor:
        return torch.tensor([c == "1" for c in text])

    wrong = {
        ("clean", "none", 0.0): flags(clean),
        **{("fgsm", "white-box", r / 255): flags(t) for r, t in fall.items()},
    }
    words = encode(torch.tensor(positions), fallen(wrong, "linf"))
    strongest = [
        Finding("attacks", "robust_accuracy", 0.5, 5, where={"radius": f"{r}/255"},
                evidence={"radius": r / 255})
        for r in fall
    ]  # fmt: skip
    return [*strongest, Finding("attacks", "trusted", 1.0, 5, evidence={"verdicts": words})]


def _model(
    name: str, prediction: Tensor, labels: Tensor, ids: Tensor | None = None, names: list[str] | None = None
) -> Model:
    subject = told(one_hot(prediction, 2), split(labels, ids), group_names=("red", "blue"))
    made = Model(name, subject, {}, {})
    if names is not None:
        made.ids = lambda: names  # type: ignore[method-assign]
    return made
