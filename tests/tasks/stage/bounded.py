"""Code run in a process with a bound on its memory."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.places import ROOT as PROJECT


def run(code: str, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run `code` as a stage does; how it ended, and its peak memory in MB."""
    peak = "next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))"
    script = (
        "import sys; from pathlib import Path; from tasks.plan.main import run_main\n"
        f"def main():\n    {code}\ntry:\n    run_main(main)\nfinally:\n    print({peak})"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=PROJECT, env=environment, capture_output=True, text=True
    )
    return process, int(process.stdout or 0) >> 10
