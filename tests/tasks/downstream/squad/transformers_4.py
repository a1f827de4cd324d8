"""An interpreter with transformers 4, which still has what its successor dropped."""

import os
import subprocess
from pathlib import Path

from tests.places import ROOT


def transformers_4() -> tuple[str | None, str]:
    """An interpreter whose transformers still has the question-answering pipeline, or why there is none."""
    candidates = [os.environ.get("PODIUM_DEVICE_PYTHON"), str(ROOT / ".venv-poplar" / "bin" / "python")]
    for python in candidates:
        if not python or not Path(python).is_file():
            continue
        probe = "from importlib.metadata import version; import sys; sys.exit(version('transformers')[:2] != '4.')"
        if subprocess.run([python, "-c", probe], capture_output=True, timeout=60).returncode == 0:
            return python, ""
    return None, "no transformers 4: set PODIUM_DEVICE_PYTHON to a Python that has it, or run make test-device-env"
