"""The command `podium`: its own packages come before packages that are called flows, tasks or ipu_model elsewhere."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command with the code next to this file, whatever PYTHONPATH names."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from flows.cli import main as run

    run()
