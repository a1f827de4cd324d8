"""Upper bound on the memory of a job on CPU or CUDA, without torch and without a measurement.

The bound decides whether memory is in doubt. If it is, `podium run` measures the job before it prepares data. Time is
always measured (train/measurement.py), never computed. docs/plan.md states the accuracy of both.
"""

from __future__ import annotations

import math
from typing import List, Optional

from ipu_model import heads
from ipu_model.core.memory import memory_limit
from ipu_model.estimates.estimate import Interval, JobEstimate, MemoryEstimate, Term
from ipu_model.estimates.shapes import model_parameters, table_parameters
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import MICRO_BATCHES_PER_CALL, divide, set_replicas
from ipu_model.models.config import LONGEST_WITH_SCORES, ModelConfig
from ipu_model.models.families import get_family
from ipu_model.rows.format import Manifest

MIB = 1 << 20
LEAST_PROCESS_BYTES, PROCESS_BYTES = 219 * MIB, 448 * MIB
"""Resident memory of a process with torch on a CPU: after the import (torch 2.13, Python 3.11), and with kernels and
torch's compiler, which some optimizers load."""
RUN_BYTES = 512 * MIB
"""Memory of the processes of a run besides its job: the command, Prefect's temporary server, and DVC for two stages at
once (149, 192 and 197 MiB as proportional set sizes in a run of `podium finetune`)."""
BETWEEN_TENSORS = 1.6
"""Memory that the C library reserves for each byte of tensors allocated and freed with a micro-batch."""
MICRO_BATCH = "lower device.micro_batch_size: the result stays the same but for rounding"
RECOMPUTE = "device.recompute=true, or a smaller device.micro_batch_size"
MODEL = "a smaller model"


def memory_terms(job: Job, model: ModelConfig, manifest: Manifest, processes: int = 1) -> List[Term]:
    """Return the parts of an upper bound on the bytes of one process of a job on cpu or cuda, the largest first.

    Rows of a micro-batch are assumed to be full; the counts of the manifest may be assumed.
    """
    trains, on_cpu, head = job.kind != "predict", job.runtime != "cuda", heads.get_head_spec(job.head)
    family = get_family(model.family)
    optimizer = "" if job.optimizer is None else job.optimizer.name
    geometry, exact = set_replicas(job.geometry, processes), manifest.unit > 1
    rows = divide(geometry, manifest.batch_factor or 1.0, exact=exact).micro_batch_size
    rows = rows if trains else rows * MICRO_BATCHES_PER_CALL
    tokens, wide = rows * manifest.row_length, 2 if job.precision == "bf16" else 4
    # The feed-forward parts of other encoders may be gated, which takes a third matrix.
    gates = 0 if family.own else model.num_layers * model.hidden_size * model.intermediate_size
    weights = 4.0 * (model_parameters(model, job.head, len(job.labels or ()) or 2) + gates)
    table = 4.0 * table_parameters(model)
    hidden, inner = wide * tokens * model.hidden_size, wide * tokens * model.intermediate_size
    keys = min(manifest.text_length, LONGEST_WITH_SCORES) if family.rotary else manifest.text_length
    scores = wide * tokens * keys * model.num_heads * family.attention_copies
    scores *= on_cpu or not family.own  # kernels of CUDA keep no scores
    layers = 1 if job.recompute or not trains else model.num_layers
    # Our own attention keeps one tensor a layer, and has two and a half at a time (models/flat.py).
    score_tensors = layers + 1.5 if family.own else 2.5 * layers
    saves = trains and (job.checkpoint_every_minutes > 0 or job.checkpoint_every_updates > 0)
    # A checkpoint has three copies of the weights in memory, and one more while it is created.
    copies = weights * ((4 if saves else 0) + (1 if job.evaluation is not None else 0))
    # Gradients, two moments, and 1 more for copies in bf16 and for saving; torch's optimizers also store directions.
    state = weights * (5.0 if optimizer in ("adamw", "lamb") else 6.0 if trains else 2.5)
    logits = wide * 2.0 * rows * manifest.max_predictions * model.vocab_size if trains and head.tied else 0.0
    terms = [
        Term("weights, gradients and moments" if trains else "weights", state + weights * (processes > 1), MODEL),
        Term("copies of the state for checkpoints and evaluations", copies if on_cpu else 0.0, MODEL),
        Term("activations", BETWEEN_TENSORS * (layers * (9 * hidden + 2 * inner) + 9 * hidden), RECOMPUTE),
        Term("attention scores", BETWEEN_TENSORS * score_tensors * scores, RECOMPUTE),
        Term("vocabulary logits", BETWEEN_TENSORS * logits, MICRO_BATCH),
        Term("gradient of the word table", 2 * table if trains else 0.0, "a smaller vocabulary"),
        Term("Python, torch and its libraries", float(PROCESS_BYTES)),
    ]
    return sorted((term for term in terms if term.amount), key=lambda term: -term.amount)


def estimate_host(
    job: Job, model: ModelConfig, manifest: Manifest, processes: int = 1, limit: Optional[float] = None
) -> JobEstimate:
    """Return the memory of a job on CPU or CUDA as an interval from a lower to an upper bound.

    `limit` is the bytes of memory of each GPU, or of the host. None: for a CPU the memory of this host within its
    limits, less that of the run's other processes, for a GPU unknown.

    Raises:
        ConfigError: the geometry is impossible.
    """
    terms = memory_terms(job, model, manifest, processes)
    if limit is None and job.runtime != "cuda":
        limit = memory_limit(others=RUN_BYTES)
    if limit is not None and job.runtime != "cuda":
        limit /= processes
    where = "each GPU" if job.runtime == "cuda" else "the process" if processes == 1 else "each process"
    # Certain are weights, and in training their gradients and moments; other encoders may share them between layers.
    numbers = model_parameters(model, job.head, len(job.labels or ()) or 2) * get_family(model.family).own
    copies = 1 if job.optimizer is None or job.kind == "predict" else 3 if job.optimizer.name == "sgd" else 4
    least = (0 if job.runtime == "cuda" else LEAST_PROCESS_BYTES) + 4.0 * copies * numbers
    most = sum(term.amount for term in terms)
    memory = MemoryEstimate(where, tuple(terms), Interval(least, most, most), math.inf if limit is None else limit)
    return JobEstimate(device_name(job.runtime, processes), (memory,), None)


def device_name(runtime: str, processes: int) -> str:
    """Return the name of a job's hardware."""
    if runtime == "cuda":
        return "1 GPU" if processes == 1 else f"{processes} GPUs"
    return "CPU, 1 process" if processes == 1 else f"CPU, {processes} processes"
