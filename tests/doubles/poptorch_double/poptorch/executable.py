"""A compiled model: checked once, then run micro-batch by micro-batch on copies of the weights."""

import contextlib
import dataclasses
import hashlib
import os
from pathlib import Path

import torch

from poptorch import arithmetic, devices
from poptorch.kinds import refusal
from poptorch.options import NEVER
from poptorch.poptorch_core import RECORD, STATE
from poptorch.program import HostWatch, Program
from poptorch.running import Runner
from poptorch.session import option_calls

NOT_COMPILED_IN = {"cachePath", "enableEngineCaching", "random_seed", "connection_type", "ipu_version"}


class Executable:
    def __init__(self, model, settings, training, attributes, groups, inputs):
        """attributes: of the optimizer, None in inference; groups: parameter -> its group of the optimizer."""
        self._host = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.model, self.training, self.groups = model, training, groups
        self.attributes = attributes
        self.options = settings._all()
        self.replicas, self.iterations = settings.replication_factor, settings.device_iterations
        self.accumulation = settings.Training.gradient_accumulation
        self.attached = False
        self.state = {}
        self.seed = self.options.get("random_seed", torch.initial_seed() & 0xFFFFFFFF)
        self.rng = torch.Generator().manual_seed(self.seed).get_state()
        self.weights = {name: x.detach().clone().requires_grad_(x.requires_grad) for name, x in self._host.items()}
        calls = option_calls(self.options)
        leaves = self.micro_batch(inputs, 0)
        self.program = Program(settings._strategy, [*leaves, *self.weights.values()])
        self._watch(leaves)
        self.num_ipus = self._count_ipus()
        self._check_pipeline()
        self.hash = self._fingerprint()
        self.record = {**self._describe(leaves), "option_calls": calls, "cache": {"hit": self._look_up()}}
        self.record["popart_session_options"] = dict(settings._Popart._values)
        RECORD["executables"].append(self.record)
        self.runner = Runner(self)

    def _watch(self, leaves):
        """One micro-batch under watch, without effect on weights and random numbers."""
        with torch.random.fork_rng(devices=[]), self._on_device(self.program), HostWatch(), self.program:
            torch.set_rng_state(self.rng)
            self.single_output = isinstance(self.forward(leaves), torch.Tensor)
            self._losses = len(STATE.losses)
        self.program.finish()
        if self.training and self._losses != 1:
            raise refusal(f"{self._losses} final losses: mark one with poptorch.identity_loss")

    def _count_ipus(self):
        used = self.program.used or {0}
        needed = (max(used) + 1) * self.replicas
        if needed > devices.PER_PROCESS:
            raise refusal(f"{needed} IPUs for one process, which has at most {devices.PER_PROCESS}")
        offline = self.options["connection_type"] == NEVER
        if devices.reserved(needed) != needed and not offline and not self.options["auto_round_num_ipus"]:
            raise refusal(f"the model uses {needed} IPUs, but they come in powers of two: set autoRoundNumIPUs(True)")
        return needed

    def _check_pipeline(self):
        forward = self.program.forward_stages
        self._stages = 2 * forward - 1 if self.training else forward
        filled = self.accumulation if self.training else self.iterations
        if self.options["execution_mode"] == 0 and filled < self._stages:
            what = "gradientAccumulation" if self.training else "deviceIterations"
            raise refusal(f"{what}({filled}) cannot fill the {self._stages} pipeline stages")

    def _fingerprint(self):
        """Digits over operations, shapes, options and the optimizer's constants; weights do not count."""
        constants = None
        if self.attributes is not None:
            constants = dataclasses.asdict(self.attributes)
            for values in [constants["defaults"], *constants["groups"]]:
                values.update({name: "variable" for name, (_, constant) in values.items() if not constant})
        weights = [(name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in sorted(self.weights.items())]
        options = sorted((name, str(x)) for name, x in self.options.items() if name not in NOT_COMPILED_IN)
        graph = (self.program.signature, self.program.checkpoints, self.program.serialization)
        parts = (graph, weights, options, constants, self.training, sorted(self.groups.items()))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def _look_up(self):
        """Find the executable in the cache folder or put it there, as <hash>.popef."""
        folder = self.options.get("cachePath")
        if folder is None:
            return False
        Path(folder).mkdir(parents=True, exist_ok=True)
        file, content = Path(folder) / f"{self.hash}.popef", f"executable of the double: {self.hash}\n"
        if file.exists() and file.read_bytes() == content.encode():
            return True
        partial = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        partial.write_text(content, encoding="utf-8")
        os.replace(partial, file)
        return False

    def _describe(self, inputs):
        program, options, optimizer = self.program, self.options, None
        trained = [name for name, x in self.weights.items() if self.training and x.requires_grad]
        if self.attributes is not None:
            members = [[name for name, x in self.groups.items() if x == n] for n in range(len(self.attributes.groups))]
            optimizer = {**dataclasses.asdict(self.attributes), "parameter_groups": members}
        return {
            "tensor_locations": {k: v for k, v in options.items() if k.startswith("location_")},
            "device_iterations": self.iterations,
            "blocks": program.blocks,
            "ipus_used": sorted(program.used) or [0],
            "num_ipus": self.num_ipus,
            "pipeline_stages": self._stages,
            "recomputation_checkpoints": program.checkpoints,
            "matmul_serialization": program.serialization,
            "attributes": program.attributes,
            "losses": [["identity_loss", "none"]] * self._losses,
            "inputs": [{"shape": list(x.shape), "dtype": str(x.dtype)} for x in inputs],
            "parameters": {name: [list(x.shape), str(x.dtype), x.requires_grad] for name, x in self.weights.items()},
            "trainable_parameters_not_in_optimizer": sorted(set(trained) - set(self.groups)),
            "optimizer": optimizer,
            "ops": dict(sorted(program.ops.items())),
        }

    @torch.no_grad()
    def copy_weights(self, to_host):
        for name, host in self._host.items():
            target, source = (host, self.weights[name]) if to_host else (self.weights[name], host)
            target.copy_(source)

    def attach(self):
        devices.acquire(self)
        self.attached = True

    def detach(self):
        devices.HOLDERS.discard(self)
        self.attached = False

    def ensure_state(self):
        for name in self.groups:
            if not all(key in self.state for key in arithmetic.state_names(self.attributes.type, name).values()):
                self.state.update(arithmetic.new_state(self.attributes, name, self.weights[name]))

    def read_optimizer(self):
        """State and scalars of the optimizer on the device."""
        self.ensure_state()
        scalars = arithmetic.host_values(self.attributes, self.groups)
        return {"ipu_state": {name: x.clone() for name, x in self.state.items()}, "ipu_param": scalars}

    def write_optimizer(self, saved):
        """Set the state; the scalars only change with setOptimizer."""
        self.ensure_state()
        for name, tensor in self.state.items():
            if name in saved["ipu_state"]:
                tensor.copy_(saved["ipu_state"][name])

    def run(self, inputs):
        if not self.attached:
            raise refusal("not attached to a device")
        with torch.random.fork_rng(devices=[]), self._on_device(None):
            torch.set_rng_state(self.rng)
            result = self.runner.run(inputs)
            self.rng = torch.get_rng_state()
        return result

    def forward(self, leaves):
        """One micro-batch through the model; losses are noted anew."""
        STATE.losses = []
        with torch.set_grad_enabled(self.training):
            return torch.func.functional_call(self.model, self.weights, tuple(leaves))

    def micro_batch(self, inputs, index):
        parts = self.iterations * self.accumulation * self.replicas
        return [x.detach().narrow(0, index * (len(x) // parts), len(x) // parts) for x in inputs]

    @contextlib.contextmanager
    def _on_device(self, program):
        STATE.running, STATE.program = True, program
        try:
            yield
        finally:
            STATE.clear()
