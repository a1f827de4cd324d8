"""Stands where PopTorch's native module is; offers the recording."""

from __future__ import annotations

from typing import Any, Dict

from poptorch.record import RECORD


def getRecord() -> Dict[str, Any]:
    return RECORD
