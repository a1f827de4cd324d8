"""Numbers between NumPy and Arrow: not copied, and without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tiny_jobs import ROOT, make_columns, write_rows

from ipu_model.rows.format import from_arrow, to_arrow


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64", "float32", "float64"])
def test_numbers_travel_to_arrow_and_back_without_a_copy(dtype: str) -> None:
    values = np.arange(10).astype(dtype)
    arrow = to_arrow(values)
    assert arrow.equals(pa.array(values))
    back = from_arrow(arrow.slice(3, 5))
    assert back.dtype == values.dtype
    assert back.tolist() == values[3:8].tolist()
    assert np.shares_memory(back, values)


def test_reading_rows_imports_no_pandas(tmp_path: Path) -> None:
    """pyarrow would, where pandas is installed: 0.2 s at the start of every job."""
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 9))
    (tmp_path / "pandas.py").write_text("import sys; sys.stderr.write('pandas is imported')\n", encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from ipu_model.rows.row_folder import RowFolder; from ipu_model.jobs.job import ModelConfig\n"
        "from ipu_model.rows.format import to_arrow\n"
        "batch = RowFolder(Path(sys.argv[1]), 'pretrain', ModelConfig(60)).take(np.arange(9))\n"
        "print(batch.real_tokens, to_arrow(batch.rows).type)\n"
    )
    command, env = [sys.executable, "-c", code, str(tmp_path / "rows")], {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    finished = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.split()[1] == "int64"


def test_no_numbers_travel_too() -> None:
    for empty in (pa.array([], pa.int32()), to_arrow(np.empty(0, np.int32)), pa.array([1, 2], pa.int32()).slice(2)):
        assert from_arrow(empty).tolist() == []
        assert from_arrow(empty).dtype == np.int32
