"""The presets' jobs compiled with all their layers and tiny weights, and what PopTorch recorded of each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, Set, Tuple

import numpy as np
from preset_layouts import Layout
from tiny_ipu import FOUR_LAYERS, ipu_runtime
from tiny_jobs import make_columns

from ipu_model import heads
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.rows.row_folder import Batch

SEED = 7


def forward_stages(layout: Layout) -> int:
    """One per IPU, and one more where the heads come back to IPU 0."""
    return len(layout.layers) + (layout.head == "pretraining" or layout.head_on is not None)


def accumulation(layout: Layout) -> int:
    """The least that fills the pipeline; 1 in predict."""
    return 2 * forward_stages(layout) - 1 if layout.training else 1


def model_config(layout: Layout) -> ModelConfig:
    """Dropout is on, as in every preset."""
    return dataclasses.replace(
        FOUR_LAYERS, num_layers=sum(layout.layers), hidden_dropout=0.1, attention_dropout=0.1, initializer_range=0.02
    )


def job_of(layout: Layout, folder: Path, **config: Any) -> Job:
    """The preset's job on rows of 24 tokens, one row in a micro-batch, compiled for IPUs that are not there."""
    kind = {"phase1": "pretrain", "phase2": "pretrain"}.get(layout.job, layout.job)
    batch = BatchGeometry(accumulation(layout) * layout.replicas, 1)
    schedule = None if layout.optimizer is None else ScheduleConfig(steps=1)
    places = {"rows": "", "output": str(folder / "out"), "run_folder": str(folder / "run")}
    device = {"runtime": "ipu", "precision": "fp16", "ipu_config": {**layout.ipu_config(), **config}}
    learning = {"optimizer": layout.optimizer, "schedule": schedule, "seed": SEED, "model": model_config(layout)}
    return Job(kind=kind, head=layout.head, geometry=batch, compile_only=True, **places, **device, **learning)


def compiled(job: Job, layout: Layout) -> Dict[str, Any]:
    import poptorch

    rows = accumulation(layout) * layout.replicas * layout.iterations
    columns = make_columns("pretrain" if layout.head == "pretraining" else layout.head, rows, seed=3)
    types: Dict[str, Tuple[str, ...]] = {}
    kind: Any = heads.get_head(layout.head).on_ipu
    forward = kind.forward

    def noting(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        types["found"] = tuple(str(x.dtype) for x in (outputs if isinstance(outputs, tuple) else (outputs,)))
        return outputs

    noting.__wrapped__ = forward  # type: ignore[attr-defined]  # PopTorch reads the names of the arguments
    kind.forward = noting  # type: ignore[method-assign]
    try:
        runtime = ipu_runtime(job, config=model_config(layout))
        runtime.compile(Batch(np.arange(rows), columns))
        record: Dict[str, Any] = poptorch.poptorch_core.getRecord()["executables"][-1]
        runtime.close()
    finally:
        kind.forward = forward  # type: ignore[method-assign]
    return {**record, "loss_types": types["found"]}


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
