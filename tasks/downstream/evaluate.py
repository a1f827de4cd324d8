"""Stage evaluate: decode logits to answers; write the official metrics with intervals and slices, a report and plots.

python -m tasks.downstream.evaluate NAME
"""

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import pyarrow as pa

from ipu_model.core.files import find_object, new_folder, sha256_of, write_json, write_text
from tasks.downstream.scoring.calibration import Bin, Calibration, calibrate
from tasks.downstream.scoring.metrics import RATES, Array, Slice
from tasks.downstream.scoring.near_duplicates import NearDuplicateScores, score_without_duplicates
from tasks.downstream.scoring.page_parts import group_bars, plot_reliability, plot_risk_coverage
from tasks.downstream.scoring.scores import A, E, L, ScoresTask
from tasks.downstream.scoring.thresholds import RiskCoverage, risk_coverage
from tasks.pages.markup import csv_text
from tasks.params.entries import ENTRY_SECTIONS, Entry, entry_argument, find_entry, learns_text
from tasks.params.schema import Params, load_sections
from tasks.plan.kinds import TRAIN, load_part
from tasks.plan.main import run_main
from tasks.records.duplicate_report import NearDuplicateReport
from tasks.records.interpretation import read_reading
from tasks.records.parquet import read_batches
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.validation.near_duplicates import find_near_duplicates

READ_AT_ONCE = 8192
NOT_SEARCHED = NearDuplicateReport(None, ())


@dataclass(frozen=True)
class EvaluationView(Generic[E, A]):
    """Results of an evaluation by development set, for its report and files."""

    examples: Mapping[str, E]
    answers: Mapping[str, A]
    predictions: Mapping[str, Sequence[Any]]
    outcomes: Mapping[str, Array]
    slices: Sequence[Slice]
    calibrated: Calibration | None
    """Calibration of the answers' probabilities."""
    metrics: dict[str, Any]
    """Content of the metrics file."""
    note: str = ""
    """Remarks on the development set for users."""
    near: NearDuplicateScores | None = None
    """Near-duplicates of development examples in the training data; None if unknown."""
    curve: RiskCoverage | None = None
    """Risk and coverage by the answers' probabilities."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Head of the page: model and file; the date of `podium evaluate`."""


class PageTask(ScoresTask[E, L, A]):
    """Report of an evaluation."""

    compared_columns: ClassVar[tuple[str, ...]]
    """Columns of the text that development and training examples should not share."""
    probability: ClassVar[str] = ""
    """Sentence on what an answer's probability is."""
    bar_titles: ClassVar[Mapping[str, str]] = {}
    """Metric -> short title next to the bars of slices, in this order; empty: all metrics."""

    def compared_texts(self, batch: pa.RecordBatch) -> list[str]:
        """Return that text for each example of a batch with these columns."""
        parts = zip(*(batch.column(name).to_pylist() for name in self.compared_columns), strict=True)
        return ["\t".join(part for part in some if part is not None) for some in parts]

    def bar_notes(self) -> dict[str, str]:
        """Return name of a group -> its note next to its bar."""
        return {}

    def page_values(self, found: EvaluationView[E, A]) -> dict[str, Any]:
        """Return the values of the page that all kinds share, for evaluation.html.j2."""
        titles, about = self.metrics.titles, found.about
        parts = {name: title for name, title in titles.items() if name != self.metrics.mean}
        bar_titles = self.bar_titles or parts | {name: title for name, (title, *_) in RATES.items()}
        return {
            **{name: getattr(found, name) for name in ("metrics", "note", "near", "calibrated", "curve")},
            "title": f"Evaluation of {about['Model']} on {about['File']}" if about else f"Evaluation: {self.title}",
            "about": {**about, "Task": self.title} if about else {},
            "titles": titles,
            "record": self.record,
            "count": found.metrics.get(self.counted),
            "baseline": self.baseline,
            "bars": group_bars(found.slices, bar_titles),
            "bar_titles": bar_titles,
            "bar_notes": self.bar_notes(),
            "probability": self.probability,
            "reliability_plot": found.calibrated and plot_reliability(found.calibrated),
            "curve_plot": found.curve and plot_risk_coverage(found.curve),
            "curve_file": False,
            "mistakes_file": artifacts.MISTAKES,
            "example_names": {split: self.names(one) for split, one in found.examples.items()},
        }

    @abstractmethod
    def slices(self, split: str, examples: E, logits: L, outcomes: Array) -> Sequence[Slice]:
        """Return scores by property of the examples."""

    @abstractmethod
    def mistakes(self, found: EvaluationView[E, A]) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        """Return the columns and rows of mistakes.csv: every wrong answer, the worst first.

        All kinds have the columns id, probability (of the answer) and margin (see `margin`).
        """

    @abstractmethod
    def page(self, found: EvaluationView[E, A]) -> str:
        """Return the report as HTML."""

    def more_figures(
        self, examples: Mapping[str, E], answers: Mapping[str, A], curve: RiskCoverage | None
    ) -> dict[str, Any]:
        """Return additional figures of this kind that need more than the predictions."""
        return {}

    def more_files(self, found: EvaluationView[E, A]) -> dict[str, str]:
        """Return file name -> text of additional files of the evaluation."""
        return {}


