"""Cases of which `make test` takes the first, and `make faults` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_part(cases: Iterable[Any], first: int) -> list[Any]:
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*one, marks=[pytest.mark.faults] if at >= first else []) for at, one in enumerate(values)]
