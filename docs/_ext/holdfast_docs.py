"""What the pages take from the code when they are built: facts of parts, help of commands, reports, llms.txt.

``{facts} method mixup`` is the box of a method's card: flag, cost, what it needs, and its settings with their defaults.
``{overview} method`` is a table of all of them, each with its card. ``{help} train`` is the help of a command, as its
parser prints it; ``{commands}`` and ``{modules} attacks data`` are tables of their pages. The gallery's reports are
rendered from their findings, and llms.txt lists every page.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import re
import textwrap
from contextlib import redirect_stdout
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from holdfast.cli import COMMANDS, main
from holdfast.parts import ASCENTS, METHODS
from holdfast.reports.html import report_folders
from holdfast.types import Needs

FAMILIES = {"method": METHODS, "ascent": ASCENTS}
DOCS = Path(__file__).parents[1]
REPORTS = {"shortcut": DOCS / "sample" / "audit", "fashion": DOCS / "gallery" / "fashion"}
"""Reports of the gallery, and the findings that they are made of."""
PAPERS = DOCS.parent / "papers"
LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)")
TABLE = re.compile(r"(?<=^<!-- table: )([\w-]+ -->\n)(\|.*?\n)(\|.*?\n)((?:\|.*\n)+)", re.M)
TOGETHER = re.compile(r"(?<=\d) (?=%)| ± ")
IN_CELLS = re.compile(rf"{TOGETHER.pattern}|(?<=\d) (?:to|/) (?=[+−-]?\d)")
NEEDED = {Needs.GROUPS: "group labels", Needs.UNLABELLED: "images without labels"}
MANY = 6
SHORT_CELL = 60
FACTS = re.compile(r"^```\{facts\} (\w+) (.+)$", re.M)


def setting_docs(made: type) -> dict[str, str]:
    """What the text below each field of a settings class says, the class's own before its bases'."""
    found: dict[str, str] = {}
    for owner in made.__mro__[:-1]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                said = text.value if isinstance(text, ast.Expr) else None
                if isinstance(said, ast.Constant) and isinstance(said.value, str):
                    found.setdefault(field.target.id, " ".join(said.value.split()))
    return found


def shown_default(value: Any, about: str) -> str:
    """A default as the table has it; where it is None, the words beside it may say what is taken instead."""
    if value is MISSING:
        return "must be given"
    if value is None:
        return "computed" if "default:" in about else "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def passes_of(kind: str, name: str) -> str:
    """The cost of a step, as it was declared; plain training is 1."""
    part = FAMILIES[kind][name]
    text = f"{part.passes:g}"
    if getattr(part.made, "reads_whole_set", False):
        text += " + one over the whole training set"
    return text


def facts_of(kind: str, name: str) -> str:
    """The box of a card in Markdown."""
    part = FAMILIES[kind][name]
    spelt = f" (also {', '.join(f'`{alias}`' for alias in part.aliases)})" if part.aliases else ""
    lines = [f"`--{kind} {name}`{spelt}: {part.about}", ""]
    needs = [words for need, words in NEEDED.items() if need & getattr(part, "needs", Needs.NOTHING)]
    cost = "1, as plain training" if part.passes == 1 and kind == "method" else passes_of(kind, name)
    lines += [f"**Passes per step:** {cost}. **Needs:** {', '.join(needs) or 'nothing beyond labelled images'}.", ""]
    said = setting_docs(part.made)
    rows = [(f.name, shown_default(f.default, said.get(f.name, "")), said.get(f.name, "")) for f in fields(part.made)]
    if rows:
        lines += ["| setting | default | what it is |", "|---|---|---|"]
        flags = [f"`--{kind}.{name.replace('_', '-')}`" for name, _, _ in rows]
        lines += [f"| {flag} | {default} | {text} |" for flag, (_, default, text) in zip(flags, rows, strict=True)]
    else:
        lines += ["It has no settings."]
    return "\n".join(lines)


def card_of(kind: str, name: str) -> str:
    """The page with the card of a part, within docs/methods; empty where there is none."""
    for page in sorted((DOCS / "methods").glob("*.md")):
        for found, names in FACTS.findall(page.read_text(encoding="utf-8")):
            if found == kind and name in names.split():
                return page.name
    return ""


class Facts(SphinxDirective):
    """``{facts} method mixup cutmix``."""

    required_arguments = 2
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        kind, names = self.arguments[0], self.arguments[1].split()
        text = "\n\n".join(facts_of(kind, name) for name in names)
        box = nodes.container("", *self.parse_text_to_nodes(text), classes=["facts"])
        return [box]


class Overview(SphinxDirective):
    """``{overview} method``: all parts of a kind, with their cards."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        kind = self.arguments[0]
        rows = [f"| `--{kind}` | what it does | passes per step |", "|---|---|---|"]
        for name, part in FAMILIES[kind].items():
            rows.append(f"| [`{name}`]({card_of(kind, name)}) | {part.about} | {passes_of(kind, name)} |")
        return self.parse_text_to_nodes("\n".join(rows))