def search_near_duplicates(task: PageTask[Any, Any, Any], params: Params, root: Path = Path()) -> NearDuplicateReport:
    """Find the development examples with a near-duplicate in the training data or pre-training corpus of an entry.

    Raises:
        InputError: examples or corpus are missing or damaged.
    """
    threshold = params.validate_.near_duplicates
    if threshold is None:
        return NOT_SEARCHED

    def read(split: str) -> Iterator[list[str]]:
        path, made_by = task.examples_file(split, root), task.entry.stage("examples")
        return map(task.compared_texts, read_batches(path, task.compared_columns, READ_AT_ONCE, made_by))

    corpus = root / artifacts.CORPUS if learns_text(task.entry, params) else None
    return find_near_duplicates(read, TRAIN, task.development, corpus, threshold, task.record)


def evaluate(
    task: PageTask[E, Any, A], root: Path = Path(), report: NearDuplicateReport = NOT_SEARCHED
) -> dict[str, Any]:
    """Score the logits of an entry's development sets; write its predictions, scores, plots and report.

    Args:
        report: the near-duplicates of its development examples.

    Returns:
        The content of the metrics file: every official metric in percent with its 95% interval, the score of the
        baseline, the number of examples, calibration, slices, and the SHA-256 of weights and predictions.

    Raises:
        InputError: a file is missing, damaged, or from another run.
    """
    name = task.entry.name
    weights = root / artifacts.model_folder(name) / "model.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights} not found. Run the stage {task.entry.stage('finetune')}")
    baseline = task.choose_baseline(root)
    found = score_logits(task, root)
    near = score_without_duplicates(task, report, found.outcomes)
    metrics = {**found.metrics, **baseline, **near.record()}
    found = replace(found, near=near, metrics=metrics, about=describe_run(task.entry, root))
    with new_folder(root / artifacts.EVALUATION / name) as folder:
        predictions = artifacts.predictions_file(name)
        judged = {artifacts.model_folder(name) / weights.name: weights, predictions: folder / predictions.name}
        write_evaluation(task, found, folder, judged)
    for what, table in plot_tables(task, found).items():
        write_text(root / artifacts.PLOTS / f"{name}-{what}.csv", table)
    write_json(root / artifacts.metrics_file(name), found.metrics)
    return found.metrics


def describe_run(entry: Entry, root: Path) -> dict[str, str]:
    """Return the head of a page of a run: the base model and the development file.

    The page itself finds the run's name and its date, so that equal runs write equal pages.
    """
    base, data = find_object(root / artifacts.BASE_MODEL / "base_model.json") or {}, dict(entry.params.data)
    origin = base.get("repository") or Path(base.get("path") or "").name if entry.start == "base" else ""
    path = data.get("dev_path") or data.get("train_path") or data.get("path") or ""
    source = {"files": Path(str(path)).name, "hub": data.get("dataset")}.get(str(data["source"]))
    model = f"fine-tuned {origin or 'encoder of this run'}" if entry.start else "a model trained from random weights"
    file = str(source or data["source"])
    return {"Model": model, "File": file}


def write_evaluation(
    task: PageTask[E, Any, A], found: EvaluationView[E, A], folder: Path, judged: Mapping[Path, Path]
) -> None:
    """Write predictions, report and additional files of an evaluation to a folder.

    Args:
        found: the results; hashes of the evaluated files are added to its metrics.
        judged: recorded path -> actual path of each evaluated file, predictions included.
    """
    name = task.entry.name
    write_json(folder / artifacts.predictions_file(name).name, task.predictions_json(found.examples, found.predictions))
    found.metrics["files"] = [{"path": str(place), "sha256": sha256_of(path)} for place, path in judged.items()]
    texts = {
        artifacts.evaluation_page(name).name: task.page(found),
        artifacts.MISTAKES: csv_text(*task.mistakes(found)),
        **task.more_files(found),
    }
    for file, text in texts.items():
        write_text(folder / file, text)


