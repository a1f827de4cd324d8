"""Row folders of the smallest size, made by the helpers of the device tests."""

import pytest

from tests.ipu_model.tiny_jobs import make_columns, write_rows


@pytest.fixture
def pretrain_rows(tmp_path):
    write_rows(tmp_path / "pretrain", "pretrain", make_columns("pretrain", 30))
    return tmp_path / "pretrain"


@pytest.fixture
def answer_rows(tmp_path):
    write_rows(tmp_path / "squad", "question_answering", make_columns("question_answering", 20, seed=1))
    return tmp_path / "squad"
