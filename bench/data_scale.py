"""Cost of data preparation by corpus size: seconds per MB, peak memory and disk use of every stage.

    python -m bench.data_scale [--sizes 10 100 1000] [--source demo|files] [--quick] [--again]

Each stage runs its command of dvc.yaml in a separate folder, with PODIUM_WORKERS processes. CPU seconds include all of
its processes and depend little on other load of the host. Memory is the sum of the processes' proportional set sizes
(PSS), sampled several times per second. A stage that was measured before is not measured again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq

from bench.host import collect_host_facts, read_load_average
from bench.process_tree import Usage, run_measured
from ipu_model.files import new_folder, read_json, write_json, write_text
from tasks.corpus import world
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params
from tasks.params.strict_yaml import read_yaml, yaml_text
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.parallel import worker_count

ROOT = Path(__file__).parents[1]
WORK = artifacts.RUNS / "bench" / "scale"
REPORTS = Path("reports/bench")
SIZES = (10, 100, 1000)
MB = 10**6
SAMPLE_DOCUMENTS = 2000
"""Demo documents whose mean length is that of all within one percent."""
QUICK = (1, 4)
STAGES = {
    "corpus@text": ("tasks.corpus.corpus",),
    "validate@corpus": ("tasks.validation.validate", "corpus"),
    "tokenizer": ("tasks.vocabulary.tokenizer",),
    "pretrain_rows@phase1": ("tasks.pretraining.rows.pretrain_rows", "phase1"),
    "validate@phase1": ("tasks.validation.validate", "phase1"),
    "pretrain_rows@phase2": ("tasks.pretraining.rows.pretrain_rows", "phase2"),
    "validate@phase2": ("tasks.validation.validate", "phase2"),
}
OUTS = {
    "corpus@text": artifacts.CORPUS,
    "tokenizer": artifacts.TOKENIZER,
    "pretrain_rows@phase1": artifacts.rows_folder("phase1"),
    "pretrain_rows@phase2": artifacts.rows_folder("phase2"),
}
FLAT = 1.15
"""Maximum ratio of the cost per MB at any size to that at the smallest."""
MOST_MEMORY_MB = 2000.0


@dataclass(frozen=True)
class StageCost:
    """Measurement of one stage at one size."""

    stage: str
    megabytes: float
    """10**6 bytes of text in the corpus, as UTF-8."""
    cpu_s: float
    wall_s: float
    peak_mb: float
    disk_mb: float
    """Size of the output; 0 for validation stages."""
    load: float
    """Load average of the host at the start."""

    @property
    def per_mb(self) -> float:
        """CPU seconds per MB."""
        return self.cpu_s / self.megabytes


def prepare(folder: Path, megabytes: int, source: str) -> None:
    """Make a folder for the stages: params.yaml for that much text, and for --source files the text."""
    base = read_yaml(artifacts.PARAMS)
    one = validate_params(resolve(base, None, [f"corpus.demo_documents={SAMPLE_DOCUMENTS}"])).corpus
    sample = world.make_documents(one.seed, "corpus", SAMPLE_DOCUMENTS)
    documents = round(megabytes * MB * SAMPLE_DOCUMENTS / sum(len(made.text.encode()) for made in sample))
    overrides = [f"corpus.demo_documents={documents}"]
    with new_folder(folder) as partial:
        shutil.copytree(ROOT / "inputs", partial / "inputs", ignore=shutil.ignore_patterns("*.md"))
        if source == "files":
            overrides += ["corpus.source=files", "corpus.path=text.txt"]
            with (partial / "text.txt").open("w", encoding="utf-8") as stream:
                for made in world.make_documents(one.seed, "corpus", documents):
                    stream.write(f"{made.text}\n\n")
        values = resolve(base, None, overrides)
        write_text(partial / artifacts.PARAMS, yaml_text(values))


def measure(stage: str, folder: Path) -> StageCost:
    """Run a stage in `folder` and measure it.

    Raises:
        InputError: the stage failed.
    """
    load = read_load_average()[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    used: Usage = run_measured([sys.executable, "-m", *STAGES[stage]], folder, environment, folder / "log")
    if used.code:
        tail = "\n".join((folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
        raise InputError(f"{stage} in {folder} ended with code {used.code}:\n{tail}")
    disk = sum(path.stat().st_size for path in (folder / OUTS[stage]).rglob("*")) if stage in OUTS else 0
    text, spent = count_text_bytes(folder / artifacts.CORPUS) / MB, (round(used.cpu_s, 2), round(used.wall_s, 2))
    return StageCost(stage, text, *spent, round(used.peak_mb, 1), round(disk / MB, 3), load)


def count_text_bytes(corpus: Path) -> int:
    """Return the UTF-8 bytes of text in a corpus; Parquet files add four bytes per document."""
    total = 0
    for path in sorted(corpus.glob("*.parquet")):
        with pq.ParquetFile(path) as parquet:
            groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
            column = parquet.schema_arrow.get_field_index("text")
            total += sum(group.column(column).total_uncompressed_size - 4 * group.num_rows for group in groups)
    return total


def table(found: Sequence[StageCost]) -> list[str]:
    """Return the lines of a text table, one per stage and size, in order."""
    lines = [
        f"{'stage':<22} {'MB':>7} {'cpu s/MB':>9} {'of smallest':>11} {'wall s/MB':>9} {'peak MB':>8} {'disk MB':>8}"
    ]
    for stage in STAGES:
        own = sorted((one for one in found if one.stage == stage), key=lambda one: one.megabytes)
        for one in own:
            ratio = one.per_mb / own[0].per_mb
            lines.append(
                f"{stage:<22} {one.megabytes:7.1f} {one.per_mb:9.3f} {ratio:11.2f} {one.wall_s / one.megabytes:9.3f} "
                f"{one.peak_mb:8.0f} {one.disk_mb:8.1f}"
            )
    return lines


def marginal_costs(found: Sequence[StageCost]) -> list[str]:
    """Return the cost of a further MB from each size to the next, without the start of the processes."""
    lines = []
    for stage in STAGES:
        own = sorted((one for one in found if one.stage == stage), key=lambda one: one.megabytes)
        steps = [
            f"{(b.cpu_s - a.cpu_s) / (b.megabytes - a.megabytes):.3f} ({a.megabytes:.0f} to {b.megabytes:.0f} MB)"
            for a, b in zip(own, own[1:], strict=False)
        ]
        if steps:
            lines.append(f"{stage:<22} cpu s per further MB: {', '.join(steps)}")
    return lines


def validation(found: Sequence[StageCost]) -> list[str]:
    """Return the total cost of the validation stages, one line per size; it has no target."""
    lines = []
    for megabytes in sorted({one.megabytes for one in found}):
        own = [one for one in found if one.megabytes == megabytes and one.stage.startswith("validate@")]
        cpu, wall = sum(one.cpu_s for one in own), sum(one.wall_s for one in own)
        lines.append(f"validation of {megabytes:.1f} MB: {cpu:.2f} s of CPU, {wall:.2f} s, in {len(own)} stages")
    return lines


def check_targets(found: Sequence[StageCost]) -> list[str]:
    """Return a line each on whether the cost is flat and memory is bounded."""
    worst, where = 0.0, "nothing"
    for stage in STAGES:
        own = sorted((one for one in found if one.stage == stage), key=lambda one: one.megabytes)
        for one in own[1:]:
            if one.per_mb / own[0].per_mb > worst:
                worst, where = one.per_mb / own[0].per_mb, f"{stage} at {one.megabytes:.0f} MB"
    peak = max(found, key=lambda one: one.peak_mb)
    flat = "met" if worst <= FLAT else "NOT met"
    small = "met" if peak.peak_mb < MOST_MEMORY_MB else "NOT met"
    return [
        f"target: cost per MB at most {FLAT:.2f} times that at the smallest size: {worst:.2f} ({where}): {flat}",
        f"target: peak memory under {MOST_MEMORY_MB:.0f} MB: {peak.peak_mb:.0f} MB ({peak.stage} at "
        f"{peak.megabytes:.0f} MB): {small}",
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.data_scale",
        description="Measure the cost of data preparation by corpus size.",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="MB", help="of text")
    parser.add_argument("--quick", action="store_true", help=f"sizes {QUICK}")
    parser.add_argument("--source", choices=("demo", "files"), default="demo", help="generated, or read from a .txt")
    parser.add_argument("--again", action="store_true", help="repeat earlier measurements")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the data; you may remove it afterwards")
    parser.add_argument("--output", type=Path, default=REPORTS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    sizes = QUICK if options.quick else sorted(options.sizes)
    records, workers = options.work / "measured.json", worker_count()
    found: dict[str, StageCost] = {}
    if records.is_file() and not options.again:
        found = {key: StageCost(**values) for key, values in read_json(records).items()}
    keys = [f"{options.source} {size} {workers} {stage}" for size in sizes for stage in STAGES]
    for key in keys:
        source, size, _, stage = key.split()
        folder = options.work / f"{source}-{size}"
        if key in found:
            continue
        if not folder.exists():
            prepare(folder, int(size), source)
        found[key] = measure(stage, folder)
        print(table([found[key]])[-1], flush=True)
        write_json(records, {name: asdict(one) for name, one in found.items()})
    chosen = [found[key] for key in keys]
    facts = {**collect_host_facts([]), "workers": workers, "source": options.source, "load": read_load_average()}
    write_json(options.output / "data-scale.json", {**facts, "measured": [asdict(one) for one in chosen]})
    print(
        "\n".join(
            ["", *table(chosen), "", *marginal_costs(chosen), "", *validation(chosen), "", *check_targets(chosen)]
        )
    )


if __name__ == "__main__":
    run_main(main)
