"""Whoever reads only the headline is told nothing false: every number of it is counted again from single answers."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from scipy.stats import ttest_ind  # type: ignore[import-untyped]
from torch import Tensor

from holdfast.audits.checks.attacks.trust import withstood
from holdfast.metrics import bounded_mean, mcnemar, paired_difference, proportion
from holdfast.reports import RunFiles, read_runs
from holdfast.reports.arms import arms
from holdfast.reports.findings_file import CheckRecord, FindingsFile
from holdfast.reports.headline import top
from holdfast.reports.html import render
from holdfast.reports.overview import verdict
from holdfast.reports.report_tables import lead_sentence
from holdfast.reports.robustness_summary import arms_verdict, drop_table, robustness, summary_sentence
from holdfast.types import Finding
from tests.audits.checks.from_logits import one_hot, split, told
from tests.audits.checks.run_checks import accuracy, groups
from tests.reports.page import Page

CHECKS = tuple(CheckRecord(name, "measured") for name in ("accuracy", "groups", "corruptions", "attacks"))
SHARE = re.compile(r"(\d+\.\d) % ([a-z-]+(?: [a-z-]+)*)(?: \(([^)]*)\))?")


class Simulated:
    """Right and wrong answers of a model to every image, to corrupted ones, and to attacked ones of a part of them."""

    def __init__(self, seed: int, *, aligned: float, conflicting: float, n: int = 400, attacked: int = 60) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(n) % 2
        self.groups = torch.where(torch.rand(n, generator=draw) < 0.5, self.labels, 1 - self.labels)
        self.aligned = self.groups == self.labels
        rate = torch.where(self.aligned, aligned, conflicting)
        self.right = torch.rand(n, generator=draw) < rate
        self.index = torch.randperm(n, generator=draw)[:attacked]
        self.withstands = self.right[self.index] & (torch.rand(attacked, generator=draw) < 0.3)
        self.some = torch.randperm(n, generator=draw)[: n // 2]
        self.corrupted = self.right[self.some] & (torch.rand(n // 2, generator=draw) < 0.9)

    def findings(self) -> tuple[Finding, ...]:
        train = split(torch.arange(20) % 2, torch.arange(20) % 2)
        answers = torch.where(self.right, self.labels, 1 - self.labels)
        subject = told(one_hot(answers, 2), split(self.labels, self.groups), train=train, group_names=("red", "blue"))
        errors = {"clean": ~self.right[self.index], "strongest": ~self.withstands}
        of = {"clean": {"access": "none"}, "strongest": {"access": "any", "radius": "8/255"}}
        attacks = []
        for name, wrong in errors.items():
            e = proportion(wrong)
            where = {"attack": name, **of[name]}
            attacks.append(Finding("attacks", "attack_error", e.value, e.n, e.low, e.high, where))
        lost = bounded_mean(self.right[self.some].double() - self.corrupted.double(), (-1.0, 1.0), extra=1)
        kept = proportion(self.corrupted)
        one = {"strength": "1"}
        corrupted = (
            Finding("corruptions", "mean_corruption_accuracy", kept.value, kept.n, kept.low, kept.high, one),
            Finding("corruptions", "mean_corruption_drop", lost.value, lost.n, lost.low, lost.high, one),
        )
        return (*accuracy(subject), *groups(subject), *corrupted, *attacks, *withstood(attacks))

    def truths(self) -> dict[str, Tensor]:
        """The answers that every number of the headline is a share of, by the words before it."""
        cells = [self.right[(self.labels == k) & (self.groups == g)] for k in range(2) for g in range(2)]
        return {
            "clean accuracy": self.right,
            "bias-conflicting accuracy": self.right[~self.aligned],
            "bias-aligned accuracy": self.right[self.aligned],
            "worst-group accuracy": min(cells, key=lambda own: float(own.double().mean())),
            "accuracy under attack": self.withstands,
            "accuracy under corruptions": self.corrupted,
            f"clean accuracy on the same {len(self.index)} images": self.right[self.index],
            f"clean accuracy on the same {len(self.some)} images": self.right[self.some],
        }


def percent(flags: Tensor) -> str:
    return f"{100 * float(flags.double().mean()):.1f}"


def told_false(sentence: str, truths: dict[str, Tensor]) -> list[str]:
    """Shares in a sentence that are not what they are called, and what is said of a drop that is none."""
    wrong = []
    for value, words, detail in SHARE.findall(sentence):
        name = words.removesuffix(" on")
        wrong += [] if value == percent(truths[name]) else [f"{value} % {name}"]
        for base, of in re.findall(r"from (\d+\.\d) % ([^;)]*)", detail):
            wrong += [] if base == percent(truths[of]) else [f"from {base} % {of}"]
    return wrong


@pytest.mark.parametrize(("aligned", "conflicting"), [(0.9, 0.0), (0.95, 0.6), (0.8, 0.8), (0.6, 0.95), (1.0, 1.0)])
@pytest.mark.parametrize("seed", range(4))
def test_every_share_is_what_it_is_called_and_every_drop_has_its_base(
    seed: int, aligned: float, conflicting: float
) -> None:
    made = Simulated(seed, aligned=aligned, conflicting=conflicting)
    sentence = summary_sentence(robustness(made.findings(), {}))
    assert sentence.startswith(f"{percent(made.right)} % clean accuracy on 400 images")
    assert len(SHARE.findall(sentence)) == 5, "clean, conflicting, worst group, corruptions, attack"
    assert told_false(sentence, made.truths()) == []
    clauses = dict(
        re.findall(r"(drops to|not clearly lower:|no drop:) (.*?)(?=; (?:drops to|not|no drop|gate)|$)", sentence)
    )
    for value, _, detail in SHARE.findall(clauses.get("drops to", "")):
        base = re.findall(r"from (\d+\.\d) %", detail) or [percent(made.right)]
        assert float(value) < float(base[0])
    for value, _, detail in SHARE.findall(clauses.get("no drop:", "")):
        base = re.findall(r"from (\d+\.\d) %", detail) or [percent(made.right)]
        assert float(value) >= float(base[0])


def test_no_drop_is_larger_than_what_it_drops_from() -> None:
    """Wrong on half of the data: "47.2 % clean accuracy; drops 89.8 points" is no arithmetic."""
    made = Simulated(0, aligned=0.9, conflicting=0.0)
    table = drop_table(robustness(made.findings(), {}), "")
    assert [column.title for column in table.columns] == ["measure", "value, %", "drop, points (95 %)", "from, %"]
    for name, value, drop, base in table.rows:
        if base.text:
            number, _, words = base.text.partition(" ")
            assert number == percent(made.truths()[words]), name.text
            assert float(value.text) + float(drop.text.split()[0]) == pytest.approx(float(number), abs=0.11)
    sentence = summary_sentence(robustness(made.findings(), {}))
    assert (
        f"0.0 % bias-conflicting accuracy (from {percent(made.right[made.aligned])} % bias-aligned accuracy)"
        in sentence
    )


SMALL = (
    Finding("accuracy", "accuracy", 0.472, 500, 0.429, 0.515),
    Finding("groups", "worst_group_accuracy", 0.0, 5, 0.0, 0.6, evidence={"cell": {"class": "cat", "group": "red"}}),
    Finding("groups", "worst_group_drop", 0.472, 500, -0.171, 0.515),
)


def gate(measure: str, threshold: float, value: float, low: float, fail_on: str) -> dict[str, object]:
    return {
        "name": f"{measure} >= {threshold}", "kind": "fail-under", "measure": measure, "check": "", "n": 500,
        "threshold": threshold, "fail_on": fail_on, "value": value, "low": low, "high": 0.9, "passed": False,
    }  # fmt: skip


def test_a_group_at_zero_is_never_called_fine() -> None:
    alone = summary_sentence(robustness(SMALL, {}))
    assert alone.endswith(
        "not clearly lower: 0.0 % worst-group accuracy (class cat, group red; 95 % interval 0.0 to 60.0, n = 5)"
    )
    failed = summary_sentence(robustness(SMALL, {}, [gate("worst_group_accuracy", 0.2, 0.0, 0.0, "value")]))
    assert "not clearly lower" not in failed
    assert "no " not in failed
    assert failed.endswith(
        "worst-group accuracy (class cat, group red) 0.0 %, 95 % interval 0.0 to 60.0, must be at least 20.0"
    )


@pytest.mark.parametrize(
    ("asked", "fail_on", "said"),
    [
        (0.45, "low", "47.2 %, 95 % interval 42.9 to 51.5, lower bound must be at least 45.0"),
        (0.5, "value", "47.2 %, 95 % interval 42.9 to 51.5, must be at least 50.0"),
        (0.4723, "value", "47.20 %, 95 % interval 42.90 to 51.50, must be at least 47.23"),
        (0.4292, "low", "47.20 %, 95 % interval 42.90 to 51.50, lower bound must be at least 42.92"),
    ],
)
def test_a_failed_gate_says_which_number_is_too_low(asked: float, fail_on: str, said: str) -> None:
    found = robustness(SMALL, {}, [gate("accuracy", asked, 0.472, 0.429, fail_on)])
    assert summary_sentence(found).endswith(f"gate failed: clean accuracy {said}")
    cell = drop_table(found, "").rows[0][-1].text
    assert cell == f"{100 * asked:.1f}{' at the lower bound' * (fail_on == 'low')} FAILED"


def test_what_is_not_to_be_trusted_says_so_beside_its_number() -> None:
    doubt = {"trusted": False, "warning": "gradients masked: do not trust"}
    attacked = Finding("attacks", "robust_accuracy", 0.47, 500, 0.43, 0.51, {"radius": "8/255"}, evidence=doubt)
    said = summary_sentence(robustness((SMALL[0], attacked), {}))
    assert (
        "47.0 % accuracy under attack (radius 8/255; 95 % interval 43.0 to 51.0, n = 500; gradients masked: "
        "do not trust)" in said
    )


def lines(findings: Sequence[Finding], **more: object) -> tuple[str, list[str], str]:
    """The page's first sentence, those below it, and the closing line of the console."""
    file = FindingsFile(tuple(findings), {"name": "net", **more}, {"name": "digits"}, checks=CHECKS)  # type: ignore[arg-type]
    page = Page(render([RunFiles.of(file)]).replace("\u00a0", " "))
    below = re.findall(r"<li><b>(.*?)</b> <span>(.*?)</span></li>", page.source)
    return page.text("h1")[0], [f"{name} {text}" for name, text in below], verdict(file)


