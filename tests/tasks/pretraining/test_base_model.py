"""A given model: taken in, held against tokenizer and parameters, and what training makes of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ipu_model.core.files import sha256_of
from ipu_model.distributed.process import StopRequest, lock_run_folder
from ipu_model.train.job_runner import run_job
from tasks.downstream.jobs.entry_jobs import build_finetune_job
from tasks.jobs.device_job import Job
from tasks.models.model_folders import select_model_files
from tasks.params.entries import find_entry
from tasks.params.overlays import resolve
from tasks.params.schema import Params, validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.pretraining.base_model import RECORD, format_summary, write_base_model
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.tasks.pretraining.row_inputs import (
    WORDS,
    pretrain_params,
    random_texts,
    squad_params,
    write_corpus,
    write_questions,
    write_squad_rows,
)
from tests.tasks.tiny_model import HIDDEN, INTERMEDIATE, LAYERS, write_tiny_model

VOCABULARY = [*dict.fromkeys([*"abcdefghijklmnopqrstuvwxyz", *WORDS, "."])]
MODEL = [
    f"model.hidden_size={HIDDEN}",
    f"model.num_layers={LAYERS}",
    "model.num_heads=2",
    f"model.intermediate_size={INTERMEDIATE}",
    "model.max_positions=512",
]


def params_with(*overrides: str) -> Params:
    return validate_params(resolve(read_yaml(ROOT / "params.yaml"), None, [*MODEL, *overrides]))


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A tiny question-answering model with its tokenizer, and the same tokenizer as the run's own."""
    write_tiny_model(tmp_path / "tokenizer", VOCABULARY)
    return write_tiny_model(tmp_path / "given", VOCABULARY)


def take_in(given: Path, *overrides: str) -> dict[str, Any]:
    params = params_with("base_model.source=folder", f"base_model.path={given}", *overrides)
    root = given.parent
    return write_base_model(params.base_model, params.model, root / "tokenizer", root / "base")


def refusal(given: Path, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        take_in(given, *overrides)
    assert not (given.parent / "base").exists()
    assert not list(given.parent.glob("base.*"))
    return str(caught.value)


def test_without_a_given_model_there_is_nothing_to_take_in(tmp_path: Path):
    params = params_with()
    with pytest.raises(InputError, match="base_model.source is none, so there is no model to import"):
        write_base_model(params.base_model, params.model, tmp_path / "no tokenizer needed", tmp_path / "base")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_taken_in_bit_for_bit_and_said(given: Path):
    record = take_in(given)
    base = given.parent / "base"
    theirs, ours = load_file(given / "model.safetensors"), load_file(base / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(x.tobytes() == ours[name].tobytes() for name, x in theirs.items())
    assert json.loads((base / RECORD).read_text()) == json.loads(json.dumps(record))
    assert record["architecture"] == "BertForQuestionAnswering"
    assert record["weights_sha256"] == sha256_of(given / "model.safetensors")
    digest = sha256_of(given.parent / "tokenizer" / "tokenizer.json")
    assert json.loads((base / "podium.json").read_text())["tokenizer_sha256"] == digest
    assert f"{record['parameters']:,} parameters" in format_summary(record)
    assert "bert.pooler.dense.weight" in format_summary(record), "missing weights are reported"


def test_another_architecture_is_refused_with_the_settings_that_fit(given: Path):
    said = refusal(given, "model.num_layers=3", "model.layer_norm_eps=0.001")
    assert "num_layers: 2, configured 3; layer_norm_eps: 1e-12, configured 0.001" in said
    assert said.endswith("--set model.num_layers=2 --set model.layer_norm_eps=1e-12")
    take_in(given, "model.hidden_dropout=0.5", "model.initializer_range=0.5")  # no part of the weights


def test_a_model_with_one_kind_of_segments_is_taken_in(given: Path):
    path, name = given / "model.safetensors", "bert.embeddings.token_type_embeddings.weight"
    state = load_file(path)
    save_file({**state, name: state[name][:1].copy()}, path, {"format": "pt"})
    config = json.loads((given / "config.json").read_text())
    (given / "config.json").write_text(json.dumps(config | {"type_vocab_size": 1}))
    take_in(given)
    assert json.loads((given.parent / "base/config.json").read_text())["type_vocab_size"] == 1


def test_another_vocabulary_is_refused(given: Path):
    write_tiny_model(given.parent / "tokenizer", [*VOCABULARY, "more"])
    assert f"has {5 + len(VOCABULARY)} word embeddings, but the tokenizer has {6 + len(VOCABULARY)} entries" in refusal(
        given
    )
    swapped = [VOCABULARY[1], VOCABULARY[0], *VOCABULARY[2:]]
    write_tiny_model(given.parent / "tokenizer", swapped)
    assert "entry 5 of its vocabulary is 'a', but 'b' in the tokenizer" in refusal(given)
    (given / "tokenizer.json").unlink()
    take_in(given)  # nothing to compare with but the size


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08"), "model.safetensors is missing or damaged"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "gpt2"}'),
            "vocab_size and hidden_size not found",
        ),
    ],
)
def test_what_is_no_model_is_refused_with_the_parameter_that_named_it(given: Path, damage: Any, said: str):
    damage(given)
    found = refusal(given)
    assert said in found
    assert f"base_model.path={given}" in found


