"""A small checkout for texts with the user's labels: generated tables, a tokenizer, fresh weights."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tests.tasks.downstream.entries import part_of, values_with
from tests.tasks.downstream.ner.ner_checkout import write_checkout
from tests.tasks.downstream.texts.glue_checkout import SIZE
from tests.tasks.pretraining.row_inputs import WORDS

NAME = "mine"
CLASSES = ("angry", "happy", "sad")
ENTRY: dict[str, dict[str, Any]] = {
    "rows": {"row_length": 32, "max_sequences_per_row": 4},
    "finetune": {"epochs": 8.0, "learning_rate": 5e-3, "micro_batch_size": 16, "checkpoint_every_updates": 0},
}


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def write_texts(path: Path, count: int, seed: int, *, pairs: bool = False, regression: bool = False) -> list[list[str]]:
    """A CSV whose first word of the last text says the label; the rows of it."""
    generator, rows = np.random.default_rng(seed), []
    for _ in range(count):
        number = int(generator.integers(5 if regression else len(CLASSES)))
        texts = [" ".join(generator.choice(WORDS[10:], generator.integers(3, 9))) for _ in range(1 + pairs)]
        texts[-1] = f"{WORDS[number]} {texts[-1]}"
        rows.append([*texts, f"{number / 2:g}" if regression else CLASSES[number]])
    write_csv(path, [*(["sentence1", "sentence2"] if pairs else ["text"]), "label"], rows)
    return rows


def values_of(
    data: Mapping[str, Any], *, regression: bool = False, multilabel: bool = False, **sections: Any
) -> dict[str, Any]:
    """Parameters with an entry alone that reads `data`, whose development file may be the training file."""
    parts = {section: {**ENTRY.get(section, {}), **sections.get(section, {})} for section in {**ENTRY, **sections}}
    form = {"regression": regression, "multilabel": multilabel}
    entry = {"kind": "classification", **form, "data": {"max_common_share": 1.0, **data}, **parts}
    return values_with({"squad": None, NAME: entry}, pretrain={"enabled": False}, model=SIZE)


def part(name: str, data: Mapping[str, Any], **more: Any) -> Any:
    return part_of(find_entry(validate_params(values_of(data, **more)), NAME), name)


def make_checkout(folder: Path, data: Mapping[str, Any], **more: Any) -> Path:
    return write_checkout(folder, values_of(data, **more))


def published_logits(folder: Path, texts: list[list[str]]) -> tuple[np.ndarray, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        found = [model(**tokenizer(*one, return_tensors="pt")).logits[0].numpy() for one in texts]
    return np.array(found), model.config
