from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.squad import answers as windows_module
from tasks.downstream.squad.answers import WindowFiles
from tasks.stage.errors import InputError
from tests.tasks.downstream.squad.window_files import (
    Window,
    read_windows,
    words,
    write_features,
    write_logits,
    write_windows,
)

ONE = Window(0, words("the red house"), start=[1, 2, 3], end=[4, 5, 6])
TWO = Window(1, words("a dog"), start=[7, 8], end=[9, 10], question_tokens=4, outside=-1.0)
IDS = ["q0", "q1"]


def test_only_the_logits_of_context_tokens_and_cls_are_kept(tmp_path: Path) -> None:
    windows = read_windows(*write_windows(tmp_path, [ONE, TWO], IDS), IDS)
    assert windows.bounds.tolist() == [0, 3, 5]
    assert windows.start_logits.tolist() == [1, 2, 3, 7, 8]
    assert windows.end_logits.tolist() == [4, 5, 6, 9, 10]
    assert windows.cls_logits.tolist() == [[-3, -3], [-1, -1]]
    assert windows.characters.tolist() == [[0, 3], [4, 7], [8, 13], [0, 1], [2, 5]]


LOGITS = [ONE.padded(ONE.start), TWO.padded(TWO.start)]


@pytest.mark.parametrize(
    ("starts", "ids", "message"),
    [
        (LOGITS[:1], [0], "lacks feature 1: 1 lines for 2 features"),
        (LOGITS[::-1], [1, 0], "unsorted"),
        ([*LOGITS, [0.0]], [0, 1, 2], "unknown"),
        ([LOGITS[0], LOGITS[1][:-1]], None, "has 8 logits for feature 1, 9 are required"),
        ([LOGITS[0], [*LOGITS[1][:-1], float("nan")]], None, "a logit of feature 1 is nan"),
        ([[float("inf"), *LOGITS[0][1:]], LOGITS[1]], None, "a logit of feature 0 is inf"),
    ],
)
def test_logits_that_do_not_fit_are_refused(
    tmp_path: Path, starts: list[list[float]], ids: list[int] | None, message: str
) -> None:
    features = write_features(tmp_path / "features.parquet", [ONE, TWO], IDS)
    logits = write_logits(tmp_path / "logits.arrow", starts, starts, ids)
    with pytest.raises(InputError, match=message):
        read_windows(features, logits, IDS)


@pytest.mark.parametrize(
    ("features", "questions", "message"),
    [
        ([ONE, TWO], ["q0", "other"], "feature 1 belongs to question 'q1', expected 'other'"),
        ([ONE], IDS, "no feature for 1 of 2 questions, first 'q1'"),
        ([ONE, TWO], IDS[:1], "there are 1"),
    ],
)
def test_features_of_other_questions_are_refused(
    tmp_path: Path, features: list[Any], questions: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_windows(*write_windows(tmp_path, features, IDS), questions)


def test_more_context_tokens_than_tokens_are_refused(tmp_path: Path) -> None:
    features, logits = write_windows(tmp_path, [ONE, TWO], IDS)
    table = pq.read_table(features)
    pq.write_table(table.set_column(3, "n_tokens", pa.array([5, 9], pa.int32())), features)
    with pytest.raises(InputError, match="feature 0 has more context tokens than tokens"):
        read_windows(features, logits, IDS)


@pytest.mark.parametrize(("damaged", "stage"), [("features.parquet", "rows@squad"), ("logits.arrow", "predict@squad")])
@pytest.mark.parametrize("content", [None, b"", b"no table at all"])
def test_missing_and_damaged_files_name_the_stage_to_run(
    tmp_path: Path, damaged: str, stage: str, content: bytes | None
) -> None:
    files = write_windows(tmp_path, [ONE, TWO], IDS)
    path = tmp_path / damaged
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"{damaged}.*{stage}"):
        read_windows(*files, IDS)


@pytest.mark.parametrize("column", ["offsets", "example_id"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    features, logits = write_windows(tmp_path, [ONE, TWO], IDS)
    pq.write_table(pq.read_table(features).drop_columns([column]), features)
    with pytest.raises(InputError, match=column):
        read_windows(features, logits, IDS)


def test_several_record_batches_read_as_one_table(tmp_path: Path) -> None:
    features, logits = write_windows(tmp_path, [ONE, TWO], IDS)
    whole = read_windows(features, logits, IDS)
    with pa.memory_map(str(logits)) as source:
        table = pa.ipc.open_file(source).read_all()
    parts = tmp_path / "parts.arrow"
    with pa.OSFile(str(parts), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    assert np.array_equal(read_windows(features, parts, IDS).start_logits, whole.start_logits)


def test_windows_are_read_a_few_questions_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [ONE, replace(ONE, example=1), replace(TWO, example=1), replace(TWO, example=2), replace(ONE, example=3)]
    ids = ["q0", "q1", "q2", "q3"]
    files = WindowFiles(*write_windows(tmp_path, found, ids), "{}@squad".format, ids)
    pq.write_table(pq.read_table(files.features), files.features, row_group_size=2)
    monkeypatch.setattr(windows_module, "PART_TOKENS", 12)
    parts, whole = list(files.parts()), files.read()
    assert [part for part, _ in parts] == [slice(0, 1), slice(1, 3), slice(3, 4)]
    assert [windows.example_index.tolist() for _, windows in parts] == [[0], [0, 0, 1], [0]]
    for name in ("characters", "start_logits", "end_logits", "cls_logits"):
        joined = np.concatenate([getattr(windows, name) for _, windows in parts])
        assert np.array_equal(joined, getattr(whole, name))
    assert files.windows_of_examples() == [1, 2, 1, 1]


def test_a_part_that_does_not_fit_names_the_feature_as_the_file_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows_module, "PART_TOKENS", 1)
    bad = replace(TWO, start=[7, float("nan")])
    files = WindowFiles(*write_windows(tmp_path, [ONE, bad], IDS), "{}@squad".format, IDS)
    with pytest.raises(InputError, match="a logit of feature 1 is nan"):
        list(files.parts())
    files = WindowFiles(*write_windows(tmp_path, [TWO, ONE], IDS), "{}@squad".format, IDS)
    with pytest.raises(InputError, match="example_index must not decrease"):
        list(files.parts())
