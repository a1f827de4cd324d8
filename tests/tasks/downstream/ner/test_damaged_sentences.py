"""Files of sentences that were damaged anyhow end in sentences or in one clear error, never in anything else."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.ner.params import NerDataParams
from tasks.downstream.ner.sentences import TagStatistics, open_sentences, read_sentences
from tasks.records.interpretation import Interpretation
from tasks.records.tags import find_inside_starts, find_problem
from tasks.stage.errors import PodiumError
from tests.fuzzing import damaged_bytes, damaged_json, require_clean

WORDS, TAGS = ["Ada", "of", "New", "Yörk"], ["B-person", "O", "B-place", "I-place"]
RECORD = {"tokens": WORDS, "ner_tags": TAGS}
COUNT = 150


def content(ending: str) -> bytes:
    if ending == ".conll":
        return (
            b"-DOCSTART- O\n\n# x = y\n"
            + "".join(
                f"{word} X {tag}\n{'' if number % 2 else chr(10)}"
                for number, (word, tag) in enumerate(zip(WORDS * 3, TAGS * 3, strict=True))
            ).encode()
        )
    sink = io.BytesIO()
    pq.write_table(pa.table({name: [values] * 4 for name, values in RECORD.items()}), sink)
    return sink.getvalue()


def read(path: Path) -> None:
    """Read it all; what comes out must be sound."""
    params = NerDataParams(train_path=str(path), dev_path="x")
    records = open_sentences(params, "downstream.names.data", "train", Interpretation())
    for _, words, tags, *_ in read_sentences(records, params, TagStatistics(), Interpretation()):
        assert len(words) == len(tags) > 0
        assert not any(map(find_problem, tags))
        assert not find_inside_starts(tags)


@pytest.mark.parametrize("ending", [".conll", ".jsonl", ".parquet"])
def test_damaged_files_end_in_one_clear_error(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"train{ending}"
    cases: Any = damaged_json(RECORD, COUNT) if ending == ".jsonl" else damaged_bytes(content(ending), COUNT)
    good = json.dumps(RECORD).encode() if ending == ".jsonl" else content(ending)
    path.write_bytes(good)
    read(path)
    for what, data in cases:
        path.write_bytes(data)
        require_clean(lambda: read(path), f"{ending}, {what}", PodiumError)
