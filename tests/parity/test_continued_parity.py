"""Pre-training continued from a folder of transformers, next to an own loop over its model: a whole job each."""

import json

import numpy as np
import pytest
import torch
import transformers
from samples import (
    EPS,
    RATE,
    configure_theirs,
    draw_theirs,
    load_theirs,
    mean_loss,
    require_same_weights,
    samples,
    step,
)
from tiny_jobs import make_columns, make_job, run_here, write_rows

from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, ScheduleConfig
from ipu_model.models.families import list_families
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import read_model
from ipu_model.rows.row_folder import RowFolder
from tests.optimizers import optimizer_config

ROWS, UPDATES = 12, 4
OTHERS = {
    "albert": {"embedding_size": 8, "classifier_dropout_prob": 0.0},
    "deberta-v2": {"relative_attention": True, "position_buckets": 8, "type_vocab_size": 0},
    "mpnet": {"pad_token_id": 1},
}
SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}


def make_theirs(family, task):
    if family not in OTHERS:
        return draw_theirs(configure_theirs(family, 0), task)
    values = {**SIZES, **STILL, "max_position_embeddings": 34, **OTHERS[family]}
    return draw_theirs(transformers.AutoConfig.for_model(family, **values), task)


def continue_theirs(folder, theirs):
    """Run the job that continues the folder of their model; return its events and what it found on held-out rows."""
    theirs.save_pretrained(folder / "theirs")
    (folder / "base").mkdir()
    import_model(folder / "theirs", folder / "base", "t" * 64)
    for name, seed in (("held-out", 4), ("rows", 3)):
        columns = make_columns("masked_lm", ROWS, seed=seed)
        if read_model(folder / "base").config.type_vocab_size == 1:
            columns["token_type_ids"][:] = 0
        manifest = write_rows(folder / name, "masked_lm", columns)
    job = make_job(
        folder,
        "pretrain",
        folder / "rows",
        head="masked_lm",
        model=None,
        init_checkpoint=str(folder / "base"),
        original=str(folder / "base"),
        evaluation=EvaluationConfig(str(folder / "held-out"), 2),
        geometry=BatchGeometry(manifest.sequences, 4),  # all rows in every update: their order does not matter
        optimizer=optimizer_config(learning_rate=RATE, weight_decay=0.0, eps=EPS),
        schedule=ScheduleConfig(steps=UPDATES, warmup_fraction=0.0, shape="constant"),
    )
    finished = run_here(job)
    return finished, json.loads((folder / "run" / "result.json").read_text())["evaluation"]


def read_samples(folder, name):
    """The sequences of a folder of rows, as their model reads them."""
    rows = RowFolder(folder / name, "masked_lm", read_model(folder / "base").config).take(np.arange(ROWS))
    types = json.loads((folder / "theirs" / "config.json").read_text()).get("type_vocab_size", 0)
    return [{name: x for name, x in sample.items() if types or name != "token_type_ids"} for sample in samples(rows)]


@pytest.mark.parametrize("family", [*list_families(), *OTHERS])
def test_a_continued_model_has_the_losses_and_weights_of_one_that_transformers_trains(tmp_path, family):
    theirs = make_theirs(family, "ForMaskedLM")
    finished, evaluation = continue_theirs(tmp_path, theirs)
    assert finished.of("note") == []
    train, held_out = read_samples(tmp_path, "rows"), read_samples(tmp_path, "held-out")
    before = mean_loss(theirs, held_out).item()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=RATE, weight_decay=0.0, eps=EPS)
    for _ in range(UPDATES):
        step(optimizer, theirs, train)
    after = mean_loss(theirs, held_out).item()
    assert abs(before - after) > 1e-4
    original = evaluation["before"]
    assert (original["figures"]["mlm_loss"], evaluation["mlm_loss"]) == pytest.approx((before, after), rel=1e-5)
    assert not original["new_head"]
    groups = np.array(original["groups"])
    assert len(groups) == ROWS
    assert (groups[:, 1] - groups[:, 0]).sum() / groups[:, 2].sum() == pytest.approx(after - before, rel=1e-3)
    require_same_weights(load_theirs(tmp_path / "model", "masked_lm").state_dict(), theirs)


@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet"])
def test_a_model_without_the_head_is_continued_with_a_new_one_and_says_so(tmp_path, family):
    finished, evaluation = continue_theirs(tmp_path, make_theirs(family, ""))
    head, *others = (x["text"] for x in finished.of("note"))
    assert "masked language modelling head" in head
    assert ["bert.pooler.dense.bias" in text for text in others] == [True] * (family == "bert")
    assert evaluation["before"]["new_head"]
