"""Estimate of corpus preparation: time and disk of every stage, measured on a sample.

    python -m tasks.estimates.data_estimate [--text-mb 20000] [--sample-mb 4]
    python -m tasks.estimates.data_estimate --size      # only the MB of text, nothing if the source does not report it

The sample is the first documents of the corpus in params.yaml. The functions of the stages process a quarter of it, and
all of it; the difference is the cost of the additional MB. The source determines the amount of text (files: their size;
demo: its number of documents); for a Hub dataset, you must state it.
"""

import argparse
import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.corpus import corpus, world
from tasks.corpus.documents import Document, list_usable_files
from tasks.params.schema import PHASES, Params, apply_packing, load_params
from tasks.params.sections import CorpusParams
from tasks.plan.dvc_records import compute_md5
from tasks.plan.main import run_main
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.records.parquet import read_group_sizes
from tasks.records.text_files import ReadLog
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError
from tasks.stage.parallel import WORKER_STAGES, worker_count
from tasks.validation import validate
from tasks.validation.checks import FRAME_RECORDS
from tasks.vocabulary.tokenizer import make_tokenizer

MB = 10**6
SAMPLE_DOCUMENTS = 2000
"""Number of demo documents to measure; their mean length is known within one percent."""
SAMPLE_MB = 4.0
FIRST_PART = 0.25
"""Share of the sample that is prepared separately, and once before to load libraries and fill caches."""
FEWEST = 8
"""Minimum number of documents."""
CORPUS_HASHED, ROWS_HASHED = 5, 3
"""Number of times that the bytes of a stage are hashed: by DVC, and by stages that read them
(tasks/plan/dvc_records.py)."""


@dataclass(frozen=True)
class StageCost:
    """Cost of a stage for some text."""

    cpu_s: float
    """Seconds on one core."""
    disk: float = 0.0
    """Bytes on disk after the stage."""
    records: float = 0.0
    """Validated records, with a fixed cost per FRAME_RECORDS of them."""


@dataclass(frozen=True)
class Estimate:
    """Estimate for a corpus."""

    text_mb: float
    sample_mb: float
    """MB of measured text."""
    stages: dict[str, StageCost]
    """Cost by stage, with a single process."""


def estimate(params: Params, text_mb: float | None = None, sample_mb: float = SAMPLE_MB) -> Estimate:
    """Estimate the preparation of the whole corpus; MB are 10**6 bytes of text.

    Args:
        text_mb: size of the corpus; None: from its source.
        sample_mb: size of the sample.

    Raises:
        InputError: the corpus cannot be read.
        ParamsError: the size of the corpus is unknown, or rows are not built from text.
    """
    if params.pretrain_rows.source != "corpus":
        raise ParamsError(f"pretrain_rows.source={params.pretrain_rows.source}: rows are not built from text")
    started_at = time.process_time()
    documents = list(_first(corpus.read_documents(params.corpus, ReadLog()), sample_mb * MB))
    reading = (time.process_time() - started_at) / max(1, len(documents))
    if len(documents) < FEWEST:
        raise InputError(
            f"{len(documents)} documents are too few for a measurement, at least {FEWEST} are required: check "
            "corpus.path, corpus.text_column and corpus.layout"
        )
    few = documents[: round(len(documents) * FIRST_PART)]
    few_mb, mb = _text_mb(few), _text_mb(documents)
    if text_mb is None and (text_mb := expected_mb(params.corpus)) is None:
        raise ParamsError(f"corpus.source={params.corpus.source} does not report the size of the text: add --text-mb")
    with tempfile.TemporaryDirectory(prefix="podium-estimate-") as folder:
        _prepare(params, few, Path(folder) / "warm-up", ("corpus",))  # one verdict loads everything that verdicts need
        less = _prepare(params, few, Path(folder) / "part")
        more = _prepare(params, documents, Path(folder) / "whole")
    for made, number in ((less, len(few)), (more, len(documents))):
        made["corpus"] = dataclasses.replace(made["corpus"], cpu_s=made["corpus"].cpu_s + reading * number)
    stages = {stage: extrapolate(less[stage], few_mb, spent, mb, text_mb) for stage, spent in more.items()}
    return Estimate(text_mb, mb, stages)


def expected_mb(params: CorpusParams) -> float | None:
    """Return the MB (10**6 bytes of UTF-8) of text in the corpus; None if unknown (hub).

    For .jsonl and .csv, it is the size of the files, including other columns.
    """
    if params.source == "demo":
        number = min(params.demo_documents, SAMPLE_DOCUMENTS)
        made = world.make_documents(params.seed, "corpus", number)
        return params.demo_documents * sum(len(document.text.encode()) for document in made) / number / MB
    if params.source == "files":
        return sum(_bytes_of(file, params.text_column) for file in list_usable_files(Path(params.path), ReadLog())) / MB
    return 0.0 if params.source == "none" else None


def _bytes_of(file: Path, text_column: str) -> int:
    if file.suffix.lower() != ".parquet":
        return file.stat().st_size
    return sum(size.bytes for size in read_group_sizes(file, text_column, "corpus"))


def _first(documents: Iterator[Document], most: float) -> Iterator[Document]:
    taken = 0
    for document in documents:
        yield document
        taken += len(document.text.encode())
        if taken >= most:
            return


