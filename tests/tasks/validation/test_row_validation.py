"""Verdicts on packed rows: every fault fails its own check. The rows are drawn in validation_data.row_columns."""

import pyarrow as pa
import pytest

from tasks.downstream.squad.checks import AnswerRows
from tasks.stage.errors import InputError
from tasks.validation.checks import format_failures
from tasks.validation.pretraining_checks import ENOUGH_SEQUENCES
from tests.tasks.validation.validation_data import (
    failed_checks,
    judged_rows,
    pretrain_data,
    row_columns,
    source_of,
    validate,
    window_columns,
    write_rows,
    write_tokenizer,
)

PRETRAIN, QUESTIONS = "pretrain", "question_answering"
ALL = slice(None)


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer")


def put(name, row, column, value):
    return lambda columns: columns[name].__setitem__((row, column), value)


def all_of(*changes):
    return lambda columns: [change(columns) for change in changes]


PADDED = [put(name, 1, 2, 0) for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids")]
SWAPPED = all_of(put("sequence_ids", 0, slice(8), 2), put("sequence_ids", 0, slice(8, 14), 1))
BACKWARD = all_of(put("start_positions", 0, 0, 6), put("end_positions", 0, 0, 5))
UNMASKED = all_of(put("masked_positions", ALL, ALL, 0), put("masked_labels", ALL, ALL, -100))
UNLABELLED = all_of(put("start_positions", ALL, ALL, -100), put("end_positions", ALL, ALL, -100))
AT_CLS_OR_NOWHERE = all_of(
    *(put(name, 0, ALL, [0, 8]) for name in ("start_positions", "end_positions")),
    *(put(name, 1, ALL, -100) for name in ("start_positions", "end_positions")),
)


def empty_row(columns):
    for name, values in columns.items():
        absent = {"cls_positions": -1, "masked_labels": -100, "next_sentence_labels": -100}
        values[-1] = absent.get(name, 0)


def remove_rows(columns):
    columns.update({name: values[:0] for name, values in columns.items()})


# fmt: off
FAULTS = [
    ("phase1", "sequences_in_order", SWAPPED, "row 0"),
    ("phase1", "sequences_in_order", put("sequence_ids", 0, slice(8, 14), 3), "row 0"),
    ("phase1", "input_ids", put("input_ids", 2, 15, 7), "row 2"),
    ("phase1", "input_ids", put("input_ids", 1, 3, 40), "row 1"),
    ("phase1", "token_type_ids", put("token_type_ids", 1, 9, 2), "row 1"),
    ("phase1", "token_type_ids", put("token_type_ids", 1, 15, 1), "row 1"),
    ("phase1", "position_ids", put("position_ids", 1, 15, 1), "row 1"),
    ("phase1", "first_tokens", put("token_type_ids", 1, 8, 1), "row 1"),
    ("phase1", "positions_restart", put("position_ids", 0, 9, 2), "row 0"),
    ("phase1", "first_tokens", put("input_ids", 3, 0, 9), "row 3"),
    ("phase1", "cls_positions", put("cls_positions", 0, 1, 9), "row 0"),
    ("phase1", "masked_positions", put("masked_positions", 1, 1, 16), "row 1"),
    ("phase1", "masked_positions", put("masked_positions", 1, 2, 5), "row 1"),
    ("phase1", "masked_in_sequence", put("masked_positions", 1, 1, 14), "row 1"),
    ("phase1", "masked_once", put("masked_positions", 2, 1, 2), "row 2"),
    ("phase1", "masked_labels", put("masked_labels", 0, 0, 40), "row 0"),
    ("phase1", "masked_labels", put("masked_labels", 0, 0, -1), "row 0"),
    ("phase1", "next_sentence_labels", put("next_sentence_labels", 0, 1, 2), "row 0"),
    ("phase1", "next_sentence_labels", put("next_sentence_labels", 3, 1, 0), "row 3"),
    ("phase1", "next_sentences", put("next_sentence_labels", 0, 1, -100), "row 0"),
    ("phase1", "padding_at_end", all_of(*PADDED, put("masked_positions", 1, 0, 3)), "row 1"),
    ("phase1", "sequences", empty_row, "row 3"),
    ("phase1", "rows masked_tokens", remove_rows, ""),
    ("phase1", "masked_tokens", UNMASKED, ""),
    ("squad-train", "answer_slots", put("start_positions", 0, 1, -100), "row 0"),
    ("squad-train", "start_positions", put("start_positions", 1, 1, -1), "row 1"),
    ("squad-train", "start_positions", put("start_positions", 3, 1, 12), "row 3"),
    ("squad-train", "end_positions", put("end_positions", 1, 1, 16), "row 1"),
    ("squad-train", "end_positions", put("end_positions", 3, 1, 12), "row 3"),
    ("squad-train", "start_before_end", BACKWARD, "row 0"),
    ("squad-train", "answer_in_sequence", put("end_positions", 1, 0, 12), "row 1"),
    ("squad-train", "answer_in_context", put("start_positions", 1, 0, 3), "row 1"),
    ("squad-train", "answer_in_context", put("end_positions", 1, 0, 7), "row 1"),  # [SEP]
    ("squad-train", "feature_ids", put("feature_ids", 3, 1, 99), "row 3"),
    ("squad-dev", "features_once", put("feature_ids", 1, 1, 5), "feature 3: 0 times"),
    ("squad-train", "answers", UNLABELLED, ""),
    ("squad-dev", "", UNLABELLED, ""),
    ("squad-train", "", AT_CLS_OR_NOWHERE, ""),
]
# fmt: on
COUNTED = {"padding_at_end": {"real_tokens": 49}, "sequences": {"sequences": 6, "real_tokens": 42}}
"""What the manifest has where rows are damaged by a token or a sequence less."""


def test_sound_rows_pass_every_check(tmp_path, tokenizer):
    verdict = judged_rows(tmp_path, tokenizer)
    assert failed_checks(verdict) == []
    assert verdict["rows"] == 4
    numbers = {number["name"]: number["value"] for number in verdict["statistics"]["numbers"]}
    assert (numbers["sequences"], numbers["real tokens"], numbers["masked tokens"]) == (7, 50, 7)
    assert numbers["share of random next sentences"] == round(3 / 7, 4)
    for name in ("squad-train", "squad-dev"):
        assert failed_checks(judged_rows(tmp_path, tokenizer, name)) == []


@pytest.mark.parametrize(("name", "failed", "damage", "place"), FAULTS)
def test_each_fault_fails_its_own_check(tmp_path, tokenizer, name, failed, damage, place):
    columns = row_columns(PRETRAIN if name == "phase1" else QUESTIONS)
    damage(columns)
    verdict = judged_rows(tmp_path, tokenizer, name, columns, **COUNTED.get(failed, {}))
    assert failed_checks(verdict) == failed.split()
    message = format_failures(verdict, "")
    assert place in message
    assert ("found 1 of 4 rows" in message) == place.startswith("row")


def test_more_masked_tokens_than_the_share_allows_are_refused(tmp_path, tokenizer):
    assert failed_checks(judged_rows(tmp_path, tokenizer, masked=0.0)) == [], "one in each sequence"
    columns = row_columns(PRETRAIN)
    columns["masked_positions"][0, 2], columns["masked_labels"][0, 2] = 5, 13
    verdict = judged_rows(tmp_path, tokenizer, columns=columns, masked=0.0)
    assert failed_checks(verdict) == ["masked_share"]
    assert "found 0.16" in format_failures(verdict, "")


@pytest.mark.parametrize(
    ("failed", "entries", "message"),
    [
        ("manifest_sequences", {"sequences": 8}, ""),
        ("manifest_real_tokens", {"real_tokens": 51}, ""),
        ("vocab_size", {"vocab_size": 41}, ""),
        ("schema", {"row_length": 32}, ""),
        ("manifest_files", {"files": {"rows-00000.arrow": 2, "rows-00001.arrow": 1}}, "has 3 rows"),
        ("manifest_files", {"files": {"rows-00000.arrow": 4, "rows-00001.arrow": 1}}, "has 3 rows"),
        ("manifest_files", {"files": {"rows-00000.arrow": 3}, "rows": 3}, "rows-00001.arrow is not"),
        ("tokenizer", {"tokenizer_sha256": "ab" * 32}, "ab" * 32),
    ],
)
def test_a_manifest_that_states_other_than_the_rows_have_is_refused(tmp_path, tokenizer, failed, entries, message):
    verdict = judged_rows(tmp_path, tokenizer, **entries)
    assert failed_checks(verdict) == [failed]
    assert message in format_failures(verdict, "")
    assert ("input_ids" in verdict["not_checked"]) == (
        failed in ("vocab_size", "schema", "manifest_files", "tokenizer")
    )


def test_rows_of_another_kind_and_missing_features_stop_the_validation(tmp_path, tokenizer):
    folder = write_rows(tmp_path / "phase1", QUESTIONS, row_columns(QUESTIONS), tokenizer)
    verdict = validate(pretrain_data(folder, tokenizer))
    assert failed_checks(verdict) == ["schema"]
    assert "question_answering, not pretrain" in format_failures(verdict, "")
    verdict = validate(AnswerRows(source_of(folder, tokenizer, training=False)))
    assert failed_checks(verdict) == ["schema"]
    assert "features.parquet is missing" in format_failures(verdict, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "tokenizer` first"), ("{", "is not JSON"), ('{"model": {"vocab": {}}}', "cannot be loaded")],
)
def test_a_tokenizer_that_cannot_be_used_is_named(tmp_path, tokenizer, text, message):
    folder = write_rows(tmp_path / "phase1", PRETRAIN, row_columns(PRETRAIN), tokenizer)
    path = tokenizer / "tokenizer.json"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        pretrain_data(folder, tokenizer)