class Help(SphinxDirective):
    """``{help} train``: what the command prints for --help."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        text = help_of(self.arguments[0])
        return [nodes.literal_block(text, text, language="text", classes=["help"])]


def help_of(command: str) -> str:
    """The help of a command, 100 characters wide and without colours."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", "TERM")}
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            main([*command.split(), "--help"])
    except SystemExit:
        pass
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).strip()


def keep_together(_app: Sphinx, tree: nodes.document, _name: str) -> None:
    """No line ends between a number and its percent sign, or around ±, nor within an interval in a table."""
    cells = {id(text) for cell in tree.findall(nodes.entry) for text in cell.findall(nodes.Text)}
    for text in list(tree.findall(nodes.Text)):
        pattern = IN_CELLS if id(text) in cells else TOGETHER
        if pattern.search(text) and not isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.raw):
            text.parent.replace(text, nodes.Text(pattern.sub(lambda found: found[0].replace(" ", "\xa0"), text)))


def mark_prose_cells(_app: Sphinx, tree: nodes.document, _name: str) -> None:
    """A cell with sentences is not squeezed on a phone (cards.css); its table scrolls instead."""
    for cell in tree.findall(nodes.entry):
        if len(cell.astext()) > SHORT_CELL:
            cell["classes"].append("prose")


class Commands(SphinxDirective):
    """``{commands}``: every command with its first line of help, in the order of ``holdfast --help``."""

    def run(self) -> list[nodes.Node]:
        rows = ["| command | what it does |", "|---|---|"]
        for name, command in COMMANDS.items():
            about = (command.__doc__ or "").splitlines()[0]
            rows.append(f"| [`holdfast {name}`]({name.replace(' ', '-')}.md) | {about} |")
        return self.parse_text_to_nodes("\n".join(rows))


