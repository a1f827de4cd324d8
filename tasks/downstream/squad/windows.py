"""The windows of every question with their logits: features.parquet and logits.arrow, joined and checked.

Legend: F windows (features), C context tokens of all windows together, E examples (questions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.project.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True)
class Windows:
    """Every window of every example, in order of feature id, context tokens only."""

    example_index: Array
    """int [F]: line of the questions; not decreasing."""
    bounds: Array
    """int [F + 1]: window f owns the context tokens bounds[f] to bounds[f + 1]."""
    characters: Array
    """int [C, 2]: start and end of each token in its context."""
    start_logits: Array
    """float32 [C]."""
    end_logits: Array
    """float32 [C]."""
    cls_logits: Array
    """float32 [F, 2]: start and end logit of each window's [CLS]."""

    def __len__(self) -> int:
        return len(self.example_index)

    def windows_of_examples(self, examples: int) -> list[int]:
        """How many windows each of the first `examples` examples has."""
        counts: list[int] = np.bincount(self.example_index, minlength=examples).tolist()
        return counts


def example_ids(features: Path) -> list[str]:
    """The id of every example that has a window, in order.

    Raises:
        InputError: features.parquet cannot be read.
    """
    return list(dict.fromkeys(_read_features(features)["example_id"].tolist()))


def read_windows(features: Path, logits: Path, example_ids: Sequence[str]) -> Windows:
    """Join features.parquet and logits.arrow, checked against each other and the questions.

    Args:
        features: windows of the examples (tasks.downstream.squad.rows writes it).
        logits: what the predict job wrote for them.
        example_ids: id of every example, in the order of the questions, [E].

    Raises:
        InputError: a file that cannot be read; logits that miss a feature, have another length than its
            tokens or are not finite; features of other questions, or an example without a feature.
    """
    table = _read_features(features)
    _check_examples(table, example_ids, features)
    counts = np.diff(table["bounds"])
    starts, ends = _read_logits(logits, table["n_tokens"])
    first_token = np.concatenate(([0], np.cumsum(table["n_tokens"])))[:-1]
    within = np.arange(counts.sum()) - np.repeat(table["bounds"][:-1], counts)
    position = np.repeat(first_token + table["context_start"], counts) + within
    return Windows(
        example_index=table["example_index"],
        bounds=table["bounds"],
        characters=table["characters"],
        start_logits=starts[position],
        end_logits=ends[position],
        cls_logits=np.stack([starts[first_token], ends[first_token]], axis=1),
    )


def _read_features(path: Path) -> dict[str, Array]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["feature_id", "example_id", "example_index", "n_tokens", "context_start", "offsets"]
    try:
        table = pq.read_table(path, columns=names).combine_chunks()
    except FileNotFoundError:
        raise InputError(f"{path} is not there; run its stage of rows") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read as features ({error}); run its stage of rows again") from None
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise InputError(f"{path} lacks the columns {', '.join(missing)}; run its stage of rows again")
    columns = {n: table[n].to_numpy() for n in names[:5]}
    if not np.array_equal(columns["feature_id"], np.arange(table.num_rows)):
        raise InputError(f"{path}: feature_id must count 0, 1, ... line by line; run its stage of rows again")
    lengths = np.asarray(table["offsets"].combine_chunks().value_lengths())
    flat = table["offsets"].combine_chunks().flatten().to_numpy()
    if (lengths % 2).any():
        raise InputError(f"{path}: offsets must be pairs of start and end; run its stage of rows again")
    columns["characters"] = flat.reshape(-1, 2)
    columns["bounds"] = np.concatenate(([0], np.cumsum(lengths // 2, dtype=np.int64)))
    over = columns["context_start"] + lengths // 2 > columns["n_tokens"]
    if over.any():
        raise InputError(
            f"{path}: feature {int(np.argmax(over))} has more context tokens than tokens; run its stage of rows again"
        )
    return columns


def _check_examples(table: dict[str, Array], example_ids: Sequence[str], path: Path) -> None:
    index = table["example_index"]
    if len(index) and (index.min() < 0 or index.max() >= len(example_ids)):
        raise InputError(
            f"{path} speaks of question {int(index.max())}, there are {len(example_ids)}; run its stage of rows again"
        )
    wanted = np.asarray(example_ids, dtype=object)[index]
    other = np.flatnonzero(wanted != table["example_id"].astype(object))
    if len(other):
        line = int(other[0])
        raise InputError(
            f"{path}: feature {line} belongs to question {table['example_id'][line]!r}, the questions have "
            f"{wanted[line]!r} in its place; run its stage of rows again"
        )
    missing = np.setdiff1d(np.arange(len(example_ids)), index)
    if len(missing):
        raise InputError(
            f"{path} has no feature for {len(missing)} of {len(example_ids)} questions, first "
            f"{example_ids[int(missing[0])]!r}; run its stage of rows again"
        )


def _read_logits(path: Path, n_tokens: Array) -> tuple[Array, Array]:
    """Flat start and end logits, window after window, each of its n_tokens values."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all().combine_chunks()
    except FileNotFoundError:
        raise InputError(f"{path} is not there; run the stage predict") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read as logits ({error}); run the stage predict again") from None
    missing = [n for n in ("feature_id", "start_logits", "end_logits") if n not in table.column_names]
    if missing:
        raise InputError(f"{path} lacks the columns {', '.join(missing)}; run the stage predict again")
    ids = table["feature_id"].to_numpy()
    if not np.array_equal(ids, np.arange(len(n_tokens))):
        absent = np.setdiff1d(np.arange(len(n_tokens)), ids)
        what = f"misses feature {absent[0]}" if len(absent) else "has unknown, repeated or unsorted features"
        raise InputError(f"{path} {what}: {len(ids)} lines for {len(n_tokens)} features; run the stage predict again")
    return _flat(table["start_logits"], n_tokens, path), _flat(table["end_logits"], n_tokens, path)


def _flat(column: Any, n_tokens: Array, path: Path) -> Array:
    lists = column.combine_chunks()
    lengths = np.asarray(lists.value_lengths().fill_null(-1))
    other = np.flatnonzero(lengths != n_tokens)
    if len(other):
        line = int(other[0])
        raise InputError(
            f"{path}: feature {line} has {lengths[line]} logits, its window has {n_tokens[line]} tokens; "
            "rows and predictions belong to different runs, run the stage predict again"
        )
    values: Array = lists.flatten().to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        line = int(np.searchsorted(np.cumsum(n_tokens), bad[0], side="right"))
        raise InputError(
            f"{path}: a logit of feature {line} is {values[bad[0]]}, all must be finite; the model is not "
            "usable (its training diverged, or precision is too low: try device.precision fp32)"
        )
    return values
