"""A compiled model: checked once, then run micro-batch by micro-batch on copies of the weights."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from poptorch import arithmetic, caching, devices, session
from poptorch.attributes import Attributes
from poptorch.errors import misuse, refusal
from poptorch.program import LossWatch, Program, final_loss
from poptorch.record import RECORD
from poptorch.report import describe
from poptorch.running import Runner
from poptorch.slots import Slots
from poptorch.state import STATE


class Executable:
    """Compiled for one set of input shapes.

    Args:
        model: Its parameters are read and written by name.
        settings: The options.
        training: With backward pass and optimizer.
        attributes: Of the optimizer; None in inference.
        groups: Parameter -> number of its optimizer group.
        inputs: (args, kwargs) of one call, all micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Any,
        training: bool,
        attributes: Optional[Attributes],
        groups: Dict[str, int],
        inputs: Any,
    ) -> None:
        started = time.perf_counter()
        self.slots = Slots(model)
        self.model, self.settings, self.training, self.groups = model, settings, training, groups
        self.attributes = self.compiled_attributes = attributes
        self.options = settings.toDict()
        self.calls = session.option_calls(self.options)
        self.replicas, self.iterations = settings.replication_factor, settings.device_iterations
        self.accumulation = settings.Training.gradient_accumulation
        self.input_groups = self.replicas // settings.input_group_size
        self.attached = False
        self.record: Dict[str, Any] = {}
        self.state: Dict[str, Tensor] = {}
        self.loaded_values: Dict[str, Tensor] = {}
        self.seed = self.options.get("random_seed", torch.initial_seed() & 0xFFFFFFFF)
        self.rng = torch.Generator().manual_seed(self.seed).get_state()
        self.weights = self.slots.device_copies()
        flat, self._structure = tree_flatten(inputs)
        self.output_leaves: List[Any] = []
        self.output_structure: Any = None
        self.loss: Tuple[int, bool] = (0, False)
        """Which of the marked losses is the final one, and whether it is not marked."""
        leaves = self.micro_batch(flat, 0)
        self.program = Program(settings._execution_strategy, [*_tensors(leaves), *self.weights.values()])
        try:
            self._compile(leaves)
        except Exception as error:
            RECORD["failed_compilations"].append(
                {"error": repr(error), "blocks": self.program.blocks, "num_ops": len(self.program.signature)}
            )
            raise
        self.record["compile_seconds"] = round(time.perf_counter() - started, 3)
        RECORD["executables"].append(self.record)
        self.runner = Runner(self)

    # Compilation

    def _compile(self, leaves: List[Any]) -> None:
        self._watch(leaves)
        self.program.check_blocks()
        if self.changed and self.replicas > 1:
            raise refusal(f"{self.changed} change in forward: buffers are broadcast over replicas and must not")
        self.num_ipus = self._count_ipus()
        self._check_pipeline()
        self.hash = caching.fingerprint(self)
        self.record = describe(self, _tensors(leaves))
        self.record["cache"] = caching.look_up(self)
        show: Optional[Callable[[int, int], None]] = self.options.get("compilation_progress_bar_fn")
        if show is not None:
            for progress in (0, 50, 100):
                show(progress, 100)

    def _watch(self, leaves: List[Any]) -> None:
        """One micro-batch under watch, without effect on weights, buffers and random numbers."""
        program = self.program
        copies = {name: weight.detach().clone() for name, weight in self.weights.items()}
        versions = {name: weight._version for name, weight in self.weights.items()}
        with torch.random.fork_rng(devices=[]), self._on_device(program), LossWatch(), program:
            torch.set_rng_state(self.rng)
            self.outputs_vary = [program.varies(x) for x in self.forward(leaves, keep_structure=True)]
            marked = STATE.losses
            if self.training:
                chosen = final_loss()
                implicit = marked[chosen][1] != "identity_loss"
                before = sum(name == "identity_loss" for _, name, _ in marked[:chosen])
                self.loss = (chosen if implicit else before, implicit)
        self.losses = [(name, reduction) for _, name, reduction in marked]
        program.let_go()
        self.changed = [name for name, weight in self.weights.items() if weight._version != versions[name]]
        with torch.no_grad():
            for name in self.changed:
                self.weights[name].copy_(copies[name])

    def _count_ipus(self) -> int:
        used = self.program.used or {0}
        needed = max(len(used), max(used) + 1) * self.replicas
        if needed > devices.PER_PROCESS:
            raise refusal(f"{needed} IPUs for one process, which has at most {devices.PER_PROCESS}")
        offline = self.options["connection_type"] == 2
        if devices.reserved(needed) != needed and not offline and not self.options["auto_round_num_ipus"]:
            raise refusal(
                f"the model uses {needed} IPUs, but they come in powers of two ({devices.reserved(needed)}): "
                "place it on another number or set autoRoundNumIPUs(True)"
            )
        return needed

    def _check_pipeline(self) -> None:
        forward = self.program.forward_stages
        self.stages = 2 * forward - 1 if self.training else forward
        if self.options["execution_mode"] != 0:
            return
        if self.training and self.accumulation < self.stages:
            raise refusal(
                f"gradientAccumulation({self.accumulation}) cannot fill the {self.stages} pipeline stages of "
                f"{forward} forward stages in training"
            )
        if not self.training and self.iterations < self.stages:
            raise refusal(f"deviceIterations({self.iterations}) cannot fill {self.stages} pipeline stages")

    # The device

    def attach(self) -> None:
        """Take the IPUs."""
        devices.acquire(self)
        self.attached = True
        self.record["attach"] += 1

    def detach(self) -> None:
        """Give the IPUs back."""
        devices.release(self)
        self.attached = False
        self.record["detach"] += 1

    def write_weights(self) -> None:
        """Host to device."""
        self.slots.write(self.weights)
        self.record["copy_weights_to_device"] += 1

    def read_weights(self) -> None:
        """Device to host."""
        self.slots.read(self.weights)
        self.record["copy_weights_to_host"] += 1

    def set_attributes(self, attributes: Attributes) -> None:
        """The optimizer changed.

        Raises:
            Error: what was compiled as a constant.
        """
        assert self.compiled_attributes is not None  # of a training executable
        attributes.check_replaces(self.compiled_attributes)
        self.attributes, self.loaded_values = attributes, {}
        after, groups = self.record["executions"], attributes.groups
        rates = {name: [group[name][0] for group in groups] for name in ("learningRate", "weightDecay")}
        told = {"after_executions": after, "lossScaling": attributes.loss_scaling, **rates}
        self.record["optimizer_updates"].append(told)

    def ensure_state(self) -> None:
        assert self.attributes is not None  # of a training executable
        for name in self.groups:
            if not all(key in self.state for key in arithmetic.state_names(self.attributes.type, name).values()):
                self.state.update(arithmetic.new_state(self.attributes, name, self.weights[name]))

    def read_optimizer(self) -> Dict[str, Dict[str, Tensor]]:
        """State and scalars of the optimizer on the device."""
        assert self.attributes is not None  # of a training executable
        self.ensure_state()
        self.record["optimizer_state_reads"] += 1
        scalars = {**arithmetic.host_values(self.attributes, self.groups), **self.loaded_values}
        return {"ipu_state": {name: x.clone() for name, x in self.state.items()}, "ipu_param": scalars}

    def write_optimizer(self, saved: Dict[str, Dict[str, Tensor]]) -> None:
        """Set the state; the scalars only change with setOptimizer."""
        self.ensure_state()
        for name, tensor in self.state.items():
            if name in saved["ipu_state"]:
                tensor.copy_(saved["ipu_state"][name])
            else:
                RECORD["warnings"].append(f"the optimizer state that was loaded has no {name}")
        self.loaded_values.update(saved["ipu_param"])
        self.record["optimizer_state_writes"] += 1

    # Running

    def run(self, inputs: Any) -> Any:
        """One call.

        Raises:
            Error: not attached.
        """
        if not self.attached:
            raise refusal("not attached to a device")
        host_rng = torch.get_rng_state()
        torch.set_rng_state(self.rng)
        try:
            with self._on_device(None):
                result = self.runner.run(inputs)
            self.rng = torch.get_rng_state()
        finally:
            torch.set_rng_state(host_rng)
        self.record["executions"] += 1
        return result

    def forward(self, leaves: List[Any], keep_structure: bool = False) -> List[Tensor]:
        """One micro-batch, flat, through the model; the tensors it gives."""
        args, kwargs = tree_unflatten(leaves, self._structure)
        with torch.set_grad_enabled(self.training):
            result = self.model(*args, **kwargs)
        flat, structure = tree_flatten(result)
        if keep_structure:
            self.output_leaves, self.output_structure = flat, structure
        return _tensors(flat)

    def micro_batch(self, leaves: List[Any], index: int) -> List[Any]:
        """The inputs of one micro-batch of one call."""
        parts = self.iterations * self.accumulation * self.input_groups

        def cut(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.detach().float() if x.dtype in (torch.float64, torch.bfloat16) else x.detach()
            size = x.shape[0] // parts if x.dim() else 0
            return x.narrow(0, index * size, size) if x.dim() else x

        return [cut(x) for x in leaves]

    @contextlib.contextmanager
    def _on_device(self, program: Optional[Program]) -> Iterator[None]:
        with self.slots.filled_with(self.weights):
            STATE.running, STATE.program = True, program
            try:
                yield
            finally:
                STATE.clear()
        moved = self.slots.moved
        if moved:
            raise misuse(f"{moved} were assigned again in forward: use copy_() on a buffer instead")


def _tensors(leaves: List[Any]) -> List[Tensor]:
    return [x for x in leaves if isinstance(x, Tensor)]
