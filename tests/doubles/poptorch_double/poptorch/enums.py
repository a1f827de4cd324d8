"""PopTorch's enumerations, as far as a BERT trainer needs them."""

from __future__ import annotations

import enum


class OutputMode(enum.IntEnum):
    """Which micro-batches' outputs come back to the host."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ReductionType(enum.IntEnum):
    """Of gradients, over accumulation steps and replicas."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class ConnectionType(enum.IntEnum):
    """When the executor takes its device."""

    Always = 0
    OnDemand = 1
    Never = 2


class AutoStage(enum.IntEnum):
    """How blocks become pipeline stages."""

    SameAsIpu = 0
    AutoIncrement = 1


class MatMulSerializationMode(enum.Enum):
    """Which dimension of a product is cut up."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"
