"""Benchmark data: your own or generated texts and questions, converted to rows by the project's stages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from bench.generated import write_generated
from bench.setup import VOCABULARY
from ipu_model.core.files import new_folder
from tasks.corpus.corpus import make_corpus
from tasks.downstream.kind import kind_of
from tasks.downstream.packed_rows import write_rows
from tasks.downstream.squad.examples import make_questions
from tasks.downstream.squad.params import SquadDataParams
from tasks.params.entries import find_entry
from tasks.params.overlays import resolve
from tasks.params.schema import Params, validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.vocabulary.tokenizer import make_tokenizer

WORK = artifacts.RUNS / "bench"
SETTINGS = (
    "pretrain_rows.phase1.row_length=128",
    "pretrain_rows.phase1.duplicates=5",
    "downstream.squad.rows.row_length=384",
    "downstream.squad.rows.doc_stride=128",
    f"tokenizer.vocabulary_size={VOCABULARY}",
)
"""128 tokens and five maskings as in the data of the original BERT, 384 / 128 as in its SQuAD recipe."""


@dataclass(frozen=True)
class Data:
    """Corpus, questions, tokenizer and rows in one folder, with their source."""

    folder: Path
    stages: tuple[str, ...]
    """Overrides of params.yaml, section.key=value."""
    source: str
    """Description of the source, for reports."""

    @property
    def corpus(self) -> Path:
        """Folder of the corpus stage."""
        return self.folder / "corpus"

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer stage."""
        return self.folder / "tokenizer"

    def questions(self, split: str) -> Path:
        """Parquet file of a split."""
        return self.folder / "questions" / f"{split}.parquet"

    def pretrain_rows(self, row_length: int = 128, corpus: Path | None = None) -> Path:
        """Return the folder of rows of this length, of this or another corpus; make them on first use."""
        corpus = corpus or self.corpus
        folder = self.folder / "rows" / f"{corpus.name}-{row_length}"
        if not folder.exists():
            own = (f"pretrain_rows.phase1.row_length={row_length}", "pretrain_rows.held_out_fraction=0.0")
            stages = (*self.stages, *own)  # no held-out rows, because the peer trains on the whole text
            write_pretrain_rows(resolve_params(stages).pretrain_rows, "phase1", corpus, self.tokenizer, folder)
        return folder

    def squad_rows(self, split: str) -> Path:
        """Return the folder of rows of train or dev; make them on first use."""
        folder = self.folder / "rows" / f"squad-{split}"
        if not folder.exists():
            entry = find_entry(resolve_params(self.stages), "squad")
            write_rows(kind_of(entry).encoder(entry), split, self.questions(split), self.tokenizer, folder)
        return folder

    def sized_corpus(self, share: float) -> Path:
        """Return a corpus of the first `share` of the documents, above 1 of that many copies; make it on first use."""
        folder = self.folder / f"corpus-{share:g}"
        if not folder.exists():
            whole = pa.concat_tables(pq.read_table(path) for path in sorted(self.corpus.glob("*.parquet")))
            parts = [whole] * int(share) if share >= 1 else [whole.slice(0, max(1, round(share * whole.num_rows)))]
            with new_folder(folder) as partial:
                pq.write_table(pa.concat_tables(parts), partial / "part-00000.parquet", row_group_size=1024)
        return folder


def resolve_params(stages: tuple[str, ...] | list[str]) -> Params:
    """Return params.yaml with the overrides `stages`."""
    return validate_params(resolve(read_yaml(artifacts.PARAMS), None, stages))


def make_data(folder: Path | None, vocabulary: Path | None) -> Data:
    """Make corpus, questions and tokenizer from the files in `folder`, once; later runs reuse them.

    Args:
        folder: Contains corpus/ or wikitext/ (text), squad/*train*.json, squad/*dev*.json and, without
            `vocabulary`, vocab/*.txt; None generates all but the vocabulary.
        vocabulary: A vocab.txt; None with generated texts trains one on them.

    Raises:
        InputError: a file is missing.
    """
    source = "generated articles and questions"
    if folder is None:
        folder = WORK / "generated"
        if not folder.exists():
            write_generated(folder)
    else:
        source = f"{folder.name}: text and {_only(folder, 'squad/*train*.json').name}"
        vocabulary = vocabulary or _only(folder, "vocab/*.txt")
    stages = _stages(folder, vocabulary)
    words = "a vocabulary trained on it" if vocabulary is None else f"vocabulary {vocabulary.name}"
    digest = hashlib.sha256(json.dumps([stages, _sizes(folder)]).encode()).hexdigest()[:12]
    data = Data(WORK / f"data-{digest}", stages, f"{source}, {words}")
    if not data.folder.exists():
        with new_folder(data.folder) as partial:
            _write(resolve_params(stages), Data(partial, stages, ""))
    return data


def _stages(folder: Path, vocabulary: Path | None) -> tuple[str, ...]:
    text = folder / ("corpus" if (folder / "corpus").exists() else "wikitext")
    files = (
        "corpus.source=files",
        f"corpus.path={text}",
        "downstream.squad.data.source=files",
        f"downstream.squad.data.train_path={_only(folder, 'squad/*train*.json')}",
        f"downstream.squad.data.dev_path={_only(folder, 'squad/*dev*.json')}",
    )
    words = () if vocabulary is None else ("tokenizer.source=file", f"tokenizer.path={vocabulary}")
    return (*SETTINGS, *files, *words)


def _only(folder: Path, pattern: str) -> Path:
    paths = sorted(folder.glob(pattern))
    if len(paths) != 1:
        raise InputError(f"{folder} has {len(paths)} files {pattern}, exactly one is required: see bench/README.md")
    return paths[0]


def _sizes(folder: Path) -> list[Any]:
    """Return names and sizes of all files, so that rows are made again when files change."""
    return [(str(path), path.stat().st_size) for path in sorted(folder.rglob("*")) if path.is_file()]


def _write(params: Params, data: Data) -> None:
    make_corpus(params.corpus, data.corpus)
    make_tokenizer(params.tokenizer, params.model.max_positions, data.corpus, data.tokenizer)
    make_questions(cast(SquadDataParams, params.downstream["squad"].data), data.questions("train").parent)
