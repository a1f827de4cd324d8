"""Every IPU preset, compiled with all its layers: operations that an IPU has, and numbers of types that it has.

The model is fixed, so this stands for a preflight: an operation without support is found here, not by a user.
"""

from __future__ import annotations

from pathlib import Path

import poptorch  # noqa: F401  # marks what needs a recording, see conftest.py
import pytest
from preset_layouts import LAYOUTS, Layout
from recorded_presets import SUPPORTED, operations, record_of

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: x.name)


@every_layout
def test_every_operation_is_one_that_poptorch_supports(layout: Layout, tmp_path: Path) -> None:
    assert operations(record_of(layout, tmp_path)) - SUPPORTED == set()


@every_layout
def test_weights_are_fp16_inputs_int32_and_losses_fp32(layout: Layout, tmp_path: Path) -> None:
    """No int64 and no float64 reaches an IPU, which has neither."""
    record = record_of(layout, tmp_path)
    assert {(kind, trained) for _, kind, trained in record["parameters"].values()} == {("torch.float16", True)}
    columns = {"pretraining": 8, "question_answering": 6 if layout.training else 4}[layout.head]
    weights = ["torch.float32"] if layout.training else []  # of the labels
    assert [x["dtype"] for x in record["inputs"]] == ["torch.int32"] * columns + weights
    assert [x["shape"][0] for x in record["inputs"]] == [1] * (columns + len(weights)), "one row in a micro-batch"
    if layout.training:
        assert record["loss_types"] == ("torch.float32",) * 3, "the loss and its two parts"
        assert record["losses"][-1] == ["identity_loss", "none"]
    else:
        assert record["loss_types"] == ("torch.float32",), "logits"
        assert record["losses"] == []
