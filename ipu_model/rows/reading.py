"""From packed rows on disk to the rows of one update.

Legend: R rows of one update, L row length, S sequences per row at most, P masked positions per row at most.
The rows stay in memory-mapped files; only those of the current update are copied.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Generator, Iterable, List, Optional, Tuple, TypeVar

import numpy as np
import pyarrow as pa

from ipu_model.errors import ConfigError, RowsError
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import ABSENT, IGNORED, MANIFEST, columns_of, from_arrow, read_manifest

Item = TypeVar("Item")
Made = TypeVar("Made")
Columns = Dict[str, np.ndarray]
NO_ROW = -1
"""In place of a row number: an empty row, all padding and without labels. Such rows fill up the last update."""


@dataclass(frozen=True)
class Batch:
    """The rows of one update (or of one call of predict), as they lie on disk."""

    rows: np.ndarray
    """[R] int64: which rows of the folder; NO_ROW where the row is empty."""
    columns: Columns
    """Column name -> [R, width], the types of `ipu_model.rows.format`."""

    @property
    def sequences(self) -> int:
        return int((self.columns["cls_positions"] != ABSENT).sum())

    @property
    def real_tokens(self) -> int:
        return int((self.columns["sequence_ids"] != 0).sum())

    def labels(self, column: str) -> int:
        """How many slots of a label column take part in the loss."""
        return int((self.columns[column] != IGNORED).sum())

    def part(self, start: int, stop: int) -> Batch:
        """Rows start..stop-1 of this batch: a micro-batch."""
        return Batch(self.rows[start:stop], {name: x[start:stop] for name, x in self.columns.items()})


class RowFolder:
    """Rows of a folder, by number.

    Args:
        folder: Row folder with its manifest.json.
        kind: The kind of rows the job needs (format.kinds).
        model: The model that will read them.
        labels: Classes of its head; 0 where it has none.

    Raises:
        RowsError: damaged, of another kind or schema, counts that differ from the manifest, or more
            tokens in the vocabulary than the model has embeddings.
        ConfigError: rows longer than the model has positions.
    """

    def __init__(self, folder: Path, kind: str, model: ModelConfig, labels: int = 0) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.sha256 = hashlib.sha256((self.folder / MANIFEST).read_bytes()).hexdigest()
        self.model = model
        self._check_against_job(kind, labels)
        self._starts: List[int] = []
        self._chunks: List[Tuple[str, int, Columns]] = []
        first = 0
        for name, expected in sorted(self.manifest.files.items()):
            first = self._open(name, first, expected)
        self._first_rows = np.array(self._starts, dtype=np.int64)
        self._check_counts(first)

    def _check_against_job(self, kind: str, labels: int) -> None:
        manifest, model = self.manifest, self.model
        if manifest.kind != kind:
            raise RowsError(f"{self.folder} holds {manifest.kind} rows, this job needs {kind} rows: change `rows`")
        if manifest.num_labels != labels:
            raise RowsError(
                f"the labels of {self.folder} are of {manifest.num_labels} classes, the model has {labels}: make the "
                "rows of the task that the model is for"
            )
        if manifest.vocab_size > model.vocab_size:
            raise RowsError(
                f"the rows of {self.folder} use a vocabulary of {manifest.vocab_size} tokens, the model has "
                f"{model.vocab_size}: make the rows with the model's tokenizer, or set model.vocab_size"
            )
        if manifest.row_length > model.max_positions:
            raise ConfigError(
                f"rows of {manifest.row_length} tokens in {self.folder} are longer than the model's "
                f"{model.max_positions} positions: lower row_length or raise model.max_positions"
            )

    def _open(self, name: str, first: int, expected: int) -> int:
        """Map one file; returns the number of the row after its last."""
        path = self.folder / name
        schema = self.manifest.schema
        found = 0
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if not reader.schema.equals(schema):
                raise RowsError(f"{path} has the columns\n{reader.schema}\nrequired:\n{schema}\nMake the rows again.")
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                batch.validate()
                self._starts.append(first + found)
                self._chunks.append((name, found, _columns(batch)))
                found += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise RowsError(f"{path} is damaged or was not written to the end ({error}); make the rows again") from None
        if found != expected:
            raise RowsError(f"{path} holds {found} rows, its manifest says {expected}; make the rows again")
        return first + found

    def _check_counts(self, rows: int) -> None:
        if rows != self.manifest.rows:
            raise RowsError(f"{self.folder} holds {rows} rows, its manifest says {self.manifest.rows}; make them again")
        # Rows per update follow from this count, and it is cheap: S small integers per row.
        sequences = sum(int((columns["cls_positions"] != ABSENT).sum()) for _, _, columns in self._chunks)
        if sequences != self.manifest.sequences:
            raise RowsError(
                f"{self.folder} holds {sequences} sequences, its manifest says {self.manifest.sequences}; "
                "make the rows again"
            )

    def __len__(self) -> int:
        return self.manifest.rows

    def take(self, rows: np.ndarray) -> Batch:
        """Copy the rows with these numbers, in this order; NO_ROW gives an empty row.

        Raises:
            RowsError: a value that the model cannot look up, with the file and the row.
        """
        rows = np.asarray(rows, dtype=np.int64)
        chunks = np.searchsorted(self._first_rows, rows, side="right") - 1
        inside = rows - self._first_rows[chunks]
        by_chunk = np.argsort(chunks, kind="stable")
        groups = np.split(by_chunk, np.flatnonzero(np.diff(chunks[by_chunk])) + 1) if len(rows) else []
        kinds = self._chunks[0][2]
        columns = {name: np.empty((len(rows), x.shape[1]), dtype=x.dtype) for name, x in kinds.items()}
        for places in groups:
            if rows[places[0]] == NO_ROW:
                for column in columns_of(self.manifest.kind, self.manifest.vocab_size):
                    columns[column.name][places] = column.least  # of every column the value that means nothing
                continue
            source, wanted = self._chunks[chunks[places[0]]][2], inside[places]
            # In a large folder nearly every row comes from a chunk of its own, and plain numbers index three
            # times as fast as arrays: 32 rows of nearly as many chunks take 0.18 ms, 0.53 ms with arrays.
            at, of = (places, wanted) if len(places) > 1 else (int(places[0]), int(wanted[0]))
            for name, into in columns.items():
                into[at] = source[name][of]
        batch = Batch(rows, columns)
        self._check_values(batch)
        return batch

    @property
    def sizes(self) -> Dict[str, int]:
        """What bounds the values of columns."""
        model = self.model
        return self.manifest.sizes(model.vocab_size, model.type_vocab_size, model.max_positions)

    def _check_values(self, batch: Batch) -> None:
        sizes = self.sizes
        for column in columns_of(self.manifest.kind, self.manifest.vocab_size):
            name, low, values = column.name, column.least, batch.columns[column.name]
            high = column.end(sizes)
            if values.size == 0 or (values.max() < high and values.min() >= low):
                continue
            row, slot = np.argwhere(~((values < high) & (values >= low)))[0]  # NaN is neither
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


def row_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which an epoch visits the rows: a permutation [rows], from (seed, epoch) alone.

    Raw bits of Philox, sorted: NumPy promises the bits of a bit generator for all versions, but not what
    `Generator.permutation` makes of them (NEP 19).
    """
    return np.argsort(_sort_keys(rows, seed, epoch), kind="stable")


