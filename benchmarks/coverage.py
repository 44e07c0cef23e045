"""How often each 95 % interval that an audit prints holds the truth, by simulation at the sizes that users have.

    python benchmarks/coverage.py --out benchmarks/results/coverage.json [--runs 1000] [--only auroc fpr95] [--table]

A row is a statistic, the data it was drawn from, the number of samples, the true value, the share of runs whose
interval holds it, the number of runs, how many intervals lie wholly below and above the truth, and the mean width.
A row that seems to cover less than 94 % is replaced by one of ten times as many runs. ``--only`` simulates studies
anew, keeps the other rows of the file and lists its own command there as "redone"; ``--table`` writes the page
docs/methods/statistics.md anew from the results.
One process; about fifteen minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special, stats

from holdfast import metrics
from holdfast.detect.evaluation import Threshold, evaluate_scores
from holdfast.metrics import Estimate
from holdfast.metrics.intervals import FEWEST_LOSSES

Draw = np.random.Generator
Array = NDArray[np.float64]
SIZES = ((10, 100), (10, 1000), (26, 1000), (52, 1000), (200, 100), (200, 1000), (1000, 1000), (1000, 5000))
"""Anomalies and normal samples."""
ROUNDING = 1e-9
DOUBT = 0.94


@dataclass(frozen=True)
class Case:
    """One simulation. draw: one interval, as an object with low and high, of newly drawn samples."""

    statistic: str
    data: str
    n: str
    truth: float
    draw: Callable[[Draw], Estimate | metrics.Paired]
    part: float = 1.0
    """Of the number of runs: more where a run takes no time, fewer where it takes long."""


@dataclass(frozen=True)
class Row:
    statistic: str
    data: str
    n: str
    truth: float
    coverage: float
    runs: int
    below: float
    above: float
    width: float


def simulate(case: Case, runs: int, seed: int = 0) -> Row:
    draw = np.random.default_rng([seed, *f"{case.statistic} {case.data} {case.n} {case.truth:.6f}".encode()])
    ends = np.array([(e.low, e.high) for e in (case.draw(draw) for _ in range(runs))])
    below, above = ends[:, 1] < case.truth - ROUNDING, ends[:, 0] > case.truth + ROUNDING
    return Row(
        case.statistic,
        case.data,
        case.n,
        round(case.truth, 5),
        round(float(1 - (below | above).mean()), 4),
        runs,
        round(float(below.mean()), 4),
        round(float(above.mean()), 4),
        round(float((ends[:, 1] - ends[:, 0]).mean()), 5),
    )


def settled(case: Case, runs: int) -> Row:
    """A row; one that seems to cover little is simulated again with ten times as many runs, on other draws."""
    row = simulate(case, max(1, round(runs * case.part)))
    return row if row.coverage >= DOUBT else simulate(case, 10 * row.runs, seed=1)


# Scores of normal samples and of anomalies whose AUROC is known


def _discrete(x: Array) -> Array:
    return np.clip(np.round(x), -2, 6)


SCORES: dict[str, Callable[[Draw, int, float], Array]] = {
    "normal": lambda draw, n, d: draw.standard_normal(n) + d,
    "heavy tails (t3)": lambda draw, n, d: draw.standard_t(3, n) + d,
    "discrete, 9 levels": lambda draw, n, d: _discrete(draw.standard_normal(n) + d),
    "exponential": lambda draw, n, d: draw.standard_exponential(n) * np.exp(d),
    "some hidden": lambda draw, n, d: draw.standard_normal(n) + 10 * (draw.random(n) < d),
}
"""Samples by a shift d, 0 for normal ones; the share of anomalies that stands out for "some hidden"."""


def true_auroc(name: str, d: float) -> float:
    if name == "normal":
        return float(special.ndtr(d / np.sqrt(2)))
    if name == "exponential":
        return float(special.expit(d))
    if name == "some hidden":
        return 0.5 + d / 2
    if name == "heavy tails (t3)":
        return float(stats.t.cdf(stats.t.ppf((np.arange(20000) + 0.5) / 20000, 3) + d, 3).mean())
    edges = np.array([-np.inf, *(np.arange(-2, 6) + 0.5), np.inf])
    low, high = (np.diff(special.ndtr(edges - shift)) for shift in (0.0, d))
    return float(high @ (low.cumsum() - low / 2))


def true_fpr95(name: str, d: float) -> float:
    if name == "normal":
        return float(special.ndtr(special.ndtri(0.95) - d))
    if name == "exponential":
        return float(0.95 ** np.exp(d))
    if name == "heavy tails (t3)":
        return float(stats.t.sf(stats.t.ppf(0.05, 3) + d, 3))
    if name == "some hidden":
        mixed = lambda t: (1 - d) * special.ndtr(t) + d * special.ndtr(t - 10) - 0.05  # noqa: E731
        return float(special.ndtr(-optimize.brentq(mixed, -20, 20)))
    levels = np.arange(-2, 6) + 0.5  # above each level but the lowest
    reached = levels[special.ndtr(d - levels) >= 0.95]
    return float(special.ndtr(-reached.max())) if len(reached) else 1.0


def shift_for(name: str, auroc: float) -> float:
    ends = (0.0, 1.0) if name == "some hidden" else (0.0, 60.0)
    return float(optimize.brentq(lambda d: true_auroc(name, d) - auroc, *ends, xtol=1e-10))


def two_kinds(name: str, d: float, n: int, m: int, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(SCORES[name](draw, n, 0.0)), torch.from_numpy(SCORES[name](draw, m, d))


def scored(name: str, d: float, n: int, m: int, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and truth as one evaluation takes them."""
    return torch.cat(two_kinds(name, d, n, m, draw)), torch.arange(n + m) >= n


