"""A strict double of PopTorch's public API: runs models eagerly on the CPU, refuses what PopTorch refuses.

Only what a BERT trainer needs; anything else is an AttributeError. Importing has no side effects.
"""

from __future__ import annotations

from poptorch import optim, options, poptorch_core
from poptorch.devices import ipuHardwareIsAvailable, ipuHardwareVersion
from poptorch.enums import (
    AutoStage,
    ConnectionType,
    MatMulSerializationMode,
    OutputMode,
    ReductionType,
)
from poptorch.errors import Error
from poptorch.executor import PoplarExecutor, inferenceModel, trainingModel
from poptorch.ops import Attribute, Block, identity_loss, recomputationCheckpoint, serializedMatMul
from poptorch.option_groups import TensorLocationSettings
from poptorch.options import Options
from poptorch.strategies import PipelinedExecution, ShardedExecution

__version__ = "3.4.0-double"  # which pages and cards then say
__all__ = ["Attribute", "AutoStage", "Block", "ConnectionType", "Error", "MatMulSerializationMode"]
__all__ += ["Options", "OutputMode", "PipelinedExecution", "PoplarExecutor"]
__all__ += ["ReductionType", "ShardedExecution", "TensorLocationSettings"]
__all__ += ["identity_loss", "inferenceModel", "ipuHardwareIsAvailable", "ipuHardwareVersion", "optim", "options"]
__all__ += ["poptorch_core", "recomputationCheckpoint", "serializedMatMul", "trainingModel"]
