"""Every path the stages read or write, relative to the checkout's root."""

from __future__ import annotations

from pathlib import Path

PARAMS = Path("params.yaml")
PRESETS = Path("presets")

CORPUS = Path("data/corpus")
"""part-00000.parquet, ... : document_id (string), title (string), text (string; paragraphs apart by a newline)."""
READING = "reading.json"
"""Beside a corpus, questions and prepared rows: what their stage read, left out and changed, counted."""
TOKENIZER = Path("data/tokenizer")
QUESTIONS = Path("data/questions")
"""train.parquet, dev.parquet: id, title, context, question (string), answers (list of struct text, answer_start)."""
ROWS = Path("data/rows")
FEATURES = "features.parquet"
"""Beside the rows of questions: one line per feature (window), in order of feature id."""

GLUE_DATA = Path("data/glue")
GLUE = Path("glue")
"""For each GLUE task: `logits`, by development set, and `evaluation`."""

VALIDATION = Path("reports/validation")
DATA_DOCS = Path("reports/data_docs")
"""Great Expectations' own pages, one folder per data set, where validate.data_docs is on."""
MODELS = Path("models")
SQUAD_MODEL = MODELS / "squad"
BASE_MODEL = MODELS / "base"
"""A given model to start from; none was given where it holds base_model.json alone."""
PREDICTIONS = Path("predictions")
LOGITS = PREDICTIONS / "logits.arrow"
EVALUATION = Path("evaluation")
SQUAD_PREDICTIONS = EVALUATION / "predictions.json"
METRICS = Path("metrics")
SQUAD_METRICS = METRICS / "squad.json"
GATE = METRICS / "gate.json"
PLOTS = Path("plots")
EXECUTABLES = Path("executables")
"""phase1, phase2, finetune, predict: programs for IPUs, which DVC carries; `.live` is the host's, ignored by DVC."""
EXECUTABLES_RECORD = "podium.json"
"""In each: what the programs were built for and their SHA-256, or why there are none."""
PUBLISH_RECEIPT = Path("reports/publish.json")
RUN_REPORT = Path("reports/run.json")
RUN_PAGE = Path("reports/run.html")
RUNS = Path("runs")
"""Ignored by git and DVC: checkpoints, job files, logs, checkouts of runs with overrides."""


def rows_folder(name: str, split: str = "") -> Path:
    """Rows of `phase1` or `phase2`; of an entry of downstream work those of a split, or the folder of all of them."""
    if name in _PHASES:
        return ROWS / name
    if name == _QUESTIONS:
        return ROWS / f"{name}-{split}" if split else ROWS
    return ROWS / name / split


def row_shards(phase: str) -> Path:
    """Finished shards of the rows of `phase1` or `phase2`, until all are. Ignored by git; DVC takes shares of them."""
    return Path("data/row_shards") / phase


def held_out_plot(training: str) -> Path:
    """The curve of a training on its held-out rows; the loss itself is plots/<training>.csv."""
    return PLOTS / f"{training}-held-out.csv"


def publish_receipt(task: str = "") -> Path:
    """What publish says of itself; of a GLUE task, "" for questions."""
    return PUBLISH_RECEIPT.with_name(f"publish-glue-{task}.json") if task else PUBLISH_RECEIPT


_PHASES = ("phase1", "phase2")
_QUESTIONS = "squad"
"""The entry whose files lie beside those of all others, as long as no stage is named after it."""


def _task(name: str) -> str:
    return name.removeprefix("glue-")


def examples_folder(name: str) -> Path:
    """Examples of an entry of downstream work: train.parquet and a file for each development set."""
    return QUESTIONS if name == _QUESTIONS else GLUE_DATA / _task(name)


def examples_file(name: str, split: str) -> Path:
    """Examples of one split of an entry."""
    return examples_folder(name) / f"{split}.parquet"


def model_folder(name: str) -> Path:
    """The model that was fine-tuned for an entry."""
    return MODELS / name


def logits_folder(name: str) -> Path:
    """Logits of the development sets of an entry."""
    return PREDICTIONS if name == _QUESTIONS else GLUE / _task(name) / "logits"


def logits_file(name: str, split: str) -> Path:
    """Logits of one development set of an entry."""
    return LOGITS if name == _QUESTIONS else logits_folder(name) / f"{split}.arrow"


def evaluation_folder(name: str) -> Path:
    """predictions.json, report.html and what else the evaluation of an entry writes for people."""
    return EVALUATION if name == _QUESTIONS else GLUE / _task(name) / "evaluation"


def predictions_file(name: str) -> Path:
    """The answers of an entry's model to its development sets."""
    return evaluation_folder(name) / "predictions.json"


def evaluation_page(name: str) -> Path:
    """The evaluation of an entry for people."""
    return evaluation_folder(name) / "report.html"


def job_name(name: str, job: str) -> str:
    """The `finetune` or `predict` of an entry, as its figures, curves and programs are called."""
    return job if name == _QUESTIONS else f"{name}-{job}"


def metrics_file(name: str, what: str = "") -> Path:
    """Scores of an entry, or the figures of its `finetune`, `predict` or `gate`."""
    return METRICS / f"{job_name(name, what) if what else name}.json"


def plot_file(name: str, what: str) -> Path:
    """A table of an entry's evaluation, to be drawn."""
    return PLOTS / f"{name}-{what}.csv"


def parity_file(name: str, place: str) -> Path:
    """The model of an entry in this place (cpu:bf16) beside what its stage predict wrote."""
    return METRICS / (f"parity-{place}.json" if name == _QUESTIONS else f"{name}-parity-{place}.json")


def receipt_file(name: str) -> Path:
    """What publishing the model of an entry says of itself."""
    return Path("reports") / ("publish.json" if name == _QUESTIONS else f"publish-{name}.json")


def executables_folder(job: str) -> Path:
    """Programs of `phase1`, `phase2`, `finetune` or `predict`."""
    return EXECUTABLES / job


def compile_report(job: str) -> Path:
    """What decides the program of a job, and nothing else: training depends on it."""
    return Path("reports") / f"compile-{job}.json"


def validation_report(name: str) -> Path:
    """JSON verdict of a data set; the HTML page has the same name with `.html`."""
    return VALIDATION / f"{name}.json"
