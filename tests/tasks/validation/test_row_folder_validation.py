"""Row folders that are not what their manifest says, or not of this tokenizer."""

import pytest

from tasks.stage.errors import InputError
from tasks.validation.checks import format_failures
from tests.tasks.validation.validation_data import (
    answer_data,
    failed_checks,
    pretrain_data,
    row_columns,
    validate,
    write_rows,
    write_tokenizer,
)
from tests.tasks.validation.validation_data import judged_rows as judged

PRETRAIN, QUESTIONS = "pretrain", "question_answering"


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer")


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ({"sequences": 8}, "manifest_sequences"),
        ({"real_tokens": 51}, "manifest_real_tokens"),
        ({"vocab_size": 41}, "vocab_size"),
        ({"row_length": 32}, "schema"),
    ],
)
def test_a_manifest_that_states_other_figures_than_the_rows_have_is_refused(tmp_path, tokenizer, stated, name):
    assert failed_checks(judged(tmp_path, tokenizer, **stated)) == [name]


def test_a_manifest_of_other_files_stops_the_validation(tmp_path, tokenizer):
    files = {"rows-00000.arrow": 2, "rows-00001.arrow": 1}
    verdict = judged(tmp_path, tokenizer, files=files)
    assert failed_checks(verdict) == ["manifest_files"]
    message = format_failures(verdict, "")
    assert "rows-00000.arrow has 3 rows, manifest.json lists 2; manifest.json states 4 rows in all" in message
    verdict = judged(tmp_path, tokenizer, files={"rows-00000.arrow": 3}, rows=3)
    assert failed_checks(verdict) == ["manifest_files"]
    assert "rows-00001.arrow is not in manifest.json" in format_failures(verdict, "")


def test_rows_of_another_tokenizer_are_refused_with_both_hashes(tmp_path, tokenizer):
    verdict = judged(tmp_path, tokenizer, tokenizer_sha256="ab" * 32)
    assert failed_checks(verdict) == ["tokenizer"]
    message = format_failures(verdict, "")
    assert "found rows of tokenizer " + "ab" * 32 in message
    assert pretrain_data(tmp_path / "phase1", tokenizer).tokenizer_sha256 in message
    assert "input_ids" in verdict["not_checked"]


def test_rows_of_another_kind_than_the_rules_are_refused(tmp_path, tokenizer):
    folder = write_rows(tmp_path / "phase1", QUESTIONS, row_columns(QUESTIONS), tokenizer)
    verdict = validate(pretrain_data(folder, tokenizer))
    assert failed_checks(verdict) == ["schema"]
    assert "these are rows of kind question_answering, not pretrain" in format_failures(verdict, "")


def test_missing_or_changed_features_stop_the_validation(tmp_path, tokenizer):
    folder = write_rows(tmp_path / "squad-dev", QUESTIONS, row_columns(QUESTIONS), tokenizer)
    verdict = validate(answer_data(folder, tokenizer, training=False))
    assert failed_checks(verdict) == ["schema"]
    assert "features.parquet is missing" in format_failures(verdict, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "tokenizer` first"), ("{", "is not JSON"), ('{"model": {"vocab": {}}}', "cannot be loaded")],
)
def test_a_tokenizer_that_cannot_be_used_is_named(tmp_path, tokenizer, text, said):
    folder = write_rows(tmp_path / "phase1", PRETRAIN, row_columns(PRETRAIN), tokenizer)
    for name in ("tokenizer.json", "vocab.txt"):
        (tokenizer / name).unlink()
    if text is not None:
        (tokenizer / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        pretrain_data(folder, tokenizer)


def test_a_row_file_that_was_cut_off_is_named(tmp_path, tokenizer):
    folder = write_rows(tmp_path / "phase1", PRETRAIN, row_columns(PRETRAIN), tokenizer)
    path = folder / "rows-00000.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="rows-00000.arrow is not an Arrow file, or cut off"):
        pretrain_data(folder, tokenizer).prepare()
