"""Text stays text on pages, cards, artifacts, tables and plots."""

import csv
import dataclasses
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from markdown_it.token import Token
from ruamel.yaml import YAML

from flows.runs.report import RunReport, StageRecord
from flows.views import run_view
from flows.views.run_view import RunView
from tasks.downstream.kind import KINDS
from tasks.pages.markup import FORMULA, JOINER, csv_text, markdown_code, markdown_link, markdown_text, replace_hidden
from tasks.pages.plots import MAX_POINTS, PlotLine, plot_lines
from tasks.params.schema import parameter_values
from tasks.params.strict_yaml import yaml_text
from tasks.stage.errors import ParamsError
from tests.places import ROOT
from tests.tasks.downstream.entries import task_with
from tests.tasks.hostile import HOSTILE
from tests.tasks.release.card_facts import CHECKS, ORIGIN, facts
from tests.tasks.trained_checkout import params_with

PLAIN = "plain"
every_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def markdown_tokens(text: str) -> list[Token]:
    """What a reader of Markdown with tables sees, HTML and strike-through switched on."""
    text.encode("utf-8")
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def structure(text: str) -> list[str]:
    """Kinds of the parts of a Markdown text, without the texts; a soft break and joined texts count as nothing."""
    return [token.type for token in markdown_tokens(text) if token.type not in ("text", "softbreak")]


def words(text: str) -> str:
    """What a reader of Markdown shows, code included."""
    shown = ("text", "code_inline", "fence", "code_block")
    return "\n".join(token.content for token in markdown_tokens(text) if token.type in shown)


def squeezed(text: str) -> str:
    return "".join(replace_hidden(text).split())


@every_text
def test_the_functions_of_markdown_and_yaml(text: str) -> None:
    for line in (markdown_text(text), f"- {markdown_text(text)}", f"| {markdown_text(text)} | b |"):
        assert len(line.splitlines()) == 1
        assert not any(token.type in ("html_inline", "link_open", "image") for token in markdown_tokens(line))
        assert "://" not in line, "readers make links of these by themselves"
        assert "www." not in line
    assert structure(markdown_text(text)) == structure(PLAIN)
    assert squeezed(words(markdown_text(text))).replace(JOINER, "") == squeezed(text)
    assert structure(f"- {markdown_text(text)}") == structure(f"- {PLAIN}")
    head = "| a | b |\n|---|---|\n"
    assert structure(f"{head}| {markdown_text(text)} | c |") == structure(f"{head}| {PLAIN} | c |")
    assert [t.content for t in markdown_tokens(markdown_code(text)) if t.type == "code_inline"] == [
        replace_hidden(" ".join(text.split()))
    ]
    written = yaml_text({"a": text, text: [text]})
    assert yaml.safe_load(written) == YAML(typ="safe", pure=True).load(written) == {"a": text, text: [text]}


@pytest.mark.parametrize("text", ["f1 94.5678", "-0.5 points", "+1", "data_corpus", "dev-v1.1.json", "Ærø (1)"])
def test_ordinary_words_and_figures_look_as_before(text: str) -> None:
    assert markdown_text(text) == text


LINE_STARTS = "# a/- a/+ a/1. a/2) a/= b/--- /: a/* a/> a/~~~/_a_ __b__/===/$x$"


@pytest.mark.parametrize("text", LINE_STARTS.split("/"))
def test_line_starts_are_no_markup(text: str) -> None:
    assert structure(f"before\n{markdown_text(text)}") == structure(f"before\n{PLAIN}")
    assert structure(markdown_text(text)) == structure(PLAIN)


@every_text
def test_no_text_is_a_formula_to_the_hub_which_looks_for_them_before_it_reads_markdown(text: str) -> None:
    for line in (markdown_text(text), markdown_text(f"\\{text}"), markdown_text(f"({text}")):
        assert "\\\\(" not in line
        assert "$$" not in line


@every_text
def test_a_table_has_no_formula_and_as_many_cells_as_were_written(text: str) -> None:
    cells = [text, f" {text}", f"\t{text}", -0.5, None, "\uff1d1+1", "plain"]
    (head, row) = csv.reader(io.StringIO(csv_text([text, *"bcdefg"], [cells]), newline=""))
    assert len(head) == len(row) == 7
    assert row[3:] == ["-0.5", "", "'\uff1d1+1", "plain"]
    for cell in (head[0], *row[:3]):
        assert not cell.lstrip().startswith(FORMULA)
        assert squeezed(cell).removeprefix("'") == squeezed(text).removeprefix("'")


@pytest.mark.parametrize(
    "text",
    [
        "a;=1+1",
        "a;;-1+1",
        'a ; "" @SUM(1)',
        "a;\r\n=1",
        "a\n=1+1;b",
        'a\r\n"=1',
        "a\t=1",
        "a;\uff1d1+1",
        '=1;=2;"=3',
    ],
)
def test_a_table_has_no_formula_for_a_spreadsheet_that_separates_by_semicolons(text: str) -> None:
    """Such a one knows of no quote inside of a cell, and its cells begin after every semicolon and line end."""
    for separator in ";\t":
        for line in csv_text(["a", "b"], [["x", text], [text, "x"], [text, text]]).splitlines():
            for cell in (*next(csv.reader([line], delimiter=separator)), *line.split(separator)):
                assert not cell.lstrip(' "\t\r\n').startswith(FORMULA), (text, line)
    assert csv_text(["a"], [["3; 4 - 5; x=1"]]) == "a\n3; 4 - 5; x=1\n", "other texts stay as they are"


