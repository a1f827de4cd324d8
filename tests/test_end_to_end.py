"""The whole pipeline on a slice of real input: rejected, run again, changed, published, asked."""

import json
import subprocess
import sys

import pytest
import yaml

from tasks.params.overlays import resolve
from tasks.stage import artifacts
from tests.faults.small_run import Case
from tests.places import ROOT, SHARED, copy_project

REAL = SHARED / "data"
VOCABULARY = REAL / "vocab" / "bert-base-uncased.txt"
TINY = (
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
FLOW = ("-m", "flows", "run")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the public development data in {REAL}"),
]


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


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A checkout without git, and a slice of the real input next to it."""
    folder = tmp_path_factory.mktemp("podium")
    project = copy_project(folder / "project")
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    text = (REAL / "wikitext" / "wikitext-2-valid.txt").read_text(encoding="utf-8")
    (folder / "text.txt").write_text(text[:250_000], encoding="utf-8")
    cut_questions(REAL / "squad" / "new-wiki-train.json", folder / "train.json", 3, 60)
    cut_questions(REAL / "squad" / "new-wiki-dev.json", folder / "dev.json", 2, 20)
    state(project)
    return project


def state(project, *overrides):
    """Write params.yaml: the preset small-files on the slice, smaller yet."""
    paths = (
        "corpus.path=../text.txt",
        "downstream.squad.data.train_path=../train.json",
        "downstream.squad.data.dev_path=../dev.json",
        f"tokenizer.path={VOCABULARY}",
    )
    values = resolve({}, "small-files", [*paths, *TINY, *overrides], ROOT / "presets")
    (project / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def run(project, *words):
    own = Case(project, project.parent).environment()
    return subprocess.run([sys.executable, *words], cwd=project, env=own, text=True, capture_output=True)


def report(project):
    return json.loads((project / "reports" / "run.json").read_text())


def statuses(project):
    return {stage["name"]: stage["status"] for stage in report(project)["stages"]}


def test_a_small_model_of_real_text_is_rejected_and_not_published(project):
    done = run(project, *FLOW)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "gate: rejected, not published" in done.stdout
    assert set(statuses(project).values()) == {"ran"}
    assert json.loads((project / "metrics" / "pretrain-phase1.json").read_text())["steps"] == 40
    assert not (project / "published").exists()


def test_the_score_is_the_one_the_scoring_command_gives(project):
    folder = project / report(project)["folder"]
    answers = folder / artifacts.predictions_file("squad")
    done = run(project, "-m", "flows", "evaluate", "--json", str(answers), "../dev.json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert {name: scores[name] for name in ("exact_match", "f1")} == report(project)["results"]["gate@squad"]["scores"]
    assert scores["total"] == 20


def test_with_another_learning_rate_and_a_lower_floor_only_what_comes_after_runs_and_it_is_published(project):
    lower = ("downstream.squad.gate.min_f1=0", "downstream.squad.gate.above_baseline=false")
    state(project, "downstream.squad.finetune.learning_rate=2e-3", *lower)
    done = run(project, *FLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [name for name, status in statuses(project).items() if status == "ran"]
    after = ("finetune", "predict", "predict_released", "evaluate", "gate", "publish")
    assert ran == [f"{stage}@squad" for stage in after]
    published = project / "published" / "small-files"
    load = (
        "import sys; from transformers import AutoModelForQuestionAnswering, AutoTokenizer;"
        "m = AutoModelForQuestionAnswering.from_pretrained(sys.argv[1]); "
        "t = AutoTokenizer.from_pretrained(sys.argv[1]);"
        "print(m(**t('who?', 'noone', return_tensors='pt')).start_logits.shape[0], t.is_fast)"
    )
    loaded = run(project, "-c", load, str(published))
    assert loaded.stdout.split() == ["1", "True"], loaded.stderr
    question = ["--text", "Who came?", "--context", "Ada came.", "--json"]
    asked = run(project, "-m", "flows", "predict", str(published), *question)
    assert asked.returncode == 0, asked.stderr
