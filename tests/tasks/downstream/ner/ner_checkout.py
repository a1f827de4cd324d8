"""A small checkout for named entities: generated sentences, a tokenizer, fresh weights, device jobs in this process."""

from pathlib import Path
from typing import Any

import numpy as np

from tasks.stage import artifacts
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tests.tasks.downstream.entries import values_with, write_parameters
from tests.tasks.downstream.texts.glue_checkout import SIZE
from tests.tasks.pretraining.row_inputs import SPECIAL, WORDS
from tests.tasks.trained_checkout import write_lock

NAME = "names"
TYPES = {"place": (WORDS[:4], WORDS[4:8]), "person": (WORDS[8:12], WORDS[12:16])}
"""Type -> words that begin an entity, and words that go on with it."""
OTHERS = WORDS[16:50]
ENTRY: dict[str, dict[str, Any]] = {
    "rows": {"row_length": 32, "max_sequences_per_row": 4, "overlap": 8},
    "finetune": {"epochs": 8.0, "learning_rate": 5e-3, "micro_batch_size": 16, "checkpoint_every_updates": 0},
}


def write_sentences(path: Path, count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Entities of one to three words among other words; every tenth sentence is longer than a row."""
    generator, sentences = np.random.default_rng(seed), []
    for number in range(count):
        words: list[str] = []
        tags: list[str] = []
        while len(words) < (60 if number % 10 == 0 else generator.integers(4, 12)):
            kind, more = ["place", "person", ""][int(generator.integers(3))], int(generator.integers(3))
            first, rest = TYPES.get(kind, (OTHERS, OTHERS))
            words += [generator.choice(first), *generator.choice(rest, size=more), generator.choice(OTHERS)]
            tags += [*([f"B-{kind}", *[f"I-{kind}"] * more] if kind else ["O"] * (1 + more)), "O"]
        sentences.append((list(map(str, words)), tags))
    lines = ["".join(f"{word}\t{tag}\n" for word, tag in zip(*one, strict=True)) for one in sentences]
    path.write_text("\n".join(lines), encoding="utf-8")
    return sentences


def make_checkout(folder: Path, data: Path) -> Path:
    paths = {"train_path": str(data / "train.conll"), "dev_path": str(data / "dev.conll")}
    entry = {"kind": "ner", "data": paths, **ENTRY}
    return write_checkout(folder, values_with({"squad": None, NAME: entry}, pretrain={"enabled": False}, model=SIZE))


def write_checkout(folder: Path, values: dict[str, Any]) -> Path:
    """params.yaml of these values, its plan, a dvc.lock as if all had run, and a tokenizer of WORDS."""
    values["tokenizer"] |= {"source": "file", "path": str(folder / "vocab.txt")}
    params = write_parameters(folder, values)
    write_lock(folder, params)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in [*SPECIAL, *WORDS]))
    (folder / "inputs/ipu").mkdir(parents=True)
    (folder / artifacts.TOKENIZER).mkdir(parents=True)
    made = make_wordpiece((*SPECIAL, *WORDS), lowercase=True)
    made.write(params.model.max_positions, folder / artifacts.TOKENIZER)
    return folder


def conlleval(gold: list[str], found: list[str]) -> tuple[int, int, int]:
    """Entities there, found and correct of one sentence, word by word as the script goes (startOfChunk, endOfChunk)."""

    def ends(before: list[str], tag: list[str]) -> bool:
        return (before[0] in "BI" and tag[0] in "BO") or (before[0] != "O" and before[1] != tag[1])

    def starts(before: list[str], tag: list[str]) -> bool:
        return tag[0] == "B" or (before[0] == "O" and tag[0] == "I") or (tag[0] != "O" and before[1] != tag[1])

    there = guessed = correct = 0
    inside = False
    last = [["O", ""], ["O", ""]]
    for pair in zip([*gold, "O"], [*found, "O"], strict=True):
        now = [[*tag.split("-", 1), ""][:2] for tag in pair]
        ended = [ends(last[side], now[side]) for side in (0, 1)]
        if inside and all(ended) and last[0][1] == last[1][1]:
            inside, correct = False, correct + 1
        elif inside and (ended[0] != ended[1] or now[0][1] != now[1][1]):
            inside = False
        started = [starts(last[side], now[side]) for side in (0, 1)]
        if all(started) and now[0][1] == now[1][1]:
            inside = True
        there, guessed = there + started[0], guessed + started[1]
        last = now
    return there, guessed, correct