def _sort_keys(rows: int, seed: int, epoch: int) -> np.ndarray:
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    return np.random.Philox(key=key).random_raw(rows)


IN_BUCKET = 32
"""Rows that share the first bits of their keys: some of them are sorted for nothing at both ends of a share of an
update, and each bucket costs as much as sorting a few."""


class UpdateRows:
    """The rows of every update, from its number alone, so that a resumed run continues at the same row.

    Epochs follow one another without a gap: an update may end one and begin the next, and every row
    is used exactly once per epoch.

    Args:
        share: Which of the rows of an update are wanted, a block of them; by default all.
        total: Rows of the whole training, each visit counted; an update that reaches beyond is filled up with NO_ROW.
            None: as many as are asked for.
    """

    def __init__(
        self, rows: int, rows_per_update: int, seed: int, share: Optional[slice] = None, total: Optional[int] = None
    ) -> None:
        self.rows_per_update, self.seed, self.share = rows_per_update, seed, share or slice(0, rows_per_update)
        self.total = total
        self._rows, (self._first, self._stop, _) = rows, self.share.indices(rows_per_update)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __call__(self, step: int, updates: int = 1) -> np.ndarray:
        """Row numbers of update `step`, counted from 0, and of those that follow it: the share of each in turn."""
        return np.concatenate([part for number in range(step, step + updates) for part in self._of_update(number)])

    def of_all(self, step: int, updates: int = 1) -> np.ndarray:
        """Row numbers [updates x rows_per_update], whatever the share."""
        return UpdateRows(self._rows, self.rows_per_update, self.seed, total=self.total)(step, updates)

    def _of_update(self, step: int) -> List[np.ndarray]:
        """The share of one update, a part for each epoch that it touches."""
        parts: List[np.ndarray] = []
        position, end = (step * self.rows_per_update + border for border in (self._first, self._stop))
        stop = end if self.total is None else min(end, max(position, self.total))
        while position < stop:
            epoch = position // self._rows
            if epoch != self._epoch:
                self._epoch, self._order = epoch, self._order_of(epoch)
            at = int(self._own_before(position) - self._own_before(epoch * self._rows))
            parts.append(self._order[at : at + min(stop, (epoch + 1) * self._rows) - position])
            position += len(parts[-1])
        if position < end:
            parts.append(np.full(end - position, NO_ROW, dtype=np.int64))
        return parts

    def _own_before(self, positions: Any) -> Any:
        """How many of the positions before these are wanted, counted through all epochs."""
        updates, inside = np.divmod(positions, self.rows_per_update)
        return updates * (self._stop - self._first) + np.clip(inside, self._first, self._stop) - self._first

    def _order_of(self, epoch: int) -> np.ndarray:
        """row_order at the wanted positions. Only they are sorted, so that processes that share the updates of a
        training share this work, too: the first bits of a key tell between which positions it ends up."""
        if self._stop - self._first == self.rows_per_update:
            return row_order(self._rows, self.seed, epoch)
        keys, base = _sort_keys(self._rows, self.seed, epoch), epoch * self._rows
        bits = min(16, (self._rows // IN_BUCKET).bit_length())
        buckets = (keys >> np.uint64(64 - bits)).astype(np.uint16) if bits else np.zeros(self._rows, dtype=np.uint16)
        sizes = np.bincount(buckets, minlength=2**bits)
        ends = np.cumsum(sizes)
        held = self._own_before(base + ends) > self._own_before(base + ends - sizes)
        chosen = np.flatnonzero(held[buckets])
        chosen = chosen[np.argsort(keys[chosen], kind="stable")]
        skipped = np.cumsum(np.where(held, 0, sizes))[held]  # rows of buckets before this one that were left out
        inside = (base + np.arange(len(chosen)) + np.repeat(skipped, sizes[held])) % self.rows_per_update
        return chosen[(inside >= self._first) & (inside < self._stop)]


def _columns(batch: pa.RecordBatch) -> Columns:
    """Numpy views of a record batch: no copy, no Python objects."""
    columns = {}
    for field, column in zip(batch.schema, batch.columns):
        width = field.type.list_size
        # `values` ignores the slice of the parent array; batches read from a file have none.
        columns[field.name] = from_arrow(column.values).reshape(batch.num_rows, width)
    return columns


def prefetch(make: Callable[[Item], Made], items: Iterable[Item], depth: int) -> Generator[Made, None, None]:
    """make(item) for each item, in order; while one is used, up to `depth` more are made in one other thread.

    What `make` raises comes out where its result would have. Close the iterator (contextlib.closing) to stop: what is
    under way is finished, what waits is dropped, and the thread has ended when close returns.

    Args:
        depth: 0 makes each when it is asked for, without a thread.
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
