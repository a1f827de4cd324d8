"""IPU runtime on PopTorch; the only file that imports PopTorch and sets the order of its calls.

The order is always: split the model, make the optimizer, make the executor. PopTorch wraps a copy of the model. The
job's model is never modified, so saved files do not depend on the split. The executors of training, inference and
evaluation share their weights, and the one that runs next attaches to the IPUs.
"""

from __future__ import annotations

import copy
import os
import platform
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Generator, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model import heads
from ipu_model.core.errors import CheckpointError, ConfigError, LoadFailure
from ipu_model.core.progress import Emit
from ipu_model.ipu.call_columns import WHOLE_COUNTS, ProgramInputs, require_positions
from ipu_model.ipu.compile_watch import CompileProfile, compile_timeout, watch_compile
from ipu_model.ipu.device_model import DeviceModel, cut_table, join_pieces, poptorch_ops
from ipu_model.ipu.executables import cache_root
from ipu_model.ipu.failures import WHOLE_TABLE, translate_errors
from ipu_model.ipu.host_calls import (
    HostCall,
    RowSource,
    TrainingFeed,
    inference_tensors,
    prefetch_calls,
    share_positions,
    single_call,
    split_logits,
    training_inputs,
)
from ipu_model.ipu.optimizers import load_optimizer_tensors, make_ipu_optimizer, optimizer_tensors, set_learning_rate
from ipu_model.ipu.options import describe_host, executable_parts, fill_options
from ipu_model.ipu.planning import IpuPlan, can_cut_table
from ipu_model.ipu.program_folder import EVALUATION, ProgramFolder
from ipu_model.ipu.sdk import check_versions, explain_import_error
from ipu_model.jobs.job import Job
from ipu_model.models.config import ModelConfig
from ipu_model.models.head import Logits
from ipu_model.rows.row_folder import Batch, RowFolder, UpdateRows
from ipu_model.runtimes.runtime import Runtime, StepMetrics

PREFIX = "bert_model."
"""Prefix of the device model's parameter names: DeviceModel stores the model under this attribute."""


def load_poptorch() -> Any:
    """Import PopTorch; only IPU jobs call this.

    Raises:
        ConfigError: it cannot be imported; the message names the missing part.
    """
    try:
        import poptorch
    except (ImportError, AssertionError) as error:  # AssertionError: built against another torch
        raise explain_import_error(error) from None
    return poptorch


def read_versions(poptorch: Any, say: Callable[[str], None]) -> Dict[str, str]:
    """Return the versions of PopTorch, torch, Python and SDK after checking them (sdk.check_versions)."""
    return check_versions(poptorch, torch.__version__, platform.python_version(), say=say)