def test_the_page_and_the_closing_line_say_the_same() -> None:
    made = Simulated(1, aligned=0.9, conflicting=0.3)
    first, below, closing = lines(made.findings(), warnings=["preprocessing is probably wrong"])
    assert told_false(first, made.truths()) == told_false(closing, made.truths()) == []
    assert first.endswith(". Read the warning first.")
    assert below[0] == "Warning preprocessing is probably wrong"
    assert below[-1] == "Checks 4 of 4 checks measured"
    assert closing.endswith("4 of 4 checks measured. Warning: preprocessing is probably wrong")


def headline(*runs: RunFiles) -> str:
    return Page(render(runs).replace("\u00a0", " ")).text("h1")[0]


def test_whoever_reads_the_headline_alone_knows_of_failed_gates_and_crashes() -> None:
    failing, crashed = gate("accuracy", 0.5, 0.472, 0.429, "value"), CheckRecord("attacks", "crashed", "no luck")
    drop = Finding("corruptions", "mean_corruption_accuracy", 0.2, 500, 0.17, 0.24)
    for more, checks, gates, said in (
        ((), CHECKS, (failing,), ". Gate{} failed: accuracy >= 0.5."),
        ((drop,), CHECKS, (failing, failing | {"passed": True}), ". Gates{}: 1 of 2 failed (accuracy >= 0.5)."),
        ((drop,), (*CHECKS[:3], crashed), (), ". Crashed checks{}: attacks."),
        (
            (),
            (*CHECKS[:3], crashed),
            (failing,),
            ". Crashed checks{0}: attacks. Gate{0} failed: accuracy >= 0.5.",
        ),
    ):
        run = RunFiles("net", findings=(SMALL[0], *more), checks=checks, gates=gates)
        assert headline(run).startswith("net: 47.2 % clean accuracy on 500 images")
        assert headline(run).endswith(said.format(""))
        other = RunFiles("other", findings=SMALL[:1], checks=CHECKS)
        assert headline(run, other).endswith(said.format(" of net"))
    fine = RunFiles("net", findings=SMALL[:1], checks=CHECKS, gates=({**failing, "passed": True},))
    assert headline(fine) == "net: 47.2 % clean accuracy on 500 images. Gate passed."


