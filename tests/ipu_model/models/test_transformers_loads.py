"""What we save, transformers loads: version 4 in the device environment, version 5 in the host's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_jobs import LABELS, TINY, head_of, labels_of, make_columns, write_rows

from ipu_model import heads
from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime

transformers = pytest.importorskip("transformers", reason="the device job needs no transformers; this check does")
PROBLEMS = {
    "sequence_classification": "single_label_classification",
    "sequence_multilabel": "multi_label_classification",
    "sequence_regression": "regression",
}
KINDS = ["pretrain", "question_answering", *PROBLEMS, "token_classification"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_names_and_logits_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    head, labels = heads.get_head(head_of(kind)), LABELS[: labels_of(kind)]
    model, folder = build_model(head.name, TINY, len(labels)), tmp_path / "model"
    initialise(model, TINY, seed=1)
    folder.mkdir()
    origin = ModelOrigin("t" * 64, "finetune", head.name, 0, 1)
    write_model(folder, head.name, TINY, model.state_dict(), origin, labels, kind)
    auto: Any = getattr(transformers, f"AutoModel{head.suffix}")
    loaded, report = auto.from_pretrained(str(folder), output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())
    assert loaded.config.problem_type == PROBLEMS.get(kind)
    if labels:
        assert loaded.config.id2label == dict(enumerate(labels))
        assert loaded.config.label2id == {name: number for number, name in enumerate(labels)}
    columns = make_columns(kind, 3)
    write_rows(tmp_path / "rows", kind, columns)
    batch = RowFolder(tmp_path / "rows", kind, TINY, len(labels)).take(np.arange(3))
    runtime = TorchRuntime(model, head.name, 3, "fp32", None, 0)
    for found in runtime.predict(batch) if head.logits else []:
        row, slot = np.argwhere(columns["feature_ids"] == found.feature_id)[0]
        here = columns["sequence_ids"][row] == slot + 1
        ids, types = (columns[c][row][here].astype(np.int64)[None] for c in ("input_ids", "token_type_ids"))
        with torch.no_grad():
            alone = loaded.eval()(input_ids=torch.from_numpy(ids), token_type_ids=torch.from_numpy(types))
        for name in head.logits:
            expected = getattr(alone, name)[0].flatten().numpy()
            np.testing.assert_allclose(found.columns[name], expected, rtol=1e-5, atol=1e-6)
