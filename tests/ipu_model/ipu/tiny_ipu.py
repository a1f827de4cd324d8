"""Tiny models on a four-IPU pipeline, next to the same on CPU."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import pytest
import torch
from tiny_jobs import LABELS, TINY, head_of, labels_of, make_columns
from torch import nn

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu.planning import plan_ipu
from ipu_model.jobs.job import BatchGeometry, Job, OptimizerConfig, ScheduleConfig
from ipu_model.models.config import Distillation, ModelConfig
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.ipu import IpuRuntime, load_poptorch
from ipu_model.runtimes.runtime import StepMetrics
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

FOUR_LAYERS = dataclasses.replace(TINY, num_layers=4, hidden_dropout=0.0, attention_dropout=0.0, initializer_range=0.2)
ACCUMULATION = 16
"""Micro-batches of one row in an update of a replica."""
RATES = [2e-5 * (step + 1) for step in range(10)]
"""Of a size that is used. Parameters whose true gradient is zero (key biases, and what shifts all logits of a softmax
alike) see nothing but rounding, which Adam scales up to a full step: at 1e-2 they differ by up to 2e-4, all others
by 4e-7."""


def make_batches(head: str, updates: int, rows_per_update: int, packed: bool = True) -> List[Batch]:
    """One batch per update. `head`, here and below, may also be sequence_regression: that head with one label."""
    kind = "pretrain" if head == "pretraining" else head
    columns = make_columns(kind, updates * rows_per_update, seed=3)
    if not packed:
        columns = unpacked(columns)
    whole = Batch(np.arange(updates * rows_per_update), columns)
    return [whole.part(i * rows_per_update, (i + 1) * rows_per_update) for i in range(updates)]


def unpacked(columns: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Only the first sequence of every row, in rows with one slot."""
    first = columns["sequence_ids"] == 1
    alone = {}
    for name, values in columns.items():
        if name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids"):
            alone[name] = np.where(first, values, 0).astype(values.dtype)
        elif name == "token_labels":
            alone[name] = np.where(first, values, -100).astype(values.dtype)
        elif name == "label_flags":
            alone[name] = values[:, : len(LABELS)].copy()
        else:
            alone[name] = values[:, :1].copy()
    return alone


def make_model(head: str, config: ModelConfig = FOUR_LAYERS) -> nn.Module:
    model = build_model(head_of(head), config, labels_of(head))
    initialise(model, config, seed=5)
    return model


def ipu_job(
    head: str, optimizer: Optional[OptimizerConfig], folder: Path, replicas: int, iterations: int, **changes: Any
) -> Job:
    """A job on four IPUs per replica with one layer each."""
    config: Dict[str, Any] = {
        "layers_per_ipu": [1, 1, 1, 1],
        "replication_factor": replicas,
        "inference_replication_factor": replicas,
        "device_iterations": iterations,
        "inference_device_iterations": iterations,
        "output_mode": "sum",
        **changes.pop("ipu_config", {}),
    }
    kind = "pretrain" if head == "pretraining" else "finetune"
    batch = BatchGeometry(ACCUMULATION * replicas, 1)
    places = {"rows": "", "output": str(folder / "model"), "run_folder": str(folder / "run")}
    values: Dict[str, Any] = {"kind": kind, "head": head_of(head), **places, "geometry": batch, "ipu_config": config}
    values.update(runtime="ipu", precision="fp32", seed=7, model=FOUR_LAYERS, optimizer=optimizer)
    values["schedule"] = ScheduleConfig(steps=10)
    return Job(**{**values, **changes})


def ipu_runtime(
    job: Job, said: Optional[List[str]] = None, config: ModelConfig = FOUR_LAYERS, model: Optional[nn.Module] = None
) -> IpuRuntime:
    """The runtime of a job whose global batch counts rows; by default with the model of make_model."""
    lines = said if said is not None else []
    plan = plan_ipu(job, config, 1.0, job.precision == "fp16", PopRunInstances(), lines.append)
    Path(job.run_folder).mkdir(parents=True, exist_ok=True)
    model = model or make_model(job.head, config)

    def tell(event: str, **fields: Any) -> None:
        lines.append(str(fields.get("text")))

    return IpuRuntime(load_poptorch(), job, plan, model, config, tell)


def follow(
    folder: Path,
    kind: str,
    batches: List[Batch],
    optimizer: OptimizerConfig,
    config: ModelConfig = FOUR_LAYERS,
    replicas: int = 2,
    iterations: int = 1,
    rates: Sequence[float] = RATES,
    rows: Optional[int] = None,
    distillation: Optional[Distillation] = None,
    **changes: Any,
) -> List[StepMetrics]:
    """Train on four IPUs and on the CPU, there on the first rows alone: figures of calls and weights are the same."""
    cpu = TorchRuntime(
        make_model(kind, config), head_of(kind), ACCUMULATION, "fp32", optimizer, seed=7, distillation=distillation
    )
    job = ipu_job(kind, optimizer, folder, replicas, iterations, model=config, distillation=distillation, **changes)
    found = []
    with closing(ipu_runtime(job, config=config, model=make_model(kind, config))) as ipu:
        ipu.compile(join(batches[:iterations]))
        for first in range(0, len(batches), iterations):
            call, rate = batches[first : first + iterations], rates[first]
            found.append(ipu.train_step(join(call), rate))
            each = [cpu.train_step(batch.part(0, rows or len(batch.rows)), rate) for batch in call]
            assert found[-1].loss == pytest.approx(np.mean([x.loss for x in each]), rel=1e-5, abs=1e-5)
            parts = {name: np.mean([x.parts[name] for x in each]) for name in each[0].parts}
            assert found[-1].parts == pytest.approx(parts, rel=1e-5, abs=1e-5)
            assert found[-1].sequences == sum(x.sequences for x in each)
            assert found[-1].real_tokens == sum(x.real_tokens for x in each)
        learned, idle = largest_differences(ipu.state_dict(), cpu.state_dict())
    assert learned < 1e-5
    assert idle < 5 * max(rates)
    return found


def join(batches: List[Batch]) -> Batch:
    columns = {name: np.concatenate([x.columns[name] for x in batches]) for name in batches[0].columns}
    return dataclasses.replace(batches[0], rows=np.concatenate([x.rows for x in batches]), columns=columns)


def optimizer_of(name: str, **changes: Any) -> OptimizerConfig:
    """Scaled, as every recipe in fp16 is; the CPU takes no notice of it."""
    values = {"learning_rate": 1e-2, "weight_decay": 0.01, "loss_scaling": 128.0}
    return optimizer_config(**{"name": name, **values, **changes})


def largest_differences(ours: Dict[str, torch.Tensor], theirs: Dict[str, torch.Tensor]) -> Tuple[float, float]:
    """Of weights that learn, and of those whose gradient is zero but for rounding, which Adam scales to a step."""
    assert sorted(ours) == sorted(theirs)
    last = max(int(name.split(".")[3]) for name in ours if name.startswith("bert.encoder.layer."))
    idle = ("key.bias", "qa_outputs.bias")
    if "qa_outputs.bias" in ours:
        idle += (f"layer.{last}.output.LayerNorm.bias",)
    found = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours}
    return tuple(  # type: ignore[return-value]
        max((value for name, value in found.items() if name.endswith(idle) == chosen), default=0.0)
        for chosen in (False, True)
    )


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
