"""Cases of which `make test` takes the first, and `make faults` all."""

import pytest


def in_part(cases, first):
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*one, marks=[pytest.mark.faults] if at >= first else []) for at, one in enumerate(values)]
