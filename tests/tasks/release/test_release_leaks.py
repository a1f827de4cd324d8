"""Contents of a release: words that were planted in data, names, paths and the host are searched in a whole release."""

import base64
import json
import os
import platform
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ipu_model.core.files import read_json, write_json, write_text
from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
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
from tasks.validation import validate
from tasks.vocabulary import tokenizer
from tests.tasks.downstream.entries import change_parameters, lay_over, values_with, write_parameters
from tests.tasks.downstream.texts.glue_checkout import device_job_here, run_stage
from tests.tasks.tiny_model import SPECIAL
from tests.tasks.trained_checkout import write_lock

MARK = "zxqvwplanted"
PLAIN = ("the", "river", "rises", "in", "hills", "and", "ends", "where", "does", "lake", "what", "?", ".", ",")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
MODEL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_positions": 128}
COLUMNS = {name: f"{MARK}{name}" for name in ("id", "title", "context", "question")}
PHASES = ("phase1", "phase2")


def planted(what: str) -> str:
    """A word that says where it was planted."""
    return f"{MARK}{what}"


def leaks(folder: Path) -> set[tuple[str, str]]:
    """File and what, for every planted word below `folder`: in names and bytes, also as hexadecimal and base64."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    return {(name, what) for name, path in paths.items() for what in planted_words(path)}


def planted_words(path: Path) -> Iterator[str]:
    content = path.name.lower().encode() + b"\n" + path.read_bytes().lower()
    yield from (match.decode() for match in re.findall(MARK.encode() + b"([a-z]*)", content))
    if MARK.encode().hex().encode() in content:
        yield "as hexadecimal"
    for shift in range(3):  # base64 writes three bytes as four letters, wherever the word begins
        text = base64.b64encode(b"\0" * shift + MARK.encode())
        if text[4 if shift else 0 : len(text) - 4].lower() in content:
            yield "as base64"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of inputs with a planted name on a host with planted names and secrets; jobs run in this process."""
    place = tmp_path / planted("place")
    (home := place / planted("home")).mkdir(parents=True)
    names = {"HOME": str(home), "USER": planted("user"), "LOGNAME": planted("user"), "HOSTNAME": planted("host")}
    names |= {"PODIUM_EXECUTABLE_CACHE": str(home / "cache"), "HF_TOKEN": planted("token")}
    names |= {"XDG_CACHE_HOME": str(home / "xdg"), "WANDB_API_KEY": planted("key")}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    kernel = os.uname()
    renamed = os.uname_result((kernel.sysname, planted("host"), *kernel[2:]))
    monkeypatch.setattr(os, "uname", lambda: renamed)
    monkeypatch.setattr(platform, "node", lambda: planted("host"))
    for name in ("gethostname", "getfqdn"):
        monkeypatch.setattr(socket, name, lambda *_: planted("host"))
    for module in (training, jobs):
        monkeypatch.setattr(module, "run_device_job", device_job_here)
    return place / planted("folder")


