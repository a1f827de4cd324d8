"""A small checkout for pairs: generated texts, a base model with its tokenizer, device jobs in this process."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from tests.tasks.downstream.entries import values_with, write_parameters
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import SIZE
from tests.tasks.pretraining.row_inputs import WORDS
from tests.tasks.trained_checkout import write_lock

NAME = "search"
PERMITTED = {"max_common_share": 1.0, "missing_texts": "keep"}
"""The generated texts are few, and one of the words is nan."""


def write_pairs(path: Path, count: int, seed: int) -> list[tuple[str, str]]:
    """Questions of one or two words of the second half, which stand for words of the first: no word is in both."""
    random, pairs, half = np.random.default_rng(seed), [], len(WORDS) // 2
    for _ in range(count):
        own = random.choice(half, size=int(random.integers(1, 3)), replace=False)
        others = " ".join(WORDS[half + n] for n in own)
        pairs.append((others, " ".join(WORDS[n] for n in [*own, *own])))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("question", "passage"), *pairs])
    return pairs


def make_checkout(folder: Path, **sections: dict[str, Any]) -> Path:
    """params.yaml with an entry that starts from a base model, its plan, and a dvc.lock as if all had run."""
    data, base = folder / "data-in", folder / "base-in"
    data.mkdir(parents=True)
    write_pairs(data / "train.csv", 400, seed=0)
    write_pairs(data / "dev.csv", 40, seed=1)
    write_head_model(base, "masked_lm", (), WORDS)
    entry: dict[str, Any] = {
        "kind": "pairs",
        "data": {"train_path": str(data / "train.csv"), "dev_path": str(data / "dev.csv"), **PERMITTED},
        "rows": {"row_length": 32, **sections.pop("rows", {})},
        "finetune": {"epochs": 8.0, "learning_rate": 1e-2, "global_batch_size": 40, "checkpoint_every_updates": 0},
        **sections,
    }
    values = values_with(
        {"squad": None, NAME: entry},
        pretrain={"enabled": False},
        model={**SIZE, "max_positions": 64},
        base_model={"source": "folder", "path": str(base)},
        tokenizer={"source": "file", "path": str(base)},
        device={"runtime": "cpu", "precision": "fp32"},
    )
    write_lock(folder, write_parameters(folder, values))
    return folder
