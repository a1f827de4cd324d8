"""Stage predict: start and end logits of every dev feature.

python -m tasks.predict
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tasks import artifacts
from tasks.device_job import BatchGeometry, Job, JobResult, run_device_job
from tasks.errors import run_main
from tasks.params import DeviceParams, load_params
from tasks.training import require_verdict

ROWS = "squad-dev"


def predict(model: Path, rows: Path, logits: Path, device: DeviceParams, run_folder: Path) -> JobResult:
    """Run the question-answering `model` over `rows` and write `logits` (an Arrow file).

    Raises:
        DeviceJobFailed: the model, the rows or the device cannot be used.
    """
    job = Job(
        kind="predict",
        head="question_answering",
        rows=str(rows),
        output=str(logits),
        run_folder=str(run_folder),
        geometry=BatchGeometry(device.micro_batch_size, device.micro_batch_size),
        runtime=device.runtime,
        precision=device.precision,
        init_checkpoint=str(model),
    )
    return run_device_job(job)


def main() -> None:
    argparse.ArgumentParser(description="Predict start and end logits of the dev questions.").parse_args()
    params = load_params()
    require_verdict(ROWS)
    artifacts.PREDICTIONS.mkdir(exist_ok=True)
    result = predict(
        artifacts.SQUAD_MODEL,
        artifacts.rows_folder(ROWS),
        artifacts.LOGITS,
        params.device,
        artifacts.RUNS / "predict",
    )
    sys.stdout.write(
        f"predict: {result.sequences} features in {result.train_seconds:.1f} s "
        f"({result.real_tokens_per_second:,.0f} tokens/s, {result.runtime}, {result.precision})\n"
    )


if __name__ == "__main__":
    run_main(main)
