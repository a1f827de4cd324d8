"""Rows of an entry are judged by the rules of its kind."""

from __future__ import annotations

from pathlib import Path

from tasks.downstream.rows import row_data_sets
from tasks.downstream.squad.checks import AnswerRows
from tasks.params.schema import load_params
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT
from tests.places import ROOT
from tests.tasks.downstream.entries import task_with
from tests.tasks.validation.validation_data import row_columns, window_columns, write_rows, write_tokenizer


def test_rows_to_learn_from_need_an_answer_and_so_do_those_held_out_of_them(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / artifacts.TOKENIZER)
    encoder, kind = task_with("squad", "encoder"), "question_answering"
    train, dev = (encoder.entry.rows_folder(split, tmp_path) for split in encoder.entry.splits)
    for folder in (train, train / HELD_OUT, dev):
        write_rows(folder, kind, row_columns(kind), tokenizer, window_columns())
    params, rows = load_params(ROOT / "params.yaml"), tmp_path / artifacts.rows_folder("squad")
    found = {data.name: data for data in row_data_sets(encoder, AnswerRows, params, rows, tmp_path)}
    assert {type(data) for data in found.values()} == {AnswerRows}
    checks = {name: {check.name: check for check in data.total_checks} for name, data in found.items()}
    assert {name: each["answers"].minimum for name, each in checks.items()} == {"train": 1, HELD_OUT: 1, "dev": 0}
    section = encoder.entry.key("rows")
    assert f"{section}.row_length and {section}.doc_stride" in checks["train"]["answers"].advice