@pytest.mark.parametrize(
    ("present", "weights"),
    [
        (
            ["model.safetensors", "pytorch_model.bin", "tf_model.h5", "model-00001-of-00002.safetensors"],
            ["model.safetensors"],
        ),
        (
            [
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "pytorch_model.bin",
            ],
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"],
        ),
        (["pytorch_model.bin", "training_args.bin", "optimizer.bin", "onnx/model.onnx"], ["pytorch_model.bin"]),
        (["tf_model.h5", "model.py"], []),
    ],
)
def test_of_a_hub_model_only_what_is_read_is_downloaded(present: list[str], weights: list[str]):
    chosen = select_model_files(["README.md", "config.json", "vocab.txt", *present])
    assert chosen == ["config.json", *weights, "vocab.txt"]


def trained(job: Job) -> None:
    """A device job in this process, with one thread."""
    torch.set_num_threads(1)
    with lock_run_folder(Path(job.run_folder)):
        run_job(job, lambda event, **fields: None, StopRequest())


@pytest.fixture
def checkout(given: Path, tmp_path: Path) -> Path:
    """A checkout with the given model taken in and rows of both kinds."""
    root = tmp_path / "checkout"
    take_in(given)
    (given.parent / "base").rename(root.parent / "moved")
    (root / artifacts.MODELS).mkdir(parents=True)
    (root.parent / "moved").rename(root / artifacts.BASE_MODEL)
    corpus = write_corpus(tmp_path / "corpus", random_texts(30))
    for phase in ("phase1", "phase2"):
        folder = root / artifacts.rows_folder(phase)
        write_pretrain_rows(pretrain_params(), phase, corpus, tmp_path / "tokenizer", folder, workers=1)
    asked = [
        {
            "id": str(n),
            "title": "",
            "context": f"{WORDS[n]} {WORDS[n + 1]}.",
            "question": WORDS[n],
            "answers": [{"text": WORDS[n + 1], "answer_start": len(WORDS[n]) + 1}],
        }
        for n in range(20)
    ]
    questions = write_questions(tmp_path / "train.parquet", asked)
    folder = root / artifacts.rows_folder("squad", "train")
    write_squad_rows(
        squad_params(row_length=32, doc_stride=8, max_question_length=8),
        "train",
        questions,
        tmp_path / "tokenizer",
        folder,
    )
    return root


def weights(folder: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = load_file(folder / "model.safetensors")
    return found


def in_root(job: Job, root: Path, name: str) -> Job:
    return dataclasses.replace(job, run_folder=str(root / "runs" / name))


def test_pre_training_starts_from_the_given_weights(checkout: Path):
    params = params_with(
        "pretrain.phase1.steps=1",
        "pretrain.phase1.learning_rate=1e-30",
        "pretrain.optimizer=sgd",
        "pretrain.weight_decay=0.0",
    )
    trained(in_root(make_pretrain_job("phase1", params, checkout, base=True), checkout, "phase1"))
    given, phase1 = weights(checkout / artifacts.BASE_MODEL), weights(checkout / artifacts.MODELS / "phase1")
    encoder = [name for name in given if name.startswith("bert.")]
    assert len(encoder) > 30
    assert all(np.allclose(given[name], phase1[name], rtol=0, atol=1e-20) for name in encoder), "at such a rate"
    assert "cls.predictions.bias" in phase1, "the heads it lacks are drawn fresh"


def test_fine_tuning_a_given_model_keeps_its_head_and_uses_the_stated_dropout(checkout: Path):
    quick = [
        "pretrain.enabled=false",
        "downstream.squad.finetune.epochs=0.01",
        "downstream.squad.finetune.optimizer=sgd",
        "downstream.squad.finetune.learning_rate=1e-30",
        "model.hidden_dropout=0.25",
        "base_model.source=folder",
    ]
    params = params_with(*quick, "downstream.squad.finetune.weight_decay=0.0")
    job = build_finetune_job(find_entry(params, "squad"), params, checkout)
    trained(in_root(job, checkout, "finetune"))
    given, tuned = weights(checkout / artifacts.BASE_MODEL), weights(checkout / artifacts.model_folder("squad"))
    assert all(np.allclose(given[name], tuned[name], rtol=0, atol=1e-20) for name in given), "at such a rate"
    assert {"qa_outputs.weight", "qa_outputs.bias"} <= given.keys() & tuned.keys()
    config = json.loads((checkout / artifacts.model_folder("squad") / "config.json").read_text())
    assert config["hidden_dropout_prob"] == 0.25


def test_a_bare_encoder_from_another_maker_gets_a_fresh_head(given: Path):
    state = {name.removeprefix("bert."): x for name, x in load_file(given / "model.safetensors").items()}
    save_file(
        {name: x for name, x in state.items() if "qa_" not in name}, given / "model.safetensors", {"format": "pt"}
    )
    record = take_in(given)
    assert record["architecture"] == "BertModel"
    assert {"qa_outputs.weight", "qa_outputs.bias"} <= set(record["missing"])
