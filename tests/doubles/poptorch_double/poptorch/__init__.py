"""A strict double of PopTorch's public API: runs models eagerly on the CPU, refuses what PopTorch refuses.

Only what a BERT trainer needs; anything else is an AttributeError. Importing has no side effects.
"""

from __future__ import annotations

from poptorch import optim, options, poptorch_core
from poptorch.devices import ipuHardwareIsAvailable, ipuHardwareVersion
from poptorch.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    MatMulSerializationMode,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from poptorch.errors import Error, RecoverableError, UnrecoverableError
from poptorch.executor import PoplarExecutor
from poptorch.models import inferenceModel, trainingModel
from poptorch.ops import (
    Attribute,
    Block,
    identity_loss,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
)
from poptorch.option_groups import TensorLocationSettings
from poptorch.options import Options
from poptorch.strategies import PipelinedExecution, ShardedExecution, Stage

__version__ = "3.4.0-double"  # which pages and cards then say
__all__ = ["Attribute", "AutoStage", "Block", "CommGroupType", "ConnectionType", "Error"]
__all__ += ["MatMulSerializationMode", "MeanReductionStrategy", "Options", "OutputMode", "PipelinedExecution"]
__all__ += ["PoplarExecutor", "RecoverableError", "ReductionType", "ShardedExecution", "Stage", "SyncPattern"]
__all__ += ["TensorLocationSettings", "UnrecoverableError", "identity_loss", "inferenceModel", "ipuHardwareIsAvailable"]
__all__ += ["ipuHardwareVersion", "optim", "options", "poptorch_core", "recomputationCheckpoint"]
__all__ += ["serializedMatMul", "set_available_memory", "trainingModel"]
