"""Stage predict: start and end logits of every dev feature.

python -m tasks.predict [--compile-only]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tasks import artifacts
from tasks.device_job import BatchGeometry, Job, run_device_job
from tasks.errors import run_main
from tasks.params import DeviceParams, IpuParams, load_params
from tasks.training import compile_executable, compiled, ipu_config, require_verdict

ROWS = "squad-dev"


def predict_job(
    model: Path, rows: Path, logits: Path, device: DeviceParams, ipu: IpuParams, run_folder: Path, root: Path = Path()
) -> Job:
    """The device job that runs the question-answering `model` over `rows` and writes `logits` (an Arrow file).

    Args:
        model: model folder.
        rows: row folder.
        logits: file to write.
        device: section `device`.
        ipu: section `ipu`.
        run_folder: for its job.json, log and result.
        root: the checkout, which a relative `ipu.config` counts from.
    """
    return Job(
        kind="predict",
        head="question_answering",
        rows=str(rows),
        output=str(logits),
        run_folder=str(run_folder),
        geometry=BatchGeometry(device.micro_batch_size, device.micro_batch_size),
        runtime=device.runtime,
        precision=device.precision,
        init_checkpoint=str(model),
        ipu_config=ipu_config(ipu, "predict", device, root),
        inference_execution=ipu.inference_execution,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict start and end logits of the dev questions.")
    parser.add_argument("--compile-only", action="store_true", help="build the IPU executable and stop")
    compile_only = parser.parse_args().compile_only
    params = load_params()
    require_verdict(ROWS)
    job = predict_job(
        artifacts.SQUAD_MODEL,
        artifacts.rows_folder(ROWS),
        artifacts.LOGITS,
        params.device,
        params.ipu,
        artifacts.RUNS / "predict",
    )
    if compile_only:
        sys.stdout.write(compiled("predict", compile_executable(job, "predict")) + "\n")
        return
    artifacts.PREDICTIONS.mkdir(exist_ok=True)
    result = run_device_job(job)
    sys.stdout.write(
        f"predict: {result.sequences} features in {result.train_seconds:.1f} s "
        f"({result.real_tokens_per_second:,.0f} tokens/s, {result.runtime}, {result.precision})\n"
    )


if __name__ == "__main__":
    run_main(main)
