"""Stage export: write a model as ONNX, answer the development sets with the files, and score the answers.

python -m tasks.downstream.export.export NAME
"""

from __future__ import annotations

import importlib.metadata
import itertools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import new_folder, read_json, sha256_of, write_json, write_text
from tasks.downstream.export.onnx_files import (
    COMPARED,
    OPSET,
    compare_with_transformers,
    copy_files,
    load_model,
    write_formats,
)
from tasks.downstream.export.speed import measure_all, write_page
from tasks.downstream.inference.onnx_answers import EXPORTING, answer_rows, read_sequences
from tasks.downstream.kind import kind_of
from tasks.downstream.scoring.logits import LogitsNotFinite
from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import Baseline, Scores
from tasks.params.entries import entry_argument, load_entry
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.scratch import scratch_folder


def export(task: Scores, root: Path = Path()) -> dict[str, Any]:
    """Write exports/<name> and metrics/<name>-export.json in the checkout `root`.

    Returns:
        The content of the metrics file: for each file its size, hash, scores with intervals, the differences from the
        model's scores, and the largest differences of logits.

    Raises:
        InputError: a package or a file is missing.
    """
    name, formats = task.entry.name, task.entry.params.export.formats
    folder = root / artifacts.model_folder(name)
    task, examples = task.prepare(root).read_all(root)
    reference = task.outcomes_of(examples, task.read_predictions(root / artifacts.predictions_file(name), examples))
    exports = []
    with new_folder(root / artifacts.exports_folder(name)) as target, scratch_folder() as scratch:
        started_at, model = time.perf_counter(), load_model(folder)
        files = write_formats(model, formats, target)
        copy_files(target, folder, root / artifacts.TOKENIZER)
        for form, path in files.items():
            predictions, difference = answer_examples(task, examples, path, scratch, root)
            sequences = [
                sequence
                for split in task.entry.development
                for sequence in itertools.islice(read_sequences(task.entry.rows_folder(split, root)), COMPARED)
            ]
            answered = artifacts.exported_predictions(name, artifacts.EXPORT_FILES[form])
            write_json(
                target / answered.relative_to(artifacts.exports_folder(name)),
                task.predictions_json(examples, predictions),
            )
            exports.append(
                {
                    "name": artifacts.EXPORT_FILES[form],
                    "format": form,
                    "bytes": path.stat().st_size,
                    "sha256": sha256_of(path),
                    **export_scores(task, task.baseline(examples), task.outcomes_of(examples, predictions), reference),
                    "logit_difference": difference if math.isfinite(difference) else None,
                    "transformers_difference": compare_with_transformers(model, path, sequences),
                }
            )
        print(f"exported and scored in {time.perf_counter() - started_at:.1f} s; measuring speed", flush=True)
        measured = measure_all(model, folder, files, read_json(folder / "config.json")["max_position_embeddings"] - 2)
    versions = {package: importlib.metadata.version(package) for package in ("torch", *EXPORTING)}
    metrics = {"exports": exports, "opset": OPSET, "packages": versions}
    write_json(root / artifacts.metrics_file(name, "export"), metrics)
    write_json(root / artifacts.measurements_file(name, "export"), measured)
    scores = read_json(root / artifacts.metrics_file(name))
    write_text(root / artifacts.export_page(name), write_page(task, metrics, measured, scores))
    return metrics


def answer_examples(
    task: Scores, examples: Mapping[str, object], path: Path, scratch: Path, root: Path
) -> tuple[dict[str, Sequence[object]], float]:
    """Return the predictions of an exported file by development set, and the largest difference of its logits from
    those of the stage predict: NaN, and no predictions, if a logit is not finite."""
    predictions, largest = dict[str, Sequence[object]](), 0.0
    for split, dev_set in examples.items():
        rows, output = task.entry.rows_folder(split, root), scratch / f"{path.stem}-{split}.arrow"
        answer_rows(path, rows, output)
        ours = task.read_logits(dev_set, rows, root / artifacts.logits_file(task.entry.name, split))
        try:
            logits = task.read_logits(dev_set, rows, output)
            apart = task.flat_logits(logits)[0] - task.flat_logits(ours)[0]
            predictions[split] = task.predictions(task.answer(dev_set, logits))
            largest = max(largest, float(np.abs(apart).max(initial=0.0)))
        except LogitsNotFinite:
            predictions[split], largest = [None] * len(task.names(dev_set)), math.nan
    return predictions, largest


def export_scores(
    task: Scores, baseline: Baseline | None, outcomes: Outcomes, reference: Outcomes
) -> dict[str, object]:
    """Return every metric of an exported file with its interval, and its differences from the model's."""
    apart = task.metrics.differences(outcomes, reference, task.confidence)
    names = ("mean", "low", "high", "p_value")
    differences = {
        metric: _finite({name: getattr(difference, name) for name in names}) for metric, difference in apart.items()
    }
    return {**_finite(task.figures(outcomes, baseline)), "differences": differences}


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    entry = load_entry(entry_argument("Export a fine-tuned model and score the files."))
    task = kind_of(entry).scores(entry)
    lead = task.limits[0].metric
    for record in export(task)["exports"]:
        print(
            f"{record['name']}: {record['bytes'] / 1e6:.1f} MB, {task.metrics.titles[lead]} {record[lead]:.2f} "
            f"({record[f'{lead}_low']:.2f} to {record[f'{lead}_high']:.2f}), logits differ by up to "
            f"{record['transformers_difference'] or float('nan'):.2g} from transformers"
        )


if __name__ == "__main__":
    run_main(main)
