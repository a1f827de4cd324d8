"""Tiny models on a four-IPU pipeline, next to the same on CPU: runtimes and whole jobs."""

import dataclasses
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tiny_jobs import LABELS, TINY, finish, head_of, make_columns, make_job, start, write_rows
from tiny_torch import make_model

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu.planning import plan_ipu
from ipu_model.jobs.job import BatchGeometry, ScheduleConfig
from ipu_model.rows.format import read_manifest
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.ipu import IpuRuntime, load_poptorch
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

FOUR_LAYERS = dataclasses.replace(TINY, num_layers=4, hidden_dropout=0.0, attention_dropout=0.0, initializer_range=0.2)
DROPPING = dataclasses.replace(FOUR_LAYERS, hidden_dropout=0.1, attention_dropout=0.1)
ADAMW = optimizer_config(learning_rate=1e-2, loss_scaling=128.0)
"""Scaled, as every recipe in fp16 is; the CPU takes no notice of it."""
LAMB = dataclasses.replace(ADAMW, name="lamb")
ACCUMULATION = 16
"""Micro-batches of one row in an update of a replica."""
RATES = [2e-5 * (step + 1) for step in range(10)]
"""Of a size that is used. Parameters whose true gradient is zero (key biases, and what shifts all logits of a softmax
alike) see nothing but rounding, which Adam scales up to a full step: at 1e-2 they differ by up to 2e-4, all others
by 4e-7."""


def tiny_model(kind, config=FOUR_LAYERS):
    return make_model(kind, config, seed=5)


def make_batches(kind, updates, rows_per_update, packed=True):
    """One batch per update."""
    columns = make_columns(kind, updates * rows_per_update, seed=3)
    if not packed:
        columns = unpacked(columns)
    whole = Batch(np.arange(updates * rows_per_update), columns)
    return [whole.part(i * rows_per_update, (i + 1) * rows_per_update) for i in range(updates)]


def unpacked(columns):
    """Only the first sequence of every row, in rows with one slot."""
    first = columns["sequence_ids"] == 1
    alone = {}
    for name, values in columns.items():
        if values.shape == first.shape:
            unused = -100 if name == "token_labels" else 0
            alone[name] = np.where(first, values, unused).astype(values.dtype)
        else:
            alone[name] = values[:, : len(LABELS) if name == "label_flags" else 1].copy()
    return alone


def rows_of(folder, kind, rows, seed=1, packed=True):
    """A row folder; the numbers of its features follow one another without a gap."""
    columns = make_columns(kind, rows, seed=seed)
    if not packed:
        columns = unpacked(columns)
        if "feature_ids" in columns:
            columns["feature_ids"][:, 0] = range(rows)
    write_rows(folder, kind, columns)
    return folder


def ipu_job(folder, kind, rows=None, accumulation=ACCUMULATION, replicas=1, iterations=1, **changes):
    """One layer on each of four IPUs, micro-batches of one row, fp32, 4 updates; `kind` of the job, or of its rows."""
    factor = 1.0 if rows is None else read_manifest(Path(rows)).packing_factor
    config = {
        "layers_per_ipu": [1, 1, 1, 1],
        "replication_factor": replicas,
        "inference_replication_factor": replicas,
        "device_iterations": iterations,
        "output_mode": "sum",
        **changes.pop("ipu_config", {}),
    }
    values = {
        "head": "question_answering" if kind in ("finetune", "predict") else head_of(kind),
        "runtime": "ipu",
        "model": None if "init_checkpoint" in changes else FOUR_LAYERS,
        "geometry": BatchGeometry(round(accumulation * replicas * factor), 1),
        "optimizer": optimizer_config(name="lamb", learning_rate=1e-4),
        "schedule": ScheduleConfig(steps=4, warmup_fraction=0.5),
        "checkpoint_every_updates": 0,
        "log_every_updates": 1,
        **changes,
    }
    kind = kind if kind in ("pretrain", "predict") else "finetune"
    return make_job(folder, kind, rows or "", ipu_config=config, **values)


def on_cpu(job, folder, **changes):
    accumulation = round(job.geometry.global_batch_size / read_manifest(Path(job.rows)).packing_factor)
    values = {
        "runtime": "cpu",
        "ipu_config": None,
        "geometry": BatchGeometry(job.geometry.global_batch_size, accumulation),
        "output": str(folder / Path(job.output).name),
        "run_folder": str(folder / "run"),
    }
    return dataclasses.replace(job, **{**values, **changes})


