"""Stands where PopTorch's native module is; offers the recording."""

from __future__ import annotations

from typing import Any, Dict

from poptorch.errors import Error, RecoverableError, UnrecoverableError
from poptorch.record import RECORD

__all__ = ["Error", "RecoverableError", "UnrecoverableError", "getRecord"]


def getRecord() -> Dict[str, Any]:
    """Executables of this process."""
    return RECORD
