"""The chapter on attacks: its table, its curves, and a warning that cannot be overlooked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Chart, Details, Section, Side, Table
from holdfast.reports.html import render
from holdfast.reports.sections.attacks import attacks
from holdfast.types import Finding

ERRORS: dict[tuple[str, str], tuple[float, float]] = {
    ("fgsm", "white-box"): (0.2, 0.5),
    ("pgd-10", "white-box"): (0.25, 0.7),
    ("pgd-10", "black-box transfer"): (0.15, 0.3),
    ("noise", "none"): (0.1, 0.12),
    ("strongest", "any"): (0.3, 0.75),
}
RADII = {"4/255": 4 / 255, "16/255": 16 / 255}


def found(*, trusted: bool = True, shift: float = 0.0, norm: str = "linf") -> tuple[Finding, ...]:
    verdict: dict[str, Any] = {"trusted": trusted, "norm": norm}

    def error(value: float, size: float | None, **where: str) -> Finding:
        evidence = {"radius": size, **verdict}
        return Finding(
            "attacks", "attack_error", value + shift, 200, value - 0.05, value + 0.05, where, evidence=evidence
        )

    made = [error(0.05, 0.0, attack="clean", access="none")]
    for (attack, access), values in ERRORS.items():
        for (text, radius), value in zip(RADII.items(), values, strict=True):
            made.append(error(value, radius, attack=attack, access=access, radius=text))
    made.append(error(1.0 - shift, None, attack="unbounded", access="white-box"))
    for name, value in (("radius-zero", 1.0), ("unbounded", float(trusted)), ("white-over-transfer", None)):
        says = {"says": f"{name}: <b>seen</b>", **verdict}
        n = 0 if value is None else 200
        made.append(Finding("attacks", "trust_check", value, n, where={"check": name}, evidence=says))
    made.append(Finding("attacks", "trusted", float(trusted), 200, evidence=verdict))
    return tuple(made)


def run(method: str, seed: int = 0, findings: Sequence[Finding] | None = None) -> RunFiles:
    settings = {"method": method, "seed": seed, "data": "digits"}
    return RunFiles(f"{method}-{seed}", settings=settings, findings=tuple(found() if findings is None else findings))


def made(runs: Sequence[RunFiles]) -> Section:
    section = attacks(runs)
    assert section is not None
    return section


def tables(section: Section) -> list[Table]:
    flat = [b for block in section.blocks for b in (block.blocks if isinstance(block, Side) else (block,))]
    return [block for block in flat if isinstance(block, Table)]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def chart(section: Section) -> Chart:
    (found,) = [block for block in section.blocks if isinstance(block, Chart)]
    return found


def test_stays_away_without_findings() -> None:
    assert attacks([RunFiles("bare")]) is None
    assert attacks([run("erm", findings=[Finding("accuracy", "accuracy", 0.5, 10)])]) is None


def test_one_run() -> None:
    section = made([run("erm")])
    table, checks = tables(section)
    assert [c.title for c in table.columns] == ["attack", "access", "4/255", "16/255"]
    assert texts(table) == [
        ["no attack", "", "5.0", "5.0"],
        ["fgsm", "white-box", "20.0", "50.0"],
        ["pgd-10", "white-box", "25.0", "70.0"],
        ["pgd-10", "black-box transfer", "15.0", "30.0"],
        ["random noise", "", "10.0", "12.0"],
        ["no radius, 200 steps", "white-box", "100.0", "100.0"],
        ["strongest of all", "", "30.0", "75.0"],
    ]
    assert [cell.strong for cell in table.rows[-1]] == [True, False, True, True]
    assert "200 images" in table.note
    assert "L∞" in table.note
    assert texts(checks) == [
        ["radius-zero", "passed", "radius-zero: <b>seen</b>"],
        ["unbounded", "passed", "unbounded: <b>seen</b>"],
        ["white-over-transfer", "not measured", "white-over-transfer: <b>seen</b>"],
    ]
    assert section.title == "Attacks"
    assert "trust" not in section.lead


def test_curves_are_accuracies_over_the_radius_from_the_clean_one() -> None:
    drawn = chart(made([run("erm")]))
    assert [label for _, label in drawn.legend] == [
        "fgsm", "pgd-10", "pgd-10, black-box transfer", "random noise", "strongest of all",
    ]  # fmt: skip
    heights = [
        [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", d)]
        for d in re.findall(r'class="line[^>]* d="([^"]+)"', drawn.svg)
    ]
    assert len(heights) == 5
    assert len({h[0] for h in heights}) == 1  # all begin at the clean accuracy
    ends = [h[-1] for h in heights]
    assert sorted(range(5), key=lambda i: ends[i]) == [3, 2, 0, 1, 4]  # y points down: noise is highest
    assert all(h == sorted(h) for h in heights)


def test_a_note_speaks_of_lines_that_are_drawn() -> None:
    assert "random noise" in chart(made([run("erm")])).note
    assert "random noise" not in chart(made([run("erm"), run("lff")])).note
    assert "a white-box attack below transfer" in chart(made([run("erm")])).note
    alone = [f for f in found() if f.where.get("access") != "black-box transfer"]
    note = chart(made([run("erm", findings=alone)])).note
    assert note.startswith("An attack that works lies below random noise. The model is at most as robust as ")


def test_a_failed_check_shouts_everywhere() -> None:
    section = made([run("erm", findings=found(trusted=False))])
    assert section.title == "Attacks: gradients masked: do not trust these numbers"
    assert section.lead.startswith("GRADIENTS MASKED: DO NOT TRUST THESE NUMBERS: erm-0 failed a trust check")
    table, checks = tables(section)
    assert table.note.startswith("Gradients masked: do not trust these numbers.")
    assert checks.note == "Gradients masked: do not trust these numbers."
    assert texts(checks)[1][:2] == ["unbounded", "FAILED"]
    assert checks.rows[1][1].strong


def test_unusual_gradients_are_remarked_on_and_not_called_masked() -> None:
    remark = {"remark": "gradients are scaled or replaced; attacks still succeed"}
    findings = [replace(f, evidence={**f.evidence, **remark}) for f in found()]
    section = made([run("erm", findings=findings)])
    assert section.title == "Attacks"
    _, checks = tables(section)
    assert checks.note == "Gradients are scaled or replaced; attacks still succeed."


def test_several_methods_and_seeds() -> None:
    runs = [run("erm", s, found(shift=0.01 * s)) for s in range(3)]
    section = made([*runs, run("alps", 0, found(trusted=False))])
    first, second, *checks = tables(section)
    assert first.caption.endswith("erm")
    assert texts(first)[1] == ["fgsm", "white-box", "21.0 ± 1.0", "51.0 ± 1.0"]
    assert "standard deviation over seeds" in first.note
    assert second.note.startswith("Gradients masked")
    assert "alps-0 failed" in section.lead
    assert len(checks) == 4  # shown openly, because one failed
    assert [label for _, label in chart(section).legend] == ["erm", "alps"]


def test_checks_of_several_trusted_runs_fold_away() -> None:
    section = made([run("erm", 0), run("erm", 1)])
    assert any(
        isinstance(b, Details) and b.summary == "Trust checks: no sign of masked gradients" for b in section.blocks
    )


def test_named_settings_have_a_table_of_their_own() -> None:
    def named(name: str, value: float) -> Finding:
        return Finding("attacks", "attack_error", value, 200, where={"preset": name, "access": "white-box"})

    section = made([run("erm", findings=[*found(), named("a", 0.4), named("b", 0.2)]), run("alps")])
    (table,) = [t for t in tables(section) if t.caption == "Error under named settings"]
    assert texts(table) == [["erm", "40.0", "20.0"], ["alps", "", ""]]
    assert all("a" not in [c.text for c in row] for row in tables(section)[0].rows)


def test_l2_has_its_own_axis() -> None:
    drawn = chart(made([run("erm", findings=found(norm="l2"))]))
    assert "radius × 100" in drawn.svg


def test_findings_that_lack_something_are_survived() -> None:
    odd = [
        Finding("attacks", "attack_error", None, 0, where={"attack": "fgsm", "access": "white-box", "radius": "4/255"}),
        Finding("attacks", "attack_error", float("nan"), 5, where={"attack": "pgd"}),
        Finding("attacks", "trust_check", None, 0),
        Finding("attacks", "other", 1.0, 5),
    ]
    section = made([run("erm", findings=odd)])
    assert texts(tables(section)[0])[0][2] == "empty"
    assert attacks([run("erm", findings=[Finding("attacks", "other", 1.0, 5)])]) is not None


def test_names_are_escaped_on_the_page() -> None:
    page = render([run("<script>erm", findings=found())])
    assert "<script>erm" not in page
    assert "<b>seen</b>" not in page
