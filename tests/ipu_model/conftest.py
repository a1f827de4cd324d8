"""Tiny row folders. The helpers are in tiny_jobs.py; both run on Python 3.8."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += sorted(str(room) for room in HERE.iterdir() if room.is_dir())  # tests of one room use helpers of another

from tiny_jobs import make_columns, write_rows  # noqa: E402


@pytest.fixture
def pretrain_rows(tmp_path):
    write_rows(tmp_path / "rows" / "pretrain", "pretrain", make_columns("pretrain", 30), files=2)
    return tmp_path / "rows" / "pretrain"


@pytest.fixture
def answer_rows(tmp_path):
    write_rows(tmp_path / "rows" / "squad", "question_answering", make_columns("question_answering", 20, seed=1))
    return tmp_path / "rows" / "squad"