def _text_mb(documents: Sequence[Document]) -> float:
    return sum(len(document.text.encode()) for document in documents) / MB


def _prepare(
    params: Params, documents: Sequence[Document], root: Path, judged: Sequence[str] = ("corpus", *PHASES)
) -> dict[str, StageCost]:
    """Run the stages on these documents in `root`; return the cost of each, with a single process for rows."""
    found: dict[str, StageCost] = {}
    folder, tokenizer = root / artifacts.CORPUS, root / artifacts.TOKENIZER
    rows = apply_packing(params.pretrain_rows, params.packing)
    with _timed(found, "corpus", folder):
        corpus.write_documents(iter(documents), params.corpus.source, folder)
    with _timed(found, "validate@corpus") as records:
        records.append(_judge("corpus", params, root))
    with _timed(found, "tokenizer", tokenizer):
        make_tokenizer(params.tokenizer, params.model.max_positions, folder, tokenizer)
    for phase in params.pretrain.phases:
        made = root / artifacts.rows_folder(phase)
        with _timed(found, f"pretrain_rows@{phase}", made):
            write_pretrain_rows(rows, phase, folder, tokenizer, made, workers=1)
        with _timed(found, f"validate@{phase}") as records:
            records.append(_judge(phase, params, root) if phase in judged else 0)
    folders = (root / artifacts.rows_folder(phase) for phase in params.pretrain.phases)
    with _timed(found, "hashes (DVC)"):
        for path, times in ((folder, CORPUS_HASHED), *((rows, ROWS_HASHED) for rows in folders)):
            for _ in range(times):
                compute_md5(path)
    return found


@contextlib.contextmanager
def _timed(found: dict[str, StageCost], stage: str, out: Path | None = None) -> Iterator[list[int]]:
    """Measure the context as the cost of `stage`, and `out` as its output; yield a list for record counts."""
    records: list[int] = []
    started_at = time.process_time()
    yield records
    cpu = time.process_time() - started_at
    files = [path for path in out.rglob("*") if path.is_file()] if out is not None else []
    found[stage] = StageCost(cpu, sum(path.stat().st_size for path in files), sum(records))


def _judge(name: str, params: Params, root: Path) -> int:
    """Validate data sets; return the number of records."""
    sets = validate.open_data_sets(name, params, root)
    return sum(validate.validate_data(data, validate.choose_validator(data)).rows for data in sets)


def extrapolate(less: StageCost, less_mb: float, more: StageCost, more_mb: float, mb: float) -> StageCost:
    """Extrapolate the costs of `less_mb` and `more_mb` of text to `mb`.

    The difference between the two grows with the text. The rest is a fixed cost, or a cost per frame of records.
    """

    def slope(first: float, second: float) -> float:
        return max(0.0, second - first) / (more_mb - less_mb)

    records = more.records / more_mb * mb
    frames = max(1.0, records / FRAME_RECORDS)
    cpu = slope(less.cpu_s, more.cpu_s)
    disk = slope(less.disk, more.disk)
    return StageCost(
        cpu * mb + max(0.0, more.cpu_s - cpu * more_mb) * frames,
        disk * mb + max(0.0, more.disk - disk * more_mb),
        records,
    )


def format_estimate(found: Estimate, workers: int, free: int) -> str:
    """Format the estimate for users.

    Args:
        workers: number of processes that build rows.
        free: free bytes on the disk.
    """
    lines = [
        f"Estimate for {found.text_mb:,.0f} MB of text, measured on {found.sample_mb:.1f} MB of it.",
        f"Time: {workers} processes build rows on an idle host. Disk: double it if DVC's cache cannot link files.",
        "",
        f"{'stage':<22} {'core time':>10} {'time':>10} {'disk':>10}",
    ]
    walls = {stage: spent.cpu_s / (workers if stage in WORKER_STAGES else 1) for stage, spent in found.stages.items()}
    for stage, spent in found.stages.items():
        lines.append(f"{stage:<22} {_time(spent.cpu_s):>10} {_time(walls[stage]):>10} {_size(spent.disk):>10}")
    disk = sum(spent.disk for spent in found.stages.values())
    cpu = sum(spent.cpu_s for spent in found.stages.values())
    lines.append(f"{'all':<22} {_time(cpu):>10} {_time(sum(walls.values())):>10} {_size(disk):>10}")
    enough = "enough" if free > disk else "NOT enough: free disk space, or lower pretrain_rows.*.duplicates"
    return "\n".join([*lines, "", f"free on this disk: {_size(free)}, {enough}"])


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _size(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / MB:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.estimates.data_estimate",
        description="Estimate the time and disk of preparing a corpus.",
    )
    parser.add_argument("--text-mb", type=float, metavar="MB", help="size of the corpus; default: from its source")
    parser.add_argument("--sample-mb", type=float, default=SAMPLE_MB, metavar="MB", help="size of the sample")
    parser.add_argument("--size", action="store_true", help="print only the MB of text in the corpus")
    options = parser.parse_args()
    if options.size:
        if (megabytes := expected_mb(load_params().corpus)) is not None:
            print(megabytes)
        return
    found = estimate(load_params(), options.text_mb, options.sample_mb)
    print(format_estimate(found, worker_count(), shutil.disk_usage(Path()).free))


if __name__ == "__main__":
    run_main(main)
