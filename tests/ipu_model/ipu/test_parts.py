"""The parts of these tests: together they are all of them, and none is in two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

SOME = Path(__file__).with_name("test_placement.py")


def collect(part: str) -> List[str]:
    """The tests of a file that make starts for a part."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", str(SOME)]
    environment = {**os.environ, "PODIUM_TEST_PART": part}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0) != ("is not a part of a whole" in done.stderr), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line] if done.returncode == 0 else []


def test_a_part_runs_its_tests_and_no_others() -> None:
    first, second, whole = collect("1/2"), collect("2/2"), collect("")
    assert abs(len(first) - len(second)) <= 1
    assert sorted(first + second) == sorted(whole)
    for wrong in ("0/6", "7/6", "a/b", "1/6 "):
        assert collect(wrong) == []
