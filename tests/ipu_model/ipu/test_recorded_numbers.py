"""Every IPU preset, compiled with all its layers: operations that an IPU has, and numbers of types that it has.

The model is fixed, so this stands for a preflight: an operation without support is found here, not by a user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Set

import poptorch  # noqa: F401  # marks what needs a recording, see conftest.py
import pytest
from preset_layouts import LAYOUTS, Layout
from recorded_presets import record_of

IN_THE_GUIDE = (
    "add addmm arange bmm cat clamp div embedding eq expand ge gelu logical_and lt mul split sub sum t tanh transpose "
    "unsqueeze"
)
"""Named in PopTorch's user guide, "IPU supported operations"; embedding without padding_idx."""
UNDER_ANOTHER_NAME = {
    "_log_softmax": "torch.nn.LogSoftmax; half of torch.nn.CrossEntropyLoss",
    "nll_loss_forward": "torch.nn.NLLLoss; the other half",
    "_softmax": "torch.nn.Softmax",
    "native_layer_norm": "torch.nn.LayerNorm, with weight and bias as the guide demands",
    "mm": "torch.matmul of two matrices",
    "view": "torch.reshape",
    "_unsafe_view": "torch.reshape, of a product",
    "slice": "tensor[a:b] with constant ends, 'Indexing, slicing, joining and mutating ops'",
    "select": "tensor[..., a], the same",
    "clone": "contiguous(), 'ignored'; identity_loss",
    "_to_copy": "a cast, '16-bit float operations': fully supported by the dispatcher front end",
    "bernoulli_": "torch.bernoulli; with the next two and mul this is torch.nn.dropout",
    "div_": "torch.div, in place on the noise of dropout",
    "empty_like": "the memory of that noise",
    "detach": "an alias that keeps a tensor for the backward pass; no operation on an IPU",
}
SUPPORTED = {*IN_THE_GUIDE.split(), *UNDER_ANOTHER_NAME}


def operations(record: Dict[str, Any]) -> Set[str]:
    """Names without overloads: aten.add.Tensor is add."""
    assert all(name.startswith("aten.") for name in record["ops"])
    return {name.split(".")[1] for name in record["ops"]}


every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: x.name)


@every_layout
def test_every_operation_is_one_that_poptorch_supports(layout: Layout, tmp_path: Path) -> None:
    assert operations(record_of(layout, tmp_path)) - SUPPORTED == set()


def test_the_list_of_operations_has_none_that_no_job_needs(tmp_path: Path) -> None:
    in_pieces = next(x for x in LAYOUTS if x.table_pieces > 1)
    needed = operations(record_of(LAYOUTS[0], tmp_path)) | operations(record_of(in_pieces, tmp_path))
    assert needed | {"detach"} == SUPPORTED  # PopTorch's front end takes no notice of detach, eager torch does


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