def make_checkout(given: Path, downstream: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Path:
    """A project of these parameters with a given tokenizer and base model, in a folder whose own name is planted."""
    root = given.parent / planted("checkout")
    (root / "inputs/ipu").mkdir(parents=True)
    write_base_model(given)
    values = values_with(downstream)
    lay_over(
        values,
        {
            "model": MODEL,
            "checkpoint": {"remote": str(given.parent / planted("remote"))},
            "tracking": {name: planted(name) for name in ("project", "name", "group", "folder")},
            "tokenizer": {"source": "file", "path": str(given / f"{planted('vocabulary')}.txt")},
            "base_model": {"source": "folder", "path": str(given / planted("model"))},
            **sections,
        },
    )
    for name, entry in values["downstream"].items():
        entry["gate"]["released"] = str(given / planted("released"))
        entry["publish"]["folder"] = f"{planted('published')}/{planted('name')}-{name}"
        if "min_f1" in entry["gate"]:
            entry["gate"] |= {"min_f1": 0.0, "above_baseline": False}
    write_parameters(root, values)
    url = f"https://{planted('login')}:{planted('password')}@{planted('server')}.example.org/store"
    write_text(root / ".git/config", f'[remote "origin"]\n\turl = {url}\n')
    write_text(root / ".dvc/config", f"['remote \"{planted('dvc')}\"']\n    url = {url}\n")
    return root


def write_base_model(given: Path) -> None:
    """A vocabulary of letters and plain words, and a model whose configuration, metadata and weights have names."""
    entries = [*SPECIAL, *PLAIN, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    write_text(given / f"{planted('vocabulary')}.txt", "\n".join(entries) + "\n")
    (folder := given / planted("model")).mkdir()
    config = ModelConfig(len(entries), **MODEL)
    model = build_model("pretraining", config)
    initialise(model, config, seed=1)
    write_model(folder, "pretraining", config, model.state_dict(), ModelOrigin("", "pretrain", "pretraining", 0, 1))
    (folder / "podium.json").unlink()
    write_json(
        folder / "config.json", {**read_json(folder / "config.json"), "_name_or_path": f"/home/{planted('author')}"}
    )
    weights = load_file(folder / "model.safetensors")
    weights[f"classifier_{planted('head')}.weight"] = np.zeros((2, 2), dtype=np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt", "source": planted("metadata")})


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sections_of_questions(given: Path) -> dict[str, Any]:
    """Text and questions with planted words in every field, in files and columns with planted names."""
    names = {
        f"{column}_column": planted(name) for column, name in (("text", "body"), ("title", "heading"), ("id", "k"))
    }
    documents = []
    for number in range(40):
        text = "\n".join(f"the river {planted('text')} {PLAIN[(number + line) % 9]} in hills ." for line in range(4))
        fields = (text, planted("article"), planted(f"document{number}"))
        documents.append(dict(zip(names.values(), fields, strict=True)))
    write_lines(given / planted("corpus") / f"{planted('file')}.jsonl", documents)
    paths = {}
    for split, count in (("train", 32), ("dev", 14)):
        rows = []
        for number in range(count):
            context = f"the river {planted('answer')} rises in {planted('context')} hills and ends {split} {number} ."
            answers = [{"text": planted("answer"), "answer_start": context.index(planted("answer"))}]
            fields = (planted(f"{split}{number}"), planted(f"title{number % 2}"), context)
            asked = f"where does {planted('question')} rise {number} ?"
            rows.append({**dict(zip(COLUMNS.values(), (*fields, asked), strict=True)), planted("answers"): answers})
        paths[f"{split}_path"] = write_lines(given / f"{planted(split)}.jsonl", rows)
    phase = {"steps": 2, "global_batch_size": 8, "micro_batch_size": 8, "loss_scaling": 1.0, "schedule": "linear"}
    phase_rows = {"row_length": 48, "max_predictions_per_row": 8, "duplicates": 1}
    phase_rows |= {"path": planted("unused"), "dataset": planted("unused"), "dataset_revision": None}
    questions = {
        "data": {
            "source": "files",
            **paths,
            "dataset": f"{planted('hub')}/{planted('set')}",
            "columns": {**COLUMNS, "answers": planted("answers"), "answer_text": None, "answer_start": None},
        },
        "rows": {"row_length": 48, "doc_stride": 4, "max_question_length": 24},
        "finetune": {"epochs": 1, "global_batch_size": 8, "micro_batch_size": 8},
        "gate": {"max_f1_drop": 100.0, "max_exact_match_drop": 100.0},
    }
    text = {"source": "files", "path": str(given / planted("corpus")), "dataset": planted("unused"), **names}
    return {
        "corpus": text,
        "pretrain_rows": dict.fromkeys(PHASES, phase_rows),
        "pretrain": {name: {**phase, "warmup_fraction": 0.1, "learning_rate": 1e-3} for name in PHASES},
        "downstream": {"squad": questions},
    }


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
    paths = [params.corpus.path, *(dict(entry.data).get("dev_path", "") for entry in params.downstream.values())]
    deps = [{"path": path, "hash": "md5", "md5": f"{number:032x}"} for number, path in enumerate(paths)]
    stated = read_json(root / "dvc.lock")
    stated["stages"].setdefault("corpus@text", {})["deps"] = deps
    write_json(root / "dvc.lock", stated)


def publish_examples(root: Path, name: str, **how: str) -> None:
    change_parameters(root, {"publish": {"examples": True}, "downstream": {name: {"publish": how}}})
    lock(root)
    run_stage(publish)


def test_a_release_of_questions_has_no_planted_word(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_checkout(given, **sections_of_questions(given))
    lock(root)
    old = {planted(f"dev{number}"): planted("answer") if number else planted("text") for number in range(14)}
    write_json(given / planted("released") / "predictions.json", old)
    monkeypatch.chdir(root)
    for module in (corpus, tokenizer, base_model):
        run_stage(module)
    run_stage(validate, "corpus")
    for phase in PHASES:
        for module in (pretrain_rows, validate, pretrain):
            run_stage(module, phase)
    run_entry("squad")
    published = root / planted("published") / f"{planted('name')}-squad"
    assert len(read_json(published / "evaluation/scores.json")["scores"]["dev"]) == 14
    assert leaks(published) == set()
    stated, card = read_json(published / "provenance.json"), (published / "README.md").read_text()
    assert stated["parameters"]["downstream"]["squad"]["data"]["dev_path"] == f"md5:{1:032x}"
    assert stated["base_model"]["left_out"] == 1
    assert "released_model" in card
    assert f"own questions (md5:{1:032x})" in card
    publish_examples(root, "squad", data_name=planted("called"))
    quoting = {f"evaluation/{name}" for name in ("metrics.json", "predictions.json", "report.html")}
    assert {name for name, _ in leaks(published)} == {*quoting, "README.md"}, "what was asked for, and nothing else"
    assert {what for name, what in leaks(published) if name == "README.md"} == {"called"}


def test_a_release_of_glue_has_no_planted_word(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "dev"):
        lines = []
        for number in range(60):
            label = (number + (split == "dev" and number < 4)) % 2  # so that there are mistakes to show
            texts = (f"the {planted('sentence')} {PLAIN[number % 2]}", f"river {number} {planted('second')}")
            lines.append(f"{texts[0]}\t{texts[1]}\t{label}")
        write_text(given / planted("glue") / "mrpc" / f"{split}.tsv", "\n".join(lines))
    finetune = {"epochs": 60, "learning_rate": 5e-3, "checkpoint_every_updates": 0, "global_batch_size": 16}
    finetune |= {"micro_batch_size": 16, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    data = {"path": str(given / planted("glue")), "max_common_share": 1.0}
    entry = {"kind": "glue", "task": "mrpc", "data": data, "rows": {"row_length": 64}, "finetune": finetune}
    root = make_checkout(given, {"squad": None, "mrpc": entry}, pretrain={"enabled": False})
    lock(root)
    monkeypatch.chdir(root)
    for module in (tokenizer, base_model):
        run_stage(module)
    run_entry("mrpc")
    published = root / planted("published") / f"{planted('name')}-mrpc"
    assert len(read_json(published / "evaluation/scores.json")["scores"]["dev"]) == 60
    assert leaks(published) == set()
    assert not (published / "evaluation/predictions.json").exists()
    publish_examples(root, "mrpc")
    assert {name for name, _ in leaks(published)} == {"evaluation/report.html", "evaluation/mistakes.csv"}
    assert (published / "evaluation/predictions.json").exists()
