"""Reading the Parquet artifacts of earlier stages, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import InputError


def read_batches(path: Path, columns: Sequence[str], rows_at_once: int, stage: str) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows_at_once` rows; memory does not grow with the file.

    Args:
        stage: that writes the file, for the messages.

    Raises:
        InputError: missing, damaged, or without one of `columns`.
    """
    again = f"run `dvc repro {stage}` (or `python -m tasks.{stage}`)"
    if not Path(path).is_file():
        raise InputError(f"{path} is not there: the {stage} stage makes it; {again} first")
    try:
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            missing = sorted(set(columns) - set(parquet.schema_arrow.names))
            if missing:
                found = ", ".join(parquet.schema_arrow.names)
                raise InputError(f"{path} has the columns {found} and lacks {', '.join(missing)}; {again} again")
            yield from parquet.iter_batches(rows_at_once, columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}); {again} again") from None
