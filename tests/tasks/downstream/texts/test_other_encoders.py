"""Encoders that transformers computes, from a folder of theirs through every stage to a release that it loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.runs.model_source import model_parameters
from ipu_model.files import read_json
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import InferenceOptions
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.predict import PredictionOutput, predict
from tasks.params.sections import RuntimeSpec
from tasks.pretraining import base_model
from tasks.release import publish
from tasks.vocabulary import tokenizer
from tasks.vocabulary.hub_tokenizer import load_local_vocabulary
from tests.tasks.downstream.entries import write_parameters
from tests.tasks.downstream.texts.classification_checkout import CLASSES, NAME, values_of, write_texts
from tests.tasks.downstream.texts.glue_checkout import run_stage
from tests.tasks.downstream.texts.test_own_classes import _jobs_in_this_process, own_logits, published_logits, run
from tests.tasks.pretraining.row_inputs import WORDS
from tests.tasks.tiny_model import write_tokenizer
from tests.tasks.trained_checkout import write_lock
from tests.tasks.vocabulary.fast_tokenizers import save_fast_tokenizer

transformers = pytest.importorskip("transformers")
__all__ = ["_jobs_in_this_process"]

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "mpnet": {"pad_token_id": 1},
    "albert": {"embedding_size": 16},
}
TOKENIZERS = {"deberta-v2": "deberta", "mpnet": "mpnet", "albert": "albert"}
"""Models with their own tokenizer (Unigram, or MPNet's special tokens); the others have BERT's WordPiece."""


def make_checkout(folder: Path, data: dict[str, Any], model_type: str) -> Path:
    """A checkout with a random model in `theirs`, whose word table is larger than its vocabulary, and its tokenizer."""
    (folder / "theirs").mkdir(parents=True)
    if model_type in TOKENIZERS:
        save_fast_tokenizer(TOKENIZERS[model_type], folder / "theirs")
    else:
        write_tokenizer(folder / "theirs", list(WORDS), 64)
    entries = len(load_local_vocabulary(folder / "theirs", True).tokens)
    sizes = {**SIZES, "vocab_size": entries + 7, "max_position_embeddings": 66}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **sizes, initializer_range=0.1, **CONFIGS[model_type])
    transformers.AutoModel.from_config(config).save_pretrained(folder / "theirs")
    given = model_parameters("theirs", folder, folder)
    values = values_of(data, finetune={"epochs": 6.0})
    for key, value in given.items():
        section, _, name = key.partition(".")
        if name:
            values[section][name] = value
        else:
            values[section] = value
    write_lock(folder, write_parameters(folder, values))
    (folder / "inputs/ipu").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_model_of_transformers_is_tuned_released_and_the_same_in_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    write_texts(tmp_path / "train.csv", 240, seed=0)
    dev = write_texts(tmp_path / "dev.csv", 60, seed=1)
    data = {"train_path": str(tmp_path / "train.csv"), "dev_path": str(tmp_path / "dev.csv")}
    folder = make_checkout(tmp_path / "checkout", data, model_type)
    monkeypatch.chdir(folder)
    run_stage(tokenizer)
    run_stage(base_model)
    metrics = run(folder, monkeypatch)
    assert metrics["accuracy"] > 90
    assert read_json(folder / f"data/rows/{NAME}/train/manifest.json")["max_sequences"] == 1
    run_stage(publish, NAME)
    released = folder / "published" / NAME
    theirs, config = published_logits(released, [texts for *texts, _ in dev])
    np.testing.assert_allclose(own_logits(folder), theirs, rtol=1e-4, atol=1e-5)
    assert (config.model_type, [config.id2label[number] for number in range(3)]) == (model_type, list(CLASSES))
    model, how = find_model(str(released)), InferenceOptions(RuntimeSpec("cpu", "fp32"), 8, print)
    predict(infer_entry(model), model, tmp_path / "dev.csv", PredictionOutput(tmp_path / "out.jsonl", "jsonl"), how)
    answers = [json.loads(line)["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answers == [CLASSES[number] for number in theirs.argmax(1)]