def auroc() -> Iterator[Case]:
    for name in SCORES:
        for truth in (0.6, 0.9, 0.99, 0.999):
            d = shift_for(name, truth)
            for m, n in SIZES:
                yield Case(
                    "AUROC", name, f"{m} / {n}", truth,
                    lambda draw, a=(name, d, n, m): metrics.auroc_interval(*two_kinds(*a, draw)),
                )  # fmt: skip


def fpr95() -> Iterator[Case]:
    for name in SCORES:
        for area in (0.6, 0.9, 0.99, 0.999):
            d = shift_for(name, area)
            truth = true_fpr95(name, d)
            for m, n in SIZES:
                yield Case(
                    "FPR95", f"{name}, AUROC {area:g}", f"{m} / {n}", truth,
                    lambda draw, a=(name, d, n, m): metrics.fpr_interval(*two_kinds(*a, draw)), part=0.5,
                )  # fmt: skip


def average_precision() -> Iterator[Case]:
    for name in ("normal", "exponential"):
        for area in (0.6, 0.9, 0.99):
            d = shift_for(name, area)
            for m, n in ((10, 100), (52, 1000), (200, 1000)):
                many = np.random.default_rng(1)
                low, high = (np.sort(SCORES[name](many, 1_000_000, shift)) for shift in (0.0, d))
                recall = 1 - np.arange(len(high)) / len(high)
                alarms = 1 - np.searchsorted(low, high) / len(low)
                truth = float((recall * m / (recall * m + alarms * n)).mean())
                yield Case(
                    "average precision", f"{name}, AUROC {area:g}", f"{m} / {n}", truth,
                    lambda draw, a=(name, d, n, m): evaluate_scores(*scored(*a, draw), resamples=300).ranking["ap"],
                    part=0.25,
                )  # fmt: skip


