"""Search of a file for the texts nearest to a text, by their embeddings."""

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.inference.job import InferenceOptions
from tasks.downstream.inference.model import InferenceModel
from tasks.downstream.inference.predict import PredictionOutput, find_vector, predict
from tasks.downstream.kind import kind_of
from tasks.params.entries import Entry
from tasks.stage.errors import ParamsError
from tasks.stage.scratch import scratch_folder


class NearText(NamedTuple):
    """A text of the file."""

    similarity: float
    """Cosine of both embeddings."""
    id: str
    text: str


def search(
    entry: Entry, model: InferenceModel, path: Path, text: str, top: int, how: InferenceOptions
) -> tuple[list[NearText], int]:
    """Return the nearest texts of the file `path`, the nearest first, and the number of its texts.

    Raises:
        ParamsError: the model has no embeddings.
        InputError, DeviceJobFailed: see `predict`.
    """
    task = kind_of(entry).inference(entry)
    if (vector := find_vector(task.record_schema(model.labels, 0))) is None:
        raise ParamsError(f"{model.folder} has no embeddings to search with. Use podium predict")
    with scratch_folder() as folder:
        query, target = folder / "query.jsonl", folder / "vectors.parquet"
        query.write_text(json.dumps(task.make_record([text])), encoding="utf-8")
        count, _ = predict(entry, model, path, PredictionOutput(target, "parquet", with_text=True), how, first=query)
        [shown] = task.text_fields.values()
        return heapq.nlargest(top, _compare(target, vector, shown), key=lambda near: near.similarity), count - 1


def _compare(path: Path, vector: str, shown: str) -> Iterator[NearText]:
    """Yield the texts of a file of predictions after the first, compared with the first."""
    wanted = np.empty(0, np.float32)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(4096):
            flat: pa.Array = batch.column(vector).flatten()
            vectors = flat.to_numpy().reshape(len(batch), -1)
            first = not len(wanted)
            wanted = vectors[0] if first else wanted
            rows = zip(vectors @ wanted, batch.column("id").to_pylist(), batch.column(shown).to_pylist(), strict=True)
            yield from (NearText(float(score), str(name), str(text)) for score, name, text in list(rows)[int(first) :])
