from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.records.parquet import count_rows, read_batches, read_group_batches
from tasks.stage.errors import InputError


def test_sizes_and_batches_refuse_the_same_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for message in ("run `dvc repro corpus`", "but not text", "cannot be read as Parquet"):
        with pytest.raises(InputError, match=message):
            count_rows(path, ["text"], "corpus")
        with pytest.raises(InputError, match=message):
            list(read_batches(path, ["text"], 10, "corpus"))
        if path.exists():
            path.write_bytes(b"text")
        else:
            pq.write_table(pa.table({"title": ["a"]}), path)


def test_row_groups_are_read_one_at_a_time(tmp_path: Path) -> None:
    """40 MB of lists in groups of a megabyte, of which the library reads ahead."""
    path = tmp_path / "lists.parquet"
    with pq.ParquetWriter(path, pa.schema([("offsets", pa.list_(pa.int32()))])) as writer:
        for group in range(40):
            values = pa.array(np.arange(group, group + (1 << 18), dtype=np.int32))
            writer.write_table(pa.table({"offsets": pa.ListArray.from_arrays(pa.array([0, 1 << 17, 1 << 18]), values)}))
    before, most = pa.total_allocated_bytes(), 0
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in read_group_batches(file, ["offsets"], 1024):
            assert len(batch) == 2
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < 10 << 20
