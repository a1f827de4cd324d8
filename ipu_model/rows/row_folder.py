"""Reader of packed rows: row folders, batches, and the order of rows in updates.

Legend: R rows of one update, L row length, S maximum sequences per row, P maximum masked positions per row.
Rows stay in memory-mapped files; only those of the current update are copied.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

import numpy as np
import pyarrow as pa

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.core.schedules import BatchSizes
from ipu_model.rows.format import ABSENT, DOCUMENTS, IGNORED, MANIFEST, from_arrow, read_manifest
from ipu_model.rows.masking import DynamicMasking

Item = TypeVar("Item")
Made = TypeVar("Made")
Columns = Dict[str, np.ndarray]
ANY_TYPE = 256
"""Token types in rows for a model that ignores them: they are uint8."""
NO_ROW = -1
"""Number of an empty row, all padding and without labels; such rows fill the last update."""


@dataclass(frozen=True)
class Batch:
    """Rows of one update, or of one predict call, in their format on disk."""

    rows: np.ndarray
    """[R] int64: row numbers in the folder; NO_ROW for an empty row."""
    columns: Columns
    """Column name -> [R, width], with the types of `ipu_model.rows.format`."""
    class_weights: Optional[np.ndarray] = None
    """[C] fp64: weight of each class in the loss; None: all 1."""

    @property
    def sequences(self) -> int:
        return int((self.columns["cls_positions"] != ABSENT).sum())

    @property
    def real_tokens(self) -> int:
        return int((self.columns["sequence_ids"] != 0).sum())

    def labels(self, column: str) -> float:
        """Return how many slots of a label column are part of the loss, or the sum of their class weights."""
        real = self.columns[column] != IGNORED
        if self.class_weights is None:
            return int(real.sum())
        return float(self.class_weights[self.columns[column][real]].sum())

    def split(self, rows: int, short_first: bool = False) -> Iterator[Batch]:
        """Split this batch into micro-batches of that many rows; the last, or the first, may have fewer."""
        begin = -(-len(self.rows) % rows) if short_first else 0
        return (self.part(max(start, 0), start + rows) for start in range(begin, len(self.rows), rows))

    def split_by_tokens(self, tokens: int) -> Iterator[Batch]:
        """Split this batch into micro-batches of rows of similar length, the longest first, with at most `tokens` real
        tokens or one row."""
        counts = (self.columns["sequence_ids"] != 0).sum(1)
        order = np.argsort(-counts, kind="stable")
        batch = self._take(order)
        start = total = 0
        for row, count in enumerate(counts[order].tolist()):
            if row > start and total + count > tokens:
                yield batch.part(start, row)
                start, total = row, 0
            total += count
        yield batch.part(start, len(order))

    def part(self, start: int, stop: int) -> Batch:
        """Return rows start..stop-1 of this batch as a micro-batch."""
        return self._take(slice(start, stop))

    def keep_sequences(self, kept: np.ndarray) -> Batch:
        """Return the batch with some sequences only, [R, S] bool; rows of masked language modelling."""
        columns = dict(self.columns)
        sequence = np.take_along_axis(columns["sequence_ids"], columns["masked_positions"].astype(np.int64), 1)
        masked = np.take_along_axis(kept, np.maximum(sequence.astype(np.int64), 1) - 1, 1)
        columns["masked_labels"] = np.where(masked, columns["masked_labels"], IGNORED)
        columns["cls_positions"] = np.where(kept, columns["cls_positions"], ABSENT)
        if "next_sentence_labels" in columns:
            columns["next_sentence_labels"] = np.where(kept, columns["next_sentence_labels"], IGNORED)
        return Batch(self.rows, columns, self.class_weights)

    def drop_empty(self) -> Batch:
        """Return the batch without its empty rows."""
        return self._take(self.rows != NO_ROW) if NO_ROW in self.rows else self

    def _take(self, rows: Union[slice, np.ndarray]) -> Batch:
        return Batch(self.rows[rows], {name: x[rows] for name, x in self.columns.items()}, self.class_weights)


class RowFolder:
    """Access to the rows of a folder by number.

    Args:
        model: Has vocab_size, max_positions and type_vocab_size (0: it ignores token types) as limits of the rows.
        labels: Number of classes of its head; 0 without classes.
        masking_seed: Seed of dynamic masking; None: tokens stay masked as in the rows.
        class_weights: Weight of each class in the loss; None: all 1.

    Raises:
        RowsError: the rows are damaged, of another kind or schema, differ in number from the manifest, have a larger
            vocabulary than the model, or cannot be masked.
        ConfigError: the rows are longer than the positions of the model.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        model: Any,
        labels: int = 0,
        masking_seed: Optional[int] = None,
        class_weights: Optional[Sequence[float]] = None,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.sha256 = hashlib.sha256((self.folder / MANIFEST).read_bytes()).hexdigest()
        self.model = model
        self.class_weights = None if class_weights is None else np.array(class_weights, dtype=np.float64)
        self._check_against_job(kind, labels)
        self.masking_seed = masking_seed
        self._masking: Optional[DynamicMasking] = None
        manifest = self.manifest
        if masking_seed is not None:
            if manifest.mask_id is None or manifest.special_ids is None:
                raise RowsError(
                    f"the manifest of {self.folder} has no mask_id and special_ids, which dynamic masking needs: make "
                    "the rows again, or set pretrain.masking to static"
                )
            self._masking = DynamicMasking(masking_seed, manifest.mask_id, manifest.special_ids, manifest.vocab_size)
        self._starts: List[int] = []
        self._chunks: List[Tuple[str, int, Columns]] = []
        first = 0
        for name, expected in sorted(manifest.files.items()):
            first = self._open(name, first, expected)
        self._first_rows = np.array(self._starts, dtype=np.int64)
        # The rows per update depend on these counts, and counting is cheap: S small integers per row.
        sequences = sum(int((columns["cls_positions"] != ABSENT).sum()) for _, _, columns in self._chunks)
        if (first, sequences) != (manifest.rows, manifest.sequences):
            raise RowsError(
                f"{self.folder} has {first} rows and {sequences} sequences, but its manifest says {manifest.rows} and "
                f"{manifest.sequences}; make the rows again"
            )

    def read_documents(self) -> Optional[np.ndarray]:
        """Return the number of the document of each sequence, [R, S]; None if the folder does not state it.

        Raises:
            RowsError: the file does not belong to these rows.
        """
        path = self.folder / DOCUMENTS
        if not path.is_file():
            return None
        documents: np.ndarray = np.load(path)
        if documents.shape != (self.manifest.rows, self.manifest.max_sequences):
            raise RowsError(f"{path} is of other rows: make the rows again")
        return documents

    def _check_against_job(self, kind: str, labels: int) -> None:
        manifest, model = self.manifest, self.model
        if manifest.kind != kind:
            raise RowsError(f"{self.folder} has {manifest.kind} rows, but the job needs {kind} rows: change `rows`")
        if manifest.num_labels != labels:
            raise RowsError(
                f"the labels of {self.folder} have {manifest.num_labels} classes, but the model has {labels}: make "
                "rows for the task of the model"
            )
        if manifest.vocab_size > model.vocab_size:
            raise RowsError(
                f"the rows of {self.folder} use a vocabulary of {manifest.vocab_size} tokens, but the model has "
                f"{model.vocab_size}: make the rows with the model's tokenizer, or set model.vocab_size"
            )
        if manifest.text_length > model.max_positions:
            raise ConfigError(
                f"rows of {manifest.text_length} tokens in {self.folder} are longer than the model's "
                f"{model.max_positions} positions: lower row_length or raise model.max_positions"
            )

    def _open(self, name: str, first: int, expected: int) -> int:
        """Map one file; return the number of the row after its last."""
        path = self.folder / name
        schema = self.manifest.schema
        count = 0
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if not reader.schema.equals(schema):
                raise RowsError(f"{path} has the columns\n{reader.schema}\nrequired:\n{schema}\nMake the rows again.")
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                batch.validate()
                self._starts.append(first + count)
                # `values` ignores the slice of the parent array; batches read from a file have none.
                columns = {
                    field.name: from_arrow(column.values).reshape(batch.num_rows, field.type.list_size)
                    for field, column in zip(batch.schema, batch.columns)
                }
                self._chunks.append((name, count, columns))
                count += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise RowsError(f"{path} is damaged or incomplete ({error}); make the rows again") from None
        if count != expected:
            raise RowsError(f"{path} has {count} rows, but its manifest says {expected}; make the rows again")
        return first + count

    def __len__(self) -> int:
        return self.manifest.rows

    def take(self, rows: np.ndarray, epochs: Optional[np.ndarray] = None) -> Batch:
        """Copy the rows with these numbers, in this order; NO_ROW gives an empty row.

        With epochs, int64[R], tokens are masked dynamically; None: as in the files.

        Raises:
            RowsError: a value is out of the model's range; the message names the file and the row.
        """
        rows = np.asarray(rows, dtype=np.int64)
        chunks = np.searchsorted(self._first_rows, rows, side="right") - 1
        inside = rows - self._first_rows[chunks]
        by_chunk = np.argsort(chunks, kind="stable")
        groups = np.split(by_chunk, np.flatnonzero(np.diff(chunks[by_chunk])) + 1) if len(rows) else []
        kinds = self._chunks[0][2]
        columns = {name: np.empty((len(rows), x.shape[1]), dtype=x.dtype) for name, x in kinds.items()}
        for group in groups:
            if rows[group[0]] == NO_ROW:
                for column in self.manifest.columns:
                    columns[column.name][group] = column.unused
                continue
            source, in_chunk = self._chunks[chunks[group[0]]][2], inside[group]
            # In a large folder nearly every row is in a different chunk, and plain numbers index three times as
            # fast as arrays: 32 rows from almost as many chunks take 0.18 ms, or 0.53 ms with arrays.
            to, at = (group, in_chunk) if len(group) > 1 else (int(group[0]), int(in_chunk[0]))
            for name, target in columns.items():
                target[to] = source[name][at]
        batch = Batch(rows, columns, self.class_weights)
        self._check_values(batch)
        if self._masking is None or epochs is None:
            return batch
        return Batch(rows, self._masking.mask(columns, rows, epochs))

    @property
    def sizes(self) -> Dict[str, int]:
        """Upper bounds of column values, by name."""
        model = self.model
        return self.manifest.sizes(model.vocab_size, model.type_vocab_size or ANY_TYPE, model.max_positions)

    def _check_values(self, batch: Batch) -> None:
        sizes = self.sizes
        for column in self.manifest.columns:
            name, low, values = column.name, column.least, batch.columns[column.name]
            high = column.end(sizes)
            if values.size == 0 or (values.max() < high and values.min() >= low):
                continue
            row, slot = np.argwhere(~((values < high) & (values >= low)))[0]  # also finds NaN
            number = int(batch.rows[row])
            chunk = int(np.searchsorted(self._first_rows, number, side="right")) - 1
            file, offset, _ = self._chunks[chunk]
            inside = offset + number - int(self._first_rows[chunk])
            fix = "the file is damaged or was made with another tokenizer: make the rows again"
            if column.below == "type_vocab_size" and high == values[row, slot] == 1:
                fix = "pairs of texts need a model with two token types, and type_vocab_size of its config.json is 1"
            raise RowsError(
                f"{self.folder / file}, row {inside}: {name}[{slot}] is {values[row, slot]}, required: at least {low} "
                f"and below {high}; {fix}"
            )


