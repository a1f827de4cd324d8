"""Verdicts on packed rows: every fault fails its own check. The rows are drawn in validation_data.row_columns."""

import pyarrow as pa
import pytest

from tasks.stage.errors import InputError
from tasks.validation.checks import format_failures
from tasks.validation.pretraining_checks import ENOUGH_SEQUENCES
from tests.tasks.validation.validation_data import (
    answer_data,
    failed_checks,
    judged_rows,
    pretrain_data,
    row_columns,
    validate,
    window_columns,
    write_rows,
    write_tokenizer,
)

PRETRAIN, QUESTIONS = "pretrain", "question_answering"


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer")


def put(name, row, column, value):
    return lambda columns: columns[name].__setitem__((row, column), value)


def all_of(*changes):
    return lambda columns: [change(columns) for change in changes]


PADDED = [put(name, 1, 2, 0) for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids")]
SWAPPED = all_of(put("sequence_ids", 0, slice(8), 2), put("sequence_ids", 0, slice(8, 14), 1))


def empty_row(columns):
    for name, values in columns.items():
        absent = {"cls_positions": -1, "masked_labels": -100, "next_sentence_labels": -100}
        values[-1] = absent.get(name, 0)


# fmt: off
PRETRAIN_DAMAGE = [
    ("sequences_in_order", SWAPPED, "row 0", {}),
    ("sequences_in_order", put("sequence_ids", 0, slice(8, 14), 3), "row 0", {}),
    ("input_ids", put("input_ids", 2, 15, 7), "row 2", {}),
    ("input_ids", put("input_ids", 1, 3, 40), "row 1", {}),
    ("token_type_ids", put("token_type_ids", 1, 9, 2), "row 1", {}),
    ("token_type_ids", put("token_type_ids", 1, 15, 1), "row 1", {}),
    ("position_ids", put("position_ids", 1, 15, 1), "row 1", {}),
    ("first_tokens", put("token_type_ids", 1, 8, 1), "row 1", {}),
    ("positions_restart", put("position_ids", 0, 9, 2), "row 0", {}),
    ("first_tokens", put("input_ids", 3, 0, 9), "row 3", {}),
    ("cls_positions", put("cls_positions", 0, 1, 9), "row 0", {}),
    ("masked_positions", put("masked_positions", 1, 1, 16), "row 1", {}),
    ("masked_positions", put("masked_positions", 1, 2, 5), "row 1", {}),
    ("masked_in_sequence", put("masked_positions", 1, 1, 14), "row 1", {}),
    ("masked_once", put("masked_positions", 2, 1, 2), "row 2", {}),
    ("masked_labels", put("masked_labels", 0, 0, 40), "row 0", {}),
    ("masked_labels", put("masked_labels", 0, 0, -1), "row 0", {}),
    ("next_sentence_labels", put("next_sentence_labels", 0, 1, 2), "row 0", {}),
    ("next_sentence_labels", put("next_sentence_labels", 3, 1, 0), "row 3", {}),
    ("next_sentences", put("next_sentence_labels", 0, 1, -100), "row 0", {}),
    ("padding_at_end", all_of(*PADDED, put("masked_positions", 1, 0, 3)), "row 1", {"real_tokens": 49}),
    ("sequences", empty_row, "row 3", {"sequences": 6, "real_tokens": 42}),
]
QUESTION_DAMAGE = [
    ("answer_slots", put("start_positions", 0, 1, -100), "row 0"),
    ("start_positions", put("start_positions", 1, 1, -1), "row 1"),
    ("start_positions", put("start_positions", 3, 1, 12), "row 3"),
    ("end_positions", put("end_positions", 1, 1, 16), "row 1"),
    ("end_positions", put("end_positions", 3, 1, 12), "row 3"),
    ("start_before_end", all_of(put("start_positions", 0, 0, 6), put("end_positions", 0, 0, 5)), "row 0"),
    ("answer_in_sequence", put("end_positions", 1, 0, 12), "row 1"),
    ("answer_in_context", put("start_positions", 1, 0, 3), "row 1"),
    ("answer_in_context", put("end_positions", 1, 0, 7), "row 1"),  # [SEP]
    ("feature_ids", put("feature_ids", 3, 1, 99), "row 3"),
]
# fmt: on


def test_sound_rows_pass_every_check(tmp_path, tokenizer):
    verdict = judged_rows(tmp_path, tokenizer)
    assert failed_checks(verdict) == []
    assert verdict["rows"] == 4
    numbers = {one["name"]: one["value"] for one in verdict["statistics"]["numbers"]}
    assert (numbers["sequences"], numbers["real tokens"], numbers["masked tokens"]) == (7, 50, 7)
    assert numbers["share of random next sentences"] == round(3 / 7, 4)
    for name in ("squad-train", "squad-dev"):
        assert failed_checks(judged_rows(tmp_path, tokenizer, name)) == []


@pytest.mark.parametrize(("name", "damage", "said", "manifest"), PRETRAIN_DAMAGE)
def test_each_fault_of_pretraining_rows_fails_its_own_check(tmp_path, tokenizer, name, damage, said, manifest):
    columns = row_columns(PRETRAIN)
    damage(columns)
    verdict = judged_rows(tmp_path, tokenizer, columns=columns, **manifest)
    assert failed_checks(verdict) == [name]
    assert "found 1 of 4 rows fail" in format_failures(verdict, "")
    assert f"for example {said}\n" in format_failures(verdict, "")


@pytest.mark.parametrize(("name", "damage", "said"), QUESTION_DAMAGE)
def test_each_fault_of_question_rows_fails_its_own_check(tmp_path, tokenizer, name, damage, said):
    columns = row_columns(QUESTIONS)
    damage(columns)
    verdict = judged_rows(tmp_path, tokenizer, "squad-train", columns)
    assert failed_checks(verdict) == [name]
    assert f"for example {said}\n" in format_failures(verdict, "")


@pytest.mark.parametrize(
    ("failed", "stated", "said"),
    [
        ("manifest_sequences", {"sequences": 8}, ""),
        ("manifest_real_tokens", {"real_tokens": 51}, ""),
        ("vocab_size", {"vocab_size": 41}, ""),
        ("schema", {"row_length": 32}, ""),
        (
            "manifest_files",
            {"files": {"rows-00000.arrow": 2, "rows-00001.arrow": 1}},
            "has 3 rows, manifest.json lists 2",
        ),
        ("manifest_files", {"files": {"rows-00000.arrow": 3}, "rows": 3}, "rows-00001.arrow is not in manifest.json"),
        ("tokenizer", {"tokenizer_sha256": "ab" * 32}, "found rows of tokenizer " + "ab" * 32),
    ],
)
def test_a_manifest_that_states_other_than_the_rows_have_is_refused(tmp_path, tokenizer, failed, stated, said):
    verdict = judged_rows(tmp_path, tokenizer, **stated)
    assert failed_checks(verdict) == [failed]
    assert said in format_failures(verdict, "")
    assert ("input_ids" in verdict["not_checked"]) == (
        failed in ("vocab_size", "schema", "manifest_files", "tokenizer")
    )


def test_rows_of_another_kind_and_missing_features_stop_the_validation(tmp_path, tokenizer):
    folder = write_rows(tmp_path / "phase1", QUESTIONS, row_columns(QUESTIONS), tokenizer)
    verdict = validate(pretrain_data(folder, tokenizer))
    assert failed_checks(verdict) == ["schema"]
    assert "of kind question_answering, not pretrain" in format_failures(verdict, "")
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


def remove_rows(columns):
    columns.update({name: values[:0] for name, values in columns.items()})


def unmask(columns):
    columns["masked_positions"][:], columns["masked_labels"][:] = 0, -100


def mask_one_more(columns):  # 8 of 50 tokens; a fraction of 0 leaves room for 7, one in each sequence
    columns["masked_positions"][0, 2], columns["masked_labels"][0, 2] = 5, 13


def point_at_cls_or_nowhere(columns):
    columns["start_positions"][0], columns["end_positions"][0] = [0, 8], [0, 8]
    columns["start_positions"][1], columns["end_positions"][1] = -100, -100


def remove_labels(columns):
    columns["start_positions"][:], columns["end_positions"][:] = -100, -100


@pytest.mark.parametrize(
    ("name", "damage", "failed", "said"),
    [
        ("phase1", remove_rows, ["rows", "masked_tokens"], ""),
        ("phase1", unmask, ["masked_tokens"], ""),
        ("phase1", dict, [], ""),
        ("phase1", mask_one_more, ["masked_share"], "found 0.16; required: at most 0.14"),
        ("squad-dev", put("feature_ids", 1, 1, 5), ["features_once"], "feature 3: 0 times; feature 5: 2 times"),
        ("squad-train", point_at_cls_or_nowhere, [], ""),
        ("squad-train", remove_labels, ["answers"], ""),
        ("squad-dev", remove_labels, [], ""),
    ],
)
def test_rows_are_judged_as_a_whole_as_well(tmp_path, tokenizer, name, damage, failed, said):
    columns = row_columns(PRETRAIN if name == "phase1" else QUESTIONS)
    damage(columns)
    verdict = judged_rows(tmp_path, tokenizer, name, columns, masked=0.0)
    assert failed_checks(verdict) == failed
    assert said in format_failures(verdict, "")


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
