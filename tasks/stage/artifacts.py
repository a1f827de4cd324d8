"""Paths that stages read or write, relative to the root of the checkout."""

from pathlib import Path

PARAMS = Path("params.yaml")
PRESETS = Path("presets")
SOURCES = ("flows", "tasks", "ipu_model")
"""Code that determines results, together with parameters and data."""

CORPUS = Path("data/corpus")
"""part-00000.parquet, ... with columns document_id (string), title (string) and text (string, paragraphs separated by
newlines)."""
READING = "reading.json"
"""File next to a corpus, examples or prepared rows: how many records their stage read, skipped and changed."""
TOKENIZER = Path("data/tokenizer")
EXAMPLES = Path("data/examples")
"""Folders of entries with train.parquet and one file per development set."""
TEACHER = Path("data/teacher")
"""Folders of entries with a teacher: its scores, TEACHER_RECORD, and the training rows with its logits in `train`."""
TEACHER_RECORD = "teacher.json"
ROWS = Path("data/rows")
HELD_OUT = "held-out"
"""Subfolder of the training rows with the held-out rows."""
FEATURES = "features.parquet"
"""File next to the rows of questions: one row per feature (window), in order of feature id."""

VALIDATION = Path("reports/validation")
EXPECTATIONS = Path("reports/expectations")
"""Expectation suites, one per data set, in a layout that a Great Expectations store can read."""
MODELS = Path("models")
BASE_MODEL = MODELS / "base"
"""Imported base model to start from."""
PREDICTIONS = Path("predictions")
EVALUATION = Path("evaluation")
"""Folders of entries with predictions.json, report.html and other files for readers."""
MISTAKES = "mistakes.csv"
EXPORTS = Path("exports")
"""Folders of entries with the model in other formats (tasks/downstream/export)."""
EXPORT_FILES = {"onnx": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"}
"""Format -> its file in a release and in the folder of an export; the ecosystem uses the same names."""
METRICS = Path("metrics")
MEASUREMENTS = Path("measurements")
"""Values that differ between equal runs: time, memory, origin of a program. No stage depends on them, no release hashes
them."""
PLOTS = Path("plots")
EXECUTABLES = Path("executables")
"""IPU programs in PHASE, <name>-finetune and <name>-predict, which DVC transfers; `.live` stays on its host."""
EXECUTABLES_RECORD = "podium.json"
"""File in each folder: the programs' inputs and SHA-256, or why there are no programs."""
REPORTS = Path("reports")
RUN_REPORT = Path("reports/run.json")
RUN_PAGE = Path("reports/run.html")
RUN_PAGES = Path("reports/runs")
"""Copies of the pages of all runs that ended in this folder."""
INDEX_PAGE = Path("reports/index.html")
"""Page of all runs, in the project's folder."""
FETCHED = Path("released")
"""Fetched releases that gates compare with; ignored by git, never cached by DVC."""
RELEASED_RECORD = "released.json"
"""File next to the scores of a released model that identifies the release."""
RELEASES = Path("published")
"""Folder that releases of entries may always use."""
RUNS = Path("runs")
"""Checkpoints, job files, logs and checkouts; ignored by git and DVC."""
CHECKOUTS = RUNS / "checkouts"
"""Folders of named runs."""


MODULE_FILES = (
    "modules.json",
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
"""Files of a model with which sentence-transformers loads it."""


def rows_folder(name: str, split: str = "") -> Path:
    """Return the folder of the rows of a phase, of a split of an entry, or of all splits of an entry."""
    return ROWS / name / split


def teacher_folder(name: str, what: str = "") -> Path:
    """Return the folder of an entry's teacher, or something in it."""
    return TEACHER / name / what


def row_shards(phase: str) -> Path:
    """Return the folder of finished row shards of a phase. It is ignored by git and DVC."""
    return Path("data/row_shards") / phase


def held_out_plot(training: str) -> Path:
    """Return the plot of a training's held-out loss; the training loss is plots/<training>.csv."""
    return PLOTS / f"{training}-held-out.csv"


def examples_file(name: str, split: str) -> Path:
    """Return the examples of one split of an entry."""
    return EXAMPLES / name / f"{split}.parquet"


def model_folder(name: str) -> Path:
    """Return the folder of an entry's fine-tuned model."""
    return MODELS / name


def logits_file(name: str, split: str) -> Path:
    """Return the logits of one development set of an entry."""
    return PREDICTIONS / name / f"{split}.arrow"


def released_scores(name: str) -> Path:
    """Return the folder with the fetched release's scores on an entry's development sets."""
    return PREDICTIONS / f"{name}-released"


def exports_folder(name: str) -> Path:
    """Return the folder of an entry's exported model."""
    return EXPORTS / name


def export_page(name: str) -> Path:
    """Return the page of an entry's exported model. It states time, which differs between equal runs."""
    return MEASUREMENTS / "export" / name / "report.html"


def exported_predictions(name: str, file: str) -> Path:
    """Return the answers of an exported file of an entry to the development sets; `file` is its name in a release."""
    return exports_folder(name) / "predictions" / Path(file).with_suffix(".json").name


def predictions_file(name: str) -> Path:
    """Return the model's answers to an entry's development sets."""
    return EVALUATION / name / "predictions.json"


def evaluation_page(name: str) -> Path:
    """Return the evaluation page of an entry."""
    return EVALUATION / name / "report.html"


def mistakes_file(name: str) -> Path:
    """Return the table of an entry's wrong answers."""
    return EVALUATION / name / MISTAKES


def job_name(name: str, job: str) -> str:
    """Return the name of an entry's job, `finetune` or `predict`, in its metrics, plots and programs."""
    return f"{name}-{job}"


def metrics_file(name: str, what: str = "") -> Path:
    """Return the scores of an entry, or the metrics of its `finetune`, `predict`, `export` or `gate`."""
    return METRICS / f"{job_name(name, what) if what else name}.json"


def measurements_file(name: str, what: str = "") -> Path:
    """Return the time and memory of a training or of an entry's `predict`; metrics/<name>.json has the rest."""
    return MEASUREMENTS / metrics_file(name, what).name


def stage_run_file(stage: str) -> Path:
    """Return the file with the run that produced a stage's outs, and the resources that its process used."""
    return MEASUREMENTS / "stages" / f"{stage}.json"


def parity_file(name: str, runtime: str) -> Path:
    """Return the comparison of an entry's model on this runtime (cpu:bf16) with the outs of its stage predict."""
    return METRICS / f"{name}-parity-{runtime}.json"


def receipt_file(name: str) -> Path:
    """Return the receipt of publishing an entry's model."""
    return REPORTS / f"publish-{name}.json"


def compile_report(job: str) -> Path:
    """Return the report of everything that determines a job's program, and nothing else, as training depends on it."""
    return REPORTS / f"compile-{job}.json"


def validation_report(name: str) -> Path:
    """Return the JSON verdict of a data set; the page next to it ends in `.html`."""
    return VALIDATION / f"{name}.json"


def expectations_file(name: str) -> Path:
    """Return the expectation suite of a data set."""
    return EXPECTATIONS / f"{name}.json"