@pytest.mark.parametrize(("limit", "failed"), [(0.03, ["unknown_share"]), (0.04, [])])
def test_unknown_tokens_are_counted_noted_from_one_percent_and_refused_above_the_limit(
    tmp_path, tokenizer, limit, failed
):
    columns = row_columns(PRETRAIN)
    columns["input_ids"][0, 5] = 1  # [UNK], as one of 29 tokens: [CLS], [SEP] and padding do not count
    write_rows(tmp_path / "phase1", PRETRAIN, columns, tokenizer)
    verdict = validate(pretrain_data(tmp_path / "phase1", tokenizer, max_unknown_share=limit))
    assert failed_checks(verdict) == failed
    share = "1 of 29 tokens (3.45%) are [UNK]"
    assert {check["found"] for check in verdict["checks"] if check["name"] == "unknown_share"} == {share}
    [note] = verdict["notes"]
    assert share in note
    assert {"name": "share of [UNK]", "value": 0.0345} in verdict["statistics"]["numbers"]
    verdict = validate(pretrain_data(tmp_path / "phase1", tokenizer, max_positions=7))
    assert failed_checks(verdict) == ["position_ids"], "positions that the model does not have"
    path = tmp_path / "phase1/rows-00000.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="rows-00000.arrow"):
        pretrain_data(tmp_path / "phase1", tokenizer).prepare()


