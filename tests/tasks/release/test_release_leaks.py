"""Contents of a release: words that were planted in data, names, paths and the host are searched in a whole release."""

import base64
import json
import os
import platform
import random
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ipu_model.core.files import write_json, write_text
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
from tests.tasks.downstream.texts.glue_checkout import device_job_here
from tests.tasks.tiny_model import SPECIAL
from tests.tasks.trained_checkout import write_lock

MARK = "zxqvwplanted"
PLAIN = ("the", "river", "rises", "in", "hills", "and", "ends", "where", "does", "lake", "what", "?", ".", ",")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
MODEL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_positions": 128}


def planted(what: str) -> str:
    """A word that says where it was planted."""
    return f"{MARK}{what}"


def found(folder: Path) -> list[str]:
    """`file: what`, for every planted word below `folder`: in names and bytes, also as hexadecimal and base64."""
    names = {path: path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return sorted({f"{name}: {what}" for path, name in names.items() for what in _words(path)})


def _words(path: Path) -> Iterator[str]:
    content = path.name.lower().encode() + b"\n" + path.read_bytes().lower()
    yield from (match.decode() for match in re.findall(MARK.encode() + b"([a-z]*)", content))
    if MARK.encode().hex().encode() in content:
        yield "as hexadecimal"
    for shift in range(3):  # base64 writes three bytes as four letters, wherever the word begins
        text = base64.b64encode(b"\0" * shift + MARK.encode())
        if text[4 if shift else 0 : len(text) - 4].lower() in content:
            yield "as base64"


COLUMNS = {name: planted(name) for name in ("id", "title", "context", "question")}
PHASES = ("phase1", "phase2")
ROWS = {"row_length": 48, "max_predictions_per_row": 8, "duplicates": 1}
UPDATES = {"steps": 2, "global_batch_size": 8, "micro_batch_size": 8}
QUOTING = {"evaluation/metrics.json", "evaluation/predictions.json", "evaluation/report.html"}
QUOTING_TEXTS = {"evaluation/report.html", "evaluation/mistakes.csv"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with a planted name on a host with planted names and secrets; device jobs run in this process."""
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
    return place


def make_checkout(folder: Path, downstream: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Path:
    """A project of these parameters with a given tokenizer and base model, in a folder whose own name is planted."""
    root = folder / planted("checkout")
    (root / "inputs/ipu").mkdir(parents=True)
    given = folder / planted("folder")
    tracking = {name: planted(name) for name in ("project", "name", "group", "folder")}
    values = values_with(
        downstream, model=MODEL, checkpoint={"remote": str(folder / planted("remote"))}, tracking=tracking
    )
    model = {"source": "folder", "path": str(given / planted("model"))}
    tokenizer = {"source": "file", "path": str(given / f"{planted('vocabulary')}.txt")}
    lay_over(values, {"tokenizer": tokenizer, "base_model": model, **sections})
    for name, entry in values["downstream"].items():
        entry["gate"]["released"] = str(given / planted("released"))
        entry["publish"]["folder"] = f"{planted('published')}/{planted('name')}-{name}"
        if "min_f1" in entry["gate"]:
            entry["gate"] |= {"min_f1": 0.0, "above_baseline": False}
    write_parameters(root, values)
    url = f"https://{planted('login')}:{planted('password')}@{planted('server')}.example.org/store"
    write_text(root / ".git/config", f'[remote "origin"]\n\turl = {url}\n')
    write_text(root / ".dvc/config", f"['remote \"{planted('dvc')}\"']\n    url = {url}\n")
    write_base_model(given)
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
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "_name_or_path": f"/home/{planted('author')}"}))
    weights = load_file(folder / "model.safetensors")
    weights[f"classifier_{planted('head')}.weight"] = np.zeros((2, 2), dtype=np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt", "source": planted("metadata")})


def run_stage(module: Any, *words: str) -> None:
    """The command line of a stage, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module.__name__, *words])
        module.main()


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
    root = make_checkout(folder, **sections(given))
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
    batch = {"global_batch_size": 16, "micro_batch_size": 16}
    dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    root = make_checkout(
        folder,
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
