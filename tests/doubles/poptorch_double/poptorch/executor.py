"""The executor: a model on IPUs, its weights and its optimizer on both sides."""

from __future__ import annotations

import copy
import inspect
import weakref
from typing import Any, Dict, List, Optional, Tuple

import numpy
import torch
from torch import Tensor, nn

from poptorch import optim
from poptorch.attributes import Attributes, groups_of_parameters, read_attributes
from poptorch.enums import ConnectionType, OutputMode
from poptorch.errors import misuse
from poptorch.executable import Executable
from poptorch.options import Options

OWNER = "_poptorch_executor"
"""Attribute of a model in training, and of its copies for inference: a reference to its executor."""


def owner_of(model: nn.Module) -> Optional[PoplarExecutor]:
    return model.__dict__.get(OWNER, lambda: None)()


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
        self._inputs: Tuple[Any, ...] = ()
        self._optimizer: Any = None
        self._attributes: Optional[Attributes] = None
        self._attributes_are_old = self._weights_are_old = self._rng_is_old = False
        self._host_weights_version = 0
        self._rng: Optional[List[int]] = None
        if self._options.exists("random_seed"):
            self._rng = [self._options.random_seed]
        self._signature = inspect.signature(model.forward)
        if self._options.defaultOutputMode():
            self._options.outputMode(OutputMode.Final if training else OutputMode.All)
        if training:
            self.setOptimizer(optimizer or optim.SGD(model.parameters(), lr=0.01))
            model.__dict__[OWNER] = weakref.ref(self)
        elif self._options.Training.gradient_accumulation != 1:
            raise misuse("gradientAccumulation is of training; in inference it must be 1")
        self._options._freeze()

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
        assert not kwargs, "inputs come by their places"
        self._check_arguments(args)
        options = self._options
        parts = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        for x in args:
            assert len(x) % parts == 0, f"an input of {len(x)} rows cannot be cut into {parts} micro-batches"
        self.copyWeightsToHostIfNeeded()
        groups = groups_of_parameters(self._user_model, self._optimizer) if self._training else {}
        self._executable = Executable(self._model, options, self._training, self._attributes, groups, args)
        self._inputs = args
        self._attributes_are_old = True
        if options.connection_type != ConnectionType.Never:
            try:
                self.attachToDevice()
            except Exception:  # whatever kept it from attaching: what did not attach does not count as compiled
                self._executable = None
                raise

    def _check_arguments(self, args: Tuple[Any, ...]) -> None:
        known = list(self._signature.parameters)
        assert len(args) <= len(known), f"forward takes {known}, found {len(args)} inputs"
        try:
            self._signature.bind(*args)
        except TypeError as error:
            raise misuse(f"forward: {error}") from error

    # Running

    def __call__(self, *args: Any) -> Any:
        offline = self._options.connection_type == ConnectionType.Never
        assert not offline, "an offline target compiles but does not run: use compile()"
        if self._executable is None:
            self.compile(*args)
        self._check_arguments(args)
        if not self.isAttachedToDevice():
            self.attachToDevice()
        if not self._training:
            self._take_trained_weights()
        for old, new in zip(self._inputs, args):
            if not isinstance(new, Tensor) or (old.dtype, old.shape) != (new.dtype, new.shape):
                raise misuse(f"the model was compiled for {old.dtype} {list(old.shape)}, found another input")
        self._write_optimizer_if_needed()
        result = self._compiled().run(args)
        self._rng_is_old = True
        self._weights_are_old = self._training
        if self._optimizer is not None:
            self._optimizer._host_is_old = True
        return result

    def _take_trained_weights(self) -> None:
        owner = owner_of(self._user_model)
        if owner is None:
            return
        owner.copyWeightsToHostIfNeeded()
        if self._host_weights_version != owner._host_weights_version:
            self.copyWeightsToDevice()
            self._host_weights_version = owner._host_weights_version

    # Weights

    def copyWeightsToHost(self) -> None:
        executable = self._compiled()
        self._weights_are_old = False
        executable.slots.read(executable.weights)
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
        executable.slots.write(executable.weights)

    def load_state_dict(self, state_dict: Dict[str, Tensor], strict: bool = True) -> Any:
        loaded = self._user_model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return loaded

    # Optimizer

    def setOptimizer(self, optimizer: Any) -> None:
        scaling = bool(self._options._Popart.options.get("automaticLossScalingSettings.enabled"))
        attributes = read_attributes(optimizer, scaling)
        if self.isCompiled() and optimizer is not self._optimizer:
            self._optimizer.state_dict()
            self._optimizer._belong_to(None)
            optimizer._device_is_old = True
        optimizer._belong_to(self)
        self._optimizer = optimizer
        if attributes != self._attributes:
            self._attributes, self._attributes_are_old = attributes, True
        if self.isAttachedToDevice():
            self._send_attributes()
            self._write_optimizer_if_needed()

    def _send_attributes(self) -> None:
        if self._attributes_are_old and self._attributes is not None:
            self._compiled().set_attributes(self._attributes)
            self._attributes_are_old = False

    def _write_optimizer_if_needed(self) -> None:
        optimizer = self._optimizer
        if optimizer is None or not optimizer._device_is_old:
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
        """Take the IPUs and put weights, optimizer and random numbers there."""
        executable = self._compiled()
        assert self._options.connection_type != ConnectionType.Never, "an offline target has no device to attach to"
        if executable.attached:
            raise misuse("already attached to a device")
        executable.attach()
        self.copyWeightsToDevice()
        self._send_attributes()
        if self._optimizer is not None:
            if self._optimizer._has_state():
                self._optimizer._device_is_old = True
                self._write_optimizer_if_needed()
            else:
                self._optimizer._host_is_old, self._optimizer._device_is_old = True, False
        self._send_rng()

    def detachFromDevice(self) -> None:
        executable = self._compiled()
        if not executable.attached:
            raise misuse("not attached to a device")
        _ = self.rng_state
        self.copyWeightsToHostIfNeeded()
        if self._optimizer is not None:
            self._optimizer.state_dict()
        executable.detach()

    def destroy(self) -> None:
        """Bring everything back, free the IPUs and let the model go."""
        if self._executable is None:
            return
        if self._training:
            self.copyWeightsToHostIfNeeded()
            self._optimizer.state_dict()
        if self._executable.attached:
            self._executable.detach()
        self._executable = None
        if self._training:
            del self._user_model.__dict__[OWNER]


def trainingModel(model: nn.Module, options: Optional[Options] = None, optimizer: Any = None) -> PoplarExecutor:
    """A model that learns on IPUs; the model belongs to the executor until destroy()."""
    if owner_of(model) is not None:
        raise RuntimeError("this model already belongs to a training executor: destroy() that one first")
    return PoplarExecutor(model, options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module, options: Optional[Options] = None) -> PoplarExecutor:
    """A model that predicts on IPUs; shares the weights of a model in training."""
    return PoplarExecutor(copy.copy(model), options, training=False, optimizer=None)
