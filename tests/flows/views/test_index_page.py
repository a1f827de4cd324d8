"""The page of all runs: what it says, that it stays small and cheap with 500 of them, and that text stays text."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import pipeline
from flows.runs.listing import Run, find_runs
from flows.runs.report import RunReport
from flows.views import index_page
from tasks.stage import artifacts
from tests.flows.runs.test_runs import FASTER, podium
from tests.flows.test_pipeline import ACCEPTED
from tests.flows.views.shown_runs import shown
from tests.tasks.hostile import HOSTILE, Page, without_own_script


def page(found: list[Run], folder: Path = Path("/project")) -> str:
    return index_page.render_index(folder, found)


def test_a_row_says_what_became_of_a_run_and_what_it_scored() -> None:
    html = page([shown(2), shown(1)])
    text = " ".join(Page(without_own_script(html)).text.split())
    for said in ("run-2", "published", "12 min 31 s", "small, squad, cpu", "82.00 (78.0 to 92.0) f1"):
        assert said in text, said
    assert "f1 82.00 (floor 85.0), exact match 70.00 accepted" in text
    assert "f1 81.00 (floor 85.0), exact match 70.00 rejected" in text
    assert 'aria-label="loss 3.000 to 0.100"' in html, "the loss in its row"
    assert "pretrain.seed=2" in text
    assert "num_layers" not in text, "both have it alike"
    assert 'data-word="run-2"' in html
    assert "run-1\nupdate 30\nloss 0.1 nats".replace("\n", "&#10;") in html
    assert "run-2&#10;squad f1 82.00&#10;95% interval 78.00 to 92.00" in html


def test_a_row_states_first_what_few_other_runs_have() -> None:
    usual = {f"corpus.parameter_{number}": "2" for number in range(index_page.MAX_PARAMETERS)}
    seeds = [shown(number, changed=usual | {"pretrain.seed": str(number)}) for number in range(3)]
    text = Page(without_own_script(page([*seeds, shown(4, changed={})]))).text
    assert all(f"pretrain.seed={number}" in text for number in range(3))
    assert text.count("and 1 more") == 3


def test_no_run_is_said_so(tmp_path: Path) -> None:
    index_page.write_index(tmp_path)
    text = (tmp_path / artifacts.INDEX_PAGE).read_text(encoding="utf-8")
    assert "No runs yet." in text
    assert "<table" not in text


def test_five_hundred_runs_stay_under_a_megabyte_and_more_are_counted() -> None:
    found = [shown(number) for number in range(520)]
    html = page(found)
    assert len(html.encode()) < 1_000_000
    assert html.count("<tr data-run=") == index_page.MAX_RUNS
    assert "lists 20 more" in html


def test_runs_of_many_entries_with_long_names_and_values_stay_under_a_megabyte() -> None:
    entries = {f"entry-{number}": "squad" for number in range(4)}
    changed = {f"downstream.{entry}.finetune.parameter_{n}": "9" * 500 for entry in entries for n in range(5)}
    found = [_with_entries(shown(number, "-" + "long" * 18, changed=changed), entries) for number in range(500)]
    found.append(_with_entries(shown(500), entries))
    html = page(found)
    assert len(html.encode()) < 1_000_000
    assert html.count("<tr data-run=") > 150
    assert "<code>podium runs</code> lists" in html, "those that are left out are counted"


def _with_entries(one: Run, entries: dict[str, str]) -> Run:
    """The run with the score of its entry under several names."""
    assert one.record is not None
    [result] = one.record.results.values()
    one.record.results = {f"gate@{name}": {**result, "name": name} for name in entries}
    one.record.details["entries"] = entries
    return one


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_texts_never_become_markup(text: str) -> None:
    hostile, plain = (Page(page([shown(1, one), shown(2, one)])) for one in (text, "plain"))
    assert hostile.elements == plain.elements


def test_the_end_of_a_run_writes_the_page_with_what_became_of_it(prefect_session, toy_project, capsys):
    pipeline.pipeline(None, [], return_state=True)
    pipeline.pipeline(None, [*ACCEPTED], name="good", return_state=True)
    text = (toy_project / artifacts.INDEX_PAGE).read_text(encoding="utf-8")
    assert 'href="../runs/checkouts/good/reports/run.html"' in text
    assert 'href="run.html"' in text
    assert ">running<" not in text, "the run that wrote it had ended"
    (toy_project / artifacts.INDEX_PAGE).unlink()
    code, said = podium(capsys, "runs", "--page")
    assert (code, said.out) == (0, "reports/index.html\n"), said.err
    assert (toy_project / artifacts.INDEX_PAGE).read_text(encoding="utf-8").count("<tr data-run=") == 2
    code, said = podium(capsys, "runs", "good", "--page")
    assert (code, "--page always writes all runs" in said.err) == (2, True)


def test_a_record_has_what_the_page_shows_of_its_parameters(prefect_session, toy_project):
    pipeline.pipeline(None, [FASTER], name="fast", return_state=True)
    [run] = find_runs(toy_project, ["fast"])
    assert (run.record.details["runtime"], run.record.details["entries"]["squad"]) == ("cpu", "squad")
    assert run.record.details["changed"]["downstream.squad.finetune.learning_rate"] == "3e-05"


def test_a_run_without_a_record_or_details_is_listed(tmp_path):
    runs = [Run("prepared", tmp_path, None, False), Run("other", tmp_path, RunReport("runs/other"), False)]
    assert page(runs).count("<tr data-run=") == 2


def test_curves_keep_their_ends(tmp_path):
    (tmp_path / "phase1.csv").write_text("step,loss\n" + "".join(f"{step},{step}.123456\n" for step in range(1, 1001)))
    (tmp_path / "phase1-held-out.csv").write_text("step,loss\n")
    (tmp_path / "slices.csv").write_text("a,b\n1,2\n")
    [(name, points)] = index_page.read_curves(tmp_path).items()
    assert (name, points[0], points[-1]) == ("phase1", (1.0, 1.1235), (1000.0, 1000.1))
    assert len(points) <= index_page.MAX_POINTS + 1
