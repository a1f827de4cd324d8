"""Contents of a release: words that were planted in data, names, paths and the host are searched in a whole release."""

import base64
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import write_json
from tasks.corpus import corpus
from tasks.downstream import evaluate, rows
from tasks.downstream import examples as read_examples
from tasks.downstream.gate import gate
from tasks.downstream.jobs import entry_jobs as jobs
from tasks.jobs import training
from tasks.params.schema import load_params
from tasks.pretraining import base_model, pretrain
from tasks.pretraining.rows import pretrain_rows
from tasks.release import publish
from tasks.release.provenance import WITHHELD
from tasks.validation import validate
from tasks.vocabulary import tokenizer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.downstream.texts.glue_checkout import device_job_here
from tests.tasks.planted import (
    MARK,
    PLAIN,
    found,
    make_checkout,
    plant_host,
    planted,
    run_stage,
    write_base_model,
    write_vocabulary,
)
from tests.tasks.trained_checkout import write_lock

COLUMNS = {name: planted(name) for name in ("id", "title", "context", "question")}
MARKED = planted("text")
PHASES = ("phase1", "phase2")
ROWS = {"row_length": 48, "max_predictions_per_row": 8, "duplicates": 1}
UPDATES = {"steps": 2, "global_batch_size": 8, "micro_batch_size": 8}
QUOTING = {"evaluation/metrics.json", "evaluation/predictions.json", "evaluation/report.html"}
QUOTING_TEXTS = {"evaluation/report.html", "evaluation/mistakes.csv"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with a planted name on a host with planted names; device jobs run in this process."""
    place = tmp_path / planted("place")
    place.mkdir()
    plant_host(monkeypatch, place)
    for module in (training, jobs):
        monkeypatch.setattr(module, "run_device_job", device_job_here)
    return place


def write_data(given: Path) -> None:
    """Text and questions with planted words in every field, in files and columns with planted names."""
    draw = random.Random(0)  # noqa: S311 (no secret)

    def sentence() -> str:
        return " ".join([*draw.choices(PLAIN[:9], k=6), planted("text"), draw.choice(PLAIN[:9]), "."])

    texts = [
        {
            planted("key"): planted(f"document{n}"),
            planted("heading"): planted("article"),
            planted("body"): "\n".join(sentence() for _ in range(4)),
        }
        for n in range(40)
    ]
    (given / planted("corpus")).mkdir(parents=True)
    lines = "".join(json.dumps(one) + "\n" for one in texts)
    (given / planted("corpus") / f"{planted('file')}.jsonl").write_text(lines, encoding="utf-8")
    for split, count in (("train", 32), ("dev", 14)):
        rows = []
        for number in range(count):
            context = f"the river {planted('answer')} rises in {planted('context')} hills and ends {split} {number} ."
            answers = [{"text": planted("answer"), "answer_start": context.index(planted("answer"))}]
            asked = {"context": context, "question": f"where does {planted('question')} rise {number} ?"}
            named = {"id": planted(f"{split}{number}"), "title": planted(f"title{number % 2}"), **asked}
            rows.append({COLUMNS[name]: text for name, text in named.items()} | {planted("answers"): answers})
        (given / f"{planted(split)}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def sections(given: Path) -> dict[str, Any]:
    phase = {**UPDATES, "warmup_fraction": 0.1, "learning_rate": 1e-3, "loss_scaling": 1.0, "schedule": "linear"}
    columns = {"text_column": planted("body"), "title_column": planted("heading"), "id_column": planted("key")}
    paths = {"path": planted("unused"), "dataset": planted("unused"), "dataset_revision": None}
    return {
        "corpus": {"source": "files", "path": str(given / planted("corpus")), "dataset": planted("unused"), **columns},
        "pretrain_rows": {name: {**ROWS, **paths} for name in PHASES},
        "pretrain": {name: dict(phase) for name in PHASES},
        "downstream": {
            "squad": {
                "data": {
                    "source": "files",
                    "train_path": str(given / f"{planted('train')}.jsonl"),
                    "dev_path": str(given / f"{planted('dev')}.jsonl"),
                    "dataset": f"{planted('hub')}/{planted('set')}",
                    "columns": {**COLUMNS, "answers": planted("answers"), "answer_text": None, "answer_start": None},
                },
                "rows": {"row_length": 48, "doc_stride": 4, "max_question_length": 24},
                "finetune": {"epochs": 1, "global_batch_size": 8, "micro_batch_size": 8},
            }
        },
    }


def run_questions(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every stage from the corpus to the published folder, as dvc.yaml has them."""
    monkeypatch.chdir(root)
    run_stage(corpus)
    run_stage(tokenizer)
    if load_params().base_model.source != "none":
        run_stage(base_model)
    run_stage(validate, "corpus")
    for phase in PHASES:
        run_stage(pretrain_rows, phase)
        run_stage(validate, phase)
        run_stage(pretrain, phase)
    run_entry("squad")
    return root / planted("published") / f"{planted('name')}-squad"


def run_entry(name: str) -> None:
    run_stage(read_examples, name)
    run_stage(rows, name)
    for stage in ("finetune", "predict"):
        run_stage(jobs, f"{stage}@{name}")
    for module in (evaluate, gate, publish):
        run_stage(module, name)


def lock(root: Path) -> None:
    """What DVC would have written: the parameters of every stage, and the hashes of the paths that were given."""
    params = load_params(root / "params.yaml")
    write_lock(root, params)
    paths = [params.corpus.path, *(dict(one.data).get("dev_path", "") for one in params.downstream.values())]
    deps = [{"path": path, "hash": "md5", "md5": f"{number:032x}"} for number, path in enumerate(paths)]
    stated = json.loads((root / "dvc.lock").read_text())
    stated["stages"].setdefault("corpus@text", {})["deps"] = deps
    write_json(root / "dvc.lock", stated)


def change(root: Path, changes: dict[str, Any]) -> None:
    change_parameters(root, changes)
    lock(root)


def test_a_release_of_questions_has_no_planted_word(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = folder / planted("folder")
    write_data(given)
    entries = write_vocabulary(given / f"{planted('vocabulary')}.txt")
    write_base_model(given / planted("model"), entries)
    root = make_checkout(
        folder,
        **sections(given),
        tokenizer={"source": "file", "path": str(given / f"{planted('vocabulary')}.txt")},
        base_model={"source": "folder", "path": str(given / planted("model"))},
    )
    lock(root)
    old = {planted(f"dev{number}"): planted("answer") if number else planted("text") for number in range(14)}
    write_json(given / planted("released") / "predictions.json", old)
    change(root, {"downstream": {"squad": {"gate": {"max_f1_drop": 100.0, "max_exact_match_drop": 100.0}}}})
    published = run_questions(root, monkeypatch)
    assert len(json.loads((published / "evaluation/scores.json").read_text())["scores"]["dev"]) == 14
    assert "released_model" in (published / "README.md").read_text()
    assert found(published) == []
    stated = json.loads((published / "provenance.json").read_text())
    assert stated["parameters"]["downstream"]["squad"]["data"]["dev_path"] == f"md5:{1:032x}"
    assert stated["base_model"]["left_out"] == 1
    assert f"own questions (md5:{1:032x})" in (published / "README.md").read_text()

    called = {"squad": {"publish": {"data_name": planted("called")}}}
    change(root, {"publish": {"examples": True}, "downstream": called})
    run_stage(publish)
    names = {line.split(": ")[0] for line in found(published)}
    assert names == {*QUOTING, "README.md"}, "what was asked for, and nothing else"
    assert {line for line in found(published) if line.startswith("README.md")} == {"README.md: called"}


def test_a_folder_named_like_a_hub_name_is_not_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`corpus.dataset` and `tokenizer.repository` may be folders, which look like names of the Hub."""
    given = folder / planted("folder")
    write_data(given)
    names = {"corpus": f"{planted('user')}/{planted('texts')}", "tokenizer": f"{planted('user')}/{planted('words')}"}
    changed = sections(given)
    hub = {"source": "hub", "dataset": names["corpus"], "dataset_revision": planted("revision")}
    changed["corpus"] |= hub
    tokens = {"source": "hub", "repository": names["tokenizer"], "revision": planted("branch")}
    root = make_checkout(folder, **changed, tokenizer=tokens)
    lock(root)
    (root / planted("user")).mkdir()
    shutil.copytree(given / planted("corpus"), root / names["corpus"])
    write_vocabulary(root / names["tokenizer"] / "vocab.txt")
    config = {"name_or_path": f"/home/{planted('user')}", "tokenizer_file": planted("path"), "do_lower_case": True}
    write_json(root / names["tokenizer"] / "tokenizer_config.json", config)
    published = run_questions(root, monkeypatch)
    assert found(published) == []
    assert json.loads((published / "provenance.json").read_text())["parameters"]["corpus"]["dataset"] == WITHHELD


@pytest.mark.parametrize("examples", [False, True])
def test_a_release_of_glue_has_no_planted_word(folder: Path, monkeypatch: pytest.MonkeyPatch, examples: bool) -> None:
    given = folder / planted("folder")
    data = given / planted("glue") / "mrpc"
    data.mkdir(parents=True)
    for split in ("train", "dev"):
        lines = []
        for number in range(60):
            label = (number + (split == "dev" and number < 4)) % 2  # so that there are mistakes to show
            one, two = f"the {planted('sentence')} {PLAIN[number % 2]}", f"river {number} {planted('second')}"
            lines.append(f"{one}\t{two}\t{label}")
        (data / f"{split}.tsv").write_text("\n".join(lines), encoding="utf-8")
    entries = write_vocabulary(given / f"{planted('vocabulary')}.txt")
    write_base_model(given / planted("model"), entries)
    batch = {"global_batch_size": 16, "micro_batch_size": 16}
    dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    root = make_checkout(
        folder,
        tokenizer={"source": "file", "path": str(given / f"{planted('vocabulary')}.txt")},
        base_model={"source": "folder", "path": str(given / planted("model"))},
        pretrain={"enabled": False},
        downstream={
            "squad": None,
            "mrpc": {
                "kind": "glue",
                "task": "mrpc",
                "data": {"path": str(given / planted("glue")), "max_common_share": 1.0},
                "rows": {"row_length": 64},
                "finetune": {"epochs": 60, "learning_rate": 5e-3, "checkpoint_every_updates": 0, **batch, **dropout},
            },
        },
    )
    change(root, {"publish": {"examples": examples}})
    monkeypatch.chdir(root)
    for module in (tokenizer, base_model):
        run_stage(module)
    run_entry("mrpc")
    published = root / planted("published") / f"{planted('name')}-mrpc"
    assert len(json.loads((published / "evaluation/scores.json").read_text())["scores"]["dev"]) == 60
    assert {line.split(": ")[0] for line in found(published)} == (QUOTING_TEXTS if examples else set())
    assert (published / "evaluation/predictions.json").exists() == examples


@pytest.mark.parametrize(
    "content",
    [
        *(b"\x00\xff" + text.encode() for text in (MARKED, MARKED.upper(), MARKED.encode().hex())),
        *(base64.b64encode(f"{before}{MARK}text".encode()) for before in ("", "a", "ab", "abc")),
    ],
)
def test_a_planted_word_is_found_in_every_form_and_in_names(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    assert len(found(tmp_path)) == 1
    (tmp_path / "a.bin").rename(tmp_path / planted("name")).write_bytes(b"")
    assert len(found(tmp_path)) == 1
