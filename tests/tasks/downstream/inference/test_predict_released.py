"""The released model on the development set of now: its own scores where they are whole, else its answers, and never
a comparison with itself."""

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ipu_model.core.files import read_json, sha256_of, write_json
from tasks.downstream.gate.released_scores import read_scores
from tasks.downstream.gate.subject import make_subject
from tasks.downstream.inference import job
from tasks.downstream.inference.job import InferenceOptions
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.predict import evaluate
from tasks.downstream.inference.predict_released import entry_of_model, predict_released
from tasks.downstream.squad.examples import write_questions
from tasks.downstream.texts.task_table import TASKS
from tasks.params.entries import find_entry
from tasks.params.schema import load_params, parameter_values
from tasks.params.sections import RuntimeSpec
from tasks.release.fetch import fetch
from tasks.release.provenance import hash_of, stages_behind
from tasks.release.publish import publish
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import change_parameters, make_question, part_of
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import device_job_here
from tests.tasks.release.released_checkout import FOLDER, fetch_here, release, state
from tests.tasks.trained_checkout import ASKED, TEXT, make_checkout, make_glue_checkout, write_gate, write_model

OUT = Path("predictions/squad-released")
ASKED_NOW = {"n1": ("What rises in the hills?", "river"), "n2": ("What ends in a lake?", "The river")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The model of seed 0 is released and fetched; that of seed 1 is the candidate."""
    root = make_checkout(tmp_path_factory.mktemp("made") / "checkout")
    state(root)
    release(root)
    fetch_here(root)
    shutil.rmtree(root / "models/squad")
    write_model(root, seed=1)
    return root


@pytest.fixture
def checkout(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "checkout"))


@pytest.fixture
def jobs(monkeypatch):
    """The jobs that were run."""
    ran = []

    def run(asked, **options):
        ran.append(asked)
        return device_job_here(asked, **options)

    monkeypatch.setattr(job, "run_device_job", run)
    return ran


def load(root, name="squad"):
    params = load_params(root / artifacts.PARAMS)
    return params, find_entry(params, name)


def run_stage(root, name="squad"):
    params, entry = load(root, name)
    return predict_released(entry, params.device, root)


def ask(root, asked):
    questions = [
        make_question(name, text, TEXT, (answer,), (TEXT.index(answer),)) for name, (text, answer) in asked.items()
    ]
    write_questions(questions, root / "data/examples/squad/dev.parquet")


def test_scores_that_the_release_states_are_taken(checkout, jobs):
    tag = fetch_here(checkout).releases[0].tag
    assert f"{tag} has recorded scores for all 2" in run_stage(checkout)
    assert jobs == []
    scores = checkout / "published/podium-demo/evaluation/scores.json"
    assert (checkout / OUT / "scores.json").read_bytes() == scores.read_bytes()
    weights = sha256_of(checkout / "published/podium-demo/model.safetensors")
    expected = {"release": {"tag": tag, "repository": None, "commit": None}, "weights": weights}
    assert read_json(checkout / OUT / "released.json") == {**expected, "fetched": True, "predicted": False}
    record = read_json(checkout / FOLDER / "releases.json")
    del record["releases"][0]["files"]["evaluation/scores.json"]
    write_json(checkout / FOLDER / "releases.json", record)
    shutil.rmtree(checkout / FOLDER / tag / "evaluation")
    assert "predicted all 2 questions" in run_stage(checkout), "a release without scores is asked"
    assert len(jobs) == 1
    shutil.rmtree(checkout / "published")
    fetch_here(checkout)
    assert "no released model" in run_stage(checkout)
    assert [path.name for path in (checkout / OUT).iterdir()] == ["released.json"]


@pytest.mark.parametrize("asked", [ASKED_NOW, {**ASKED, **ASKED_NOW}], ids=["others", "more"])
def test_other_questions_are_answered_as_by_evaluate(checkout, jobs, asked, tmp_path):
    ask(checkout, asked)
    assert f"predicted all {len(asked)} questions" in run_stage(checkout)
    assert len(jobs) == 1
    table = tmp_path / "asked.jsonl"
    rows = pq.read_table(checkout / "data/examples/squad/dev.parquet").to_pylist()
    table.write_text("\n".join(json.dumps(row) for row in rows))
    model = find_model(str(checkout / "published/podium-demo"))
    how = InferenceOptions(RuntimeSpec("cpu", "fp32"), 8, print)
    evaluate(entry_of_model(model), model, table, tmp_path / "evaluated", how)
    task = part_of(load(checkout)[1], "scores")
    ours, theirs = (read_scores(task, folder / "scores.json") for folder in (checkout / OUT, tmp_path / "evaluated"))
    assert ours == theirs
    assert len(ours["dev"]) == len(asked)


def test_a_released_model_is_compared_with_the_one_before_it(checkout, jobs):
    run_stage(checkout)
    before = {path.name: path.read_bytes() for path in (checkout / OUT).iterdir()}
    first = read_json(checkout / OUT / "released.json")["release"]["tag"]
    second = release(checkout)
    fetch_here(checkout)
    assert re.search(f"already released as {second}; {first} has ", run_stage(checkout))
    assert {path.name: path.read_bytes() for path in (checkout / OUT).iterdir()} == before
    assert release(checkout) == second, "the same verdict, and so the same release"


def spoil_config(root, folder):
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("{}")


def name_classes(root, *classes, name="squad"):
    config = root / "models" / name / "config.json"
    write_json(config, {**read_json(config), "id2label": dict(enumerate(classes))})


def take_tokenizer(root, folder):
    record = read_json(root / FOLDER / "releases.json")
    for name in ("tokenizer.json", "vocab.txt"):
        record["releases"][0]["files"].pop(name, None)
        (folder / name).unlink(missing_ok=True)
    write_json(root / FOLDER / "releases.json", record)


def swap(root, labels, fetched=FOLDER):
    """A model of texts in place of the fetched one, as if it had been released there."""
    model = write_head_model(root / "model", "sequence_classification", labels, ["river"])
    record = read_json(root / fetched / "releases.json")
    [fetched_release] = record["releases"]
    folder = root / fetched / fetched_release["tag"]
    shutil.rmtree(folder)
    shutil.copytree(model, folder)
    files = [path for path in folder.iterdir() if path.name not in ("podium.json", "vocab.txt")]
    fetched_release["files"] = {path.name: sha256_of(path) for path in files}
    write_json(root / fetched / "releases.json", record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil_config, "changed since it was fetched"),
        (lambda root, folder: swap(root, ["bad", "good"]),
         r"kind classification.*, this entry for kind squad.*\.gate\.released=none"),
        (lambda root, folder: name_classes(root, "start", "end"),
         "has the classes LABEL_0, LABEL_1, the examples start, end"),
        (take_tokenizer, "tokenizer.json"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_the_fetched_one_or_does_not_fit_is_refused(checkout, jobs, change, message):
    [fetched_release] = fetch_here(checkout).releases
    ask(checkout, ASKED_NOW)
    change(checkout, checkout / FOLDER / fetched_release.tag)
    with pytest.raises(InputError, match=message):
        run_stage(checkout)
    assert jobs == []
    assert not (checkout / OUT / "released.json").exists()


def test_scores_of_glue_lie_where_its_gate_looks_for_them(tmp_path, jobs):
    root, name, labels = make_glue_checkout(tmp_path / "checkout"), "glue-sst2", TASKS["sst2"].labels
    change_parameters(root, {"downstream": {name: {"gate": {"released": "published"}}}})
    params, entry = load(root, name)
    (root / entry.released).mkdir(parents=True)
    write_gate(root, name=name)
    publish(parameter_values(params), name, root)
    fetch(params, entry, root)
    shutil.rmtree(root / f"models/{name}")
    write_model(root, 1, name)
    assert "recorded scores for all 20" in run_stage(root, name)
    assert jobs == []
    write_gate(root, name=name)
    checks = {check["name"]: check["found"] for check in read_json(root / f"metrics/{name}-gate.json")["checks"]}
    assert checks["released_model"].endswith("on 20 examples")
    swap(root, labels, artifacts.FETCHED / name)
    name_classes(root, *labels, name=name)
    assert "predicted all 20 examples" in run_stage(root, name)
    scores = read_scores(part_of(entry, "scores"), root / entry.released / "sst2/scores.json")["dev"]
    assert (len(jobs), len(scores)) == (1, 20)


def test_which_releases_there_are_is_no_part_of_where_a_release_comes_from(checkout):
    params, entry = load(checkout)
    subject, lock, hashes = make_subject(entry, params), checkout / "dvc.lock", []
    recorded = read_json(lock)
    for stage in ("other", "predict_released@squad", "gate@squad"):
        write_json(lock, {**recorded, "stages": {**recorded["stages"], stage: {"cmd": "other"}}})
        hashes.append(hash_of(stages_behind(parameter_values(params), subject, lock)))
    assert hashes[0] == hashes[1] != hashes[2]