def cards(text: str) -> list[str]:
    """Both cards, with `text` in every field that they show."""
    training = {"steps": 1, "final_loss": 1.0, "runtime": f"cpu{text}", "precision": f"fp32{text}"}
    origin = {
        **ORIGIN,
        "base_model": {"source": "hub", "repository": f"user/base{text}", "commit": f"c{text}"},
        "git": {"revision": f"f{text}", "dirty": True, "changed": []},
        "stages_sha256": f"a{text}",
        "parameters_sha256": f"b{text}",
        "data": {"verdicts": {f"corpus{text}": {"valid": False}}, "rows": {}},
        "training": {"finetune": training},
    }
    checks = [{**CHECKS[0], "name": f"f1{text}", "found": f"x{text}", "required": f"y{text}"}]
    gate = {"accepted": True, "reasons": [f"because{text}"], "checks": checks}
    names = {"name": f"user/demo{text}", "license": f"mit{text}", "language": f"en{text}"}
    parameters = parameter_values(params_with())
    parameters["downstream"]["squad"]["data"].update(source="hub", dataset=f"user/data{text}")
    known = facts(**names, provenance=origin, gate=gate, parameters=parameters)
    metrics = {"accuracy": 50.0, "accuracy_low": 40.0, "accuracy_high": 60.0, "constant_score": 50.0, "examples": 2}
    glue = dataclasses.replace(known, entry=dataclasses.replace(task_with("glue-sst2"), name="squad"), metrics=metrics)
    return [KINDS["squad"].card(known), KINDS["glue"].card(glue)]


@every_text
def test_a_card_has_the_parts_it_has_with_any_text_and_its_code_runs_nothing_else(text: str) -> None:
    for written, plain in zip(cards(text), cards(PLAIN), strict=True):
        body, usual = (card.split("\n---\n", 1)[1] for card in (written, plain))
        assert structure(body) == structure(usual)
        values, matter = ModelCard(plain).data.to_dict(), ModelCard(written).data.to_dict()
        names = [matter[name] for name in ("license", "language", "base_model")]
        assert names == [f"mit{text}", f"en{text}", f"user/base{text}"]
        assert set(matter) == set(values), "no key came from a text"
        assert len(matter["model-index"]) == len(values["model-index"])
        (code,) = [token.content for token in markdown_tokens(body) if token.type == "fence"]
        (line,) = [line for line in code.split("\n") if line.startswith("name = ")]
        assert json.loads(line.removeprefix("name = ")) == replace_hidden(f"user/demo{text}") or "\\u" in line
        compile(code, "card", "exec")
        for token in markdown_tokens(body):
            if token.type == "code_inline" and token.content.startswith("podium predict"):
                asked = shlex.split(token.content)
                assert asked[:2] == ["podium", "predict"]
                assert asked[3:] == ["--text", "question", "--context", "text"], "the name is one word"


@every_text
def test_the_artifacts_of_a_run_have_the_structure_of_one_of_plain_words(text: str, tmp_path: Path) -> None:
    shown = [artifacts_of(tmp_path / str(len(part)), part) for part in (text, PLAIN)]
    for hostile, plain in zip(*shown, strict=True):
        assert [part for part in structure(hostile) if part != "hardbreak"] == structure(plain)
        assert squeezed(text) in squeezed(words(hostile)).replace(JOINER, "")
        assert "://" not in hostile, "readers make links of these by themselves"


def artifacts_of(root: Path, text: str) -> list[str]:
    """The three tables of a run in whose project every text is hostile."""
    root.mkdir(parents=True)
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, root)
    checks = [{"name": text, "ok": False, "found": text, "required": text}]
    result = {"name": "squad", "scores": {text: 1.0}, "decision": {"accepted": False, "reasons": [text]}}
    run = RunReport(".", f"preset{text}", [text], error=text, paused=text, host=text, user=text, commit=text)
    run.command, run.log, run.programs = text, f"runs/logs/{text}", {text: text}
    run.results = {"gate@squad": {**result, "checks": checks, "published": {"repository": text}}}
    run.stages, run.pages = [StageRecord(text, text, 1.0, text)], [text]
    view = RunView(run, root)
    return [run_view.render_summary(view), run_view.render_metrics(view), run_view.render_gates(view)]


