"""The documentation against the code: commands, flags, links, files, calls, defaults and numbers are what it says."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from holdfast.cli import COMMANDS, main
from holdfast.parts import ASCENTS, CHECKS, METHODS
from holdfast.settings import TrainSettings, flatten
from tests.commands import command_of, require_understood
from tests.test_layers import LINES

ROOT = Path(__file__).parents[1]
PAGES = sorted([
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "papers").rglob("*.md")
])  # fmt: skip
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=named)


def text_of(*pages: Path) -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(text_of(page)) if language in languages]


def spans(page: Path) -> list[str]:
    """What stands between backticks in the text."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCE.sub("", text_of(page)))]


def shell(page: Path) -> Iterator[list[str]]:
    """The words of every line of every shell block, and of commands in the text that have flags."""
    for block in blocks(page, "console", "sh", "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line.removeprefix("$ "), comments=True)
    yield from (shlex.split(span) for span in spans(page) if re.match(r"(holdfast|python) \w.* --", span))


def tables(page: Path) -> Iterator[list[list[str]]]:
    """The rows of each table, its head and the line below included."""
    for lines in re.findall(r"(?:^\|.*\n)+", FENCE.sub("", text_of(page)), re.M):
        yield [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines.splitlines()]


def table(page: Path, *head: str) -> list[list[str]]:
    """The rows of the first table whose head begins so."""
    for first, _, *body in tables(page):
        if first[: len(head)] == list(head):
            return body
    raise AssertionError(f"{named(page)} has no table {head}")


TYPED = sorted({tuple(words[1:]) for page in PAGES for words in shell(page) if words[:1] == ["holdfast"]})


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_command_is_understood(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags, methods, recipes and settings are there; the folders that it is pointed at need not be."""
    rest = list(words[len(command_of(words).split()) :])
    if "--help" in rest:
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "papers").symlink_to(ROOT / "papers")  # where studies are
    if "--config" in rest:
        config = tmp_path / rest[rest.index("--config") + 1]
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(yaml.safe_dump(flatten(TrainSettings())), encoding="utf-8")
    require_understood(words, monkeypatch)


@cache
def flags() -> frozenset[str]:
    """Every flag of every command, from their help; of the method and the ascent, from their settings."""
    text = io.StringIO()
    for command in COMMANDS:
        with redirect_stdout(text), pytest.raises(SystemExit):
            main([*command.split(), "--help"])
    families = (METHODS, ASCENTS)
    own = {f"--{family.kind}.{f.name}" for family in families for part in family.values() for f in fields(part.made)}
    return frozenset({*FLAG.findall(text.getvalue()), *(flag.replace("_", "-") for flag in own), "--version"})


@each_page
def test_flags_in_the_text_exist(page: Path) -> None:
    ours = [
        span
        for span in spans(page)
        if not re.match(r"python |pip |pre-commit |ruff |torchrun |#SBATCH |benchmarks/|papers/", span)
    ]
    beside = text_of(*page.parent.glob("*.py")) if "papers" in page.parts else ""  # a paper speaks of its own script
    assert {flag for span in ours for flag in FLAG.findall(span)} - flags() - set(FLAG.findall(beside)) == set()


def test_flags_of_scripts_exist() -> None:
    for page in PAGES:
        scripts = (["python", *span.split()] for span in spans(page) if span.startswith(("benchmarks/", "papers/")))
        for words in (*shell(page), *scripts):
            if words[:1] == ["python"] and len(words) > 2:
                script = text_of(ROOT / words[1], ROOT / "benchmarks/record.py")
                for flag in (word for word in words if word.startswith("--")):
                    assert f'"{flag}"' in script, f"{named(page)}: {words[1]} has no {flag}"


def headings(page: Path) -> set[str]:
    """Anchors of a page; a page of results has those of its paper's README."""
    paper = ROOT / "papers" / page.stem / "README.md"
    page = paper if page.resolve().parent == ROOT / "docs/results" and paper.exists() else page
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in found}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)|<(\.\.?/[^>]+)>", text_of(page)):
        path, _, anchor = "".join(link).partition("#")
        if not path.startswith("http"):
            target = page.parent / path if path else page
            assert target.exists(), path
            assert not anchor or anchor in headings(target), anchor


@each_page
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page: Path) -> None:
    for head, *rows in tables(page):
        assert {len(row) for row in rows} == {len(head)}, head


