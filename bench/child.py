"""`python -m bench.child SPEC`: measure one configuration in a separate process.

Allocator, threads and peak memory belong to a process, so configurations in a shared process would affect each other.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from bench.host import peak_memory_mb
from bench.protocol import Session, take_stdout
from ipu_model.distributed.process import die_with_parent, limit_spinning

Worker = Callable[[dict[str, Any], Session], None]

WORKERS = {
    "ours": "bench.ours:train",
    "peer": "bench.peer:train",
    "gemm": "bench.gemm:measure",
    "optimizer": "bench.optimizers:measure_steps",
    "predict-ours": "bench.predict:measure_ours",
    "predict-peer": "bench.predict:measure_peer",
    "questions-ours": "bench.prepare:measure_questions",
    "questions-peer": "bench.prepare:measure_questions_peer",
    "pretraining-rows": "bench.prepare:measure_pretraining_rows",
    "start": "bench.starts:measure_start",
    "packing": "bench.prepare:measure_packing",
    "recorded-ours": "bench.recorded:train_ours",
    "recorded-peer": "bench.recorded:train_peer",
    "gpu-ours": "bench.gpu.ours:train",
    "gpu-peer": "bench.gpu.peer:train",
}
"""Worker of a spec -> module:function(spec, session)."""
JOBS = ("ours", "predict-ours", "start", "recorded-ours", "gpu-ours")
"""Workers that run a device job, with the thread settings of `python -m ipu_model`."""


def main() -> int:
    """Run the worker of the spec on the command line."""
    parser = argparse.ArgumentParser(description="Measure one configuration; python -m bench starts it.")
    parser.add_argument("spec", type=json.loads, metavar="SPEC", help="JSON: worker, settings, rounds and the like")
    spec = parser.parse_args().spec
    session = Session(sys.stdin, take_stdout())
    die_with_parent()
    if spec["worker"] in JOBS:
        limit_spinning()  # before torch is imported
    module, _, function = WORKERS[spec["worker"]].partition(":")
    worker: Worker = getattr(importlib.import_module(module), function)
    worker(spec, session)
    session.finish(peak_memory_mb=peak_memory_mb())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to save, and clean-up of libraries can take seconds


if __name__ == "__main__":
    sys.exit(main())
