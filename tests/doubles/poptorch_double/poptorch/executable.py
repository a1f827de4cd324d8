"""A compiled model: checked once, then run micro-batch by micro-batch on copies of the weights."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
from torch import Tensor, nn

from poptorch import arithmetic, caching, devices, session
from poptorch.attributes import Attributes
from poptorch.errors import misuse, refusal
from poptorch.program import HostWatch, Program, final_loss
from poptorch.record import RECORD, STATE
from poptorch.running import Runner
from poptorch.slots import Slots


class Executable:
    def __init__(
        self,
        model: nn.Module,
        settings: Any,
        training: bool,
        attributes: Optional[Attributes],
        groups: Dict[str, int],
        inputs: Sequence[Tensor],
    ) -> None:
        self.slots = Slots(model)
        self.model, self.training, self.groups = model, training, groups
        self.attributes = self.compiled_attributes = attributes
        self.options = settings.toDict()
        self.calls = session.option_calls(self.options)
        self._popart_options = dict(settings._Popart.options)
        self.replicas, self.iterations = settings.replication_factor, settings.device_iterations
        self.accumulation = settings.Training.gradient_accumulation
        self.attached = False
        self.state: Dict[str, Tensor] = {}
        self.loaded_values: Dict[str, Tensor] = {}
        self.seed = self.options.get("random_seed", torch.initial_seed() & 0xFFFFFFFF)
        self.rng = torch.Generator().manual_seed(self.seed).get_state()
        self.weights = self.slots.device_copies()
        leaves = self.micro_batch(inputs, 0)
        self.program = Program(settings._execution_strategy, [*leaves, *self.weights.values()])
        self._watch(leaves)
        self.program.check_blocks()
        self.num_ipus = self._count_ipus()
        self._check_pipeline()
        self.hash = caching.fingerprint(self)
        self.record = {**self._describe(leaves), "cache": caching.look_up(self)}
        RECORD["executables"].append(self.record)
        if settings._show_compilation_progress_bar:
            settings._progress_bar()
        self.runner = Runner(self)

    # Compilation

    def _watch(self, leaves: List[Tensor]) -> None:
        """One micro-batch under watch, without effect on weights and random numbers."""
        with torch.random.fork_rng(devices=[]), self._on_device(self.program), HostWatch(), self.program:
            torch.set_rng_state(self.rng)
            self.single_output = isinstance(self.forward(leaves), Tensor)
            self.losses = [["identity_loss", reduction] for _, reduction in STATE.losses]
            self.loss = final_loss() if self.training else None
        self.program.let_go()

    def _count_ipus(self) -> int:
        used = self.program.used or {0}
        needed = max(len(used), max(used) + 1) * self.replicas
        if needed > devices.PER_PROCESS:
            raise refusal(f"{needed} IPUs for one process, which has at most {devices.PER_PROCESS}")
        offline = self.options["connection_type"] == 2
        if devices.reserved(needed) != needed and not offline and not self.options["auto_round_num_ipus"]:
            raise refusal(f"the model uses {needed} IPUs, but they come in powers of two: set autoRoundNumIPUs(True)")
        return needed

    def _check_pipeline(self) -> None:
        forward = self.program.forward_stages
        self.stages = 2 * forward - 1 if self.training else forward
        if self.options["execution_mode"] != 0:
            return
        if self.training and self.accumulation < self.stages:
            raise refusal(f"gradientAccumulation({self.accumulation}) cannot fill the {self.stages} pipeline stages")
        if not self.training and self.iterations < self.stages:
            raise refusal(f"deviceIterations({self.iterations}) cannot fill {self.stages} pipeline stages")

    def _describe(self, inputs: List[Tensor]) -> Dict[str, Any]:
        program, options = self.program, self.options
        trained = [name for name, x in self.weights.items() if self.training and x.requires_grad]
        optimizer = None
        if self.attributes is not None:
            members = [[name for name, x in self.groups.items() if x == n] for n in range(len(self.attributes.groups))]
            optimizer = {**self.attributes.describe(), "parameter_groups": members}
        return {
            "option_calls": self.calls,
            "popart_session_options": self._popart_options,
            "tensor_locations": {k: v for k, v in options.items() if k.startswith("location_")},
            "device_iterations": self.iterations,
            "blocks": program.blocks,
            "ipus_used": sorted(program.used) or [0],
            "num_ipus": self.num_ipus,
            "pipeline_stages": self.stages,
            "recomputation_checkpoints": program.checkpoints,
            "matmul_serialization": program.serialization,
            "attributes": program.attributes,
            "losses": self.losses,
            "inputs": [{"shape": list(x.shape), "dtype": str(x.dtype)} for x in inputs],
            "parameters": {name: [list(x.shape), str(x.dtype), x.requires_grad] for name, x in self.weights.items()},
            "trainable_parameters_not_in_optimizer": sorted(set(trained) - set(self.groups)),
            "optimizer": optimizer,
            "ops": dict(sorted(program.ops.items())),
        }

    # The device

    def attach(self) -> None:
        devices.acquire(self)
        self.attached = True

    def detach(self) -> None:
        devices.release(self)
        self.attached = False

    def set_attributes(self, attributes: Attributes) -> None:
        assert self.compiled_attributes is not None  # of a training executable
        attributes.check_replaces(self.compiled_attributes)
        self.attributes, self.loaded_values = attributes, {}

    def ensure_state(self) -> None:
        assert self.attributes is not None  # of a training executable
        for name in self.groups:
            if not all(key in self.state for key in arithmetic.state_names(self.attributes.type, name).values()):
                self.state.update(arithmetic.new_state(self.attributes, name, self.weights[name]))

    def read_optimizer(self) -> Dict[str, Dict[str, Tensor]]:
        """State and scalars of the optimizer on the device."""
        assert self.attributes is not None  # of a training executable
        self.ensure_state()
        scalars = {**arithmetic.host_values(self.attributes, self.groups), **self.loaded_values}
        return {"ipu_state": {name: x.clone() for name, x in self.state.items()}, "ipu_param": scalars}

    def write_optimizer(self, saved: Dict[str, Dict[str, Tensor]]) -> None:
        """Set the state; the scalars only change with setOptimizer."""
        self.ensure_state()
        for name, tensor in self.state.items():
            if name in saved["ipu_state"]:
                tensor.copy_(saved["ipu_state"][name])
        self.loaded_values.update(saved["ipu_param"])

    # Running

    def run(self, inputs: Sequence[Tensor]) -> Any:
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
        return result

    def forward(self, leaves: Sequence[Tensor]) -> Any:
        """One micro-batch through the model; losses are noted anew."""
        STATE.losses = []
        with torch.set_grad_enabled(self.training):
            return self.model(*leaves)

    def micro_batch(self, inputs: Sequence[Tensor], index: int) -> List[Tensor]:
        parts = self.iterations * self.accumulation * self.replicas
        return [x.detach().narrow(0, index * (len(x) // parts), len(x) // parts) for x in inputs]

    @contextlib.contextmanager
    def _on_device(self, program: Optional[Program]) -> Iterator[None]:
        with self.slots.filled_with(self.weights):
            STATE.running, STATE.program = True, program
            try:
                yield
            finally:
                STATE.clear()
        if self.slots.moved:
            raise misuse(f"{self.slots.moved} were assigned again in forward: use copy_() on a buffer instead")