def decisions() -> Iterator[Case]:
    """Shares at a threshold."""
    for area in (0.6, 0.9, 0.99):
        d = shift_for("normal", area)
        for m, n in ((10, 100), (26, 1000), (52, 1000), (200, 1000), (1000, 1000)):
            recall, alarms = float(special.ndtr(d - 1.645)), float(special.ndtr(-1.645))
            caught = m * recall
            truths = {
                "precision": caught / (caught + n * alarms), "recall": recall,
                "F1": 2 * caught / (caught + n * alarms + m), "false alarms": alarms,
            }  # fmt: skip
            for name, truth in truths.items():
                key = {"F1": "f1", "false alarms": "false_alarm_rate"}.get(name, name)
                yield Case(
                    name, f"normal, AUROC {area:g}, threshold at 5 %", f"{m} / {n}", truth,
                    lambda draw, a=("normal", d, n, m), key=key: evaluate_scores(
                        *scored(*a, draw), threshold=Threshold(1.645), resamples=1
                    ).decision[key],
                    part=0.5,
                )  # fmt: skip


def leads_in_auroc() -> Iterator[Case]:
    """Two correlated scores of the same samples."""

    def draw_pair(draw: Draw, n: int, m: int, own: float, ups: Sequence[float], tails: float) -> metrics.Paired:
        noise = draw.standard_t(tails, (3, n + m)) if tails else draw.standard_normal((3, n + m))
        kind = np.arange(n + m) >= n
        both = [torch.from_numpy(noise[0] + own * noise[i + 1] + up * kind) for i, up in enumerate(ups)]
        return metrics.paired_auroc(*((s[:n], s[n:]) for s in both))

    for data, own, first, gain, tails in (
        ("equal", 0.7, 0.4, 0.0, 0), ("equal", 0.7, 2.0, 0.0, 0), ("equal, heavy tails", 0.7, 2.0, 0.0, 3),
        ("equal, much alike", 0.2, 1.0, 0.0, 0), ("one better", 0.7, 1.0, 0.5, 0),
        ("one better, near 1", 0.7, 4.0, 0.5, 0),
    ):  # fmt: skip
        spread = np.sqrt(2 * (1 + own**2))
        truth = float(special.ndtr(first / spread) - special.ndtr((first + gain) / spread))
        for m, n in ((10, 100), (26, 26), (26, 1000), (52, 1000), (200, 1000)):
            yield Case(
                "lead in AUROC", f"{data}, shift {first:g}", f"{m} / {n}", truth,
                lambda draw, a=(n, m, own, (first, first + gain), tails): draw_pair(draw, *a),
            )  # fmt: skip


# Shares, means and gaps of right answers


def proportions() -> Iterator[Case]:
    """Accuracy, robust accuracy, top-5 accuracy, accuracy of a group, a slice or under one corruption."""
    for n in (20, 50, 100, 500, 2000, 10000):
        for truth in (0.5, 0.8, 0.95, 0.99, 1 - 0.17 / n):

            def one(draw: Draw, n: int = n, truth: float = truth) -> Estimate:
                hits = draw.binomial(n, truth)
                return Estimate(hits / n, *metrics.proportion_interval(hits, n), n)

            yield Case("accuracy (any share)", "binomial", f"{n}", truth, one, part=10)


def cells_of(draw: Draw, sizes: Array, chances: Array | float) -> tuple[list[int], list[int]]:
    return draw.binomial(sizes.astype(int), chances).tolist(), sizes.astype(int).tolist()


