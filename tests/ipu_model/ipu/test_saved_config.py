"""The ipu_config.json that a model trained on IPUs carries."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, List

import pytest
from tiny_jobs import make_columns, make_job, run_here, write_rows

from ipu_model.core.files import read_json
from ipu_model.ipu.config import read_ipu_config
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Fine-tuning for one update on two IPUs with one layer each: 2 forward stages, 3 in training."""
    rows = tmp_path / "rows"
    columns = make_columns("question_answering", 12)
    manifest = write_rows(rows, "question_answering", columns)
    batch = BatchGeometry(round(6 * manifest.packing_factor), 1)  # 6 rows, one by one
    config = {"layers_per_ipu": [1, 1], "matmul_proportion": 0.25, "random_seed": 0}
    changes = {"geometry": batch, "schedule": ScheduleConfig(steps=1), "ipu_config": config}
    return make_job(tmp_path, "finetune", rows, runtime="ipu", **changes)


@pytest.mark.ipu
def test_a_model_trained_on_ipus_carries_the_ipu_config_it_was_trained_with(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job.ipu_config is not None
    cached = {**job.ipu_config, "executable_cache_dir": str(tmp_path / "cache")}
    job = dataclasses.replace(job, ipu_config=cached)
    run_here(job)
    path = tmp_path / "model" / "ipu_config.json"
    said: List[str] = []
    config = read_ipu_config(read_json(path), say=said.append)
    assert said == []  # in the words of today, nothing left to translate
    assert (config.layers_per_ipu, config.matmul_proportion, config.seed) == ([1, 1], 0.25, 0)
    assert config.gradient_accumulation_steps == 6  # derived, and stated for Optimum, which would take 1
    assert str(tmp_path) not in path.read_text(encoding="utf-8")  # the cache is the host's affair

    again: Any = json.loads(path.read_text(encoding="utf-8"))
    run_here(dataclasses.replace(job, ipu_config=again))  # the file serves the same job


@pytest.mark.ipu
def test_the_config_of_the_model_holds_architecture_only(job: Job, tmp_path: Path) -> None:
    """No batch, rate, device or path: what a model is does not depend on how it was trained."""
    run_here(job)
    found = set(json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8")))
    kind = {"architectures", "model_type", "hidden_act", "pad_token_id", "position_embedding_type"}
    layers = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "layer_norm_eps"}
    tables = {"vocab_size", "max_position_embeddings", "type_vocab_size", "initializer_range", "tie_word_embeddings"}
    assert found == {*kind, *layers, *tables, "hidden_dropout_prob", "attention_probs_dropout_prob"}
