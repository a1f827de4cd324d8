"""A strict double of PopTorch's public API: runs models eagerly on the CPU, refuses what PopTorch refuses.

Only what a BERT trainer needs; anything else is an AttributeError. Importing has no side effects.
"""

from __future__ import annotations

import logging
from typing import Union

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
    BeginBlock,
    Block,
    BlockFunction,
    identity_loss,
    isRunningOnIpu,
    recomputationCheckpoint,
    removeBlocks,
    serializedMatMul,
    set_available_memory,
)
from poptorch.option_groups import TensorLocationSettings
from poptorch.options import Options
from poptorch.strategies import PipelinedExecution, ShardedExecution, Stage

__version__ = "3.4.0-double"  # which pages and cards then say
__all__ = ["Attribute", "AutoStage", "BeginBlock", "Block", "BlockFunction", "CommGroupType", "ConnectionType", "Error"]
__all__ += ["MatMulSerializationMode", "MeanReductionStrategy", "Options", "OutputMode", "PipelinedExecution"]
__all__ += ["PoplarExecutor", "RecoverableError", "ReductionType", "ShardedExecution", "Stage", "SyncPattern"]
__all__ += ["TensorLocationSettings", "UnrecoverableError", "identity_loss", "inferenceModel", "ipuHardwareIsAvailable"]
__all__ += ["ipuHardwareVersion", "isRunningOnIpu", "optim", "options", "poptorch_core", "recomputationCheckpoint"]
__all__ += ["removeBlocks", "serializedMatMul", "setLogLevel", "set_available_memory", "trainingModel"]
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERR": 40, "OFF": 60}


def setLogLevel(level: Union[str, int]) -> None:
    """How much the module `poptorch` logs: TRACE, DEBUG, INFO, WARN, ERR, OFF, or its number."""
    if isinstance(level, str):
        if level not in LEVELS:
            raise ValueError(f"no log level {level}: {list(LEVELS)}")
        level = LEVELS[level]
    logging.getLogger("poptorch").setLevel(level)
