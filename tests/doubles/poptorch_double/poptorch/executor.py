"""The executor: a model on IPUs, its weights and its optimizer on both sides."""

from __future__ import annotations

import copy
import logging
from typing import Any, Dict, List, Optional

import numpy
import torch
from torch import Tensor, nn

from poptorch import optim, wrapping
from poptorch.attributes import Attributes, groups_of_parameters, read_attributes
from poptorch.enums import ConnectionType, MeanReductionStrategy, OutputMode
from poptorch.errors import misuse
from poptorch.executable import Executable
from poptorch.inputs import Signature, check_batch, check_same, without_gradients
from poptorch.options import Options

logger = logging.getLogger("poptorch")


class PoplarExecutor:
    """A model on IPUs. Made by trainingModel and inferenceModel only."""

    def __init__(self, model: nn.Module, options: Optional[Options], training: bool, optimizer: Any) -> None:
        if options and not isinstance(options, Options):
            raise misuse(f"options are poptorch.Options, found {type(options).__name__}")
        if options:
            options._freeze()
        self._options = options.clone() if options else Options()
        self._training, self._user_model = training, model
        # As it is now: a later train() or eval() of the outer module does not reach the executor.
        self._model = copy.copy(model)
        self._executable: Optional[Executable] = None
        self._inputs: Any = None
        self._optimizer: Any = None
        self._attributes: Optional[Attributes] = None
        self._attributes_are_old = self._weights_are_old = self._rng_is_old = False
        self._host_weights_version = 0
        self._rng: Optional[List[int]] = None
        if self._options.exists("random_seed"):
            self._rng = [self._options.random_seed]
        self._signature = Signature(model)
        if self._options.defaultOutputMode():
            self._options.outputMode(OutputMode.Final if training else OutputMode.All)
        if training:
            self.setOptimizer(optimizer or optim.SGD(model.parameters(), lr=0.01))
            wrapping.wrap(model, self)
        elif self._options.Training.gradient_accumulation != 1:
            raise misuse(
                "gradientAccumulation is of training; in inference it must be 1 (deviceIterations may be more)"
            )
        self._options._freeze()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._user_model, name)

    @property
    def model(self) -> nn.Module:
        return self._user_model

    @property
    def options(self) -> Options:
        return self._options

    # Compilation

    def isCompiled(self) -> bool:
        return self._executable is not None

    def _compiled(self) -> Executable:
        if self._executable is None:
            raise misuse("the model is not compiled, or was destroyed")
        return self._executable

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Build the executable for inputs of these shapes; attaches, unless the device is offline."""
        if self._executable is not None:
            logger.warning("compile(): the model is already compiled")
            return
        self._compile(self._signature.bind(args, kwargs))

    def _compile(self, inputs: Any) -> None:
        check_batch(inputs, self._options)
        self.copyWeightsToHostIfNeeded()
        groups = groups_of_parameters(self._user_model, self._optimizer) if self._training else {}
        self._executable = Executable(
            self._model, self._options, self._training, self._attributes, groups, without_gradients(inputs)
        )
        self._inputs = inputs
        self._attributes_are_old = True
        if self._options.connection_type != ConnectionType.Never:
            try:
                self.attachToDevice()
            except Exception:  # whatever kept it from attaching: what did not attach does not count as compiled
                self._executable = None
                raise

    # Running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """All micro-batches of one call; the first one compiles."""
        offline = self._options.connection_type == ConnectionType.Never
        assert not offline, "an offline target compiles but does not run: use compile()"
        inputs = self._signature.bind(args, kwargs)
        if self._executable is None:
            self._compile(inputs)
        if not self.isAttachedToDevice():
            self.attachToDevice()
        if not self._training:
            self._take_trained_weights()
        check_same(inputs, self._inputs)
        self._write_optimizer_if_needed()
        result = self._compiled().run(without_gradients(inputs))
        self._rng_is_old = True
        self._weights_are_old = self._training
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer._host_is_old = True
        return result

    def _take_trained_weights(self) -> None:
        if not wrapping.is_wrapped(self._user_model):
            return
        self._user_model.copyWeightsToHostIfNeeded()  # type: ignore[operator]
        version = self._user_model._host_weights_version
        if self._host_weights_version != version:
            self.copyWeightsToDevice()
            self._host_weights_version = version  # type: ignore[assignment]

    # Weights

    def copyWeightsToHost(self) -> None:
        executable = self._compiled()
        self._weights_are_old = False
        executable.read_weights()
        self._host_weights_version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        if self._weights_are_old:
            self.copyWeightsToHost()
            return True
        return False

    def copyWeightsToDevice(self) -> None:
        executable = self._compiled()
        self._weights_are_old = False
        if self._optimizer is not None:
            self._optimizer.state_dict()
        executable.write_weights()

    def load_state_dict(self, state_dict: Dict[str, Tensor], strict: bool = True) -> Any:
        loaded = self._user_model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return loaded

    # Optimizer

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Has to follow every change of the optimizer's values.

        Raises:
            Error: a constant of the compiled model changed.
        """
        ours = isinstance(optimizer, optim.Optimizer)
        if self.isCompiled() and optimizer is not self._optimizer:
            if isinstance(self._optimizer, optim.Optimizer):
                self._optimizer.state_dict()
                self._optimizer._belong_to(None)
            if ours:
                optimizer._device_is_old = True  # type: ignore[attr-defined]
        if ours:
            optimizer._belong_to(self)  # type: ignore[attr-defined]
        self._optimizer = optimizer
        self._choose_mean_strategy(optimizer)
        scaling = bool(self._options._Popart.options.get("automaticLossScalingSettings.enabled"))
        attributes = read_attributes(optimizer, scaling)
        if attributes != self._attributes:
            self._attributes, self._attributes_are_old = attributes, True
        if self.isAttachedToDevice():
            self._send_attributes()
            self._write_optimizer_if_needed()

    def _choose_mean_strategy(self, optimizer: Any) -> None:
        # fp16 accumulators leave their range when they are divided last.
        if getattr(optimizer, "accum_type", None) != torch.float16 or getattr(optimizer, "use_combined_accum", False):
            return
        training, running = self._options.Training, MeanReductionStrategy.Running
        if not self.isCompiled():
            self._options._freeze(False)
            training.setMeanAccumulationAndReplicationReductionStrategy(running)
            self._options._freeze()
        elif training.meanAccumulationAndReplicationReductionStrategy != running:
            raise ValueError("an optimizer with fp16 accumulators cannot replace another in a compiled model")

    def _send_attributes(self) -> None:
        if self._attributes_are_old and self._attributes is not None:
            self._compiled().set_attributes(self._attributes)
            self._attributes_are_old = False

    def _write_optimizer_if_needed(self) -> None:
        optimizer = self._optimizer
        if not isinstance(optimizer, optim.Optimizer) or not optimizer._device_is_old:
            return
        if optimizer._has_state():
            self.copyWeightsToHostIfNeeded()
            self._compiled().write_optimizer(optimizer._device_state)
        optimizer._device_is_old = False

    # Random numbers

    @property
    def rng_state(self) -> Optional[List[int]]:
        """The seed, then the generator's state; to put back for an exact resume."""
        executable = self._compiled()
        if self._rng_is_old:
            self._rng_is_old = False
            self._rng = [executable.seed, *executable.rng.numpy().view("uint32").tolist()]
        return self._rng

    @rng_state.setter
    def rng_state(self, state: List[int]) -> None:
        self._compiled()
        self._rng, self._rng_is_old = list(state), False
        if self.isAttachedToDevice():
            self._send_rng()

    def _send_rng(self) -> None:
        if self._rng is None:
            return
        executable = self._compiled()
        executable.seed = self._rng[0]
        fresh = torch.Generator().manual_seed(executable.seed).get_state()
        words = numpy.array(self._rng[1:], dtype="uint32")
        executable.rng = torch.from_numpy(words.view("uint8").copy()) if len(words) else fresh

    # The device

    def isAttachedToDevice(self) -> bool:
        return self._executable is not None and self._executable.attached

    def attachToDevice(self) -> None:
        """Take the IPUs and put weights, optimizer and random numbers there.

        Raises:
            Error: already attached, or other executors hold the IPUs.
            AssertionError: an offline target.
        """
        executable = self._compiled()
        assert self._options.connection_type != ConnectionType.Never, "an offline target has no device to attach to"
        if executable.attached:
            raise misuse("already attached to a device")
        executable.attach()
        self.copyWeightsToDevice()
        self._send_attributes()
        if isinstance(self._optimizer, optim.Optimizer):
            if self._optimizer._has_state():
                self._optimizer._device_is_old = True
                self._write_optimizer_if_needed()
            else:
                self._optimizer._host_is_old, self._optimizer._device_is_old = True, False
        self._send_rng()

    def detachFromDevice(self) -> None:
        """Bring weights, optimizer and random numbers back and free the IPUs."""
        executable = self._compiled()
        if not executable.attached:
            raise misuse("not attached to a device")
        _ = self.rng_state
        self.copyWeightsToHostIfNeeded()
        if self._optimizer is not None:
            self._optimizer.state_dict()
        executable.detach()

    def destroy(self) -> None:
        """Bring everything back, free the IPUs and give the model its own classes back."""
        if self._executable is None:
            return
        if self._training:
            self.copyWeightsToHostIfNeeded()
            self._optimizer.state_dict()
        if self._executable.attached:
            self._executable.detach()
        self._executable = None
        if self._training:
            wrapping.unwrap(self._user_model)
