"""What a compiled model takes: the arguments of its forward, in the shapes of the first call."""

from __future__ import annotations

import inspect
import logging
from typing import Any, Dict, Tuple

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from poptorch.errors import misuse

logger = logging.getLogger("poptorch")


class Signature:
    """The parameters of a model's forward."""

    def __init__(self, model: nn.Module) -> None:
        self._signature = inspect.signature(model.forward)

    def bind(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """(args, kwargs) with the defaults filled in.

        Raises:
            AssertionError: too many, or a name that forward does not have.
            Error: one is missing.
        """
        known = self._signature.parameters
        if not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in known.values()):
            assert len(args) + len(kwargs) <= len(known), f"forward takes {list(known)}, found {len(args)} + {kwargs}"
            assert set(kwargs) <= set(known), f"forward takes {list(known)}, found {sorted(kwargs)}"
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise misuse(f"forward: {error}") from error
        bound.apply_defaults()
        return bound.args, bound.kwargs


def check_batch(inputs: Any, options: Any) -> None:
    """Rows of every input cut into equal micro-batches.

    Raises:
        AssertionError: they do not.
    """
    groups = options.replication_factor // options.input_group_size
    parts = options.device_iterations * groups * options.Training.gradient_accumulation
    for tensor in (x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)):
        rows = tensor.shape[0] if tensor.dim() else 1
        assert rows % parts == 0, (
            f"an input of shape {list(tensor.shape)} has {rows} rows, no multiple of deviceIterations "
            f"{options.device_iterations} x replicas {groups} x gradientAccumulation "
            f"{options.Training.gradient_accumulation} = {parts}"
        )


def check_same(inputs: Any, compiled_for: Any) -> None:
    """The inputs have the structure, types and shapes that the model was compiled for.

    Raises:
        Error: they have not.
    """
    compiled, expected = tree_flatten(compiled_for)
    given, structure = tree_flatten(inputs)
    if structure != expected:
        raise misuse(f"the model was compiled for inputs {expected}, found {structure}")
    for old, new in zip(compiled, given):
        if type(old) is not type(new):
            raise misuse(f"the model was compiled for {type(old).__name__}, found {type(new).__name__}")
        if not isinstance(old, Tensor):
            if old != new:
                raise misuse(f"{old!r} was compiled into the model, found {new!r}")
        elif (old.dtype, old.shape) != (new.dtype, new.shape):
            raise misuse(
                f"the model was compiled for {old.dtype} {list(old.shape)}, found {new.dtype} {list(new.shape)}: "
                "destroy() it or make another executor"
            )


def without_gradients(inputs: Any) -> Any:
    """The inputs, detached; gradients do not leave the device."""
    leaves, structure = tree_flatten(inputs)
    if any(isinstance(x, Tensor) and x.requires_grad for x in leaves):
        logger.warning("inputs have no gradient on the device: requires_grad is dropped")
    return tree_unflatten([x.detach() if isinstance(x, Tensor) else x for x in leaves], structure)
