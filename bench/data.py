"""The rows that are trained on: the user's own texts and questions, or generated ones, through the project's stages."""

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
from ipu_model.files import new_folder
from tasks.corpus.corpus import make_corpus
from tasks.downstream.rows import write_rows
from tasks.downstream.squad.examples import make_questions
from tasks.downstream.squad.params import QuestionsParams
from tasks.params.entries import entry_of
from tasks.params.overlays import resolve
from tasks.params.schema import Params, check
from tasks.params.strict_yaml import read_yaml
from tasks.plan.kinds import part_of
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
"""128 tokens and five maskings as in the original BERT's data, 384 / 128 as in its SQuAD recipe."""


@dataclass(frozen=True)
class Data:
    """Corpus, questions, tokenizer and rows in one folder, and where they come from."""

    folder: Path
    stages: tuple[str, ...]
    """section.key=value laid over params.yaml."""
    source: str
    """For people."""

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
        """Rows of this length over the corpus (or another one), made when first asked for."""
        corpus = corpus or self.corpus
        folder = self.folder / "rows" / f"{corpus.name}-{row_length}"
        if not folder.exists():
            own = (f"pretrain_rows.phase1.row_length={row_length}", "pretrain_rows.held_out_fraction=0.0")
            stages = (*self.stages, *own)  # the peer trains on all of the text
            write_pretrain_rows(params_for(stages).pretrain_rows, "phase1", corpus, self.tokenizer, folder)
        return folder

    def squad_rows(self, split: str) -> Path:
        """Rows of train or dev, made when first asked for."""
        folder = self.folder / "rows" / f"squad-{split}"
        if not folder.exists():
            task = part_of(entry_of(params_for(self.stages), "squad"), "rows")
            write_rows(task, split, self.questions(split), self.tokenizer, folder)
        return folder

    def sized_corpus(self, share: float) -> Path:
        """The first `share` of the documents, or, above 1, all of them so many times; made when first asked for."""
        folder = self.folder / f"corpus-{share:g}"
        if not folder.exists():
            whole = pa.concat_tables(pq.read_table(path) for path in sorted(self.corpus.glob("*.parquet")))
            parts = [whole] * int(share) if share >= 1 else [whole.slice(0, max(1, round(share * whole.num_rows)))]
            with new_folder(folder) as partial:
                pq.write_table(pa.concat_tables(parts), partial / "part-00000.parquet", row_group_size=1024)
        return folder


def params_for(stages: tuple[str, ...] | list[str]) -> Params:
    """params.yaml with `stages` laid over it."""
    return check(resolve(read_yaml(artifacts.PARAMS), None, stages))


def make_data(given: Path | None, vocabulary: Path | None) -> Data:
    """Corpus, questions and tokenizer from the files under `given`, made once and kept for the next run.

    Args:
        given: Folder with corpus/ or wikitext/ (text), squad/*train*.json, squad/*dev*.json and, where
            `vocabulary` is not given, vocab/*.txt; None generates all but the vocabulary.
        vocabulary: A vocab.txt; None with generated texts trains one on them.

    Raises:
        InputError: something is missing there.
    """
    source = "generated articles and questions"
    if given is None:
        given = WORK / "generated"
        if not given.exists():
            write_generated(given)
    else:
        source = f"{given.name}: text and {_only(given, 'squad/*train*.json').name}"
        vocabulary = vocabulary or _only(given, "vocab/*.txt")
    stages = _stages(given, vocabulary)
    words = "a vocabulary trained on it" if vocabulary is None else f"vocabulary {vocabulary.name}"
    digest = hashlib.sha256(json.dumps([stages, _sizes(given)]).encode()).hexdigest()[:12]
    data = Data(WORK / f"data-{digest}", stages, f"{source}, {words}")
    if not data.folder.exists():
        with new_folder(data.folder) as partial:
            _write(params_for(stages), Data(partial, stages, ""))
    return data


def _stages(given: Path, vocabulary: Path | None) -> tuple[str, ...]:
    text = given / ("corpus" if (given / "corpus").exists() else "wikitext")
    files = (
        "corpus.source=files",
        f"corpus.path={text}",
        "downstream.squad.data.source=files",
        f"downstream.squad.data.train_path={_only(given, 'squad/*train*.json')}",
        f"downstream.squad.data.dev_path={_only(given, 'squad/*dev*.json')}",
    )
    words = () if vocabulary is None else ("tokenizer.source=file", f"tokenizer.path={vocabulary}")
    return (*SETTINGS, *files, *words)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise InputError(f"{folder} holds {len(found)} files {pattern}, exactly one is required: see bench/README.md")
    return found[0]


def _sizes(given: Path) -> list[Any]:
    """So that other files under the same path are made into rows again."""
    return [(str(path), path.stat().st_size) for path in sorted(given.rglob("*")) if path.is_file()]


def _write(params: Params, data: Data) -> None:
    make_corpus(params.corpus, data.corpus)
    make_tokenizer(params.tokenizer, params.model.max_positions, data.corpus, data.tokenizer)
    make_questions(cast(QuestionsParams, params.downstream["squad"].data), data.questions("train").parent)
