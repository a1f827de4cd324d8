"""The whole pipeline on a slice of real input: rejected, run again, changed, published, asked."""

import json

import pytest
import yaml

from tasks.params.overlays import resolve
from tasks.stage import artifacts
from tests.faults.small_run import Case
from tests.places import ROOT, SHARED, copy_project

REAL = SHARED / "data"
PARAMETERS = (
    "corpus.path=../text.txt",
    "downstream.squad.data.train_path=../train.json",
    "downstream.squad.data.dev_path=../dev.json",
    f"tokenizer.path={REAL}/vocab/bert-base-uncased.txt",
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.intermediate_size=64",
    "pretrain_rows.phase1.duplicates=1",
    "pretrain.checkpoint_every_updates=5",
    "pretrain.phase1.global_batch_size=8",
    "pretrain.phase1.steps=40",
    "pretrain.phase2.steps=3",
    "pretrain.phase2.global_batch_size=4",
    "downstream.squad.finetune.epochs=1",
    "downstream.squad.finetune.global_batch_size=8",
)
"""Over the preset small-files."""
CHANGED = (
    "downstream.squad.finetune.learning_rate=2e-3",
    "downstream.squad.gate.min_f1=0",
    "downstream.squad.gate.above_baseline=false",
)
LOAD = """
import sys
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
model, tokenizer = (loader.from_pretrained(sys.argv[1]) for loader in (AutoModelForQuestionAnswering, AutoTokenizer))
print(model(**tokenizer("who?", "noone", return_tensors="pt")).start_logits.shape[0], tokenizer.is_fast)
"""


def cut_questions(source, target, articles, questions):
    """The first questions of the first articles, still SQuAD v1.1."""
    data = json.loads(source.read_text(encoding="utf-8"))
    data["data"] = data["data"][:articles]
    left = questions
    for article in data["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = paragraph["qas"][:left]
            left -= len(paragraph["qas"])
        article["paragraphs"] = [p for p in article["paragraphs"] if p["qas"]]
    target.write_text(json.dumps(data), encoding="utf-8")


def write_params(project, *overrides):
    values = resolve({}, "small-files", [*PARAMETERS, *overrides], ROOT / "presets")
    (project / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


@pytest.mark.soak
@pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the public development data in {REAL}")
def test_a_small_model_of_real_text_is_rejected_and_published_when_only_what_comes_after_a_change_ran(tmp_path):
    project = copy_project(tmp_path / "project")
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    text = (REAL / "wikitext" / "wikitext-2-valid.txt").read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text(text[:250_000], encoding="utf-8")
    for name, articles, questions in (("train", 3, 60), ("dev", 2, 20)):
        cut_questions(REAL / "squad" / f"new-wiki-{name}.json", tmp_path / f"{name}.json", articles, questions)
    write_params(project)
    case = Case(project, tmp_path)
    done = case.run("-m", "flows", "run")
    assert done.returncode == 3, done.stdout
    report = json.loads((project / "reports/run.json").read_text())
    assert {stage["status"] for stage in report["stages"]} == {"ran"}
    assert not (project / "published").exists()
    answers = project / report["folder"] / artifacts.predictions_file("squad")
    scored = tmp_path / "scores.json"
    case.succeed("-m", "flows", "evaluate", str(answers), "../dev.json", "--json", "--output", str(scored))
    scores = json.loads(scored.read_text())
    assert {name: scores[name] for name in ("exact_match", "f1")} == report["results"]["gate@squad"]["scores"]
    assert scores["total"] == 20
    write_params(project, *CHANGED)
    case.succeed("-m", "flows", "run")
    stages = json.loads((project / "reports/run.json").read_text())["stages"]
    after = ("finetune", "predict", "predict_released", "evaluate", "gate", "publish")
    assert [stage["name"] for stage in stages if stage["status"] == "ran"] == [f"{name}@squad" for name in after]
    published = str(project / "published" / "small-files")
    assert case.succeed("-c", LOAD, published).split()[-2:] == ["1", "True"]
    case.succeed("-m", "flows", "predict", published, "--text", "Who came?", "--context", "Ada came.", "--json")
