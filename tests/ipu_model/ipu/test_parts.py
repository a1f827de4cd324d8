"""The parts of these tests: together they are all of them, and none is in two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from parts import read_part

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("stated", ["0/6", "7/6", "6", "1/0", "a/b", "-1/6", "1/6 "])
def test_what_is_no_part_is_refused(stated: str) -> None:
    with pytest.raises(pytest.UsageError, match="not a part of a whole"):
        read_part(stated)


def test_a_part_runs_its_tests_and_no_others() -> None:
    """As make starts it, on a file of toys."""
    found: List[str] = []
    for part in ("1/2", "2/2"):
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", str(HERE / "test_parts.py")]
        environment = {**os.environ, "PODIUM_TEST_PART": part}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line for line in done.stdout.splitlines() if "::" in line]
        assert 4 <= len(lines) <= 5, "half of them"
        found += lines
    assert len(found) == len(set(found))
    assert sum("test_what_is_no_part" in line for line in found) == 7
