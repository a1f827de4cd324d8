"""Numbers in the cells of users' tables."""

import math
import re

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def parse_number(text: str) -> float | None:
    """Return the finite number that a text states, else None: float() also reads 1_5, which may be a name."""
    number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    return number if math.isfinite(number) else None
