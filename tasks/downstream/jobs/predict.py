"""Stage predict: compute the logits of an entry's development sets, and of held-out examples if its kind needs them.

python -m tasks.downstream.jobs.predict NAME
"""

import sys
from typing import Any

from ipu_model.files import write_json
from tasks.downstream.jobs.entry_jobs import PREDICT, build_predict_job, require_valid_rows
from tasks.jobs.device_job import JobResult, run_device_job
from tasks.jobs.training import packing_figures, program_measurements
from tasks.params.entries import ENTRY_SECTIONS, entry_argument, find_entry
from tasks.params.schema import load_sections
from tasks.plan.kinds import load_spec
from tasks.plan.main import run_main
from tasks.stage import artifacts


def prediction_figures(result: JobResult) -> dict[str, Any]:
    """Return the reproducible figures of a prediction."""
    return {
        "features": result.sequences,
        "runtime": result.runtime,
        "precision": result.precision,
        **packing_figures(result),
    }


def prediction_measurements(result: JobResult) -> dict[str, Any]:
    """Return the measurements of a prediction, which vary between runs."""
    return {
        "predict_seconds": round(result.train_seconds, 2),
        "real_tokens_per_second": round(result.real_tokens_per_second, 1),
        **program_measurements(result),
    }


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "model", "device", "ipu")
    task = load_spec(find_entry(params, entry_argument("Predict the development sets of a downstream task.")))
    name, found, measured = task.entry.name, {}, {}
    require_valid_rows(task)
    artifacts.logits_folder(name).mkdir(parents=True, exist_ok=True)
    for split in task.predicted:
        folder = artifacts.RUNS / artifacts.job_name(name, PREDICT) / split
        result = run_device_job(
            build_predict_job(task, params, task.rows_folder(split), artifacts.logits_file(name, split), folder)
        )
        found[split], measured[split] = prediction_figures(result), prediction_measurements(result)
        sys.stdout.write(
            f"{name} {split}: {result.sequences} sequences in {result.train_seconds:.1f} s "
            f"({result.real_tokens_per_second:,.0f} tokens/s, {result.runtime}, {result.precision})\n"
        )
    for file, by_split in ((artifacts.metrics_file, found), (artifacts.measurements_file, measured)):
        write_json(file(name, PREDICT), next(iter(by_split.values())) if len(by_split) == 1 else by_split)


if __name__ == "__main__":
    run_main(main)
