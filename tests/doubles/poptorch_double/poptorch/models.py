"""trainingModel and inferenceModel."""

from __future__ import annotations

import copy
from typing import Optional, Union

import torch
from torch import nn

from poptorch import wrapping
from poptorch.executor import PoplarExecutor
from poptorch.options import Options


def trainingModel(
    model: Union[nn.Module, PoplarExecutor],
    options: Optional[Options] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> PoplarExecutor:
    """A model that learns on IPUs; the model belongs to the executor until destroy().

    Raises:
        RuntimeError: it already belongs to one.
    """
    model = model.model if isinstance(model, PoplarExecutor) else model
    if wrapping.is_wrapped(model):
        raise RuntimeError("this model already belongs to a training executor: destroy() that one first")
    return PoplarExecutor(model, options, training=True, optimizer=optimizer)


def inferenceModel(model: Union[nn.Module, PoplarExecutor], options: Optional[Options] = None) -> PoplarExecutor:
    """A model that predicts on IPUs; shares the weights of a model in training."""
    model = model.model if isinstance(model, PoplarExecutor) else model
    return PoplarExecutor(copy.copy(model), options, training=False, optimizer=None)