class IpuRuntime(Runtime):
    """Runtime on IPUs. It does not read ahead in a thread, because `calls` does in a separate process.

    The model, with its weights, is copied for the device. `emit` receives the placement, cache hits and misses, and
    compilation progress.
    """

    def __init__(
        self, poptorch: Any, job: Job, plan: IpuPlan, model: nn.Module, config: ModelConfig, emit: Emit
    ) -> None:
        self._poptorch, self._job, self._plan, self._config, self._emit = poptorch, job, plan, config, emit
        self._head = heads.get_head(job.head)
        layout = plan.layout(config, inference=job.kind == "predict")
        device_model: Any = self._head.on_ipu
        self._model: DeviceModel = device_model(copy.deepcopy(model), layout, poptorch_ops(poptorch))
        self._model.distillation = job.distillation
        if plan.half:
            self._model.half()
        self._optimizer: Any = None
        if job.kind != "predict":
            assert job.optimizer is not None  # job.py requires it
            self._optimizer = make_ipu_optimizer(poptorch, job.optimizer, self._model.named_parameters(), plan.half)
        self._settings = {**plan.config.to_dict(), WHOLE_TABLE: not can_cut_table(job)}
        self._evaluation_plan = plan.for_evaluation()
        self._training: Any = None
        self._inference: Any = None
        self._evaluation: Any = None
        self._profile: Optional[CompileProfile] = None
        self._rng: Optional[List[int]] = None
        self._cache = cache_root(os.environ, plan.config.executable_cache_dir, self._say, job.executables)
        self._programs: List[ProgramFolder] = []

    def compile(self, example: Batch, held_out: Optional[Batch] = None) -> None:
        """Build the executables, or load them from the cache; the weights do not change.

        Raises:
            IpuFailure: PopTorch failed; the message names the parameter to change and the path of the full log.
        """
        if self._job.kind == "predict":
            self._inference = self._build("inference", example)
        else:
            self._training = self._build("training", example)
            if self._rng is not None:
                self._training.rng_state = self._rng
        if held_out is not None:
            self._evaluation = self._build(EVALUATION, held_out)

    def _plan_for(self, mode: str) -> IpuPlan:
        return self._evaluation_plan if mode == EVALUATION else self._plan

    def _build(self, mode: str, example: Batch) -> Any:
        """Build or load the program of a mode; return its executor."""
        training = mode == "training"
        tensors = self._make_call(example).tensors if training else self._inference_tensors(example, mode)
        program = self._open_program(mode, tensors)
        executor = self._make_executor(mode, program)
        try:
            self._compile(executor, tensors, program, mode)
        except LoadFailure as failure:
            if program is None or not program.expected:
                raise
            # PopART's key lacks parts of the target, such as the gateway mode, which the offline target does not have.
            executor.destroy()
            program.discard(f"the cached program does not load on the attached IPUs ({failure.reason})")
            executor = self._make_executor(mode, program)
            self._compile(executor, tensors, program, mode)
        return executor

    def _open_program(self, mode: str, tensors: Tuple[Tensor, ...]) -> Optional[ProgramFolder]:
        """Open the folder of a program; None without a cache."""
        if self._cache is None:
            return None
        host = describe_host(self._poptorch, self._job.compile_only)
        parts = executable_parts(host, mode, self._job, self._plan_for(mode), self._config, tensors)
        copies = None if self._job.compile_only or self._job.executables is None else Path(self._job.executables)
        program = ProgramFolder(self._cache, parts, self._say, copies)
        self._programs.append(program)
        return program

    def _make_executor(self, mode: str, program: Optional[ProgramFolder]) -> Any:
        training, plan = mode == "training", self._plan_for(mode)
        placement = plan.placement if training else plan.inference_placement
        options, owns_replication = plan.instances.make_options(self._poptorch, placement.ipus_per_replica)
        fill_options(
            self._poptorch,
            options,
            plan,
            training=training,
            set_replication=not owns_replication,
            seed=self._job.seed,
            cache_folder=None if program is None else str(program.path),
            compile_only=self._job.compile_only,
        )
        if training:
            return self._poptorch.trainingModel(self._model, options, self._optimizer)
        training_layout = self._model.layout
        self._model.layout = plan.layout(self._config, inference=True)  # the executor keeps a shallow copy
        executor = self._poptorch.inferenceModel(self._model, options)
        self._model.layout = training_layout
        return executor

    def _compile(self, executor: Any, tensors: Tuple[Tensor, ...], program: Optional[ProgramFolder], what: str) -> None:
        self._detach_others(executor)
        if program is not None:
            self._say(f"{what}: {program.lookup}")
        started = time.perf_counter()
        timeout, log = compile_timeout(os.environ), Path(self._job.run_folder)
        profile = CompileProfile(os.environ, training=what == "training")
        with watch_compile(self._emit, timeout, what=f"the {what} program", log=log), self._explain_errors(
            executor.isCompiled
        ):
            executor.compile(*tensors)
        if what == ("inference" if self._job.kind == "predict" else "training"):
            profile.find()
            self._profile = profile
        seconds = time.perf_counter() - started
        outcome = "no executable cache is set" if program is None else program.report_outcome()
        self._say(f"{what} program ready after {seconds:.1f} s: {outcome}")
        if program is None:
            return
        if what != EVALUATION:
            self.program = program.origin
        if self._job.compile_only and self._job.executables is not None and self._plan.instances.is_writer:
            program.export(Path(self._job.executables))  # for other hosts

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def share(self, rows: int) -> slice:
        return self._plan.instances.share(rows)

    def calls(self, rows: RowFolder, order: UpdateRows, steps: range) -> Generator[HostCall, None, None]:
        """Yield host calls; another process prepares their rows while the IPUs compute."""
        inputs = training_inputs(self._head, rows.take(np.arange(1)))
        with closing(prefetch_calls(rows, order, steps, inputs, self._say)) as source:
            yield from self._feed(source, len(steps), inputs)

    def _feed(self, source: RowSource, calls: int, inputs: ProgramInputs) -> TrainingFeed:
        plan = self._plan
        sizes = (plan.updates_per_call, plan.micro_batches, plan.micro_batch_size)
        return TrainingFeed(source, calls, *sizes, inputs, plan.instances)

    def _make_call(self, batch: Batch) -> HostCall:
        inputs = training_inputs(self._head, batch)
        return next(iter(self._feed(single_call(batch, inputs, self._plan.updates_per_call), 1, inputs)))

    def train_step(self, batch: Any, learning_rate: float) -> StepMetrics:
        """Make one host call on a HostCall or Batch: `updates_per_call` updates on this instance's rows."""
        if self._training is None:
            raise ConfigError("train_step needs compile first; a predict job does not train")
        set_learning_rate(self._optimizer, learning_rate)
        self._training.setOptimizer(self._optimizer)  # otherwise the device keeps the old rate
        call = batch if isinstance(batch, HostCall) else self._make_call(batch)
        with self._explain_errors():
            self._attach(self._training)
            outputs = self._training(*call.tensors)
        loss, *parts = (self._mean(x) for x in outputs)
        figures = {"loss": loss, **dict(zip(self._head.parts_of(self._job.distillation), parts))}
        figures = call.mean(figures)
        loss = figures.pop("loss")
        scaling = self._job.optimizer.loss_scaling if self._job.optimizer is not None else None
        sequences, tokens = (int(call.counts[name]) for name in WHOLE_COUNTS)
        return StepMetrics(loss, figures, sequences, tokens, None, scaling)

    def _mean(self, output: Tensor) -> float:
        if self._plan.config.output_mode == "sum":
            count = self._plan.accumulation * self._plan.local_replicas * self._plan.updates_per_call
            return float(output.double().sum()) / count
        return float(output.double().mean())

    def predict(self, batch: Batch) -> Sequence[Logits]:
        """Return the logits of every feature in the batch, with the weights of the last update."""
        answers: List[Logits] = []
        for part in batch.split(self._plan.rows_per_call):
            if self._inference is None:
                self._inference = self._build("inference", part)
            with self._explain_errors():
                self._attach(self._inference)
                logits = self._inference(*self._inference_tensors(part, "inference"))
            answers += split_logits(part, self._head, logits.numpy())
        return answers

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return Head.sums over the batches. Training detaches from the IPUs until its next update.

        Every instance evaluates its part of each call, and all make the same number of calls, because the replicas of
        one program run together.
        """
        instances, rows = self._evaluation_plan.instances, self._evaluation_plan.rows_per_call
        totals = np.zeros(len(self._head.sums))
        share = instances.share(rows)
        for part in (part for batch in batches for part in batch.split(rows)):
            if self._evaluation is None:
                self._evaluation = self._build(EVALUATION, part)
            tensors = self._inference_tensors(part.part(share.start, share.stop), EVALUATION)
            with self._explain_errors():
                self._attach(self._evaluation)
                totals += self._evaluation(*tensors).double().sum(0).numpy()
        means = instances.mean(dict(zip(self._head.sums, totals)), "evaluate")
        return {name: means[name] * instances.count for name in self._head.sums}

    def _inference_tensors(self, batch: Batch, mode: str) -> Tuple[Tensor, ...]:
        """Return the inputs of this instance's call; further rows are dropped."""
        plan = self._plan_for(mode)
        rows = plan.rows_per_call // plan.instances.count
        part = batch.part(0, rows)
        tensors = inference_tensors(part, self._head, rows, with_labels=mode == EVALUATION)
        if part.columns["cls_positions"].shape[1] > 1:
            return tensors
        require_positions(part)
        return share_positions(tensors, self._plan.micro_batch_size)

    def _attach(self, executor: Any) -> None:
        """Attach `executor` to the IPUs; the executor that held them first copies its weights and state to the host."""
        self._detach_others(executor)
        if not executor.isAttachedToDevice():
            executor.attachToDevice()

    def _detach_others(self, executor: Any) -> None:
        for other in (self._training, self._inference, self._evaluation):
            if other is not None and other is not executor and other.isAttachedToDevice():
                other.detachFromDevice()

    def state_dict(self) -> Dict[str, Tensor]:
        if self._training is not None:
            self._training.copyWeightsToHostIfNeeded()
        state = self._model.state_dict()
        return join_pieces({name[len(PREFIX) :]: x.detach().float().clone() for name, x in state.items()})

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Set the weights, also on the device once it has a program; others get them when they attach again."""
        self._detach_others(self._training)
        named = {PREFIX + name: x for name, x in cut_table(state, self._plan.table_pieces).items()}
        (self._model if self._training is None else self._training).load_state_dict(named)

    def optimizer_state(self) -> Dict[str, Tensor]:
        """Return PopTorch's state by its own names, with the pieces of the word table joined."""
        return {} if self._optimizer is None else join_pieces(optimizer_tensors(self._optimizer))

    def load_optimizer_state(self, state: Dict[str, Tensor]) -> None:
        """Set a result of optimizer_state; also possible before the first compile."""
        if self._optimizer is not None and state:
            load_optimizer_tensors(self._poptorch, self._optimizer, cut_table(state, self._plan.table_pieces))

    def rng_state(self) -> Dict[str, Tensor]:
        """Return the generators of the IPUs of all instances, used by dropout and stochastic rounding."""
        if self._training is None:
            return {}
        values = np.array(self._training.rng_state, dtype=np.int64)
        return self._plan.instances.gather({"ipu": torch.from_numpy(values.view(np.uint8).copy())})

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set a result of rng_state; before the first compile it is stored and set then."""
        if not state:
            return
        own_state = self._plan.instances.select_own(state)
        if "ipu" not in own_state:
            instances = self._plan.instances
            raise CheckpointError(
                f"the checkpoint has generator states for {len(state)} instances, but this training has "
                f"{instances.count}. Remove the run folder to start from scratch"
            )
        self._rng = [int(x) for x in own_state["ipu"].numpy().view(np.int64)]
        if self._training is not None:
            self._training.rng_state = self._rng

    def versions(self) -> Dict[str, str]:
        return read_versions(self._poptorch, lambda text: None)

    def peak_device_memory_mb(self) -> Optional[float]:
        """Return the memory of the fullest IPU, if profiling is on and libpva can read the profile."""
        return None if self._profile is None else self._profile.fullest_ipu_mb()

    def close(self) -> None:
        """Detach from the IPUs and release the programs."""
        for executor in (self._training, self._inference, self._evaluation):
            if executor is not None and executor.isCompiled():
                if executor.isAttachedToDevice():
                    executor.detachFromDevice()
                executor.destroy()
        self._training = self._inference = self._evaluation = None
        for program in self._programs:
            program.close()

    def _say(self, text: str) -> None:
        self._emit("message", text=text)

    def _explain_errors(self, loading: Callable[[], bool] = bool) -> ContextManager[None]:
        """Turn PopTorch's errors into IpuFailure: what happened, what to do, and where the full log is."""
        return translate_errors(self._poptorch, Path(self._job.run_folder), self._settings, loading)
