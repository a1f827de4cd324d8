"""Parity of one model on two devices or precisions: differences of logits, and changed answers.

    python -m tasks.downstream.parity NAME RUNTIME[:PRECISION]        compare with the logits of stage predict
    python -m tasks.downstream.parity NAME cuda:bf16 --baseline cpu:fp32 [--model DIR] [--output FILE]

The second form computes both and writes only FILE. Device settings (batch, IPU config) come from params.yaml.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import read_json, write_json
from tasks.downstream.jobs.entry_jobs import PREDICT, build_predict_job, require_valid_rows
from tasks.downstream.kind import kind_of
from tasks.downstream.scoring.metrics import Array, changed_answers
from tasks.downstream.scoring.scores import Scores
from tasks.jobs.device_job import run_device_job
from tasks.params.entries import ENTRY_SECTIONS, Entry, find_entry
from tasks.params.schema import Params, load_sections
from tasks.params.sections import RuntimeSpec
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, ParityLost
from tasks.stage.scratch import scratch_folder

Logits = Mapping[str, Path]
"""Development set -> logits file."""


def compare_logits(task: Scores, first: Logits, second: Logits, root: Path = Path()) -> dict[str, object]:
    """Compare two predictions of the same rows, and the decoded answers.

    Returns:
        The result of `logit_differences`, every metric of both with their difference, McNemar's test if it applies, and
        `changed`: for each changed example both answers, their scores, and the margin by which the first answer led the
        runner-up. Answers with small margins change first.

    Raises:
        InputError: the files do not belong together.
    """
    task = task.prepare(root)
    distances: list[dict[str, Any]] = []
    changed: list[dict[str, object]] = []
    outcomes: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for split in task.entry.development:
        examples = task.read_examples(task.entry.examples_file(split, root))
        names = task.names(examples)
        logits = [
            task.read_logits(examples, task.entry.rows_folder(split, root), files[split]) for files in (first, second)
        ]
        distances.append(logit_differences(task.flat_logits(logits[0]), task.flat_logits(logits[1]), names))
        before, after = (task.answer(examples, values) for values in logits)
        pair = task.predictions(before), task.predictions(after)
        quantities = {name: column for column, name in enumerate(task.quantities) if column >= task.known_quantities}
        for by_split, predictions in zip(outcomes, pair, strict=True):
            by_split[split] = task.outcomes(examples, predictions)
        turned = changed_answers(names, pair, (outcomes[0][split], outcomes[1][split]), quantities)
        changed += [{**record, "margin": task.margin(before, number)} for number, record in turned]
    largest = max(distances, key=lambda gap: float(gap["max_logit_difference"]))
    return {
        **largest,
        "mean_logit_difference": float(np.mean([gap["mean_logit_difference"] for gap in distances])),
        "rms_logit_difference": float(np.sqrt(np.mean([gap["rms_logit_difference"] ** 2 for gap in distances]))),
        "max_logit": max(gap["max_logit"] for gap in distances),
        **task.metrics.compare(*outcomes),
        "changed_answers": len(changed),
        "changed": changed,
    }


def logit_differences(
    first: tuple[Array, np.ndarray], second: tuple[Array, np.ndarray], names: Sequence[str]
) -> dict[str, object]:
    """Return differences of the logits of the same sequences, as returned by `Scores.flat_logits`.

    Returns:
        max_logit_difference and its example, mean_logit_difference (of absolute values), rms_logit_difference, and for
        comparison max_logit, the largest absolute logit of the first.
    """
    (reference, example), (other, _) = first, second
    if reference.shape != other.shape:
        raise InputError("the logits belong to different rows. Compute both from the same rows")
    apart = np.abs(other.astype(np.float64) - reference)
    largest = int(apart.argmax())
    return {
        "max_logit_difference": float(apart[largest]),
        "max_logit_difference_in": names[int(example[largest])],
        "mean_logit_difference": float(apart.mean()),
        "rms_logit_difference": float(np.sqrt((apart**2).mean())),
        "max_logit": float(np.abs(reference).max()),
    }


def predict_on(
    spec: RuntimeSpec, task: Scores, params: Params, folder: Path, root: Path = Path(), model: Path | None = None
) -> tuple[dict[str, str], Logits]:
    """Predict the rows of all development sets on one device; write logits and job files to `folder`.

    Returns:
        The runtime and the precision that were used, and the logits.

    Raises:
        DeviceJobFailed: the model cannot run there; the message has the reason.
    """
    device = params.device.model_copy(update={"runtime": spec.runtime, "precision": spec.precision})
    files = {}
    for split in task.entry.development:
        files[split], run_folder = folder / split / "logits.arrow", folder / split
        rows = task.entry.rows_folder(split, root)
        job = build_predict_job(task.entry, params, rows, files[split], run_folder, root, model=model, device=device)
        result = run_device_job(job)
    return {"runtime": result.runtime, "precision": result.precision}, files


def check_limit(result: Mapping[str, Any], entry: Entry) -> None:
    """Raise ParityLost if the logits differ by more than the entry's limit (None: no limit)."""
    limit = entry.params.parity.max_logit_difference
    if limit is not None and result["max_logit_difference"] > limit:
        raise ParityLost(
            f"the logits differ by up to {result['max_logit_difference']:.4g} (in "
            f"{result['max_logit_difference_in']!r}), the limit is {limit:g} "
            f"({entry.key('parity', 'max_logit_difference')}); {result['changed_answers']} of {result['examples']} "
            "answers changed"
        )


