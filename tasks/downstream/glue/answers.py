"""What a GLUE model answered, beside the truth: labels, logits and predictions of the development sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.glue.scores import Values
from tasks.downstream.glue.tasks import GlueTask
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import read_json
from tasks.reading.parquet import read_batches
from tasks.rows.row_files import from_arrow


@dataclass(frozen=True)
class Examples:
    """A development set."""

    texts: list[str]
    """The two texts of a pair stand on both sides of a tab."""
    labels: Values
    """[examples] class numbers, or values."""


def read_examples(task: GlueTask, split: str, root: Path = Path()) -> Examples:
    """The examples of a development set.

    Raises:
        InputError: missing or damaged.
    """
    path = root / artifacts.glue_folder(task.name) / f"{split}.parquet"
    batches = list(read_batches(path, ("first", "second", "label"), 65536, "glue_data"))
    texts = [
        "\t".join(part for part in pair if part is not None)
        for batch in batches
        for pair in zip(batch.column("first").to_pylist(), batch.column("second").to_pylist(), strict=True)
    ]
    if not texts:
        raise InputError(f"{path} holds no example; run the stage glue_data@{task.name} again")
    return Examples(texts, np.concatenate([from_arrow(batch.column("label")).astype(np.float64) for batch in batches]))


def read_labels(task: GlueTask, root: Path = Path()) -> dict[str, Values]:
    """Labels of every development set.

    Raises:
        InputError: missing or damaged.
    """
    found = {}
    for split in task.splits[1:]:
        path = root / artifacts.glue_folder(task.name) / f"{split}.parquet"
        if not path.is_file():
            raise InputError(f"{path} is not there; run the stage glue_data@{task.name}")
        column = pq.read_table(path, columns=["label"]).column("label").combine_chunks()
        found[split] = from_arrow(column).astype(np.float64)
    return found


def read_logits(task: GlueTask, split: str, examples: int, root: Path = Path()) -> Values:
    """Logits [examples, classes] of a development set; [examples, 1] of a regression.

    Raises:
        InputError: missing, damaged, or of other examples.
    """
    path = root / artifacts.glue_logits(task.name, split)
    again = f"run the stage glue_predict@{task.name} again"
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all().combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); {again}") from None
    numbers = from_arrow(table.column("feature_id").combine_chunks())
    flat = from_arrow(table.column("logits").combine_chunks().flatten()).astype(np.float64)
    if len(numbers) != examples or (numbers != np.arange(examples)).any() or len(flat) != examples * len(task.labels):
        raise InputError(
            f"{path} holds {len(flat)} logits of {len(numbers)} examples, required are {len(task.labels)} for each of "
            f"{examples}; {again}"
        )
    return flat.reshape(examples, len(task.labels))


def predictions_of(task: GlueTask, logits: Values) -> Values:
    """Class numbers, or values cut to what the task allows, [examples]."""
    if not task.is_regression:
        return logits.argmax(axis=1).astype(np.float64)
    low, high = task.limits or (-np.inf, np.inf)
    return np.clip(logits[:, 0], low, high)


def predictions_json(task: GlueTask, predictions: Mapping[str, Values]) -> dict[str, list[float] | list[int]]:
    """What predictions.json holds: by development set, in order of its examples, class numbers or values."""
    if task.is_regression:
        return {split: [round(x, 6) for x in values.tolist()] for split, values in predictions.items()}
    return {split: values.astype(int).tolist() for split, values in predictions.items()}


def read_predictions(task: GlueTask, path: Path) -> dict[str, Values]:
    """predictions.json of a model.

    Raises:
        InputError: missing, damaged, or of another task.
    """
    try:
        values = read_json(path)
        found = {split: np.array(values[split], dtype=np.float64) for split in task.splits[1:]}
    except FileNotFoundError:
        raise InputError(f"{path} is not there; run the stage glue_evaluate@{task.name}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no predictions of {', '.join(task.splits[1:])} ({error!r})") from None
    check_predictions(task, path, found)
    return found


def check_predictions(task: GlueTask, path: Path, found: Mapping[str, Values]) -> None:
    """Raises: InputError, where the file `path` holds no list of answers that the task allows."""
    for split, numbers in found.items():
        low, high = task.limits or (0, len(task.labels) - 1)
        if numbers.ndim != 1 or not len(numbers) or not ((numbers >= low) & (numbers <= high)).all():
            raise InputError(f"{path}: {split} must be a list of numbers from {low:g} to {high:g}")
