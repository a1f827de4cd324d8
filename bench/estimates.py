"""`python -m bench.estimates`: compare the results of `podium plan --measure` with real jobs of the same shape.

Each of twelve trainings on a CPU is measured on generated rows, and then run for some updates on rows of generated
texts, in separate processes. Peak memory may differ by 15 %, seconds per update by 20 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data import Data, make_data
from bench.setup import DROPOUT, OPTIMIZER, SEED, SIZES, VOCABULARY
from ipu_model.core.files import write_text
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, Job, ScheduleConfig
from ipu_model.models.config import ModelConfig
from tasks.estimates.job_estimates import measure
from tasks.estimates.planned_jobs import PlannedRows
from tasks.host.ledger import LEDGER
from tasks.jobs.device_job import run_device_job
from tasks.plan.main import run_main
from tasks.stage.errors import ParamsError
from tasks.stage.row_folders import read_manifest

DOCS = Path("docs/plan.md")
BEGIN, END = "<!-- python -m bench.estimates -->", "<!-- end of estimates -->"
HEAD = """| task, size, row length, micro-batch x accumulation, optimizer, precision | measured MB | peak MB | ratio \
| measured s | s an update | ratio |
|---|---:|---:|---:|---:|---:|---:|"""
MB = float(1 << 20)
MORE_SIZES: dict[str, dict[str, Any]] = {
    **SIZES,
    "mini": {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "intermediate_size": 1024},
    "small": {"num_layers": 4, "hidden_size": 512, "num_heads": 8, "intermediate_size": 2048},
}
"""Sizes between tiny and base of Turc et al. (arXiv 1908.08962, table 1)."""


@dataclass(frozen=True)
class Configuration:
    """A training of few updates."""

    task: str
    size: str
    row_length: int
    micro_batch: int
    accumulation: int
    optimizer: str
    precision: str
    updates: int
    more: tuple[str, ...] = ()
    """Any of evaluates, checkpoints and recompute."""

    @property
    def name(self) -> str:
        """Description of the configuration, for tables."""
        batch = f"{self.micro_batch} x {self.accumulation}"
        words = (self.task, self.size, str(self.row_length), batch, self.optimizer, self.precision, *self.more)
        return ", ".join(words)

    def job(self, rows: Path, sequences_of_row: float, folder: Path) -> Job:
        """Return the job of this configuration over these rows, with its output in `folder`."""
        held_out = EvaluationConfig(str(rows), self.updates, max_rows=2 * self.micro_batch, keep="best")
        return Job(
            kind="pretrain" if self.task == "pretrain" else "finetune",
            head="pretraining" if self.task == "pretrain" else "question_answering",
            rows=str(rows),
            output=str(folder / "model"),
            run_folder=str(folder / "run"),
            geometry=BatchGeometry(round(self.micro_batch * self.accumulation * sequences_of_row), self.micro_batch),
            runtime="cpu",
            precision=self.precision,
            seed=SEED,
            model=ModelConfig(VOCABULARY, hidden_dropout=DROPOUT, attention_dropout=DROPOUT, **MORE_SIZES[self.size]),
            optimizer=dataclasses.replace(OPTIMIZER, name=self.optimizer),
            schedule=ScheduleConfig(steps=self.updates),
            recompute="recompute" in self.more,
            evaluation=held_out if "evaluates" in self.more else None,
            checkpoint_every_updates=self.updates // 2 if "checkpoints" in self.more else 0,
            checkpoint_every_minutes=0,
            log_every_updates=1,
        )


CONFIGURATIONS = [
    Configuration("pretrain", "tiny", 128, 32, 1, "adamw", "fp32", 60),
    Configuration("pretrain", "tiny", 512, 8, 2, "lamb", "fp32", 30),
    Configuration("pretrain", "mini", 128, 32, 1, "adamw", "bf16", 40),
    Configuration("pretrain", "mini", 128, 32, 2, "adamw", "fp32", 20, ("evaluates",)),
    Configuration("pretrain", "small", 128, 32, 1, "lamb", "fp32", 12),
    Configuration("pretrain", "small", 512, 4, 4, "adamw", "bf16", 10, ("recompute",)),
    Configuration("pretrain", "base", 128, 4, 1, "adamw", "fp32", 8),
    Configuration("squad", "tiny", 384, 16, 1, "adamw", "fp32", 60),
    Configuration("squad", "mini", 384, 16, 1, "lamb", "bf16", 30, ("evaluates", "checkpoints")),
    Configuration("squad", "small", 384, 8, 2, "adamw", "fp32", 10, ("checkpoints",)),
    Configuration("squad", "base", 384, 2, 1, "adamw", "fp32", 8),
    Configuration("squad", "base", 384, 2, 2, "adamw", "bf16", 8),
]


def compare(one: Configuration, data: Data) -> tuple[float, float, float, float]:
    """Return the estimated and actual MB, and the estimated and actual seconds of an update."""
    rows = data.pretrain_rows(one.row_length) if one.task == "pretrain" else data.squad_rows("train")
    manifest = read_manifest(rows)
    with tempfile.TemporaryDirectory() as folder:
        job = one.job(rows.absolute(), manifest.packing_factor, Path(folder))
        measured = measure(job, PlannedRows(manifest))
        result = run_device_job(job, say=lambda text: None)
    memory, seconds = measured["memory"] / MB, measured["update_seconds"]
    return memory, result.peak_memory_mb, seconds, result.train_seconds / one.updates


def lines(chosen: Sequence[Configuration]) -> Iterator[str]:
    """Yield the Markdown table, each line as soon as it is measured, and then the range of the ratios."""
    yield HEAD
    data, ratios = make_data(None, None), []
    for one in chosen:
        memory, peak, measured, seconds = compare(one, data)
        ratios.append((memory / peak, measured / seconds))
        yield (
            f"| {one.name} | {memory:,.0f} | {peak:,.0f} | {ratios[-1][0]:.2f} "
            f"| {measured:.3f} | {seconds:.3f} | {ratios[-1][1]:.2f} |"
        )
    for what, found in zip(("memory", "seconds"), zip(*ratios, strict=True), strict=True):
        middle = statistics.median(found)
        yield f"\n{what}: {min(found):.2f} to {max(found):.2f} times the actual value, median {middle:.2f}"


def main() -> None:
    """Print the table; with --docs also write it to the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.estimates", description="Compare measurements with jobs.")
    parser.add_argument("--only", default="", metavar="WORDS", help="configurations whose name has these words")
    parser.add_argument("--docs", action="store_true", help=f"write the table to {DOCS}")
    options = parser.parse_args(sys.argv[1:])
    chosen = [one for one in CONFIGURATIONS if options.only in one.name]
    if not chosen:
        raise ParamsError(f"--only {options.only!r}: no configuration has that in its name")
    os.environ[LEDGER] = ""  # do not record these jobs in the ledger of this host
    printed = []
    for line in lines(chosen):
        print(line, flush=True)
        printed.append(line)
    if options.docs:
        before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
        write_text(DOCS, f"{before}{BEGIN}\n" + "\n".join(printed) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    run_main(main)