def groups() -> Iterator[Case]:
    """The worst of several cells, the gap between the best and the worst, and means over cells."""
    for count in (4, 12, 20):
        bad = {
            "all at 80 %": [0.8] * count, "all at 95 %": [0.95] * count, "all at 99 %": [0.99] * count,
            "one at 50 %, others at 90 %": [0.5, *[0.9] * (count - 1)], "60 to 95 %": np.linspace(0.6, 0.95, count),
        }  # fmt: skip
        for size in (20, 100, 500):
            for name, chances in bad.items():
                p, sizes = np.asarray(chances), np.full(count, size)
                n = f"{count} cells of {size}"
                yield Case(
                    "worst-group accuracy", name, n, float(p.min()),
                    lambda draw, a=(sizes, p): metrics.lowest(*cells_of(draw, *a)),
                )  # fmt: skip
                yield Case(
                    "gap between best and worst cell", name, n, float(p.max() - p.min()),
                    lambda draw, a=(sizes, p): metrics.widest_gap(*cells_of(draw, *a)),
                )  # fmt: skip
                yield Case(
                    "drop to the worst group", name, n, float(p.mean() - p.min()),
                    lambda draw, a=(sizes, p): drop_to_worst(*cells_of(draw, *a)),
                )  # fmt: skip
                yield Case(
                    "balanced accuracy (mean of cells)", name, n, float(p.mean()),
                    lambda draw, a=(sizes, p): metrics.mean_of_shares(*cells_of(draw, *a)),
                )  # fmt: skip
    for truth in (0.5, 0.9, 0.99):  # many small classes, and very uneven ones
        for sizes in (np.full(100, 10), np.full(1000, 5), np.array([2, 5, 20, 1000])):
            n = f"{len(sizes)} cells of {min(sizes)}" + (f" to {max(sizes)}" if len(set(sizes)) > 1 else "")
            yield Case(
                "balanced accuracy (mean of cells)", f"all at {truth:.0%}", n, truth,
                lambda draw, a=(sizes, truth): metrics.mean_of_shares(*cells_of(draw, *a)),
            )  # fmt: skip


def drop_to_worst(hits: list[int], counts: list[int]) -> Estimate:
    """As the check ``groups`` makes it: the ends of the two intervals set against each other."""
    worst, (low, high) = metrics.lowest(hits, counts), metrics.proportion_interval(sum(hits), sum(counts))
    return Estimate(sum(hits) / sum(counts) - worst.value, low - worst.high, high - worst.low, sum(counts))


def parts_of(draw: Draw, sizes: Array, chances: Array) -> list[Estimate]:
    hits, counts = cells_of(draw, sizes, chances)
    return [Estimate(h / n, *metrics.proportion_interval(h, n), n) for h, n in zip(hits, counts, strict=True)]


def two_groups() -> Iterator[Case]:
    """Bias-aligned against bias-conflicting samples, or a slice against the rest."""
    for p, q in ((0.98, 0.3), (0.9, 0.85), (1.0, 0.05), (0.999, 0.99)):
        for n, m in ((300, 20), (300, 60), (2000, 200)):
            sizes, chances = np.array([n, m]), np.array([p, q])
            yield Case(
                "gap between two groups", f"{p:.1%} and {q:.1%}", f"{n} / {m}", p - q,
                lambda draw, a=(sizes, chances): metrics.combined(lambda v: v[0] - v[1], parts_of(draw, *a)), part=4,
            )  # fmt: skip
            yield Case(
                "harmonic mean of two groups", f"{p:.1%} and {q:.1%}", f"{n} / {m}", float(stats.hmean([p, q])),
                lambda draw, a=(sizes, chances): metrics.combined(metrics.harmonic_mean, parts_of(draw, *a)), part=4,
            )  # fmt: skip


def paired_answers() -> Iterator[Case]:
    """Leads in accuracy, and drops under a corruption or an attack: pairs of right and wrong answers."""
    for n in (50, 200, 1000, 10000):
        for won, lost in ((0.02, 0.02), (0.1, 0.03), (0.3, 0.0), (2 / n, 0.0), (0.5 / n, 0.5 / n), (5 / n, 0.1)):

            def one(draw: Draw, n: int = n, won: float = won, lost: float = lost) -> metrics.Paired:
                a, b = np.zeros((2, n), bool)
                only_a, only_b, _ = draw.multinomial(n, [won, lost, 1 - won - lost])
                a[:only_a], b[n - only_b :] = True, True
                return metrics.paired_difference(torch.from_numpy(a), torch.from_numpy(b))

            yield Case("paired difference", f"{won:.2%} won, {lost:.2%} lost", f"{n}", won - lost, one)