def test_what_was_measured_is_not_called_nothing() -> None:
    attacked = Finding("attacks", "robust_accuracy", 0.47, 500, 0.43, 0.51, {"radius": "8/255"})
    assert headline(RunFiles("net", findings=(attacked,))) == "net: no clean accuracy; measured: attacks"
    assert headline(RunFiles("net", findings=(Finding("attacks", "robust_accuracy", None, 0),))) == (
        "net: nothing measured yet"
    )


def test_the_lowest_of_many_classes_says_of_how_many_and_how_many_images() -> None:
    """The lowest of 300 classes of 20 images each is low by chance: all of them are 80 % right."""
    draw = torch.Generator().manual_seed(0)
    right = torch.rand(300, 20, generator=draw) < 0.8
    shares = right.double().mean(1)
    found = [Finding("accuracy", "accuracy", float(right.double().mean()), 6000, 0.79, 0.81)]
    found += [Finding("accuracy", "accuracy", float(v), 20, 0, 1, {"class": f"c{i}"}) for i, v in enumerate(shares)]
    lowest = int(shares.argmin())
    said = headline(RunFiles("net", findings=tuple(found)))
    assert said.endswith(f"; lowest of 300 classes: c{lowest}, {100 * float(shares[lowest]):.1f} % of 20 images")


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_a_winner_over_seeds_is_one_by_welchs_test_and_its_lead_is_the_difference(seeds: int) -> None:
    """Against scipy's test on the same numbers; of single runs against their intervals."""
    draw, ahead = random.Random(seeds), 0
    for _ in range(40):
        rates = {name: [draw.gauss(rate, 0.03) for _ in range(seeds)] for name, rate in (("erm", 0.7), ("lff", 0.76))}
        runs = [
            RunFiles(
                f"{name}-{seed}",
                settings={"method": name, "seed": seed, "data": "pets"},
                findings=(Finding("accuracy", "accuracy", value, 500, value - 0.04, value + 0.04),),
            )
            for name, own in rates.items()
            for seed, value in enumerate(own)
        ]
        said = arms_verdict(arms(runs))
        means = {name: statistics.fmean(own) for name, own in rates.items()}
        second, first = sorted(means, key=lambda name: means[name])
        gap = means[first] - means[second]
        p = 1.0 if seeds == 1 else float(ttest_ind(*rates.values(), equal_var=False).pvalue)
        apart = gap > 0.08 if seeds == 1 else p < 0.05
        ahead += apart
        begin = f"{first} is ahead in clean" if apart else f"{first} and {second} do not clearly differ in clean"
        assert said.startswith(begin)
        assert f"{100 * gap:.1f} points {'above' if apart else 'apart'}" in said
    assert 0 < ahead < 40, "both happen"


