"""A run stands for the model that it trained: where it is, its tokenizer, its rows and its columns."""

import json
import shutil

import click
import pytest
import yaml

from flows.commands import evaluate
from flows.commands.project import CommandContext
from flows.runs.checkout import checkout_folder
from tasks.params.downstream import defaults_of
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.tiny_model import write_tiny_model

WORDS = ("word1", "word2", "word3")


@pytest.fixture
def project(tmp_path):
    """A project with the run `mine`, which trained nothing yet, and a file to be judged on."""
    entries = {name: defaults_of("classification", name) for name in ("moods", "topics")}
    for values in entries.values():
        values["data"] |= {"columns": {"text": "review", "text_pair": None, "label": "mood"}}
        values["rows"] |= {"row_length": 48}
    write_params(tmp_path, entries)
    (tmp_path / "dev.csv").write_text("review,mood\nword1 word2,good\nword3,bad\n")
    return tmp_path


def write_params(project, entries):
    folder = checkout_folder(project, "mine")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / artifacts.PARAMS).write_text(yaml.safe_dump({"downstream": entries}))


def train(project, name):
    run = checkout_folder(project, "mine")
    model = write_head_model(run / artifacts.model_folder(name), "sequence_classification", ("bad", "good"), WORDS)
    (run / artifacts.TOKENIZER).mkdir(parents=True, exist_ok=True)
    for path in model.glob("tokenizer*"):
        shutil.move(str(path), str(run / artifacts.TOKENIZER / path.name))


def judge(project, model, *words):
    with click.Context(evaluate.command, obj=CommandContext(project, project, None)) as ctx:
        evaluate.command.main([model, "dev.csv", *words], standalone_mode=False, obj=ctx.obj, parent=ctx)


@pytest.mark.parametrize("model", ["mine", pytest.param("runs/checkouts/mine", marks=pytest.mark.soak)])
def test_a_run_is_judged_by_its_name_or_its_folder(project, model, capsys):
    train(project, "moods")
    judge(project, model, "--json")
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["predict"]["features"] == 2
    assert 0 <= metrics["accuracy"] <= 100
    page = (project / "evaluation-mine-dev/report.html").read_text(encoding="utf-8")
    assert "<h1>Evaluation of mine on dev.csv</h1>" in page
    assert '<a hidden data-up="reports/run.html">' in page, "no run evaluated it, so nothing leads back to one"


@pytest.mark.soak
@pytest.mark.parametrize("model", ["mine", "runs/checkouts/mine/models/moods"])
def test_a_model_is_evaluated_in_the_precision_of_its_run(project, model, capsys):
    train(project, "moods")
    run = checkout_folder(project, "mine")
    metrics = run / artifacts.metrics_file("moods", "predict")
    metrics.parent.mkdir()
    metrics.write_text(json.dumps({"runtime": "cpu", "precision": "bf16"}))
    words = ["--json", "--runtime", "cpu"]
    if model != "mine":
        words += ["--tokenizer", str(run / artifacts.TOKENIZER), "--column", "text=review", "--column", "label=mood"]
    judge(project, model, *words)
    out, err = capsys.readouterr()
    assert json.loads(out)["predict"]["precision"] == "bf16"
    assert "computed on cpu in bf16" in err
    judge(project, model, *words, "--precision", "fp32", "--output", "other")
    assert json.loads(capsys.readouterr().out)["predict"]["precision"] == "fp32", "what the user says wins"


def test_a_run_that_is_pre_trained_alone_is_to_be_fine_tuned(project):
    write_params(project, {})
    with pytest.raises(ParamsError, match="--to or --part"):
        judge(project, "mine")
    write_tiny_model(checkout_folder(project, "mine") / artifacts.model_folder("phase1"), WORDS)
    with pytest.raises(ParamsError, match="podium finetune KIND --model mine"):
        judge(project, "mine")


def test_a_run_that_trained_nothing_yet_or_several_is_refused_and_a_folder_of_its_name_is_the_folder(project):
    with pytest.raises(ParamsError, match="has not fine-tuned a model"):
        judge(project, "mine")
    for name in ("moods", "topics"):
        train(project, name)
    with pytest.raises(ParamsError, match="models/moods, .*models/topics"):
        judge(project, "mine")
    (project / "mine").mkdir()
    with pytest.raises(Exception, match="has no config.json"):
        judge(project, "mine")
    assert not (project / "evaluation-mine-dev").exists()
