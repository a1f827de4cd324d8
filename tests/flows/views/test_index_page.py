"""The page of all runs: what it says, that it stays small and cheap with 500 of them, and that text stays text."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from flows.runs.listing import Run, find_changes
from flows.runs.report import RunReport
from flows.views import index_page
from ipu_model.core.files import write_json
from tasks.stage import artifacts
from tests.flows.toy_runs import podium
from tests.flows.views.shown_runs import shown
from tests.tasks.hostile import HOSTILE, Page

DATA = "downstream.squad.data"


def page(runs, folder=Path("/project")):
    return index_page.render_index(folder, runs)


def ordered(runs):
    """Let the runs have begun an hour after each other; the newest first."""
    for hours, run in enumerate(runs):
        run.record.began = f"2026-11-23T{hours:02d}:00:00+0000"
    return runs[::-1]


def test_a_score_is_compared_with_the_run_before_on_the_same_development_data():
    other = {f"{DATA}.dev_path": '"other.json"'}
    changes = ({}, other, None, other, None)
    runs = ordered([shown(n, **({} if change is None else {"changed": change})) for n, change in enumerate(changes)])
    runs[0].record.results["gate"]["intervals"] = {"f1": [82.5, 85.5]}
    assert {name: (change.before, change.text, change.is_better) for name, change in find_changes(runs).items()} == {
        "run-2": ("run-0", "+2.00", None),
        "run-3": ("run-1", "+2.00", None),
        "run-4": ("run-2", "+2.00", True),
    }
    assert 'data-note="against run-2"' in page(runs)


def test_development_data_set_aside_from_other_training_data_are_others():
    runs = []
    for number, dev in enumerate(("null", "null", "null", '"dev.json"', '"dev.json"')):
        runs.append(shown(number, changed={f"{DATA}.dev_path": dev, f"{DATA}.train_path": f'"{number // 2}.json"'}))
    changes = find_changes(ordered(runs))
    assert {name: change.before for name, change in changes.items()} == {"run-1": "run-0", "run-4": "run-3"}


def test_a_pre_training_has_its_loss_as_score_and_less_is_better():
    runs = [shown(number, entries={}) for number in (0, 1)]
    for run, loss in zip(runs, (3.0, 2.5), strict=True):
        phase = {"name": "phase1", "scores": {"mlm_loss": loss, "perplexity": 12.18}, "rows": 9, "steps": 5}
        run.record.results = {}
        run.record.pretraining = {"pretrain@phase1": {**phase, "training_loss": 2.0, "model": "models/phase1"}}
    change = find_changes(ordered(runs))["run-1"]
    assert (change.text, change.is_better) == ("-0.5000", True)


def test_the_trials_of_a_sweep_are_one_plot_and_one_table_with_the_best_marked(tmp_path):
    trials = []
    for number, loss in ((3, 0.5), (4, 0.25), (5, 0.75)):
        trial = {"name": f"try-{number}", "values": {"learning_rate": 10.0**-number, "epochs": 3}, "state": "complete"}
        trials.append({**trial, "scores": [], "score": -loss, "held_out": {"judged_by": "loss", "loss": loss}})
    write_json(tmp_path / "runs/sweeps/try.json", {"search": {}, "trials": [*trials, {**trials[0], "score": None}]})
    (tmp_path / "runs/sweeps/damaged.json").write_text("{")
    html = page([shown(1), *(replace(shown(number), name=f"try-{number}") for number in (5, 4, 3))], tmp_path)
    assert "Best: try-4 (epochs 3, learning rate 0.0001), held-out loss 0.2500." in html
    assert re.findall(r'data-word="(.*?)"', html) == ["run-1", "try-4"], "the best trial is a run like others"
    plot = html.partition('class="plot parallel"')[2].partition("</figure>")[0]
    axes = re.findall(r'<text class="title"[^>]*>(.*?)</text>', plot)
    assert axes == ["learning rate", "loss"], "epochs has one value"
    lines = re.findall(r'd="M[0-9.]+ ([0-9.]+)L[0-9.]+ ([0-9.]+)"></path><circle[^>]* data-tip="(try-.)', plot)
    assert lines[-1][2] == "try-4", "the best is drawn last"
    rates, losses = ({line[2]: float(line[place]) for line in lines} for place in (0, 1))
    assert rates["try-3"] < rates["try-4"] < rates["try-5"], "the largest is highest"
    assert abs((rates["try-3"] + rates["try-5"]) / 2 - rates["try-4"]) < 0.2, "the axis is logarithmic"
    assert max(losses, key=losses.get) == "try-4", "the lowest loss is the best"
    table = html.partition('aria-label="trials of try"')[2].partition("</table>")[0]
    table = " ".join(re.sub("<[^>]*>", " ", table).split())
    assert "try-4 complete 0.0001 0.2500 12 min 31 s try-3 complete 0.001 0.5000" in table


def test_losses_are_drawn_only_next_to_those_on_the_same_data():
    runs = [shown(number, changed={f"{DATA}.train_path": path}) for number, path in ((1, "a"), (2, "b"), (3, "a"))]
    assert "<h2>Losses</h2>" not in page(runs[:2])
    losses = page(runs).partition("<h2>Losses</h2>")[2]
    assert [f"run-{number}&#10;update" in losses for number in (1, 2, 3)] == [True, False, True]


def test_runs_of_many_entries_with_long_names_and_values_stay_under_a_megabyte():
    entries = {f"entry-{number}": "squad" for number in range(4)}
    changed = {f"downstream.{entry}.finetune.parameter_{n}": "9" * 500 for entry in entries for n in range(5)}
    runs = [shown(number, "-" + "long" * 18, changed=changed, entries=entries) for number in range(500)]
    for run in runs:
        [result] = run.record.results.values()
        run.record.results = {f"gate@{name}": {**result, "name": name} for name in entries}
    html = page(runs)
    assert len(html.encode()) < 1_000_000
    assert html.count("<tr data-run=") > 150
    assert "<code>podium runs</code> lists" in html, "those that are left out are counted"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_texts_never_become_markup(text):
    hostile, plain = (Page(page([shown(1, words), shown(2, words)])) for words in (text, "plain"))
    assert hostile.elements == plain.elements


def test_the_end_of_a_run_writes_the_page_with_what_became_of_it(three, toy_project, capsys):
    file = toy_project / artifacts.INDEX_PAGE
    text = file.read_text(encoding="utf-8")
    assert 'href="../runs/checkouts/good/reports/run.html"' in text
    assert ">running<" not in text, "the run that wrote it had ended"
    file.unlink()
    assert podium(capsys, "runs", "--page")[0] == 0
    assert file.read_text(encoding="utf-8").count("<tr data-run=") == 3
    assert podium(capsys, "runs", "good", "--page")[0] == 2, "it always has all runs"


def test_runs_without_a_record_or_details_are_listed_and_no_run_is_said_so(tmp_path):
    runs = [Run("prepared", tmp_path, None, False), Run("other", tmp_path, RunReport("runs/other"), False)]
    assert page(runs).count("<tr data-run=") == 2
    assert "No runs yet." in page([])
