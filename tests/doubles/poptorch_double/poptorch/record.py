"""What was compiled and run, for tests to look at."""

from __future__ import annotations

from typing import Any, Dict

import torch

RECORD: Dict[str, Any] = {
    "torch": torch.__version__,
    "executables": [],
    "failed_compilations": [],
    "cache_hits": 0,
    "warnings": [],
}
