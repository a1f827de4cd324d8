"""A run that pre-trained has results: loss, perplexity and accuracy on held-out rows, and a model to continue with."""

import json
import math
import shutil

import pytest

from flows.runs import report
from flows.views import run_page
from flows.views.run_view import RunView, format_end
from ipu_model.core.files import write_json, write_text
from tests.flows.toy_runs import podium, require_end
from tests.places import ROOT
from tests.plans import prepare_own, resolved_params

SETTINGS = ("corpus.source=files", "corpus.path=text.txt", "downstream.squad=null")
PHASES = ("phase1", "phase2")


def pretrained(project, name, *overrides, loss=2.0, rows="a", evaluated=True, before=None):
    """A run of this name that pre-trained, of its record: the files of its last stages are written."""
    (project / "text.txt").write_text("text")
    folder = prepare_own(project, resolved_params(project, "bert", [*SETTINGS, *overrides]), name)
    shutil.rmtree(folder / "tasks")
    (folder / "stage.py").unlink()
    shutil.copy(ROOT / "dvc.yaml", folder / "dvc.yaml")
    run = report.RunReport(f"runs/checkouts/{name}", "bert", command=f"podium pretrain --name {name}")
    run.begin(project)
    held_out = {"loss": loss + 0.5, "mlm_loss": loss, "perplexity": math.exp(loss), "mlm_accuracy": 0.625}
    held_out |= {"nsp_loss": 0.5, "nsp_accuracy": 0.75, "rows": 40, "step": 20, "stopped_early": False}
    held_out |= {} if before is None else {"before": before}
    figures = {"steps": 20, "final_loss": loss + 0.25, **({"held_out": held_out} if evaluated else {})}
    for phase in PHASES:
        write_json(folder / f"metrics/pretrain-{phase}.json", figures)
        write_json(folder / f"data/rows/{phase}/held-out/manifest.json", {"tokenizer_sha256": rows})
        write_text(folder / f"plots/pretrain-{phase}.csv", f"step,loss\n10,{loss + 2}\n20,{loss + 1}\n")
        write_text(folder / f"plots/pretrain-{phase}-held-out.csv", f"step,loss\n20,{loss + 0.5}\n")
        write_text(folder / f"models/{phase}/config.json", "{}")
        run.add_stage(report.StageRecord(f"pretrain@{phase}", "ran", 1.0))
    run.read_results(folder)
    run.end()
    run.save(project)
    return RunView(report.read_report(project, folder), folder, project)


@pytest.fixture
def project(toy_project):
    shutil.copy(ROOT / "dvc.yaml", toy_project / "dvc.yaml")
    return toy_project


def test_the_record_and_the_end_have_the_scores_of_each_phase_in_the_order_they_ran_and_no_gate(project):
    view = pretrained(project, "small")
    run = view.record
    assert list(run.pretraining) == ["pretrain@phase1", "pretrain@phase2"]
    last = run.pretraining["pretrain@phase2"]
    perplexity = pytest.approx(7.389, abs=1e-3)
    scores = {"mlm_loss": 2.0, "perplexity": perplexity, "mlm_accuracy": 62.5, "nsp_accuracy": 75.0}
    assert (last["scores"], last["rows"], last["steps"], last["model"]) == (scores, 40, 20, "models/phase2")
    assert (run.results, report.run_outcome(run)) == ({}, "finished")
    assert ("model", "runs/checkouts/small/models/phase2") in view.facts, "on its page and on Prefect's"
    text = format_end(view)
    assert "phase2: masked LM loss 2.0000, perplexity 7.39" in text
    assert text.count("model: runs/checkouts/small/models/phase2\n") == 1, "the last phase has the result"
    assert "phase2: no scores" in format_end(pretrained(project, "unseen", evaluated=False))
    run.stages.reverse()
    run.save(project)
    again = report.read_report(project, project / run.folder)
    assert list(again.pretraining) == ["pretrain@phase2", "pretrain@phase1"]
    stages = [report.StageRecord("pretrain@phase1", "ran", 1.0), report.StageRecord("pretrain@phase2", "failed", 1.0)]
    run = report.RunReport(run.folder, stages=stages)
    run.read_results(view.root)
    assert list(run.pretraining) == ["pretrain@phase1"], "figures of the failed phase would be of an earlier run"


BEFORE = {"mlm_loss": 2.5, "perplexity": math.exp(2.5), "change": -0.5, "groups": 40, "new_head": False}
BOUNDS = {"change_low": -0.625, "change_high": -0.375}
CHANGE = "held-out loss 2.5000 -> 2.0000 (perplexity 12.18 -> 7.39), change -0.5000"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (BOUNDS, f"{CHANGE} (-0.6250 to -0.3750, by rows)"),
        (BOUNDS | {"documents": 90}, f"{CHANGE} (-0.6250 to -0.3750, by 40 groups of documents)"),
        ({"groups": 1}, CHANGE),
        ({"new_head": True}, f"{CHANGE}. The original has no masked LM head"),
    ],
)
def test_a_continued_model_is_next_to_its_original_everywhere(project, capsys, more, line):
    run = pretrained(project, "mine", before={**BEFORE, **more})
    assert f"phase2: {line}" in format_end(run)
    assert line.replace(">", "&gt;") in run_page.render_run(run)
    pretrained(project, "other")
    assert f"mine: {line}" in podium(capsys, "compare", "mine", "other")[1].out
    assert line.replace(">", "&gt;") in (project / "reports/compare-mine-other.html").read_text()


def test_two_pre_trainings_are_listed_and_compared_on_their_held_out_rows(project, capsys):
    pretrained(project, "slow")
    pretrained(project, "fast", "pretrain.phase2.learning_rate=3e-4", loss=1.5)
    pretrained(project, "other", "pretrain_rows.seed=9", rows="b")
    assert "masked LM loss 2.0000, perplexity 7.39" in podium(capsys, "runs")[1].out
    code, printed = podium(capsys, "compare", "slow", "fast")
    assert code == 0, printed.err
    table = [line.split() for line in printed.out.splitlines()]
    assert ["slow", "2.0000", "7.39", "62.50", "%", "75.00", "%"] in table
    assert ["fast", "1.5000", "4.48", "62.50", "%", "75.00", "%"] in table
    assert (project / "reports/compare-slow-fast.html").read_text().count("62.50 %") == 4, "two runs, two phases"
    phases = json.loads(podium(capsys, "compare", "slow", "other", "--json")[1].out)["pretraining"]
    assert [phase["same_rows"] for phase in phases] == [False, False]
    require_end(capsys, 0, "Not comparable", "compare", "slow", "other")
    prepare_own(project, resolved_params(project, None, []), "tuned")
    require_end(capsys, 0, "slow was only pre-trained", "compare", "slow", "tuned")
