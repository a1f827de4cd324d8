"""Stage predict: start and end logits of every dev feature.

python -m tasks.downstream.squad.predict
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tasks.jobs.device_job import BatchGeometry, Job, JobResult, run_device_job
from tasks.jobs.training import carried_executables, ipu_config, packing_figures, program_figures, require_verdict
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import DeviceParams, IpuParams, load_params
from tasks.project.process import takes_no_words

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
        executables=carried_executables("predict", device, root),
    )


def figures(result: JobResult) -> dict[str, Any]:
    """The figures of prediction for `dvc metrics show`."""
    return {
        "features": result.sequences,
        "predict_seconds": round(result.train_seconds, 2),
        "real_tokens_per_second": round(result.real_tokens_per_second, 1),
        "runtime": result.runtime,
        "precision": result.precision,
        **packing_figures(result),
        **program_figures(result),
    }


def main() -> None:
    takes_no_words("Stage predict: start and end logits of every dev feature.")
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
    artifacts.PREDICTIONS.mkdir(exist_ok=True)
    result = run_device_job(job)
    artifacts.write_json(artifacts.PREDICT_METRICS, figures(result))
    sys.stdout.write(
        f"predict: {result.sequences} features in {result.train_seconds:.1f} s "
        f"({result.real_tokens_per_second:,.0f} tokens/s, {result.runtime}, {result.precision})\n"
    )


if __name__ == "__main__":
    run_main(main)
