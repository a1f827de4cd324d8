"""Compare exported files with their model on generated inputs, and print the largest difference of a logit of each.

    python -m tasks.downstream.export.compare_files FOLDER FILE...

The files may be a stranger's: `podium verify` calls this in a process with a time limit.
"""

import argparse
import json
from pathlib import Path

from tasks.downstream.export.model_export import LONGEST, draw_sequences
from tasks.downstream.export.onnx_files import compare_with_transformers, load_model
from tasks.downstream.inference.onnx_answers import open_session
from tasks.plan.main import run_main
from tasks.stage.memory import watch_memory

PROBES = 8
"""Number of generated inputs, and the seed of their generator."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare exported files with their model on generated inputs.")
    parser.add_argument("folder", type=Path, help="model folder")
    parser.add_argument("files", nargs="+", metavar="FILE", help="exported file in this folder")
    arguments = parser.parse_args()
    watch_memory("the exported models")
    folder, names = arguments.folder, arguments.files
    for name in names:
        open_session(folder / name)  # in a second, before the weights are read
    model = load_model(folder)
    longest = min(LONGEST, model.config.max_position_embeddings - 2)
    sequences = draw_sequences(model.config.vocab_size, longest, PROBES)
    print(json.dumps({name: compare_with_transformers(model, folder / name, sequences) for name in names}))


if __name__ == "__main__":
    run_main(main)
