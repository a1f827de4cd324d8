"""Entry point of the command `podium`. Its packages take precedence over others named flows, tasks or ipu_model."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command with the code next to this file, whatever PYTHONPATH contains."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from flows.cli import main as run

    run()
