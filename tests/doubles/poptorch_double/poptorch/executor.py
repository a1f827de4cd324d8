"""The executor: a model on IPUs, its weights and its optimizer on both sides."""

import copy
import inspect
import weakref

import numpy
import torch

from poptorch import optim
from poptorch.attributes import groups_of_parameters, read_attributes
from poptorch.executable import Executable
from poptorch.kinds import OutputMode, misuse
from poptorch.options import NEVER

OWNER = "_poptorch_executor"
"""Attribute of a model in training, and of its copies for inference: a reference to its executor."""


def owner_of(model):
    return model.__dict__.get(OWNER, lambda: None)()


class PoplarExecutor:
    """A model on IPUs. Made by trainingModel and inferenceModel only."""

    def __init__(self, model, options, training, optimizer):
        options._freeze()
        self._options = options._thawed_copy()
        self._training, self._user_model = training, model
        # As it is now: a later train() or eval() of the outer module does not reach the executor.
        self._model = copy.copy(model)
        self._executable = self._optimizer = self._attributes = None
        self._inputs = ()
        self._weights_are_old = False
        self._signature = inspect.signature(model.forward)
        if options.output_mode == OutputMode.Default:
            self._options.outputMode(OutputMode.Final if training else OutputMode.All)
        if training:
            self.setOptimizer(optimizer or optim.SGD(model.parameters(), lr=0.01))
            model.__dict__[OWNER] = weakref.ref(self)
        elif options.Training.gradient_accumulation != 1:
            raise misuse("gradientAccumulation is of training; in inference it must be 1")
        self._options._freeze()

    def isCompiled(self):
        return self._executable is not None

    def _compiled(self):
        if self._executable is None:
            raise misuse("the model is not compiled, or was destroyed")
        return self._executable

    def compile(self, *args):
        """Build the executable for inputs of these shapes; attaches, unless the device is offline."""
        self._check_arguments(args)
        options = self._options
        parts = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        for x in args:
            assert len(x) % parts == 0, f"an input of {len(x)} rows cannot be cut into {parts} micro-batches"
        self.copyWeightsToHostIfNeeded()
        groups = groups_of_parameters(self._user_model, self._optimizer) if self._training else {}
        self._executable = Executable(self._model, options, self._training, self._attributes, groups, args)
        self._inputs = args
        if options.connection_type != NEVER:
            try:
                self.attachToDevice()
            except Exception:  # whatever kept it from attaching: what did not attach does not count as compiled
                self._executable = None
                raise

    def _check_arguments(self, args):
        try:
            self._signature.bind(*args)
        except TypeError as error:
            raise misuse(f"forward: {error}") from error

    def __call__(self, *args):
        if self._executable is None:
            self.compile(*args)
        self._check_arguments(args)
        if not self.isAttachedToDevice():
            self.attachToDevice()
        owner = owner_of(self._user_model)
        if owner not in (None, self):
            owner.copyWeightsToHostIfNeeded()
            self.copyWeightsToDevice()
        for old, new in zip(self._inputs, args):
            if not isinstance(new, torch.Tensor) or (old.dtype, old.shape) != (new.dtype, new.shape):
                raise misuse(f"the model was compiled for {old.dtype} {list(old.shape)}, found another input")
        self._write_optimizer_if_needed()
        result = self._compiled().run(args)
        self._weights_are_old = self._training
        if self._optimizer is not None:
            self._optimizer._host_is_old = True
        return result

    def copyWeightsToHostIfNeeded(self):
        if not self._weights_are_old:
            return False
        self._weights_are_old = False
        self._compiled().copy_weights(to_host=True)
        return True

    def copyWeightsToDevice(self):
        self._weights_are_old = False
        self._compiled().copy_weights(to_host=False)

    def load_state_dict(self, state_dict, strict=True):
        loaded = self._user_model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return loaded

    def setOptimizer(self, optimizer):
        attributes = read_attributes(optimizer)
        if self._executable is not None:
            attributes.check_replaces(self._attributes)
            self._executable.attributes = attributes
        optimizer._belong_to(self)
        self._optimizer, self._attributes = optimizer, attributes

    def _write_optimizer_if_needed(self):
        if self._optimizer is not None and self._optimizer._device_is_old:
            self._compiled().write_optimizer(self._optimizer._device_state)
            self._optimizer._device_is_old = False

    @property
    def rng_state(self):
        """The seed, then the generator's state; to put back for an exact resume."""
        executable = self._compiled()
        return [executable.seed, *executable.rng.numpy().view("uint32").tolist()]

    @rng_state.setter
    def rng_state(self, state):
        executable, words = self._compiled(), numpy.array(state[1:], dtype="uint32")
        executable.seed, executable.rng = state[0], torch.from_numpy(words.view("uint8").copy())

    def isAttachedToDevice(self):
        return self._executable is not None and self._executable.attached

    def attachToDevice(self):
        """Take the IPUs and put weights and optimizer there."""
        assert self._options.connection_type != NEVER, "an offline target has no device to attach to"
        if self._compiled().attached:
            raise misuse("already attached to a device")
        self._compiled().attach()
        self.copyWeightsToDevice()
        if self._optimizer is not None:
            self._optimizer._host_is_old = not self._optimizer._device_is_old
            self._write_optimizer_if_needed()

    def detachFromDevice(self):
        if not self._compiled().attached:
            raise misuse("not attached to a device")
        self._bring_back()
        self._compiled().detach()

    def _bring_back(self):
        self.copyWeightsToHostIfNeeded()
        if self._optimizer is not None:
            self._optimizer.state_dict()

    def destroy(self):
        """Bring everything back, free the IPUs and let the model go."""
        if self._executable is None:
            return
        self._bring_back()
        self._executable.detach()
        self._executable = None
        if self._training:
            del self._user_model.__dict__[OWNER]


def trainingModel(model, options, optimizer=None):
    """A model that learns on IPUs; the model belongs to the executor until destroy()."""
    if owner_of(model) is not None:
        raise RuntimeError("this model already belongs to a training executor: destroy() that one first")
    return PoplarExecutor(model, options, training=True, optimizer=optimizer)


def inferenceModel(model, options):
    """A model that predicts on IPUs; shares the weights of a model in training."""
    return PoplarExecutor(copy.copy(model), options, training=False, optimizer=None)
