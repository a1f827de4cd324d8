"""PYTHONOPTIMIZE=2 takes asserts and docstrings away: nothing that people see may hang on them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.stage.errors import WRONG_USAGE
from tests.places import ROOT as PROJECT
from tests.tasks.downstream.entries import values_with, write_parameters

VALIDATE = "validation.validate corpus"
STAGES = {
    "corpus.corpus": "2",
    VALIDATE: "",
    "vocabulary.tokenizer": "2",
    "pretraining.rows.pretrain_rows phase1": "2",
    "downstream.examples squad": "1",
}
"""Command -> PYTHONOPTIMIZE; Great Expectations does not go without docstrings."""


@pytest.mark.parametrize("package", ["flows", "tasks", "ipu_model", "bench"])
def test_no_module_reads_docstrings(package: str) -> None:
    for path in (PROJECT / package).rglob("*.py"):
        names = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)]
        assert "__doc__" not in {node.id for node in names}, path


def run(folder: Path, stage: str, level: str) -> subprocess.CompletedProcess[str]:
    """Run a stage, as DVC does, with this PYTHONOPTIMIZE."""
    env = {**os.environ, "PYTHONOPTIMIZE": level, "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", *f"tasks.{stage}".split()]
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=300)


@pytest.mark.soak
def test_stages_run_without_docstrings_and_asserts(tmp_path: Path) -> None:
    values = values_with(
        {"squad": {"data": {"demo_train": 60, "demo_dev": 20}}},
        corpus={"demo_documents": 200},
        tokenizer={"vocabulary_size": 300},
    )
    write_parameters(tmp_path, values)
    for stage, level in STAGES.items():
        made = run(tmp_path, stage, level)
        assert made.returncode == 0, f"{stage}: {made.stderr}"
    refused = run(tmp_path, VALIDATE, "2")
    assert refused.returncode == WRONG_USAGE
    assert refused.stderr.startswith("error: PYTHONOPTIMIZE=2 (python -OO) removes docstrings")
    assert refused.stderr.count("\n") == 1
    assert (tmp_path / "data/rows/phase1/manifest.json").is_file()