def compare_devices(
    spec: RuntimeSpec,
    task: Scores,
    params: Params,
    output: Path | None,
    baseline: RuntimeSpec | None,
    root: Path = Path(),
    model: Path | None = None,
) -> str:
    """Compare a model on one device with a baseline and write the figures to `output`; return a summary line.

    Args:
        baseline: another device; None: the logits of stage predict.

    Raises:
        ParityLost: the logits differ too much; `output` is written before.
    """
    name = task.entry.name
    with scratch_folder() as scratch:
        if baseline is not None:
            first, before = predict_on(baseline, task, params, scratch / "first", root, model)
        else:
            require_valid_rows(task.entry)
            figures = read_json(artifacts.metrics_file(name, PREDICT))
            of_predict = figures if len(task.entry.predicted) == 1 else figures[task.entry.development[0]]
            first = {key: of_predict[key] for key in ("runtime", "precision")}
            before = {split: artifacts.logits_file(name, split) for split in task.entry.development}
        folder = scratch if output is None or baseline else artifacts.RUNS / output.stem
        second, after = predict_on(spec, task, params, folder / "second", root, model)
        result = compare_logits(task, before, after, root)
    if output is not None:
        write_json(output, {"first": first, "second": second, **result})
    check_limit(result, task.entry)
    lead, places = task.limits[0].metric, ["{runtime}:{precision}".format_map(record) for record in (second, first)]
    return (
        f"parity of {' with '.join(places)}: logits differ by up to {result['max_logit_difference']:.4g} (mean "
        f"{result['mean_logit_difference']:.2g}, largest logit {result['max_logit']:.3g}), "
        f"{result['changed_answers']} of {result['examples']} answers changed, "
        f"{task.metrics.titles[lead]} {result[f'{lead}_first']:.2f} -> {result[f'{lead}_second']:.2f}"
    )


def _split_item(item: str, params: Params) -> tuple[str, str]:
    for name, entry in params.downstream.items():
        for target in entry.parity.against:
            if item == f"{name}-{target}":
                return name, target
    raise ParamsError(f"{item}: add RUNTIME[:PRECISION], or name a stage of downstream.*.parity.against")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a model's logits and answers on two devices.")
    parser.add_argument("name", help="the entry, or the name of a stage, which includes the device")
    parser.add_argument(
        "place", nargs="?", metavar="RUNTIME[:PRECISION]", help="for example cpu:bf16, cuda or ipu:fp16"
    )
    parser.add_argument("--baseline", metavar="RUNTIME[:PRECISION]", help="compute and compare with this")
    parser.add_argument("--model", type=Path, help="other model folder (with --baseline)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the comparison as JSON (with --baseline)")
    arguments = parser.parse_args()
    params = load_sections(*ENTRY_SECTIONS, "model", "device", "ipu")
    name, said = arguments.name, arguments.place
    if said is None:
        name, said = _split_item(arguments.name.rpartition("@")[2], params)
    try:
        spec = RuntimeSpec.parse(said)
        baseline = None if arguments.baseline is None else RuntimeSpec.parse(arguments.baseline)
    except ValueError as error:
        parser.error(str(error))
    entry = find_entry(params, name)
    task = kind_of(entry).scores(entry)
    output = arguments.output
    if baseline is None:
        if arguments.model is not None or output is not None:
            parser.error("--model and --output need --baseline")
        output = artifacts.parity_file(task.entry.name, said)
    sys.stdout.write(compare_devices(spec, task, params, output, baseline, model=arguments.model) + "\n")


if __name__ == "__main__":
    run_main(main)
