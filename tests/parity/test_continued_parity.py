"""Pre-training continued from a folder of transformers, next to an own loop over its model: a whole job each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from samples import EPS, RATE, configure_theirs, draw_theirs, samples
from tiny_jobs import make_columns, make_job, run_here, write_rows

from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, ScheduleConfig
from ipu_model.models.families import list_families
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import read_model
from ipu_model.rows.row_folder import RowFolder
from tests.optimizers import optimizer_config

ROWS, UPDATES = 12, 4
OTHERS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8, "classifier_dropout_prob": 0.0},
    "deberta-v2": {"relative_attention": True, "position_buckets": 8, "type_vocab_size": 0},
    "mpnet": {"pad_token_id": 1},
}
SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}


def make_theirs(family: str, task: str) -> Any:
    """Their random model, biases and norms included."""
    if family not in OTHERS:
        return draw_theirs(configure_theirs(family, 0), task)
    values = {**SIZES, **STILL, "max_position_embeddings": 34, **OTHERS[family]}
    return draw_theirs(transformers.AutoConfig.for_model(family, **values), task)


def make_continuation(folder: Path, theirs: Any, family: str, **changes: Any) -> Any:
    """The job that continues the folder of their model."""
    theirs.save_pretrained(folder / "theirs")
    (folder / "base").mkdir()
    import_model(folder / "theirs", folder / "base", "t" * 64)
    for name, seed in (("rows", 3), ("held-out", 4)):
        columns = make_columns("masked_lm", ROWS, seed=seed)
        if read_model(folder / "base").config.type_vocab_size == 1:
            columns["token_type_ids"][:] = 0
        write_rows(folder / name, "masked_lm", columns)
    values = {
        "head": "masked_lm",
        "model": None,
        "init_checkpoint": str(folder / "base"),
        "original": str(folder / "base"),
        "evaluation": EvaluationConfig(str(folder / "held-out"), 2),
        "geometry": BatchGeometry(1000, 4),  # all rows in every update: their order does not matter
        "optimizer": optimizer_config(learning_rate=RATE, weight_decay=0.0, eps=EPS),
        "schedule": ScheduleConfig(steps=UPDATES, warmup_fraction=0.0, shape="constant"),
    }
    job = make_job(folder, "pretrain", folder / "rows", **{**values, **changes})
    sequences = int((make_columns("masked_lm", ROWS, seed=3)["cls_positions"] >= 0).sum())
    return dataclasses.replace(job, geometry=BatchGeometry(sequences, 4))


def read_samples(folder: Path, name: str) -> list[dict[str, torch.Tensor]]:
    """The sequences with a masked token of a folder of rows, as their model reads them."""
    rows = RowFolder(folder / name, "masked_lm", read_model(folder / "base").config).take(np.arange(ROWS))
    types = json.loads((folder / "theirs" / "config.json").read_text()).get("type_vocab_size", 0)
    unread = set() if types else {"token_type_ids"}
    labelled = (x for x in samples(rows) if bool((x["labels"] != -100).any()))
    return [{name: value for name, value in x.items() if name not in unread} for x in labelled]


def mean_loss(model: Any, of: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    counts = [int((x["labels"] != -100).sum()) for x in of]
    return sum(model(**x).loss * count for x, count in zip(of, counts, strict=True)) / sum(counts)


@pytest.mark.parametrize("family", [*list_families(), *OTHERS])
def test_a_continued_model_has_the_losses_and_weights_of_one_that_transformers_trains(
    tmp_path: Path, family: str
) -> None:
    theirs = make_theirs(family, "ForMaskedLM")
    job = make_continuation(tmp_path, theirs, family)
    finished = run_here(job)
    assert finished.of("note") == []
    found = json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]
    train, held_out = read_samples(tmp_path, "rows"), read_samples(tmp_path, "held-out")
    before = float(mean_loss(theirs, held_out).detach())
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=RATE, weight_decay=0.0, eps=EPS)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        mean_loss(theirs, train).backward()
        optimizer.step()
    after = float(mean_loss(theirs, held_out).detach())
    assert abs(before - after) > 1e-4
    assert (found["before"]["figures"]["mlm_loss"], found["mlm_loss"]) == pytest.approx((before, after), rel=1e-5)
    assert not found["before"]["new_head"]
    groups = np.array(found["before"]["groups"])
    assert len(groups) == ROWS
    assert (groups[:, 1] - groups[:, 0]).sum() / groups[:, 2].sum() == pytest.approx(after - before, rel=1e-3)
    loaded, report = type(theirs).from_pretrained(job.output, output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], weight, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet"])
def test_a_model_without_the_head_is_continued_with_a_new_one_and_says_so(tmp_path: Path, family: str) -> None:
    finished = run_here(make_continuation(tmp_path, make_theirs(family, ""), family))
    head, *others = (x["text"] for x in finished.of("note"))
    assert "masked language modelling head" in head
    assert ["bert.pooler.dense.bias" in text for text in others] == [True] * (family == "bert")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]["before"]["new_head"]