def test_next_sentences_that_are_all_of_one_kind_are_refused_when_there_are_enough(tmp_path, tokenizer):
    for rows, failed in ((ENOUGH_SEQUENCES // 2 + 1, ["random_next_share"]), (4, [])):
        columns = row_columns(PRETRAIN, rows)
        columns["next_sentence_labels"][columns["next_sentence_labels"] == 1] = 0
        assert failed_checks(judged_rows(tmp_path / str(rows), tokenizer, columns=columns)) == failed


def test_nulls_in_rows_are_counted(tmp_path, tokenizer):
    folder = write_rows(tmp_path / "phase1", PRETRAIN, row_columns(PRETRAIN), tokenizer)
    path = folder / "rows-00001.arrow"
    batch = pa.ipc.open_file(path).get_batch(0)
    kind = batch.schema.field("masked_labels").type
    labels = pa.FixedSizeListArray.from_arrays(pa.array([15, None, -100], pa.int32()), type=kind)
    index = batch.schema.get_field_index("masked_labels")
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch.set_column(index, batch.schema.field(index), labels))
    assert "nulls" in failed_checks(validate(pretrain_data(folder, tokenizer)))


def test_windows_that_disagree_with_the_rows_are_found(tmp_path, tokenizer):
    windows = window_columns()
    windows["feature_id"][2] = 3
    windows["n_tokens"][4] = 9
    verdict = judged_rows(tmp_path, tokenizer, "squad-train", windows=windows)
    assert failed_checks(verdict) == ["features_numbered", "feature_lengths"]
    assert "line 2: feature_id 3" in format_failures(verdict, "")
    assert "for example row 2" in format_failures(verdict, "")


def test_rows_are_judged_piece_by_piece_with_the_same_verdict(tmp_path, tokenizer, monkeypatch):
    columns = row_columns(PRETRAIN)
    columns["input_ids"][1:, 0] = 9
    whole = judged_rows(tmp_path, tokenizer, columns=columns)
    monkeypatch.setattr("tasks.validation.row_checks.BATCH_TOKENS", 16)
    assert judged_rows(tmp_path, tokenizer, columns=columns) == whole
    assert [check["examples"] for check in whole["checks"] if not check["ok"]] == [["row 1", "row 2", "row 3"]]
