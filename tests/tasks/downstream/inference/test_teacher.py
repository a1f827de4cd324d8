"""What a teacher must have in common with its student, and its logits in the rows of all kinds."""

import numpy as np
import pyarrow as pa
import pytest

from ipu_model.models.flat import flatten
from ipu_model.rows.row_folder import RowFolder
from tasks.downstream.inference.teacher import add_logits
from tests.ipu_model.tiny_jobs import TAUGHT, TINY, head_of, labels_of, make_columns, write_rows


@pytest.mark.parametrize("kind", TAUGHT)
def test_logits_come_back_in_the_order_of_the_sequences_and_tokens(kind, tmp_path):
    from ipu_model import heads
    from ipu_model.train.job_runner import logits_schema

    head, labels, rng = heads.get_head(head_of(kind)), labels_of(kind), np.random.default_rng(1)
    columns = make_columns(kind, 12)
    write_rows(tmp_path / "rows", kind, columns, files=2)
    present = columns["feature_ids"] >= 0
    tokens = {}
    for row, slot in np.argwhere(present):
        tokens[int(columns["feature_ids"][row, slot])] = int((columns["sequence_ids"][row] == slot + 1).sum())
    per = {"question_answering": 1, "token_classification": labels}.get(kind, 0)
    sizes = [tokens[number] * per if per else labels for number in range(len(tokens))]
    logits = {name: [rng.normal(size=size).astype(np.float32) for size in sizes] for name in head.logits}
    table = {"feature_id": pa.array(range(len(sizes)), pa.int32())}
    table |= {name: pa.array([x.tolist() for x in lists], pa.list_(pa.float32())) for name, lists in logits.items()}
    schema = logits_schema(head.name)
    with pa.ipc.new_file(str(tmp_path / "logits.arrow"), schema) as writer:
        writer.write_table(pa.table(table, schema=schema))
    (tmp_path / "taught").mkdir()
    add_logits(tmp_path / "rows", tmp_path / "logits.arrow", tmp_path / "taught", "w" * 64)
    rows = RowFolder(tmp_path / "taught", kind, TINY, labels)
    assert rows.manifest.teacher.weights_sha256 == "w" * 64
    assert len(rows.manifest.teacher.rows_sha256) == 64
    batch = rows.take(np.array([7, 0, -1, 11, 3]))
    assert all((batch.columns[name][2] == 0).all() for name in head.teacher_columns)
    flat = flatten(batch, head.flat_labels)
    for name in head.logits:
        expected = np.concatenate([logits[name][number] for number in flat.feature_ids])
        assert flat.labels[f"teacher_{name}"].numpy()[: len(expected)] == pytest.approx(expected)
