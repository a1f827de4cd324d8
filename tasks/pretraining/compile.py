"""Stage compile_pretrain: compile the programs of pre-training (tasks/jobs/training.py).

python -m tasks.pretraining.compile PHASE
"""

import argparse
import sys

from tasks.jobs.training import build_program
from tasks.params.schema import load_sections
from tasks.plan.main import run_main
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.stage.process import parse_item


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the programs of a phase before training.")
    parser.add_argument("phase", type=parse_item)
    phase, params = parser.parse_args().phase, load_sections("pretrain", "model", "device", "ipu")
    job = make_pretrain_job(phase, params, untrained=True)
    sys.stdout.write(build_program(phase, job, params.device) + "\n")


if __name__ == "__main__":
    run_main(main)
