"""``holdfast report --figures``: charts and tables as files, with the numbers of the page and its colours."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from holdfast.cli import main
from holdfast.reports.blocks import Cell, Chart, Column, Details, Section, Side, Table
from holdfast.reports.figure_files import MARGIN, SERIES, rasterized, standalone, table_csv, write_figures
from holdfast.reports.svg import INK, WIDTH
from holdfast.reports.svg.bars import Bar, BarRow, bar_chart
from holdfast.reports.svg.lines import Line, line_chart

EVIL = "$\\frac{a}$ <b>&amp; 犬 \x1b ../../x"


def bars(*values: float, label: str = "row") -> Chart:
    rows = [BarRow(label, (Bar(v, None, None, "", "", i),)) for i, v in enumerate(values)]
    return Chart("Bars", bar_chart(rows, id="bars", title="Bars"), tuple((i, f"n{i}") for i in range(len(values))))


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_the_png_shows_the_bars_of_the_svg_at_their_length_and_in_their_colour() -> None:
    """Widths are measured in pixels of the blended colour, and compared with the rectangles that the SVG states."""
    svg = standalone(bars(0.25, 1.0))
    image = pixels(rasterized(svg))
    scale = image.shape[1] / (WIDTH + 2 * MARGIN)
    drawn = re.findall(r'class="bar s(\d)"[^>]*', svg)
    assert drawn == ["0", "1"]
    for number in (0, 1):
        (rect,) = re.findall(rf'<rect [^>]*class="bar s{number}"[^>]*>', svg)
        wide = float(re.findall(r'width="([\d.]+)"', rect)[0])
        colour = np.array([int(SERIES[number][i : i + 2], 16) for i in (1, 3, 5)])
        shown = 0.72 * colour + 0.28 * 255
        near = (np.abs(image - shown) < 4).all(axis=2)
        columns = np.flatnonzero(near.sum(axis=0) > 10)
        assert columns[-1] - columns[0] == pytest.approx(wide * scale, abs=6)


def test_lines_thin_dashed_and_named_are_drawn_and_any_name_is_text_alone() -> None:
    lines = [Line(EVIL, (((0, 0.1), (9, 0.9)),), i, thin=i == 9) for i in range(10)]
    svg = line_chart(lines, id="lines", title=EVIL, x_label=EVIL, y_range=(0.0, 1.0), share=True)
    made = standalone(Chart(EVIL, svg, ((0, EVIL), (9, EVIL))))
    root = ElementTree.fromstring(made)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg", "style", "g", "title", "desc", "text", "line", "rect", "circle", "path",
    }  # fmt: skip
    assert "http" not in made.replace("http://www.w3.org/2000/svg", "")
    image = pixels(rasterized(made))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 50


def test_a_line_in_the_colour_of_text_is_so_in_both_files() -> None:
    drawn = line_chart([Line("mean", (((0, 0.1), (9, 0.9)),), INK)], id="l", title="", x_label="", y_range=(0.0, 1.0))
    made = standalone(Chart("", drawn, ((INK, "mean"),)))
    assert ".line.ink{stroke:#1b1f23}" in made
    assert (pixels(rasterized(made)) == (0x1B, 0x1F, 0x23)).all(axis=2).sum() > 500


def test_tables_are_shown_as_on_the_page_and_in_full() -> None:
    columns = Column.texts("method") + Column.numbers("accuracy, %", "accuracy, %")
    table = Table("A", columns, ((Cell(EVIL), Cell("33.3", 1 / 3), Cell("")), (Cell("b"), Cell("none"), Cell("1", 1))))
    first, second = csv.DictReader(io.StringIO(table_csv(table)))
    assert first["accuracy, %"] == "33.3"
    assert float(first["accuracy, % (in full)"]) == 1 / 3
    assert (second["accuracy, %"], second["accuracy, % (in full)"]) == ("none", "")
    assert second["accuracy, % (2) (in full)"] == "1"


def test_files_stay_in_the_folder_and_words_alone_are_no_figure(tmp_path: Path) -> None:
    words = Table("Words", Column.texts("a"), ((Cell("b"),),))
    numbers = Table("../Numbers", Column.numbers("a"), ((Cell("1", 1.0),),))
    section = Section("../../evil", EVIL, "", (Side((bars(0.5),)), Details("x", (words, numbers))))
    assert write_figures([section], tmp_path / "out" / "figs") == (1, 1)
    names = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert names == [
        f"out/figs/evil-0{name}" for name in ("1-bars.png", "1-bars.svg", "3-numbers.csv", "3-numbers.tex")
    ]


def test_the_command_writes_them_and_refuses_a_file(
    tmp_path: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures = tmp_path / "page.html", tmp_path / "figures"
    figures.write_text("mine")
    assert main(["report", str(run_folder), "--out", str(out), "--figures", str(figures)]) == 2
    assert f"cannot write figures to {figures}: {figures} is a file; name a folder" in capsys.readouterr().err
    assert not out.exists()
    figures.unlink()
    assert main(["report", str(run_folder), "--out", str(out), "--figures", str(figures)]) == 0
    kinds = [sorted(p.stem for p in figures.glob(f"*.{kind}")) for kind in ("svg", "png", "csv", "tex")]
    assert kinds[0] == kinds[1]
    assert kinds[2] == kinds[3]
    assert len(kinds[0]) > 3
    assert f"{len(kinds[0])} charts and {len(kinds[2])} tables" in capsys.readouterr().out