@each_page
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    for span in spans(page):
        path = span.removeprefix("python ").split()[0].rstrip("/")
        if path.startswith("docs/_build/"):  # what `make docs` makes, which may not have run
            continue
        if re.fullmatch(r"(tests|benchmarks|papers|examples|docs|src|\.ci)/[\w./-]+", path):
            assert (ROOT / path).exists(), path
        elif re.fullmatch(r"[a-z_/]+\.py", path):
            assert any((ROOT / above / path).exists() for above in ("", "src", "src/holdfast")), path
        elif re.fullmatch(r"holdfast(\.\w+)+", path):
            thing(path)


def thing(dotted: str) -> Any:
    """A module, or what is in one, by its full name."""
    home, _, name = dotted.rpartition(".")
    with suppress(AttributeError):
        return getattr(thing(home), name) if home else import_module(name)
    return import_module(dotted)


PYTHON = [(page, code) for page in PAGES for code in blocks(page, "python")]


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[f"{named(page)}-{i}" for i, (page, _) in enumerate(PYTHON)])
def test_calls_fit_what_they_call(page: Path, code: str) -> None:
    """Names that a page's examples import from holdfast are there, and take the arguments that they are given."""
    earlier = "\n".join(other for where, other in PYTHON if where == page)
    known: dict[str, Any] = {"holdfast": import_module("holdfast")}
    for node in ast.walk(ast.parse(earlier)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("holdfast"):
            known |= {alias.name: thing(f"{node.module}.{alias.name}") for alias in node.names}
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
            continue
        root, *path = ast.unparse(node.func).split(".")
        if root in known and all(part.isidentifier() for part in path):
            called = known[root]
            for part in path:
                called = getattr(called, part)
            given = {word.arg: None for word in node.keywords if word.arg}
            inspect.signature(called).bind_partial(*node.args, **given)


@pytest.mark.slow
def test_arrays_of_ones_own_are_trained_on_and_measured_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown: dict[str, Any] = {}
    for code in blocks(ROOT / "docs/how-to/own-arrays.md", "python"):
        exec(code, shown)
    images, kind, site = (shown[name][300:] for name in ("x", "kind", "site"))
    with torch.no_grad():
        logits = shown["run"].model(torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
    right = logits.argmax(1).numpy() == (kind == "evening")
    found = {(f.name, f.where.get("group")): f.value for f in shown["audit"] if set(f.where) <= {"group"}}
    assert found["accuracy", None] == pytest.approx(right.mean())
    for place in ("coast", "hills"):
        assert found["accuracy", place] == pytest.approx(right[site == place].mean())
    assert "evening" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert shown["mine"].test.labels.tolist() == (kind == "evening").astype(int).tolist()


CARDS = {"vae": ["holdfast.models.vae.VAESettings", "holdfast.detect.train_vae"]}
"""Cards with a table of settings written by hand, and whose settings they are."""
WORDS = {
    "off": False,
    "no": False,
    "False": False,
    "false": False,
    "True": True,
    "learned": None,
    "2.5·radius/steps ≤ radius": None,
}


def defaults(owner: str) -> dict[str, Any]:
    families = {**METHODS, **ASCENTS}
    if owner in families:
        return {f.name: None if f.default is MISSING else f.default for f in fields(families[owner].made)}
    return {name: p.default for name, p in inspect.signature(thing(owner)).parameters.items()}


def value(word: str) -> Any:
    word = word.strip("`")
    if word in WORDS:
        return WORDS[word]
    with suppress(ValueError):
        top, _, bottom = word.partition("/")
        return float(top) / float(bottom or 1)
    return word


@pytest.mark.parametrize("card", [p.stem for p in PAGES if "| name | default |" in text_of(p)])
def test_defaults_on_a_card(card: str) -> None:
    owned = [defaults(owner) for owner in CARDS[card]]
    for names, stated, *_ in table(ROOT / f"docs/methods/{card}.md", "name", "default"):
        words = stated.split(", ") if stated else []
        for place, name in enumerate(re.findall(r"`(\w+)`", names)):
            having = [own[name] for own in owned if name in own]
            assert having, f"{card} has no {name}"
            assert not words or value(words[place]) in having, f"{name} is {having}, not {words[place]}"


def test_defaults_of_the_vicinal_methods() -> None:
    for name, _, stated, *_ in table(ROOT / "docs/methods/vicinal.md", "`--method`"):
        for setting, word in re.findall(r"`(\w+)`(?: \(([^\s,)]+))?", stated):
            own = defaults(name.strip("`"))[setting]
            assert not word or value(word) == own, f"{setting} of {name} is {own}, not {word}"


def test_every_command_method_ascent_and_check_is_documented() -> None:
    text = text_of(*PAGES)
    assert [name for name in COMMANDS if f"holdfast {name}" not in text] == []
    names = [*METHODS, *ASCENTS, *CHECKS]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.fixture(scope="module")
def extension() -> Any:
    """What the pages are built with; its packages are those of the extra ``docs``."""
    pytest.importorskip("sphinx")
    spec = spec_from_file_location("holdfast_docs", ROOT / "docs/_ext/holdfast_docs.py")
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


PARTS = [(kind, name) for kind, parts in (("method", METHODS), ("ascent", ASCENTS)) for name in parts]
FACTS = re.compile(r"^```\{facts\} (\w+) (.+)$", re.M)


@pytest.mark.parametrize(("kind", "name"), PARTS, ids=str)
def test_every_method_and_ascent_has_a_card(kind: str, name: str) -> None:
    """The idea, a formula, what it costs and its settings (the facts), when, when not, evidence and source."""
    pages = [page for page in (ROOT / "docs/methods").glob("*.md") if (kind, name) in FACTS.findall(text_of(page))]
    assert len(pages) == 1, f"put the facts of {kind} {name} on one page of docs/methods"
    text = text_of(pages[0])
    assert "```text\n" in text, "a formula"
    heads = re.findall(r"^## (.+)$", text, re.M)
    assert {"When to use it", "When not"} <= {*heads}
    assert {"Evidence", "Does it help?"} & {*heads}
    assert {"Source", "Sources"} & {*heads}


def test_the_facts_of_a_card_are_the_declaration(extension: Any) -> None:
    text = extension.facts_of("method", "adversarial")
    assert "**Passes per step:** 8." in text
    assert "| `--method.radius` | 0.03137 | In pixels. |" in text
    assert "| `--method.random-start` | on |" in text
    assert "**Needs:** group labels." in extension.facts_of("method", "group-dro")
    assert "one over the whole training set" in extension.facts_of("ascent", "sam-full")
    for kind, name in PARTS:
        rows = [row for row in extension.facts_of(kind, name).splitlines() if row.startswith("| `--")]
        own = {**METHODS, **ASCENTS}[name].made
        assert len(rows) == len(fields(own))
        assert [row for row in rows if row.endswith("|  |")] == [], "a setting says what it is"


def test_a_page_of_results_is_a_readme_whose_links_lead_on(extension: Any) -> None:
    folder = ROOT / "papers/composition"
    assert extension._link("it", "../friendly-sam/README.md", folder) == "[it](friendly-sam.md)"
    assert extension._link("it", "../../docs/methods/vae.md#x", folder) == "[it](../methods/vae.md#x)"
    assert extension._link("it", "tables.yaml", folder) == "it (`papers/composition/tables.yaml`)"
    for place in (ROOT / "papers").glob("*/README.md"):
        source = ["# nothing"]
        extension.put_paper(None, f"results/{place.parent.name}", source)
        assert source[0].splitlines()[0] == text_of(place).splitlines()[0]
        assert (ROOT / f"docs/results/{place.parent.name}.md").exists()


def test_every_command_has_a_page_with_its_help(extension: Any) -> None:
    pages = {page.stem: text_of(page) for page in (ROOT / "docs/reference/cli").glob("*.md") if page.stem != "index"}
    assert {*pages} == {name.replace(" ", "-") for name in COMMANDS}
    for name in COMMANDS:
        assert f"```{{help}} {name}\n```" in pages[name.replace(" ", "-")]
    assert "--quick" in extension.help_of("demo")


def test_every_finding_of_the_sample_is_explained() -> None:
    told = {span for page in (ROOT / "docs/methods").glob("*.md") for span in spans(page)}
    told |= set(spans(ROOT / "docs/reference/findings.md"))
    for file in (ROOT / "docs/sample/audit").glob("*/findings.json"):
        found = json.loads(file.read_text(encoding="utf-8"))["findings"]
        assert {f"{one['check']}: {one['name']}" for one in found if one["name"] not in told} == set()


def test_the_layers_are_those_of_the_architecture() -> None:
    told = [set(re.findall(r"`(\w+)`", names)) for names, _ in table(ROOT / "docs/architecture.md", "line")]
    assert told == list(LINES[1:])
