"""Execution of one job, from its checks to result.json."""

from __future__ import annotations

import dataclasses
import platform
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional

import numpy as np
import pyarrow as pa
import safetensors
import torch

from ipu_model import heads
from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.core.files import new_file, new_folder, write_json, write_text
from ipu_model.core.progress import Emit
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import StopRequest, peak_memory_mb
from ipu_model.estimates.estimate import MEMORY, SECONDS, TOKENS
from ipu_model.estimates.job import begin_record, finish_record, rows_per_step
from ipu_model.jobs.job import Job, JobResult
from ipu_model.jobs.plan import JobPlan, make_plan, set_replicas
from ipu_model.models import families
from ipu_model.models.config import ModelConfig
from ipu_model.models.head import Logits
from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.tensors import require_finite
from ipu_model.rows.format import to_arrow
from ipu_model.rows.row_folder import Batch, RowFolder, prefetch
from ipu_model.runtimes.runtime import Runtime
from ipu_model.runtimes.selection import (
    choose_precision,
    choose_runtime,
    make_runtime,
    plan_compilation,
    plan_device,
)
from ipu_model.train.auto_compile import COMPILE, choose_compilation
from ipu_model.train.auto_precision import PRECISION, choose_faster
from ipu_model.train.checkpoint import Checkpoints, Fingerprint
from ipu_model.train.checkpoint_writer import CheckpointWriter, require_time
from ipu_model.train.energy import EnergyMeter
from ipu_model.train.evaluation import Evaluator, Original
from ipu_model.train.history import History
from ipu_model.train.preparation import check_job, make_fingerprint, make_model, open_rows, read_inputs, read_original
from ipu_model.train.training import Totals, make_update_rows, train

if TYPE_CHECKING:
    from ipu_model.ipu.planning import IpuPlan

RESULT = "result.json"
FEATURES_PER_RECORD_BATCH = 1024


@dataclass(frozen=True)
class _Run:
    """A planned job with its rows and runtime."""

    job: Job
    plan: JobPlan
    config: ModelConfig
    rows: RowFolder
    held_out: Optional[RowFolder]
    original: Optional[Original]
    record: Optional[Dict[str, Any]]
    """Made before training, so that a problem with it does not surface at the end."""
    runtime: Runtime
    instances: Instances
    emit: Emit
    stop: StopRequest


def run_job(job: Job, emit: Emit, stop: StopRequest, instances: Optional[Instances] = None) -> JobResult:
    """Train or predict, alone or among `instances` that train together; write the output, then result.json.

    Raises:
        ConfigError, RowsError, CheckpointError: the job is invalid.
        NonFiniteLoss, NonFiniteWeights: training diverged.
        OSError: a file cannot be written.
        Terminated: SIGTERM came, or PODIUM_STOP_AT is near.
    """
    check_job(job)
    (Path(job.run_folder) / RESULT).unlink(missing_ok=True)  # an existing file would be from an earlier run
    chosen, instances = choose_runtime(job.runtime), instances or Instances()
    job, base, config, rows = read_inputs(job, chosen.value)
    precision = choose_precision(job.precision, chosen.value)
    stop.agree = instances.any_instance
    device = plan_device(job, rows.manifest, config, chosen.value, precision.value, instances, emit)
    if device is None:
        job = dataclasses.replace(job, geometry=set_replicas(job.geometry, instances.count))
    plan = make_plan(job, rows.manifest, chosen, precision, device)
    plan = plan.with_compilation(plan_compilation(job.compile, chosen.value))
    plan = dataclasses.replace(plan, device={**plan.device, **families.get_family(config.family).describe()})
    fingerprint = make_fingerprint(job, plan, config, rows, base) if job.kind != "predict" else {}
    where = (fingerprint, Path(job.run_folder), instances, emit)
    if plan.precision == "auto":
        plan = plan.with_precision(PRECISION.resolve(plan, *where, lambda: choose_faster(plan, rows)))
    if plan.compile == "auto":
        measured = (plan, config, rows, instances.local_index, emit, job.compile)
        plan = plan.with_compilation(COMPILE.resolve(plan, *where, lambda: choose_compilation(*measured)))
    emit("plan", **dataclasses.asdict(plan))
    held_out = None
    if job.evaluation is not None and plan.updates:
        held_out = open_rows(job, job.evaluation.rows, config)
        if held_out.manifest.tokenizer_sha256 != rows.manifest.tokenizer_sha256:
            raise RowsError(f"{held_out.folder} and {rows.folder} use different tokenizers: make both again")
        if device is not None:
            from ipu_model.estimates.ipu import describe_evaluations

            text = describe_evaluations(job, config, device, rows.manifest, len(held_out), plan.updates)
            emit("message", text=text)
    record = begin_record(job, plan, config, rows.manifest, instances.count)
    model = make_model(job, config, base, emit)
    original = None if held_out is None else read_original(job, config, model, plan.runtime, emit)
    del base  # its weights are in the model, so the pages of its file can be dropped
    runtime = make_runtime(plan, job, model, config, device, emit, instances, stop.deadline_near)
    with closing(runtime):
        run = _Run(job, plan, config, rows, held_out, original, record, runtime, instances, emit, stop)
        if job.compile_only:
            result = _result(run, Totals(), compiling=_compile(run))
        elif job.kind == "predict":
            compile_seconds = _compile(run)
            totals = predict(runtime, rows, job.head, plan.rows_per_call, Path(job.output), emit, stop)
            emit("saved", path=job.output)
            result = _result(run, totals, compiling=compile_seconds)
        else:
            result = _train(run, device, fingerprint)
    write_text(Path(job.run_folder) / RESULT, result.to_json())
    return result