@pytest.mark.parametrize("seed", range(30))
def test_a_lead_is_that_of_the_answers_whoever_is_ahead(seed: int) -> None:
    """Who leads, by how much and whether clearly, counted again; the lead lies within the interval beside it."""
    draw = torch.Generator().manual_seed(seed)
    new, old = (torch.rand(300, generator=draw) < rate for rate in (0.7, 0.5 + 0.4 * seed / 29))
    paired, test = paired_difference(new, old), mcnemar(new, old)
    where = {"against": "old", "measure": "accuracy"}
    said = lead_sentence(
        [
            Finding("against", "lead", paired.lead, 300, paired.low, paired.high, where),
            Finding("against", "mcnemar_p", test.p, 300, where=where),
        ],
        "new",
    )
    gap, low, high = map(float, re.findall(r"([\d.]+) points .*95 % interval (-?[\d.]+) to (-?[\d.]+)\)", said)[0])
    wins = {"new": float(new.double().mean()), "old": float(old.double().mean())}
    assert low <= gap <= high
    assert gap == pytest.approx(100 * abs(wins["new"] - wins["old"]), abs=0.051)
    first = max(wins, key=lambda name: wins[name])
    if test.p >= 0.05:
        assert said.startswith(("new and old do not clearly differ", "old and new do not clearly differ"))
        assert low <= 0 <= high
    else:
        word = "ahead of" if first == "new" else "behind"
        assert f"new is {gap} points {word} old in clean accuracy" in said
        assert low > 0
    assert ("do not clearly differ" in said) == (test.p >= 0.05)


