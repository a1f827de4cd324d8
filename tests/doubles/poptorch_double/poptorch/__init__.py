"""A strict double of PopTorch's public API: runs models eagerly on the CPU, refuses what PopTorch refuses.

Only what Podium asks for; anything else is an AttributeError. Importing has no side effects.
"""

from poptorch import optim, poptorch_core
from poptorch.devices import ipuHardwareIsAvailable, ipuHardwareVersion
from poptorch.executor import PoplarExecutor, inferenceModel, trainingModel
from poptorch.kinds import AutoStage, Error, MatMulSerializationMode, OutputMode, ReductionType
from poptorch.ops import Attribute, Block, identity_loss, recomputationCheckpoint, serializedMatMul
from poptorch.options import Options, PipelinedExecution, ShardedExecution, TensorLocationSettings

__version__ = "3.4.0-double"  # which pages and cards then say
__all__ = ["Attribute", "AutoStage", "Block", "Error", "MatMulSerializationMode", "Options", "OutputMode"]
__all__ += ["PipelinedExecution", "PoplarExecutor", "ReductionType", "ShardedExecution", "TensorLocationSettings"]
__all__ += ["identity_loss", "inferenceModel", "ipuHardwareIsAvailable", "ipuHardwareVersion", "optim"]
__all__ += ["poptorch_core", "recomputationCheckpoint", "serializedMatMul", "trainingModel"]
