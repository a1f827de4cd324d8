"""The rows that are trained on: the user's own texts and questions, or generated ones, through the project's stages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.setup import VOCABULARY
from tasks import artifacts
from tasks.corpus import make_corpus
from tasks.errors import InputError
from tasks.overlays import resolve
from tasks.params import Params, check
from tasks.pretrain_rows import write_pretrain_rows
from tasks.questions import make_questions
from tasks.squad_rows import write_squad_rows
from tasks.strict_yaml import read_yaml
from tasks.tokenizer import make_tokenizer

WORK = artifacts.RUNS / "bench"
SETTINGS = (
    "pretrain_rows.phase1.row_length=128", "pretrain_rows.phase1.duplicates=5",
    "squad_rows.row_length=384", "squad_rows.doc_stride=128",
    f"tokenizer.vocabulary_size={VOCABULARY}",
)  # fmt: skip
"""128 tokens and five maskings as in the original BERT's data, 384 / 128 as in its SQuAD recipe."""


@dataclass(frozen=True)
class Data:
    """Made row folders, and where they come from."""

    folder: Path
    source: str
    """For people."""

    @property
    def rows(self) -> dict[str, str]:
        """Name -> row folder."""
        return {name: str(self.folder / "rows" / name) for name in ("phase1", "squad-train", "squad-dev")}


def make_data(given: Path | None, vocabulary: Path | None) -> Data:
    """Rows of the texts and questions under `given`, made once and kept for the next run.

    Args:
        given: Folder with wikitext/ (text), squad/*train*.json, squad/*dev*.json and vocab/*.txt; None generates.
        vocabulary: A vocab.txt; wins over that of `given`.

    Raises:
        InputError: something is missing there.
    """
    settings, source = _settings(given, vocabulary)
    digest = hashlib.sha256(json.dumps([settings, _sizes(given)]).encode()).hexdigest()[:12]
    folder = WORK / f"data-{digest}"
    if not folder.exists():
        with artifacts.new_folder(folder) as partial:
            _write(check(resolve(read_yaml(artifacts.PARAMS), None, settings)), partial)
    return Data(folder, source)


def _settings(given: Path | None, vocabulary: Path | None) -> tuple[list[str], str]:
    settings = list(SETTINGS)
    source = "generated world (tasks/world.py)"
    if given is not None:
        train, dev = _only(given, "squad/*train*.json"), _only(given, "squad/*dev*.json")
        settings += ["corpus.source=files", f"corpus.path={given / 'wikitext'}", "questions.source=files",
                     f"questions.train_path={train}", f"questions.dev_path={dev}"]  # fmt: skip
        source = f"{given.name}: wikitext, {train.name}, {dev.name}"
        vocabulary = vocabulary or _only(given, "vocab/*.txt")
    if vocabulary is None:
        return settings, f"{source}, vocabulary trained on it"
    return [
        *settings,
        "tokenizer.source=file",
        f"tokenizer.path={vocabulary}",
    ], f"{source}, vocabulary {vocabulary.name}"


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise InputError(f"{folder} holds {len(found)} files {pattern}, exactly one is required: see bench/README.md")
    return found[0]


def _sizes(given: Path | None) -> list[Any]:
    """So that other data under the same path are made into rows again."""
    files = [] if given is None else sorted(path for path in given.rglob("*") if path.is_file())
    return [(str(path), path.stat().st_size) for path in files]


def _write(params: Params, folder: Path) -> None:
    corpus, tokenizer, questions = folder / "corpus", folder / "tokenizer", folder / "questions"
    make_corpus(params.corpus, corpus)
    make_tokenizer(params.tokenizer, params.model.max_positions, corpus, tokenizer)
    make_questions(params.questions, questions)
    write_pretrain_rows(params.pretrain_rows, "phase1", corpus, tokenizer, folder / "rows" / "phase1")
    for split in ("train", "dev"):
        rows = folder / "rows" / f"squad-{split}"
        write_squad_rows(params.squad_rows, split, questions / f"{split}.parquet", tokenizer, rows)
