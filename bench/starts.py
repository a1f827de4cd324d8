"""Start time of a run: from its rows to the end of its first update, with an empty or a filled cache."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.protocol import Sample, Session, Stopwatch
from bench.setup import Training

CACHE = "PODIUM_EXECUTABLE_CACHE"


def measure_start(spec: dict[str, Any], session: Session) -> None:
    """Measure the start in this process without imports; units are starts.

    Settings: job, overrides of Job fields; filled, whether another process fills the cache first.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        if spec["settings"]["filled"]:
            subprocess.run([sys.executable, "-m", "bench.starts", json.dumps(spec)], stdout=sys.stderr, check=True)
        files = sum(len(names) for _, _, names in os.walk(folder))
        sample = run_first_update(spec)
        while session.next_round(files_found=files):
            session.report([sample])


def run_first_update(spec: dict[str, Any]) -> Sample:
    """Make the runtime, compile, and run one update."""
    from bench.ours import make_job, prepare_host, start_runtime
    from ipu_model.rows.row_folder import RowFolder, UpdateRows

    prepare_host(spec["threads"])
    training = Training.from_spec(spec)
    rows = RowFolder(Path(training.rows), training.row_kind, training.model)
    watch = Stopwatch()
    job = make_job(training, 1, spec["settings"]["job"])
    runtime, plan = start_runtime(job, rows)
    batch = rows.take(UpdateRows(len(rows), plan.rows_per_update, job.seed)(0))
    runtime.compile(batch)
    metrics = runtime.train_step(batch, 1e-4)
    sample = watch.sample(1, loss=metrics.loss)
    runtime.close()
    return sample


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the first update of a run; bench.child starts it.")
    parser.add_argument("spec", type=json.loads, metavar="SPEC", help="JSON, as for bench.child")
    run_first_update(parser.parse_args().spec)