def _train(run: _Run, device: Optional[IpuPlan], fingerprint: Fingerprint) -> JobResult:
    job, plan, runtime, instances, emit = run.job, run.plan, run.runtime, run.instances, run.emit
    run_folder = Path(job.run_folder)
    identity = {**fingerprint, PRECISION.field: plan.precision, COMPILE.field: plan.compile}
    reasons = {"precision_reason": plan.precision_reason, "compile_reason": plan.compile_reason}
    shared = instances.shared_folder(run_folder)
    checkpoints = Checkpoints(shared, identity, emit, instances.is_writer, reasons)
    saved = checkpoints.load_latest()
    first_step, curve = (saved.step, saved.history) if saved is not None else (0, None)
    mean = instances.mean({"first_step": first_step}, "first_step")["first_step"]
    if any(instances.any_instance([mean != first_step])):
        raise ConfigError(
            f"the processes of this job found different checkpoints (here after update {first_step}) in {run_folder}: "
            "put run_folder on a disk that all hosts share"
        )
    if saved is not None:
        runtime.load_state_dict(saved.model)
        runtime.load_optimizer_state(saved.optimizer)
        runtime.load_rng_state(saved.device_rng)
        emit("message", text=f"continuing after update {first_step} of {plan.updates}", continued=first_step)
    if first_step < plan.updates:
        require_time(run.stop, first_step, plan.updates)  # before compiling for minutes in vain
    parts = heads.get_head(job.head).parts_of(job.distillation)
    history = History(run_folder, parts, job.log_every_updates, emit, curve)
    evaluations = None
    if run.held_out is not None:
        evaluations = Evaluator(job, plan, run.held_out, runtime, emit, saved, run.original)
    # Start the checkpoint process before attaching a device, which may write to pages that a child must not share.
    saving = CheckpointWriter(job, runtime, checkpoints, history, evaluations, run.stop, emit, first_step)
    with closing(saving):
        compile_seconds = _compile(run) if first_step < plan.updates else 0.0
        meter = EnergyMeter(run.plan, instances.count)
        hooks = [*([] if evaluations is None else [evaluations]), history, meter, saving]
        totals, energy = train(job, plan, run.rows, runtime, hooks, first_step), meter.result()
    steps, best = (totals.updates, None) if evaluations is None else evaluations.result(totals.updates)
    weights = require_finite(runtime.state_dict() if best is None else best, steps)
    if instances.is_writer:
        origin = ModelOrigin(run.rows.manifest.tokenizer_sha256, job.kind, job.head, steps, job.seed)
        with new_folder(Path(job.output)) as partial:
            write_model(partial, job.head, run.config, weights, origin, job.labels or (), run.rows.manifest.kind)
            head, tokens = heads.get_head(job.head).configure(job.head_settings or {}), run.rows.manifest.text_length
            for name, values in head.further_files(run.config, tokens).items():
                (partial / name).parent.mkdir(exist_ok=True)
                write_json(partial / name, values)
            if device is not None:
                device.save(partial)
        emit("saved", path=job.output)
        checkpoints.remove(0)
    result = _result(run, totals, history, first_step, compile_seconds)
    evaluation = None if evaluations is None else evaluations.summary()
    return dataclasses.replace(result, steps=steps, evaluation=evaluation, energy=energy)


def _compile(run: _Run) -> float:
    """Compile for the first batch, so that errors show in the first minute; return the seconds it took."""
    started, plan, rows = time.perf_counter(), run.plan, run.rows
    if run.job.kind == "predict":
        run.runtime.compile(rows.take(np.arange(min(len(rows), plan.rows_per_call))))
    elif plan.updates:
        order, held_out = make_update_rows(run.job, plan, rows, run.runtime), run.held_out
        example = None if held_out is None else held_out.take(np.arange(1))
        run.runtime.compile(rows.take(order(0, plan.updates_per_call)), example)
    elif run.job.compile_only:
        raise ConfigError("nothing to compile: the job has 0 updates (schedule.steps)")
    return time.perf_counter() - started