@every_text
def test_a_link_leads_to_a_page_or_is_text(text: str) -> None:
    (inline,) = [token for token in markdown_tokens(markdown_link(text, "https://h.org/a?b=1")) if token.children]
    links = [child for child in inline.children or [] if child.type == "link_open"]
    assert [link.attrs["href"] for link in links] == ["https://h.org/a?b=1"]
    for address in (text, f"https://h.org/{text}", "javascript:alert(1)", "file:///etc/passwd", "https://h.org/a b"):
        assert structure(markdown_link(PLAIN, address)) == structure(PLAIN)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("license", ["a\nb", "a\n", "", "\x1b[31m", "<b>"]),
        ("language", ["a\nb", "", "en us"]),
        ("repository", ["a\nb", "", "../../a", "a/b/c"]),
        ("folder", ["a\nb", "a\n", "", "\x1b[31m"]),
    ],
)
def test_what_names_a_release_is_one_line_and_has_a_pattern(key: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(ParamsError, match=rf"publish\.{key}.*must be"):
            params_with(**{key: value})


WRITERS: dict[str, Callable[[str], object]] = {
    "html": re.compile(r"from html import|html\.escape\(|</?(p|td|th|tr|div|span|table|svg|h\d|li)\b[^<]*>").search,
    "templates": re.compile(r"(import|from) (jinja2|markupsafe)|\bMarkup\(").search,
    "csv": re.compile(r"csv\.(writer|DictWriter)\(").search,
    "yaml": re.compile(r"yaml\.(safe_)?dump\(|\.to_yaml\(").search,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_nobody_else_writes_these_formats(kind: str) -> None:
    files = [path for folder in ("flows", "tasks", "ipu_model", "bench") for path in (ROOT / folder).rglob("*.py")]
    writers = [path.relative_to(ROOT).as_posix() for path in files if WRITERS[kind](path.read_text(encoding="utf-8"))]
    allowed = {
        "html": {"tasks/validation/validate.py"},  # what pages of Great Expectations say, which they do not escape
        "templates": {"tasks/pages/render.py", "tasks/pages/plots.py"},  # the latter writes SVG as a tree
        "csv": {"tasks/pages/markup.py"},
        "yaml": {"tasks/params/strict_yaml.py"},
    }
    assert set(writers) <= allowed[kind]


def test_no_template_passes_text_on_as_it_is() -> None:
    templates = [path for folder in ("flows", "tasks") for path in (ROOT / folder).rglob("*.j2")]
    assert len(templates) > 5
    for path in templates:
        assert not re.search(r"\|\s*safe\b|autoescape|forceescape", path.read_text(encoding="utf-8")), path


SVG = "{http://www.w3.org/2000/svg}"


def tips(plot: str) -> list[str]:
    return [one.get("data-tip", "") for one in ElementTree.fromstring(plot).iter() if one.get("data-tip")]


def plotted(points: list[tuple[float, float]]) -> str:
    return plot_lines([PlotLine("training", points)], "update", "loss (nats)", "loss of training")


def test_every_value_of_a_short_line_is_shown_and_a_long_one_keeps_its_ends_and_its_spike() -> None:
    plot = plotted([(10, 2.5), (20, 1.25)])
    assert tips(plot) == ["training\nupdate 10\nloss (nats) 2.5", "training\nupdate 20\nloss (nats) 1.25"]
    assert plot == plotted([(10, 2.5), (20, 1.25)])
    assert not re.search(r"script|style|href|<!--|http(?!://www.w3.org/2000/svg)", plot)
    points = [(float(step), 1.0) for step in range(10_000)]
    points[4321] = (4321.0, 99.0)
    shown = tips(plotted(points))
    assert len(shown) <= MAX_POINTS
    assert {"training\nupdate 0\nloss (nats) 1", "training\nupdate 4,321\nloss (nats) 99"} <= set(shown)
    assert shown[-1] == "training\nupdate 9,999\nloss (nats) 1"


@pytest.mark.parametrize(
    ("axis", "points", "shown"),
    [
        ("x", [(200, 1.0), (203, 1.0)], ["200", "201", "202", "203"]),
        ("x", [(10.0 * n, 1.0) for n in range(1, 151)], ["200", "400", "600", "800", "1,000", "1,200", "1,400"]),
        ("x", [(200, 5.0)], ["200"]),
        ("x", [], []),
        ("y", [(1, 3.9), (2, 7.8)], ["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("y", [(1, 0.0008), (2, 0.0011)], ["0", "0.0002", "0.0004", "0.0006", "0.0008", "0.001"]),
    ],
)
def test_figures_at_an_axis_are_round_and_few(axis: str, points: list[tuple[float, float]], shown: list[str]) -> None:
    [ticks] = [one for one in ElementTree.fromstring(plotted(points)).iter() if one.get("class") == f"axis {axis}"]
    assert [text.text for text in ticks.iter(f"{SVG}text")][: len(shown)] == shown


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_texts_never_become_markup(text: str) -> None:
    plot = plot_lines([PlotLine(text, [(1, 2)]), PlotLine("b", [(1, 2)])], text, text, text)
    drawn = {f"{SVG}{name}" for name in ("svg", "g", "rect", "path", "text", "circle")}
    assert {one.tag for one in ElementTree.fromstring(f"<div>{plot}</div>").iter()} <= {"div", "p", "span", "b", *drawn}