def corruption_means() -> Iterator[Case]:
    """Accuracy over eight corruptions of the same images, which are hard or easy in all of them, and its drop."""
    for hard, easy in ((0.3, 0.9), (0.02, 0.999), (0.5, 0.5)):
        for n in (50, 200, 1000):
            truth = 0.2 * hard + 0.8 * easy

            def right(draw: Draw, n: int = n, hard: float = hard, easy: float = easy) -> torch.Tensor:
                chance = np.where(draw.random(n) < 0.2, hard, easy)
                return torch.from_numpy(draw.binomial(8, chance) / 8)

            def dropped(draw: Draw, right: Callable[[Draw], torch.Tensor] = right) -> Estimate:
                after = right(draw)
                before = torch.from_numpy(draw.random(len(after)) < 0.95).double()
                return metrics.bounded_mean(before - after, (-1.0, 1.0), extra=1)

            data = f"{hard:.1%} on a fifth, {easy:.1%} on the others"
            yield Case(
                "mean corruption accuracy", data, f"{n}", truth,
                lambda draw, right=right: metrics.bounded_mean(right(draw)),
            )  # fmt: skip
            yield Case("mean corruption drop", data, f"{n}", 0.95 - truth, dropped)


# Probabilities


def logits_of(draw: Draw, n: int, scale: float, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes; labels are drawn from the softmax of logits, which are then given at another temperature."""
    logits = scale * draw.standard_normal((n, 10))
    chances = special.softmax(logits, axis=1)
    labels = (draw.random((n, 1)) > chances.cumsum(1)).sum(1).clip(max=9)
    return torch.from_numpy(logits / temperature), torch.from_numpy(labels)


def losses() -> Iterator[Case]:
    """Mean negative log-likelihood, which has no interval for fewer samples, and Brier score."""

    def of_losses(draw: Draw, n: int, scale: float, temperature: float) -> Estimate:
        return Estimate(*metrics.positive_mean(metrics.nll(*logits_of(draw, n, scale, temperature))), n)

    def of_squares(draw: Draw, n: int, scale: float, temperature: float) -> Estimate:
        return metrics.bounded_mean(metrics.brier(*logits_of(draw, n, scale, temperature)), (0.0, 2.0))

    for data, scale, temperature in (
        ("calibrated", 3.0, 1.0), ("overconfident", 3.0, 0.4), ("nearly perfect", 12.0, 1.0),
        ("nearly perfect, overconfident", 12.0, 0.5),
    ):  # fmt: skip
        many = logits_of(np.random.default_rng(1), 1_000_000, scale, temperature)
        for name, score, one in (
            ("negative log-likelihood", metrics.nll, of_losses), ("Brier score", metrics.brier, of_squares)
        ):  # fmt: skip
            truth = float(score(*many).mean())
            for n in (50, 200, 1000, 10000):
                if n >= FEWEST_LOSSES or one is of_squares:
                    yield Case(
                        name, data, f"{n}", truth, lambda draw, a=(n, scale, temperature), one=one: one(draw, *a),
                        part=0.2 if n > 1000 else 1.0,
                    )  # fmt: skip


def calibration() -> Iterator[Case]:
    """Expected calibration error, where confidences and the chance to be right are known."""
    for data, off in (("calibrated", 0.0), ("off by 5 points", 0.05), ("off by 20 points", 0.2)):
        for n in (100, 500, 2000):
            for adaptive in (False, True):

                def one(draw: Draw, n: int = n, off: float = off, adaptive: bool = adaptive) -> Estimate:
                    sure = torch.from_numpy(0.3 + 0.7 * draw.beta(4, 1.5, n))
                    right = torch.from_numpy(draw.random(n)) < sure - off
                    generator = torch.Generator().manual_seed(int(draw.integers(2**31)))
                    found = metrics.ece(sure, right, generator=generator, adaptive=adaptive, resamples=300)
                    return found.estimate

                name = "calibration error, adaptive bins" if adaptive else "expected calibration error"
                yield Case(name, data, f"{n}", off, one, part=0.2)


def means() -> Iterator[Case]:
    """Statistics of single images, such as those of saliency maps, by Student's t."""
    for data, draws in (
        ("uniform", lambda draw, n: draw.random(n)), ("normal", lambda draw, n: draw.standard_normal(n)),
        ("beta(2, 8), skewed", lambda draw, n: draw.beta(2, 8, n)),
    ):  # fmt: skip
        truth = {"uniform": 0.5, "normal": 0.0}.get(data, 0.2)
        for n in (5, 16, 64):

            def one(draw: Draw, n: int = n, draws: Callable[[Draw, int], Array] = draws) -> Estimate:
                value, low, high = metrics.mean_interval(torch.from_numpy(draws(draw, n)))
                return Estimate(value, low, high, n)

            yield Case("mean over images (saliency)", data, f"{n}", truth, one, part=4)


STUDIES: dict[str, Callable[[], Iterator[Case]]] = {
    study.__name__: study
    for study in (
        proportions, two_groups, groups, paired_answers, corruption_means, losses, calibration, means, auroc, fpr95,
        average_precision, decisions, leads_in_auroc,
    )
}  # fmt: skip

PAGE = Path(__file__).parents[1] / "docs/methods/statistics.md"
MARK = "<!-- the table is written by benchmarks/coverage.py --table -->"


def table(rows: Sequence[Row]) -> str:
    """The row of each statistic and size that covers worst, as Markdown."""
    worst: dict[tuple[str, str], Row] = {}
    for row in rows:
        kept = worst.get((row.statistic, row.n))
        if kept is None or row.coverage < kept.coverage:
            worst[row.statistic, row.n] = row
    lines = [
        "| statistic | n | worst of these data | truth | coverage | runs | mean width |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.statistic} | {r.n} | {r.data} | {r.truth:.4g} | {r.coverage:.3f} | {r.runs:,} | {r.width:.3g} |"
        for r in worst.values()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="of each case; slow ones have fewer (default: 1000)")
    parser.add_argument("--only", nargs="*", choices=STUDIES, default=list(STUDIES), help="studies (default: all)")
    parser.add_argument("--out", type=Path, default=None, help="where the rows go, as JSON")
    parser.add_argument("--table", action="store_true", help=f"write the table into {PAGE.name}")
    told = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in told.only:
        for case in STUDIES[name]():
            rows.append(settled(case, told.runs))
            r = rows[-1]
            print(
                f"{r.statistic:34s} {r.data:44s} {r.n:18s} {r.truth:8.4f} {r.coverage:6.3f} {r.width:8.4f}", flush=True
            )
    if told.out is not None:
        from record import command, current_commit, write_result

        origin: dict[str, str] = {}
        redone: list[dict[str, str]] = []
        if told.out.exists() and set(told.only) != set(STUDIES):  # what was not simulated now stays, and so its origin
            file = json.loads(told.out.read_text(encoding="utf-8"))
            new = {row.statistic for row in rows}
            rows = [*(Row(**row) for row in file["figures"]["rows"] if row["statistic"] not in new), *rows]
            origin = {"made_by": file["command"], "commit": file["commit"]}
            redone = [*file["figures"].get("redone", ()), {"command": command(sys.argv), "commit": current_commit()}]
        figures = {"rows": [asdict(row) for row in rows], "worst": min(row.coverage for row in rows)}
        write_result(told.out, {**figures, **({"redone": redone} if redone else {})}, **origin)
    if told.table:
        head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text(f"{head}{MARK}\n\n{table(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