def _result(
    run: _Run, totals: Totals, history: Optional[History] = None, first_step: int = 0, compiling: float = 0.0
) -> JobResult:
    job, plan, runtime = run.job, run.plan, run.runtime
    losses: Dict[str, float] = dict(history.last) if history is not None else {}
    peak, on_device = round(peak_memory_mb(), 1), runtime.peak_device_memory_mb()
    in_mb = peak if plan.runtime == "cpu" else on_device
    measured = {MEMORY: None if in_mb is None else in_mb * 2**20}
    # Updates or calls of this process. It may have made none.
    done = plan.rows / rows_per_step(plan) if job.kind == "predict" else totals.updates - first_step
    if totals.seconds > 0 and done:
        measured.update({SECONDS: totals.seconds / done, TOKENS: totals.real_tokens / totals.seconds})
    return JobResult(
        kind=job.kind,
        runtime=plan.runtime,
        runtime_reason=plan.runtime_reason,
        precision=plan.precision,
        steps=0 if job.compile_only else plan.updates,
        resumed_from_step=first_step,
        final_loss=losses.pop("loss", None),
        final_losses=losses,
        sequences=totals.sequences,
        real_tokens=totals.real_tokens,
        train_seconds=round(totals.seconds, 3),
        compile_seconds=round(compiling, 3),
        peak_memory_mb=peak,
        plan=dataclasses.asdict(plan),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
            "safetensors": safetensors.__version__,
            **runtime.versions(),
        },
        peak_device_memory_mb=on_device,
        foretold=None if run.record is None else finish_record(run.record, measured),
        program=runtime.program,
    )


def logits_schema(head: str) -> pa.Schema:
    """Return the schema of a logits file: feature_id, and a list of numbers for each of Head.logits."""
    lists = [pa.field(name, pa.list_(pa.float32()), nullable=False) for name in heads.get_head(head).logits]
    return pa.schema([pa.field("feature_id", pa.int32(), nullable=False), *lists])


def predict(
    runtime: Runtime, rows: RowFolder, head: str, size: int, output: Path, emit: Emit, stop: StopRequest
) -> Totals:
    """Write the logits of all features, `size` rows a call, atomically to the Arrow IPC file `output`.

    Raises:
        RowsError: a feature is missing or occurs twice.
        Terminated: SIGTERM came; nothing was written.
    """
    totals, started = Totals(), time.perf_counter()
    emitted, done = started, 0
    with new_file(output) as partial, pa.ipc.new_file(str(partial), logits_schema(head)) as arrow:
        writer = _OrderedWriter(arrow, rows.folder, head)

        def read(start: int) -> Batch:
            return runtime.prepare(rows.take(np.arange(start, min(start + size, len(rows)))))

        with closing(prefetch(read, range(0, len(rows), size), runtime.reads_ahead)) as batches:
            for batch in batches:
                stop.check()
                for answer in runtime.predict(batch):
                    writer.add(answer)
                totals.sequences += batch.sequences
                totals.real_tokens += batch.real_tokens
                done, now = done + len(batch.rows), time.perf_counter()
                if done == len(rows) or now - emitted > 2:
                    eta = (now - started) / done * (len(rows) - done)
                    emit("predicted", rows=done, of=len(rows), eta_seconds=round(eta, 1))
                    emitted = now
        writer.finish()
    totals.seconds = time.perf_counter() - started
    return totals


class _OrderedWriter:
    """Writer of features in the order of their IDs, each as soon as all before it have arrived.

    Rows are packed from one chunk of questions at a time, so a feature waits at most for those of its chunk:
    memory does not grow with the number of questions.
    """

    def __init__(self, arrow: pa.RecordBatchFileWriter, folder: Path, head: str) -> None:
        self._arrow, self._folder, self._head = arrow, folder, head
        self._waiting: Dict[int, Logits] = {}
        self._written, self._ready = 0, 0
        """First feature that is not written, and first that has not arrived."""

    def add(self, answer: Logits) -> None:
        """Add the logits of a feature, which may not have been added before."""
        if answer.feature_id < self._ready or answer.feature_id in self._waiting:
            raise RowsError(f"{self._folder} contains feature {answer.feature_id} twice; make the rows again")
        self._waiting[answer.feature_id] = answer
        while self._ready in self._waiting:
            self._ready += 1
            if self._ready - self._written == FEATURES_PER_RECORD_BATCH:
                self._write()

    def finish(self) -> None:
        """Write the remaining features, of which none may be missing."""
        if self._ready > self._written:
            self._write()
        if self._waiting:
            last = max(self._waiting)
            raise RowsError(f"{self._folder} lacks feature {self._written} of 0..{last}; make the rows again")

    def _write(self) -> None:
        ids = np.arange(self._written, self._ready, dtype=np.int32)
        answers = [self._waiting.pop(number) for number in range(self._written, self._ready)]
        lists = []
        for name in heads.get_head(self._head).logits:  # one list per sequence, without a Python object per number
            logits = [x.columns[name] for x in answers]
            borders = np.concatenate([[0], np.cumsum([len(x) for x in logits])]).astype(np.int32)
            lists.append(pa.ListArray.from_arrays(to_arrow(borders), to_arrow(np.concatenate(logits))))
        self._arrow.write_batch(pa.record_batch([to_arrow(ids), *lists], schema=logits_schema(self._head)))
        self._written = self._ready
