"""Enumerations and exceptions, with the names, values and fields of PopTorch's, as far as a BERT trainer needs them."""

import enum


class OutputMode(enum.IntEnum):
    Final = 0
    All = 2
    Sum = 3
    Default = 4


class ReductionType(enum.IntEnum):
    Mean = 1


class AutoStage(enum.IntEnum):
    AutoIncrement = 1


class MatMulSerializationMode(enum.Enum):
    OutputChannels = "output_channels"


class Error(Exception):
    message = ""
    type = ""
    location = ""


def refusal(message, kind="poptorch_cpp_error"):
    error = Error(f"'{kind}': {message}")
    error.type, error.message = kind, message
    return error


def misuse(message):
    return refusal(message, "poptorch_py_error")
