"""Precision `auto` on a CPU: measured before a run begins, written down, and kept by everything that belongs to it.

A second probe might say otherwise, and weights trained in two precisions are those of no run. So the choice is
recorded in the run folder before anything is trained, and in every checkpoint, with which it travels to other hosts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Mapping, Optional

import numpy as np
import torch

from ipu_model import heads
from ipu_model.distributed.ranks import Instances
from ipu_model.files import find_object, write_json
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Choice, Plan
from ipu_model.models.config import ModelConfig
from ipu_model.progress import Emit
from ipu_model.rows.reading import RowFolder
from ipu_model.runtimes.precision_probe import DTYPES, Rates, Work, lengths_of, measure
from ipu_model.runtimes.probe_cache import cache_folder, file_of, find, keep, key_of
from ipu_model.train.checkpoint import Checkpoints, Fingerprint
from ipu_model.train.preparation import CONTENT

AUTO = "auto"
RECORD = "precision.json"
PRECISION = "plan.precision"
"""Its name in a fingerprint."""
BUSY = 1.5
"""Processes for each core."""
LITTLE = 2e10
"""Operations of a prediction that one core does in half a second: a question, say."""
TIE = 1.05
"""bf16 is to be so many times as fast: below that fp32 costs next to nothing, and rounds less."""


def settle_precision(
    plan: Plan, of_run: Fingerprint, job: Job, config: ModelConfig, rows: RowFolder, instances: Instances, emit: Emit
) -> Plan:
    """The plan with a precision in the place of `auto`: that recorded when a training began, else the faster one.

    Args:
        of_run: Of a training, whatever it says of the precision; a prediction has nothing to keep.
        instances: Instance 0 chooses, for all.
    """
    if plan.precision != AUTO:
        return plan
    if job.kind == "predict":
        choice = choose(plan, job, config, rows, emit)
        return dataclasses.replace(plan, precision=choice.value, precision_reason=choice.reason)
    instances.join(plan.runtime)
    choice = Choice("fp32", "auto: as instance 0 chose")
    if instances.is_writer:
        choice = _recorded(Path(job.run_folder), of_run, emit) or choose(plan, job, config, rows, emit)
        record = {"job": _digest(of_run), "precision": choice.value, "reason": choice.reason}
        write_json(Path(job.run_folder) / RECORD, record)
    value = "bf16" if instances.any_of(instances.is_writer and choice.value == "bf16") else "fp32"
    return dataclasses.replace(plan, precision=value, precision_reason=choice.reason)


def choose(plan: Plan, job: Job, config: ModelConfig, rows: RowFolder, emit: Emit) -> Choice:
    """The faster precision for the passes of a plan on this host, with both figures."""
    if job.kind != "predict" and not plan.updates:
        return Choice("fp32", "auto: no update is made")
    if job.kind == "predict" and _operations(config, rows) < LITTLE:
        return Choice("fp32", "auto: so little is computed before a probe would end")
    return decide(rates_here(work_of(plan, job, config, rows), os.environ, emit), torch.get_num_threads())


def work_of(plan: Plan, job: Job, config: ModelConfig, rows: RowFolder) -> Work:
    """The passes over the first rows of the folder, as many as the device takes at once."""
    training = job.kind != "predict"
    batch = rows.take(np.arange(min(len(rows), plan.micro_batch_size if training else plan.rows_per_call)))
    decoded = heads.of(job.head).decoded(batch) if training else 0
    return Work(config, tuple(lengths_of(batch.columns["sequence_ids"])), decoded, training)


def _operations(config: ModelConfig, rows: RowFolder) -> float:
    """Operations in the matrix products of a prediction, without attention."""
    of_layer = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    return 2.0 * rows.manifest.real_tokens * config.num_layers * of_layer


def decide(rates: Rates, threads: int) -> Choice:
    """The faster precision; fp32 where they are near."""
    if rates.bf16 is None:
        return Choice("fp32", "auto: this torch has no bf16 products for this CPU")
    faster = rates.bf16 > TIE * rates.fp32
    shown = "bf16 {} and fp32 {}".format(*(_three_digits(rate) for rate in (rates.bf16, rates.fp32)))
    near = ", too near for bf16" if rates.fp32 < rates.bf16 <= TIE * rates.fp32 else ""
    noun = "thread" if threads == 1 else "threads"
    return Choice("bf16" if faster else "fp32", f"auto: measured {shown} {rates.unit} with {threads} {noun}{near}")


def _three_digits(rate: float) -> str:
    rounded = float(f"{rate:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def rates_here(work: Work, environ: Mapping[str, str], emit: Emit) -> Rates:
    """What this host was found to do before, else what a probe finds, which is kept where that is possible."""
    folder, key = cache_folder(environ), key_of(work, environ)
    path = None if folder is None else file_of(folder, key)
    found = None if path is None else find(path, key)
    if found is not None:
        emit("message", text=f"precision: measured before on this host ({path})")
        return found
    rates = measure(work)
    emit("message", text=f"precision: measured, {_keep(path, key, rates)}")
    return rates


def _keep(path: Optional[Path], key: Mapping[str, Any], rates: Rates) -> str:
    """Keep figures for other runs; what became of that, in words."""
    if path is None:
        return "not kept, as there is no home folder (XDG_CACHE_HOME names one)"
    if is_busy():
        return "not kept, as this host is busy"
    try:
        keep(path, key, rates)
    except OSError as error:
        return f"not kept, as {path.parent} cannot be written ({error.strerror or error}; XDG_CACHE_HOME names another)"
    return f"kept in {path}"


def is_busy() -> bool:
    """Whether more is to be computed here than there are cores for: what is found then is not for other runs."""
    return os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)


def _recorded(run_folder: Path, fingerprint: Fingerprint, emit: Emit) -> Optional[Choice]:
    """What this very job began with: as its newest checkpoint says, which may come from another host, or its record."""
    state = Checkpoints(run_folder, fingerprint, emit).newest_state()
    if state is not None and _digest(state["fingerprint"]) == _digest(fingerprint):
        found = _choice(state["fingerprint"].get(PRECISION), state.get("precision_reason"))
    else:
        found = _from_record(run_folder / RECORD, _digest(fingerprint))
    if found is not None:
        emit("message", text=f"precision: {found.value}, recorded when this run began")
    return found


def _from_record(path: Path, digest: str) -> Optional[Choice]:
    kept = find_object(path)
    if kept is None or kept.get("job") != digest:
        return None
    return _choice(kept.get("precision"), kept.get("reason"))


def _choice(precision: Any, reason: Any) -> Optional[Choice]:
    if not isinstance(precision, str) or precision not in DTYPES:
        return None
    return Choice(precision, reason if isinstance(reason, str) else "auto: recorded when this run began")


def _digest(fingerprint: Fingerprint) -> str:
    """Hash of a job, whichever precision it takes. The content of the rows is left out: their manifest is in it."""
    named = {name: value for name, value in fingerprint.items() if name not in (PRECISION, CONTENT)}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
