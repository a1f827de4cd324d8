"""These tests in parts, for `make test-poptorch PART=1/6`: on PopTorch's own front end all of them take long."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

import pytest
from preset_layouts import Layout


def read_part(stated: str) -> Tuple[int, int]:
    """The number of a part, and how many there are: "1/6" is (1, 6)."""
    match = re.fullmatch(r"(\d+)/(\d+)", stated)
    part, parts = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"PART={stated} is not a part of a whole: from 1/6 to 6/6, for example")
    return part, parts


def deal(items: Sequence[pytest.Item], part: int, parts: int) -> List[pytest.Item]:
    """The tests of one part."""
    hands: Dict[str, List[pytest.Item]] = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        layout = parameters.get("layout")
        hands.setdefault(layout.name if isinstance(layout, Layout) else item.nodeid, []).append(item)
    return [item for hand in list(hands.values())[part - 1 :: parts] for item in hand]