class Modules(SphinxDirective):
    """``{modules} attacks data``: modules of the package with the first sentence about each."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        rows = ["| module | what is in it |", "|---|---|"]
        for name in self.arguments[0].split():
            full = "holdfast" if name == "holdfast" else f"holdfast.{name}"
            rows.append(f"| [`{full}`]({name}.md) | {about_module(full)} |")
        return self.parse_text_to_nodes("\n".join(rows))


def about_module(name: str) -> str:
    """The first sentence of a module's docstring."""
    text = " ".join((import_module(name).__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
    first = re.split(r"(?<=\.) (?=[A-Z])", text)[0].removeprefix("holdfast: ")
    return first[:1].upper() + first[1:]


def put_paper(app: Sphinx | None, name: str, source: list[str]) -> None:
    """A page of results is the README of its paper, with links that lead where they do there."""
    place = paper_folder(name)
    if place is None:
        return
    if app is not None:
        app.env.note_dependency(str(place / "README.md"))
    text = TABLE.sub(without_empty_rows, (place / "README.md").read_text("utf-8"))
    text = text.replace("](figures/", f"](../../papers/{place.name}/figures/")  # pictures; links are put right below
    source[0] = LINK.sub(lambda found: _link(found[1], found[2], place), text)


def without_empty_rows(found: re.Match[str]) -> str:
    """A table of results with the rows that have no number yet in one sentence below it."""
    mark, head, rule, rows = found.groups()
    shown, missing = [], []
    for row in rows.splitlines(keepends=True):
        name, *cells = (cell.strip() for cell in row.strip().strip("|").split("|"))
        empty = "not run yet" in cells and {*cells} <= {"not run yet", "", "–", "0"}
        (missing if empty else shown).append(name if empty else row)
    if not shown and len(missing) > MANY:
        return f"{mark}\n*None of the {len(missing)} rows of this table has been run yet.*\n\n"
    said = f"\n*Not run yet:* {'; '.join(missing)}.\n\n" if missing else ""
    return mark + (head + rule + "".join(shown) if shown else "") + said


def _link(text: str, target: str, place: Path) -> str:
    """A link of a paper's README as one of its page; what is not in the documentation is named by its path."""
    path, mark, anchor = target.partition("#")
    if "://" in path or not path:
        return f"[{text}]({target})"
    whole = (place / path).resolve()
    if whole.is_relative_to(DOCS):
        return f"[{text}](../{whole.relative_to(DOCS).as_posix()}{mark}{anchor})"
    if whole.is_relative_to(PAPERS) and whole.name == "README.md":
        page = "overview" if whole.parent == PAPERS else whole.parent.name
        return f"[{text}]({page}.md{mark}{anchor})"
    name = whole.relative_to(DOCS.parent).as_posix()
    return f"`{name}`" if name.endswith(text) else f"{text} (`{name}`)"


def write_reports(app: Sphinx, error: Exception | None) -> None:
    """The reports of the gallery, beside its pages."""
    if error is not None or app.builder.format != "html":
        return
    for name, folder in REPORTS.items():
        place = Path(app.outdir) / "gallery" / f"{name}.html"
        place.parent.mkdir(parents=True, exist_ok=True)
        report_folders([folder], place)


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """llms.txt: what holdfast is, and every page with its first sentence, for readers that are programs."""
    if error is not None or app.builder.format != "html":
        return
    lines = (DOCS / "llms.md").read_text(encoding="utf-8").rstrip().splitlines()
    for section in ("tutorials", "how-to", "methods", "gallery", "results", "reference"):
        lines += ["", f"## {section.replace('-', ' ').capitalize()}", ""]
        for page in sorted(p for p in app.env.found_docs if p.startswith(f"{section}/")):
            source = page_source(app, page).read_text(encoding="utf-8")
            module = re.search(r"^\.\. automodule:: (\S+)", source, re.M)
            about = f": {about_module(module[1]).rstrip('.')}" if module else first_sentence(source)
            lines.append(f"- [{app.env.titles[page].astext()}]({page}.html){about}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def page_source(app: Sphinx, page: str) -> Path:
    """The file with the text of a page; of a page of results it is the README of its paper."""
    place = paper_folder(page)
    return Path(app.env.doc2path(page)) if place is None else place / "README.md"


def paper_folder(page: str) -> Path | None:
    """Where the README lies that a page of results shows; None for a page with a text of its own."""
    folder, _, stem = page.partition("/")
    place = PAPERS if stem == "overview" else PAPERS / stem
    return place if folder == "results" and (place / "README.md").is_file() else None


def first_sentence(source: str) -> str:
    """The first sentence below the title of a page, without its markup and without how long a tutorial takes."""
    source = re.sub(r"^(`{3,}|:{3,}).*?^\1$", "", source, flags=re.M | re.S)
    for paragraph in re.split(r"\n\s*\n", source)[1:]:
        plain = re.sub(r"\{[\w:]+\}|[*`]|\]\([^)]*\)|\[|<[^>]*>", "", " ".join(paragraph.split()))
        plain = re.sub(r"^\d+ minutes[.,] ", "", plain)
        if plain and plain[0].isalnum():
            return ": " + re.split(r"(?<=[.?]) ", plain)[0].rstrip(":.")
    return ""


def mark_flags(_app: Sphinx, tree: nodes.document) -> None:
    """Flags in code get a class of their own: their style keeps ``--resume`` on one line."""
    for literal in tree.findall(nodes.literal):
        if re.search(r"(?<!\S)-", literal.astext()):
            literal["classes"].append("flag")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("facts", Facts)
    app.add_directive("overview", Overview)
    app.add_directive("help", Help)
    app.add_directive("commands", Commands)
    app.add_directive("modules", Modules)
    app.connect("source-read", put_paper)
    app.connect("doctree-read", mark_flags)
    app.connect("doctree-resolved", keep_together)
    app.connect("doctree-resolved", mark_prose_cells)
    app.connect("build-finished", write_reports)
    app.connect("build-finished", write_llms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
