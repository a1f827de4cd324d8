"""Stage compile_pretrain: the programs of pre-training, see tasks/jobs/programs.py.

python -m tasks.pretraining.compile phase1|phase2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tasks.jobs.device_job import Job
from tasks.jobs.programs import build_program, compiling, said
from tasks.pretraining.pretrain import pretrain_job
from tasks.project.main import run_main
from tasks.project.params import PHASES, Params, load_params
from tasks.project.process import item


def compile_job(phase: str, params: Params, root: Path = Path()) -> Job:
    """The device job of a phase, from fresh weights, which only fills its folder of executables."""
    job = pretrain_job(phase, params.pretrain, params.model, params.device, params.ipu, root, untrained=True)
    return compiling(job, phase, root)


def compile_ahead(phase: str, params: Params, root: Path = Path()) -> str:
    """Write the executables and the report of a phase; the line that says so.

    Raises:
        DeviceJobFailed: see `build_program`.
    """
    return said(phase, build_program(phase, compile_job(phase, params, root), params.device, root))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the programs of a phase before anything is trained.")
    parser.add_argument("phase", type=item, choices=PHASES)
    sys.stdout.write(compile_ahead(parser.parse_args().phase, load_params()) + "\n")


if __name__ == "__main__":
    run_main(main)