def plot_tables(task: PageTask[E, Any, A], found: EvaluationView[E, A]) -> dict[str, str]:
    """Return name -> CSV of the plots in dvc.yaml: the leading metric of every slice in percent with its interval, and
    predicted probabilities with observed accuracy."""
    slices = []
    for one in found.slices:
        part, names = one.record(), (task.limits[0].metric, *task.metrics.titles, *one.figures)
        lead = next(name for name in names if name in one.figures)
        slices.append((part["by"], part["slice"], lead, part[lead], part[f"{lead}_low"], part[f"{lead}_high"]))
    bins = [] if found.calibrated is None else [astuple(one) for one in found.calibrated.bins if one.count]
    return {
        "slices": csv_text(("by", "slice", "metric", "score", "score_low", "score_high"), slices),
        "calibration": csv_text([one.name for one in fields(Bin)], bins),
    }


def score_logits(
    task: PageTask[E, Any, A], root: Path = Path(), development: Sequence[str] | None = None
) -> EvaluationView[E, A]:
    """Decode and score the logits of all development sets, or of those named."""
    task.prepare(root)
    examples: dict[str, E] = {}
    answers: dict[str, A] = {}
    predictions: dict[str, Sequence[Any]] = {}
    outcomes: dict[str, Array] = {}
    slices: list[Slice] = []
    for split in task.development if development is None else development:
        examples[split] = here = task.read_examples(task.examples_file(split, root))
        logits_file, rows = root / artifacts.logits_file(task.entry.name, split), task.rows_folder(split, root)
        logits = task.read_logits(here, rows, logits_file)
        answers[split] = task.answer(here, logits)
        predictions[split] = task.predictions(answers[split])
        outcomes[split] = task.outcomes(here, predictions[split])
        slices += task.slices(split, here, logits, outcomes[split])
    calibrated, curve = judge_confidences(task, examples, answers, outcomes)
    # Lists, not objects: `dvc metrics show` makes a column of every number and string in an object.
    metrics = {
        "leading": [task.limits[0].metric],
        **task.figures(examples, outcomes),
        **task.more_figures(examples, answers, curve),
        "answered": sum(one is not None for split in predictions.values() for one in split),
        **({} if calibrated is None else calibrated.record()),
        "slices": [part.record() for part in slices],
    }
    reading = read_reading(root / artifacts.EXAMPLES / task.entry.name)
    note = "; ".join(f"{reading['numbers'].get(what, 0):,} {what}" for what in reading["notes"])
    return EvaluationView(examples, answers, predictions, outcomes, slices, calibrated, metrics, note, curve=curve)


def judge_confidences(
    task: PageTask[E, Any, A], examples: Mapping[str, E], answers: Mapping[str, A], outcomes: Mapping[str, Array]
) -> tuple[Calibration, RiskCoverage] | tuple[None, None]:
    """Return calibration of the answers' probabilities, and the risk-coverage curve by probability."""
    scaled = [one for found in answers.values() if (one := task.scaled_confidences(found)) is not None]
    right = np.concatenate([task.correctness(one, answers[split], outcomes[split]) for split, one in examples.items()])
    if not scaled or not len(right):
        return None, None

    def confidences(temperature: float) -> Array:
        return np.concatenate([one(temperature) for one in scaled])

    return calibrate(confidences, right), risk_coverage(-confidences(1.0), right)


def format_scores(task: ScoresTask[Any, Any, Any], found: Mapping[str, Any], split: str = "") -> list[str]:
    """Return a line for each official metric of all development sets, or of one, and for the baseline."""
    titles = (task.metrics.for_split(split) if split else task.metrics).titles
    width = max(map(len, titles.values()))
    lines = [
        f"{title:{width}}  {found[name]:6.2f}  ({found[f'{name}_low']:.2f} to {found[f'{name}_high']:.2f})"
        for name, title in titles.items()
        if name in found
    ]
    return [*lines, *([f"{task.baseline}: {found['constant_score']:.2f}"] if "constant_score" in found else [])]


def main() -> None:
    name = entry_argument(
        "Score the logits of a downstream task and write its report. To score other answers to questions: podium score"
    )
    params = load_sections(*ENTRY_SECTIONS, "tokenizer", "pretrain_rows", "validate_")
    task: PageTask[Any, Any, Any] = load_part(find_entry(params, name), "page")
    started_at = time.perf_counter()
    found = evaluate(task, report=search_near_duplicates(task, params))
    took = f"{found[task.counted]:,} {task.record}s in {time.perf_counter() - started_at:.1f} s"
    print(f"{task.entry.name}: {took}", *format_scores(task, found), sep="\n")


if __name__ == "__main__":
    run_main(main)
