"""Generated texts with labels, sentences with entities, the parameters of an entry, and its published logits."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tests.tasks.downstream.entries import part_of, values_with
from tests.tasks.downstream.texts.glue_checkout import SIZE, own_logits
from tests.tasks.pretraining.row_inputs import WORDS

NAME = "mine"
CLASSES = ("angry", "happy", "sad")
TYPES = {"place": (WORDS[:4], WORDS[4:8]), "person": (WORDS[8:12], WORDS[12:16])}
"""Type -> words that begin an entity, and words that go on with it."""
OTHERS = WORDS[16:50]
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


def write_sentences(path: Path, count: int, seed: int) -> None:
    """Entities of one to three words among other words; every tenth sentence is longer than a row."""
    generator, sentences = np.random.default_rng(seed), []
    for number in range(count):
        lines: list[str] = []
        while len(lines) < (60 if number % 10 == 0 else generator.integers(4, 12)):
            kind, more = ["place", "person", ""][int(generator.integers(3))], int(generator.integers(3))
            first, rest = TYPES.get(kind, (OTHERS, OTHERS))
            words = [generator.choice(first), *generator.choice(rest, size=more), generator.choice(OTHERS)]
            tags = [f"B-{kind}", *[f"I-{kind}"] * more, "O"] if kind else ["O"] * (2 + more)
            lines += [f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)]
        sentences.append("".join(lines))
    path.write_text("\n".join(sentences), encoding="utf-8")


def values_of(data: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """Parameters with an entry alone that reads `data`, whose development file may be the training file."""
    shape = {section: {**values, **sections.pop(section, {})} for section, values in ENTRY.items()}
    entry = {"kind": "classification", "data": {"max_common_share": 1.0, **data}, **shape, **sections}
    return values_with({"squad": None, NAME: entry}, pretrain={"enabled": False}, model=SIZE)


def part(name: str, data: Mapping[str, Any], **sections: Any) -> Any:
    return part_of(find_entry(validate_params(values_of(data, **sections)), NAME), name)


def require_published_logits(folder: Path, texts: list[list[str]]) -> tuple[np.ndarray, Any]:
    """The logits and config of the published model in transformers, whose logits are those of stage predict."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "published" / NAME)
    model = AutoModelForSequenceClassification.from_pretrained(folder / "published" / NAME).eval()
    with torch.no_grad():
        logits = np.array([model(**tokenizer(*row, return_tensors="pt")).logits[0].numpy() for row in texts])
    np.testing.assert_allclose(own_logits(folder, NAME), logits, rtol=1e-4, atol=1e-5)
    return logits, model.config
