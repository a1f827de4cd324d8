"""What users of other BERT-on-IPU programs suffered from, where no other test of this folder says it of a whole job."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest
from ipu_jobs import ipu_job, manifest_of, model_folder, rows_of
from tiny_jobs import ROOT, result_of, run_here

import ipu_model.train.training

IMPORT_ALL = """
import importlib, json, pathlib, pkgutil, socket, sys
def refuse(*args): raise AssertionError("something was called at import")
socket.socket.connect = refuse
import ipu_model
for module in pkgutil.walk_packages(ipu_model.__path__, "ipu_model."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
foreign = ("poptorch", "popart", "popdist", "horovod", "transformers")
print(json.dumps([name for name in foreign if name in sys.modules]))
"""


def test_speed_is_real_tokens_by_the_time_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any
) -> None:
    """A clock, looked at once a second: at the start, then around each of 4 updates."""
    ticks = itertools.count(100.0)
    monkeypatch.setattr(ipu_model.train.training, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    rows = rows_of(tmp_path / "rows", "pretrain", 36)
    job = ipu_job(tmp_path, "pretrain", rows)
    said = [x["real_tokens_per_second"] for x in run_here(job).of("step")]
    manifest = manifest_of(job.rows)
    assert len(said) == 4
    assert 2 * sum(said) == manifest.real_tokens  # 4 updates of 9 rows are all 36; two seconds each, pads do not count
    result = result_of(job)
    assert (result.sequences, result.real_tokens) == (manifest.sequences, manifest.real_tokens)
    assert result.train_seconds == 8.0  # from 100 to 108
    assert result.real_tokens_per_second == pytest.approx(manifest.real_tokens / 8)


def test_a_folder_of_rows_that_fills_no_whole_number_of_calls_is_predicted_by_one_program(
    tmp_path: Path, record: Callable[[], List[Dict[str, Any]]]
) -> None:
    """The last call is filled up with padding rows: another shape would be another compilation."""
    rows = rows_of(tmp_path / "rows", "question_answering", 9)
    model = model_folder(tmp_path / "model", rows)
    config = {"inference_device_iterations": 4}
    job = ipu_job(tmp_path, "predict", rows, init_checkpoint=model, ipu_config=config)
    done = run_here(job)
    assert [x["rows"] for x in done.of("predicted")][-1:] == [9]  # two calls of 4 rows and one of 1
    assert len(record()) == 1
    result = json.loads((Path(job.run_folder) / "result.json").read_text(encoding="utf-8"))
    assert result["sequences"] == manifest_of(job.rows).sequences
    assert result["plan"]["rows_per_call"] == 4


def test_importing_does_nothing(tmp_path: Path) -> None:
    """No SDK, no connection, no file: a module can be read wherever Python runs."""
    command, env = [sys.executable, "-B", "-c", IMPORT_ALL], {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=str(tmp_path), env=env, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == []
    assert list(tmp_path.iterdir()) == []