def weigh(labels: np.ndarray, class_weights: np.ndarray) -> np.ndarray:
    """Return the weight of every label, of the shape of `labels`; 0 where there is none."""
    weights: np.ndarray = np.where(labels == IGNORED, 0.0, class_weights[np.maximum(labels, 0)])
    return weights


def row_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of rows in an epoch: a permutation [rows] that depends on seed and epoch only.

    It sorts raw bits of Philox: NumPy guarantees the bits of a bit generator for all versions, but not the result of
    `Generator.permutation` (NEP 19).
    """
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(rows), kind="stable")


class UpdateRows:
    """Rows of every update as a function of its number, so that a resumed run continues at the same row.

    Epochs follow each other without a gap: an update may end one and start the next, and every row is used exactly once
    per epoch.

    Args:
        share: Block of the rows of an update to return; by default all.
        total: Rows of the whole training, counted once per visit; an update beyond it is filled with NO_ROW. None: no
            limit.
        sizes: Rows of each update, if some have fewer; such an update is filled with NO_ROW, evenly spread, so that
            processes that share it have as many rows.
    """

    def __init__(
        self,
        rows: int,
        rows_per_update: int,
        seed: int,
        share: Optional[slice] = None,
        total: Optional[int] = None,
        sizes: Optional[BatchSizes] = None,
    ) -> None:
        self.rows_per_update, self.seed, self.share = rows_per_update, seed, share or slice(0, rows_per_update)
        self.total, self.sizes = total, sizes or BatchSizes(rows_per_update, rows_per_update, 0)
        self._rows = rows
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __call__(self, step: int, updates: int = 1) -> np.ndarray:
        """Return the row numbers in the share of update `step`, counted from 0, and of the next `updates - 1`."""
        return np.concatenate([self._of_update(number) for number in range(step, step + updates)])

    def all_rows(self, step: int, updates: int = 1) -> np.ndarray:
        """Return all row numbers [updates x rows_per_update], regardless of the share."""
        return UpdateRows(self._rows, self.rows_per_update, self.seed, None, self.total, self.sizes)(step, updates)

    def epochs(self, step: int, updates: int = 1) -> np.ndarray:
        """Return the epoch of every row in the share of update `step` and of the next `updates - 1`."""
        epochs = np.zeros((updates, self.rows_per_update), dtype=np.int64)
        for number, line in enumerate(epochs, step):
            line[self._places(number)] = (self.sizes.count_before(number) + np.arange(self.sizes[number])) // self._rows
        return epochs[:, self.share].reshape(-1)

    def _places(self, step: int) -> np.ndarray:
        """Return the places of the rows of an update among its rows_per_update."""
        return np.arange(self.sizes[step]) * self.rows_per_update // self.sizes[step]

    def _of_update(self, step: int) -> np.ndarray:
        """Return the share of one update."""
        rows, places = np.full(self.rows_per_update, NO_ROW, dtype=np.int64), self._places(step)
        first, end = self.sizes.count_before(step), self.sizes.count_before(step + 1)
        position, end = first, end if self.total is None else min(end, max(first, self.total))
        while position < end:
            epoch, inside = divmod(position, self._rows)
            if epoch != self._epoch:
                self._epoch, self._order = epoch, row_order(self._rows, self.seed, epoch)
            part = self._order[inside : inside + end - position]
            rows[places[position - first :][: len(part)]] = part
            position += len(part)
        return rows[self.share]


def prefetch(make: Callable[[Item], Made], items: Iterable[Item], depth: int) -> Generator[Made, None, None]:
    """Yield make(item) for each item in order; up to `depth` results are made ahead in one other thread (0: none).

    An error of `make` is raised in place of its result. Close the iterator (contextlib.closing) to stop: the current
    call is completed, waiting ones are dropped, and the thread has ended when close returns.
    """
    if not depth:
        yield from map(make, items)
        return
    waiting: Deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(make, item))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
