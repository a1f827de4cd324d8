"""Every path the stages read or write, relative to the checkout's root."""

from __future__ import annotations

from pathlib import Path

PARAMS = Path("params.yaml")
PLAN = Path("plan.yaml")
"""What params.yaml makes of dvc.yaml (tasks/plan/composing.py)."""
PRESETS = Path("presets")
SOURCES = ("flows", "tasks", "ipu_model", "dvc.yaml")
"""The code: what decides a result beside parameters and data."""

CORPUS = Path("data/corpus")
"""part-00000.parquet, ... : document_id (string), title (string), text (string; paragraphs apart by a newline)."""
READING = "reading.json"
"""Beside a corpus, examples and prepared rows: what their stage read, left out and changed, counted."""
TOKENIZER = Path("data/tokenizer")
NEAR_DUPLICATES = Path("data/near_duplicates")
EXAMPLES = Path("data/examples")
ROWS = Path("data/rows")
HELD_OUT = "held-out"
"""Folder of held-out rows, inside the folder of the training rows."""
FEATURES = "features.parquet"
"""Beside the rows of questions: one line per feature (window), in order of feature id."""

VALIDATION = Path("reports/validation")
EXPECTATIONS = Path("reports/expectations")
"""What is required of each data set, as a suite: a folder that a store of Great Expectations can be told to read."""
DATA_DOCS = Path("reports/data_docs")
"""Great Expectations' own pages, one folder per data set, where validate.data_docs is on; not among a stage's outs."""
SPEAKS_OF = "verdict.sha256"
"""In such a folder: SHA-256 of the verdict's JSON that was written with it."""
MODELS = Path("models")
BASE_MODEL = MODELS / "base"
"""A given model to start from."""
PREDICTIONS = Path("predictions")
EVALUATION = Path("evaluation")
METRICS = Path("metrics")
MEASUREMENTS = Path("measurements")
"""What equal runs differ in: time, memory, how a program was obtained. No stage depends on it, no release hashes it."""
PLOTS = Path("plots")
EXECUTABLES = Path("executables")
"""phase1, phase2, <name>-finetune, <name>-predict: programs for IPUs, which DVC carries; `.live` stays on its host."""
EXECUTABLES_RECORD = "podium.json"
"""In each: what the programs were built for and their SHA-256, or why there are none."""
REPORTS = Path("reports")
RUN_REPORT = Path("reports/run.json")
RUN_PAGE = Path("reports/run.html")
RUN_PAGES = Path("reports/runs")
"""A copy of the page of each run that ended in this folder."""
INDEX_PAGE = Path("reports/index.html")
"""All runs of a project, in its own folder."""
FETCHED = Path("released")
"""Ignored by git and by DVC's cache: releases that the flow fetched, which gates compare with."""
RELEASED_RECORD = "released.json"
"""Beside the scores of a released model: whose they are."""
RELEASES = Path("published")
"""Where the releases of entries may always be."""
RUNS = Path("runs")
CHECKOUTS = RUNS / "checkouts"
"""The folders of named runs."""
"""Ignored by git and DVC: checkpoints, job files, logs, checkouts of runs with overrides."""


def rows_folder(name: str, split: str = "") -> Path:
    """Rows of `phase1` or `phase2`; of an entry of downstream work those of a split, or the folder of all of them."""
    return ROWS / name / split


def row_shards(phase: str) -> Path:
    """Finished shards of the rows of `phase1` or `phase2`, until all are. Ignored by git; DVC takes shares of them."""
    return Path("data/row_shards") / phase


def held_out_plot(training: str) -> Path:
    """The curve of a training on its held-out rows; the loss itself is plots/<training>.csv."""
    return PLOTS / f"{training}-held-out.csv"


def examples_folder(name: str) -> Path:
    """Examples of an entry of downstream work: train.parquet and a file for each development set."""
    return EXAMPLES / name


def examples_file(name: str, split: str) -> Path:
    """Examples of one split of an entry."""
    return examples_folder(name) / f"{split}.parquet"


def near_duplicates_file(name: str) -> Path:
    """Which development examples of an entry have a near-duplicate in what its model learns from."""
    return NEAR_DUPLICATES / f"{name}.json"


def model_folder(name: str) -> Path:
    """The model that was fine-tuned for an entry."""
    return MODELS / name


def logits_folder(name: str) -> Path:
    """Logits of the development sets of an entry."""
    return PREDICTIONS / name


def logits_file(name: str, split: str) -> Path:
    """Logits of one development set of an entry."""
    return logits_folder(name) / f"{split}.arrow"


def fetched_folder(name: str) -> Path:
    """The releases that were fetched for an entry, the newest ones of its publish target."""
    return FETCHED / name


def released_scores(name: str) -> Path:
    """What the fetched release scores on the development sets of an entry."""
    return PREDICTIONS / f"{name}-released"


def evaluation_folder(name: str) -> Path:
    """predictions.json, report.html and what else the evaluation of an entry writes for people."""
    return EVALUATION / name


def predictions_file(name: str) -> Path:
    """The answers of an entry's model to its development sets."""
    return evaluation_folder(name) / "predictions.json"


def evaluation_page(name: str) -> Path:
    """The evaluation of an entry for people."""
    return evaluation_folder(name) / "report.html"


def job_name(name: str, job: str) -> str:
    """The `finetune` or `predict` of an entry, as its figures, curves and programs are called."""
    return f"{name}-{job}"


def metrics_file(name: str, what: str = "") -> Path:
    """Scores of an entry, or the figures of its `finetune`, `predict` or `gate`."""
    return METRICS / f"{job_name(name, what) if what else name}.json"


def measurements_file(name: str, what: str = "") -> Path:
    """Time and memory of a training, or of the `predict` of an entry; its other figures are in metrics/<name>.json."""
    return MEASUREMENTS / metrics_file(name, what).name


def stage_run_file(stage: str) -> Path:
    """The run that made what there is of a stage, and what its process took."""
    return MEASUREMENTS / "stages" / f"{stage}.json"


def parity_file(name: str, place: str) -> Path:
    """The model of an entry in this place (cpu:bf16) beside what its stage predict wrote."""
    return METRICS / f"{name}-parity-{place}.json"


def receipt_file(name: str) -> Path:
    """What publishing the model of an entry says of itself."""
    return REPORTS / f"publish-{name}.json"


def executables_folder(job: str) -> Path:
    """Programs of a job: `phase1`, `phase2`, or one of an entry."""
    return EXECUTABLES / job


def compile_report(job: str) -> Path:
    """What decides the program of a job, and nothing else: training depends on it."""
    return REPORTS / f"compile-{job}.json"


def validation_report(name: str) -> Path:
    """JSON verdict of a data set; the HTML page has the same name with `.html`."""
    return VALIDATION / f"{name}.json"