def run_code(code, arguments, **environment):
    """Python code in a process of its own; every line on its stdout must be an event."""
    return finish(start([sys.executable, "-c", code, *arguments], environment))


def plan_of(job, config=FOUR_LAYERS, count=1, say=lambda line: None):
    """The plan of a job whose global batch counts rows, of one of `count` instances."""
    return plan_ipu(job, config, 1.0, job.precision == "fp16", PopRunInstances(index=0, count=count), say)


def ipu_runtime(job, lines=None, config=FOUR_LAYERS, model=None):
    """The runtime of such a job, by default with the model of tiny_model; `lines` takes what it says."""
    lines = [] if lines is None else lines
    plan = plan_of(job, config, say=lines.append)
    Path(job.run_folder).mkdir(parents=True, exist_ok=True)

    def emit(event, **fields):
        lines.append(str(fields.get("text")))

    return IpuRuntime(load_poptorch(), job, plan, model or tiny_model(job.head, config), config, emit)


def follow(folder, kind, batches, optimizer, config=FOUR_LAYERS, iterations=1, rates=RATES, rows=None, **changes):
    """Train on four IPUs and on the CPU, there on the first rows alone: figures of calls and weights are the same."""
    setting = changes.get("distillation")
    cpu = TorchRuntime(
        tiny_model(kind, config), head_of(kind), ACCUMULATION, "fp32", optimizer, seed=7, distillation=setting
    )
    job = ipu_job(folder, kind, iterations=iterations, optimizer=optimizer, model=config, **{"replicas": 2, **changes})
    calls = []
    with closing(ipu_runtime(job, config=config, model=tiny_model(kind, config))) as ipu:
        ipu.compile(join(batches[:iterations]))
        for first in range(0, len(batches), iterations):
            call, rate = batches[first : first + iterations], rates[first]
            calls.append(ipu.train_step(join(call), rate))
            each = [cpu.train_step(batch.part(0, rows or len(batch.rows)), rate) for batch in call]
            parts = {name: np.mean([x.parts[name] for x in each]) for name in each[0].parts}
            expected = {"loss": np.mean([x.loss for x in each]), **parts}
            assert {"loss": calls[-1].loss, **calls[-1].parts} == pytest.approx(expected, rel=1e-5, abs=1e-5)
            assert calls[-1].sequences == sum(x.sequences for x in each)
            assert calls[-1].real_tokens == sum(x.real_tokens for x in each)
        learned, idle = largest_differences(ipu.state_dict(), cpu.state_dict())
    assert learned < 1e-5
    assert idle < 5 * max(rates)
    return calls


def join(batches):
    columns = {name: np.concatenate([x.columns[name] for x in batches]) for name in batches[0].columns}
    return dataclasses.replace(batches[0], rows=np.concatenate([x.rows for x in batches]), columns=columns)


def largest_differences(ours, theirs):
    """Of weights that learn, and of those whose gradient is zero but for rounding, which Adam scales to a step."""
    assert sorted(ours) == sorted(theirs)
    last = max(int(name.split(".")[3]) for name in ours if name.startswith("bert.encoder.layer."))
    idle = ("key.bias", "qa_outputs.bias")
    if "qa_outputs.bias" in ours:
        idle += (f"layer.{last}.output.LayerNorm.bias",)
    differences = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours}
    return [
        max((value for name, value in differences.items() if name.endswith(idle) == chosen), default=0.0)
        for chosen in (False, True)
    ]


SUPPORTED = """
    abs add addmm arange argmax binary_cross_entropy_with_logits bmm cat clamp cos div embedding eq expand ge gelu gt
    le logical_and lt mul ne pow reciprocal sin split sub sum t tanh transpose unsqueeze
    _log_softmax nll_loss_forward _softmax native_layer_norm mm view _unsafe_view slice select
    clone _to_copy bernoulli_ div_ empty_like detach
"""
"""The first two lines are named in PopTorch's user guide, "IPU supported operations"; embedding without padding_idx.
It has those of the third under other names: CrossEntropyLoss, Softmax, LayerNorm with weight and bias, matmul, reshape,
tensor[a:b] with constant ends. Of the last: contiguous(), ignored; a cast; torch.nn.dropout in three; an alias."""


def unsupported_operations(record):
    """Names without overloads: aten.add.Tensor is add."""
    assert all(name.startswith("aten.") for name in record["ops"])
    return {name.split(".")[1] for name in record["ops"]} - set(SUPPORTED.split())