def test_models_that_are_level_are_not_said_to_be_apart() -> None:
    def run(name: str, value: float | None) -> RunFiles:
        found = () if value is None else (Finding("accuracy", "accuracy", value, 100, value - 0.1, value + 0.1),)
        return RunFiles(name, findings=found)

    level = arms([run("a", 0.75), run("b", 0.75)])
    assert arms_verdict(level) == "a and b do not clearly differ in clean accuracy: both have 75.0 %"
    assert arms_verdict(arms([run(f"net-{i}", None) for i in range(9)])) == "9 models; no accuracy was measured"


def test_the_sample_report_adds_up() -> None:
    """Every drop of the report in the documentation is the difference of two numbers that stand beside it."""
    for run in read_runs([Path(__file__).parents[2] / "docs" / "sample" / "audit"]):
        for result in robustness(run.findings, run.measures, run.gates):
            if result.drop is not None:
                assert 0.0 <= result.value + result.drop <= 1.0, result
                assert result.drop <= 1.0 - result.value + 1e-9, result


def in_columns(**shares: tuple[float, float]) -> list[Finding]:
    """Accuracy on bias-aligned and bias-conflicting samples, by column of groups."""
    found = [Finding("accuracy", "accuracy", 0.8, 1000, 0.77, 0.83)]
    for column, (aligned, conflicting) in shares.items():
        where = {"column": column}
        for name, value, half in (
            ("bias_aligned_accuracy", aligned, 0.03),
            ("bias_conflicting_accuracy", conflicting, 0.03),
            ("bias_gap", aligned - conflicting, 0.05),
        ):
            found.append(Finding("groups", name, value, 500, value - half, value + half, where))
    return found


def lead(measure: str, value: float, **where: str) -> Finding:
    own = {"against": "erm", "measure": measure, **where}
    return Finding("against", "lead", value, 500, value - 0.03, value + 0.03, own)


def audit_of(name: str, found: Sequence[Finding]) -> RunFiles:
    data = {"name": "waterbirds", "group_attribute": "background"}
    return RunFiles(name=name, findings=tuple(found), checks=CHECKS[:3], data=data, model={"name": name})


def first_sentence(*runs: RunFiles) -> str:
    return top(runs, arms(runs)).verdict.replace("\u00a0", " ")


def test_a_model_relies_on_the_column_that_it_was_measured_by() -> None:
    net = audit_of("net", in_columns(group=(0.82, 0.79), gender=(0.95, 0.40)))
    assert first_sentence(net).endswith("n = 500): the model relies on gender")
    net = audit_of("net", in_columns(group=(0.95, 0.40), gender=(0.82, 0.79)))
    assert first_sentence(net).endswith("n = 500): the model relies on background")


def test_a_lead_stands_beside_the_shares_that_it_is_the_difference_of() -> None:
    old = audit_of("erm", in_columns(group=(0.82, 0.79), gender=(0.95, 0.40)))
    leads = [lead("accuracy", 0.01), *(lead("bias_conflicting_accuracy", v, column=c) for c, v in LEADS.items())]
    new = audit_of("lc", [*in_columns(group=(0.82, 0.81), gender=(0.90, 0.70)), *leads])
    said = first_sentence(new, old)
    assert "erm relies on gender: 95.0 % bias-aligned accuracy, but 40.0 %" in said
    assert "lc reaches 70.0 % (+30.0 points, 95 % interval 27.0 to 33.0" in said
    without = audit_of("lc", [f for f in new.findings if f.where.get("column") != "gender" or f.name != "lead"])
    assert "+2.0" not in first_sentence(without, old), "the lead in another column"


def test_a_lead_under_one_strength_does_not_stand_beside_shares_under_another() -> None:
    def under(weak: float, strong: float) -> list[Finding]:
        pairs = (("0.5", weak), ("2", strong))
        return [
            Finding("accuracy", "accuracy", 0.96, 400, 0.94, 0.98),
            *(Finding("corruptions", "mean_corruption_accuracy", v, 400, v - 0.02, v + 0.02, {"strength": s})
              for s, v in pairs),
        ]  # fmt: skip

    old = audit_of("erm", under(0.93, 0.669))
    leads = [lead("accuracy", 0.0), *(lead("mean_corruption_accuracy", v, strength=s) for s, v in STRENGTHS.items())]
    said = first_sentence(audit_of("lc", [*under(0.97, 0.785), *leads]), old)
    assert "66.9 % accuracy under corruptions (strength 2). lc reaches 78.5 % (+11.6 points" in said


LEADS = {"group": 0.02, "gender": 0.30}
STRENGTHS = {"0.5": 0.04, "2": 0.116}
