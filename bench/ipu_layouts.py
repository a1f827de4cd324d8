"""Layouts that are known to fit the memory of IPUs (those of the presets), and layouts that are known not to.

No published report of a BERT that ran out of memory on IPUs includes its whole configuration (threads of
graphcore/poptorch, graphcore/examples and huggingface/optimum-graphcore, and Graphcore's documents, were searched). So
the layouts that do not fit are published ones with one term increased beyond the limit, each with its calculation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipu_model.estimates.estimate import DOES_NOT_FIT, MemoryEstimate
from ipu_model.estimates.ipu import estimate_ipus
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from tasks.estimates.planned_jobs import FINETUNE, PREDICT, PRETRAIN, planned_jobs
from tasks.jobs.device_job import Job
from tasks.params.entries import entries
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params

ROOT = Path(__file__).resolve().parent.parent
PRESETS = ROOT / "presets"
CERTAIN = ("weights", "accumulated gradients", "optimizer state", "stashed activations", "streams")
"""Terms that follow from the shapes without any assumption."""


@dataclass(frozen=True)
class KnownJob:
    """A job of a preset, on rows known only by their shape."""

    preset: str
    name: str
    """phase1, phase2, finetune or predict."""
    job: Job
    model: ModelConfig
    rows: Manifest

    def fullest(self) -> MemoryEstimate:
        """Estimate the memory of the fullest IPU."""
        return estimate_ipus(self.job, self.model, self.rows).memory[0]

    def verdict(self) -> str:
        """Return the verdict over all IPUs of the job."""
        return estimate_ipus(self.job, self.model, self.rows).verdict


@dataclass(frozen=True)
class OversizedLayout:
    """A published layout changed so that it exceeds the memory of an IPU."""

    preset: str
    name: str
    change: str
    """Description of the change."""
    why: str
    micro_batch_size: int = 0
    """Rows; 0 = as published."""
    length: int = 0
    """Tokens per row; 0 = as published."""
    precision: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    """Changed keys of the ipu_config."""

    def job(self) -> KnownJob:
        """Return the changed job; its global batch still has 512 micro-batches per replica."""
        known = next(one for one in preset_jobs(self.preset) if one.name == self.name)
        job, rows = known.job, known.rows
        config = {**(job.ipu_config or {}), **self.keys}
        if self.micro_batch_size:
            whole = self.micro_batch_size * config.get("replication_factor", 1) * 512
            geometry = dataclasses.replace(
                job.geometry, micro_batch_size=self.micro_batch_size, global_batch_size=whole
            )
            job = dataclasses.replace(job, geometry=geometry)
        job = dataclasses.replace(job, ipu_config=config, precision=self.precision or job.precision)
        rows = dataclasses.replace(rows, row_length=self.length or rows.row_length)
        return dataclasses.replace(known, job=job, rows=rows)


OVERSIZED: tuple[OversizedLayout, ...] = (
    OversizedLayout("ipu-base-pod16-examples", "phase1", "micro-batch of 96 rows for 32",
        "7 micro-batches of 4 layers are stashed on IPU 1, 18.9 MB each, plus 113 MB of weights and gradients",
        micro_batch_size=96),
    OversizedLayout("ipu-base-pod16-examples", "phase1", "micro-batch of 128 rows for 32",
        "28 stashed activations of 25.2 MB", micro_batch_size=128),
    OversizedLayout("ipu-base-pod16-examples", "phase1", "rows of 512 tokens with the micro-batch of phase 1",
        "28 stashed activations of 25.2 MB, and scores of 201 MB a layer", length=512),
    OversizedLayout("ipu-base-pod16-examples", "phase1", "rows of 384 tokens with the micro-batch of phase 1",
        "28 stashed activations of 18.9 MB, and scores of 113 MB a layer", length=384),
    OversizedLayout("ipu-base-pod16-examples", "phase2", "micro-batch of 32 rows for 8",
        "28 stashed activations of 25.2 MB, and scores of 201 MB a layer", micro_batch_size=32),
    OversizedLayout("ipu-base-pod16-examples", "phase2", "fp32 for fp16",
        "227 MB of weights and gradients, 28 stashed activations of 12.6 MB, scores of 101 MB a layer",
        precision="fp32"),
    OversizedLayout("ipu-large-pod16-examples", "phase1", "micro-batch of 32 rows for 8",
        "49 stashed activations of 8.4 MB plus 353 MB of weights and gradients", micro_batch_size=32),
    OversizedLayout("ipu-large-pod16-examples", "phase1", "rows of 512 tokens with the micro-batch of phase 1",
        "49 stashed activations of 8.4 MB plus 353 MB of weights and gradients, and scores of 67 MB a layer",
        length=512),
    OversizedLayout("ipu-large-pod16-examples", "phase1", "fp32 for fp16",
        "706 MB of weights and gradients plus 206 MB of stashed activations", precision="fp32"),
    OversizedLayout("ipu-large-pod16-examples", "phase1", "all optimizer state on chip, on each replica",
        "705 MB of moments plus 353 MB of weights and gradients on IPU 1",
        keys={"optimizer_state_offchip": False, "replicated_tensor_sharding": False}),
    OversizedLayout("ipu-large-pod4-examples", "phase1", "optimizer state on chip, with one replica to share it",
        "the same on a POD4, where there is no other replica to shard with", keys={"optimizer_state_offchip": False}),
    OversizedLayout("ipu-large-pod16-examples", "phase1", "2 IPUs for 4 in a replica",
        "12 layers and the tables are 739 MB of weights and gradients on IPU 0, before any activation",
        keys={"layers_per_ipu": [12, 12], "matmul_proportion": 0.2, "replication_factor": 8}),
    OversizedLayout("ipu-large-pod16-examples", "phase1", "1 IPU for 4 in a replica",
        "335 million weights are 1,340 MB with their gradients",
        keys={"layers_per_ipu": [24], "matmul_proportion": 0.2, "replication_factor": 16}),
    OversizedLayout("ipu-large-pod16-notebook", "finetune", "2 IPUs for 4 in a replica",
        "12 layers and the tables are 732 MB of weights and gradients on IPU 0, before any activation",
        keys={"layers_per_ipu": [12, 12], "matmul_proportion": 0.2, "replication_factor": 8,
              "gradient_accumulation_steps": None}),
    OversizedLayout("ipu-large-pod16-notebook", "finetune", "micro-batch of 16 rows for 1",
        "35 stashed activations of 12.6 MB plus 353 MB of weights and gradients", micro_batch_size=16),
    OversizedLayout("ipu-large-pod16-notebook", "finetune", "all optimizer state on chip, on each replica",
        "529 MB of moments plus 353 MB of weights and gradients",
        keys={"optimizer_state_offchip": False, "replicated_tensor_sharding": False}),
    OversizedLayout("ipu-base-pod16-run-qa", "finetune", "micro-batch of 32 rows for 2",
        "20 stashed activations of 18.9 MB plus 113 MB of weights and gradients, and scores of 113 MB a layer",
        micro_batch_size=32),
)  # fmt: skip


def list_preset_jobs() -> Iterator[KnownJob]:
    """Yield every job of every preset for IPUs."""
    for path in sorted(PRESETS.glob("*ipu-*.yaml")):
        yield from preset_jobs(path.stem)


@functools.cache
def preset_jobs(name: str) -> tuple[KnownJob, ...]:
    """Return the jobs of a preset, as `podium plan` builds them; an IPU preset has one downstream entry."""
    params = validate_params(resolve({}, name, [], PRESETS))
    [entry] = entries(params)
    stages = [f"{PRETRAIN}@{phase}" for phase in params.pretrain.list_phases()]
    stages += [f"{group}@{entry.name}" for group in (FINETUNE, PREDICT)]
    found = []
    for planned in planned_jobs(params, ROOT, ROOT / "not there", stages):
        group, _, item = planned.stage.partition("@")
        model = planned.job.model
        assert model is not None  # the plan starts from random weights
        kind = item if group == PRETRAIN else group
        found.append(KnownJob(name, kind, planned.job, model, planned.rows.manifest))
    return tuple(found)


def check_oversized() -> list[tuple[OversizedLayout, MemoryEstimate, bool]]:
    """Return each layout that is known not to fit, its fullest IPU, and whether the estimate agrees."""
    found = []
    for bad in OVERSIZED:
        job = bad.job()
        found.append((bad, job.fullest(), job.verdict() == DOES_NOT_FIT))
    return found


def sum_certain_bytes(memory: MemoryEstimate) -> float:
    """Return the bytes of an IPU that follow from the shapes."""
    return sum(term.amount for term in memory.terms if term.name in CERTAIN)
