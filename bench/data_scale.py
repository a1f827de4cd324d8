"""Cost of data preparation by corpus size: seconds per MB, peak memory and disk use of every stage.

    python -m bench.data_scale [--sizes 10 100 1000] [--source demo|files] [--hosts 8] [--quick] [--again]

Each stage runs its command of dvc.yaml in a separate folder, with PODIUM_WORKERS processes. CPU seconds include all of
its processes and depend little on other load of the host. Memory is the sum of the processes' proportional set sizes
(PSS), sampled several times per second. A stage that was measured before is not measured again.

`map` is the wall time of a stage's parallel maps, `serial` that of the rest. With --hosts, the time on several such
hosts is predicted from the measured time of every item. The stages follow one another, and each keeps its serial time.
The items of a map are given in order to the process that is free first. A map also keeps what it took longer here than
such a schedule with the processes of this host (their start and idle time), and takes at least as long as the stage
needs for its results. Not included: a network, and a file system that is slower when several hosts use it.
"""

from __future__ import annotations

import argparse
import heapq
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.host import collect_host_facts, read_load_average
from bench.process_tree import Usage, run_measured
from ipu_model.core.files import new_folder, read_json, write_json, write_text
from tasks.corpus import world
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params
from tasks.params.strict_yaml import read_yaml, yaml_text
from tasks.plan import stages
from tasks.plan.main import run_main
from tasks.plan.writing import write_plan
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
    maps: list[dict[str, Any]] = field(default_factory=list)
    """Maps that ran in several processes, as in tasks.stage.process.MapUsage."""

    @property
    def map_s(self) -> float:
        """Wall seconds of the maps."""
        return sum(one["seconds"] for one in self.maps)

    def predict(self, hosts: int) -> float:
        """Return the wall seconds on several hosts with as many processes each."""
        total = self.wall_s - self.map_s
        for one in self.maps:
            items, processes = one["item_seconds"], one["processes"]
            total += max(0.0, one["seconds"] - schedule(items, processes))
            total += max(schedule(items, hosts * processes), one["merge_seconds"])
        return total


def schedule(items: Sequence[float], processes: int) -> float:
    """Return the time of items that are given in order to the process that is free first."""
    free = [0.0] * processes
    for seconds in items:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


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
        shutil.copy2(ROOT / "dvc.yaml", partial)
        write_plan(partial, stages.define(validate_params(values)))


def measure(stage: str, folder: Path) -> StageCost:
    """Run a stage in `folder` and measure it.

    Raises:
        InputError: the stage failed.
    """
    load = read_load_average()[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "DVC_STAGE": stage}
    used: Usage = run_measured([sys.executable, "-m", *STAGES[stage]], folder, environment, folder / "log")
    if used.code:
        tail = "\n".join((folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
        raise InputError(f"{stage} in {folder} ended with code {used.code}:\n{tail}")
    disk = sum(path.stat().st_size for path in (folder / OUTS[stage]).rglob("*")) if stage in OUTS else 0
    text, spent = count_text_bytes(folder / artifacts.CORPUS) / MB, (round(used.cpu_s, 2), round(used.wall_s, 2))
    process = read_json(folder / artifacts.stage_run_file(stage))["process"]
    maps = [one for one in process["maps"] if one["processes"] > 1]
    return StageCost(stage, text, *spent, round(used.peak_mb, 1), round(disk / MB, 3), load, maps)


def count_text_bytes(corpus: Path) -> int:
    """Return the UTF-8 bytes of text in a corpus; Parquet files add four bytes per document."""
    total = 0
    for path in sorted(corpus.glob("*.parquet")):
        with pq.ParquetFile(path) as parquet:
            groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
            column = parquet.schema_arrow.get_field_index("text")
            total += sum(group.column(column).total_uncompressed_size - 4 * group.num_rows for group in groups)
    return total


def table(costs: Sequence[StageCost]) -> list[str]:
    """Return the lines of a text table: one per stage and size, in order, then one per size for all stages."""
    columns = ("MB", "cpu s/MB", "wall s/MB", "map s/MB", "serial s/MB", "peak MB", "disk MB")
    lines = [f"{'stage':<22}" + "".join(f"{name:>12}" for name in columns)]
    for stage in STAGES:
        lines += [_format_costs(stage, [one]) for one in costs if one.stage == stage]
    return lines + [_format_costs("all stages", group) for group in _by_size(costs)]


def _format_costs(name: str, costs: Sequence[StageCost]) -> str:
    megabytes, wall = costs[0].megabytes, sum(one.wall_s for one in costs)
    maps, cpu = sum(one.map_s for one in costs), sum(one.cpu_s for one in costs)
    per_mb = "".join(f"{seconds / megabytes:12.3f}" for seconds in (cpu, wall, maps, wall - maps))
    peak, disk = max(one.peak_mb for one in costs), sum(one.disk_mb for one in costs)
    return f"{name:<22}{megabytes:12.1f}{per_mb}{peak:12.0f}{disk:12.1f}"


def _by_size(costs: Sequence[StageCost]) -> list[list[StageCost]]:
    sizes = sorted({round(one.megabytes) for one in costs})
    return [[one for one in costs if round(one.megabytes) == size] for size in sizes]


def predictions(costs: Sequence[StageCost], hosts: int) -> list[str]:
    """Return the predicted time and speed-up on several hosts, one line per size."""
    lines = []
    for group in _by_size(costs):
        here, there = sum(one.wall_s for one in group), sum(one.predict(hosts) for one in group)
        lines.append(
            f"{group[0].megabytes:.1f} MB on {hosts} hosts: {there:.1f} s instead of {here:.1f} s, "
            f"{here / there:.1f} times as fast (predicted)"
        )
    return lines


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.data_scale",
        description="Measure the cost of data preparation by corpus size.",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="MB", help="of text")
    parser.add_argument("--quick", action="store_true", help=f"sizes {QUICK}")
    parser.add_argument("--source", choices=("demo", "files"), default="demo", help="generated, or read from a .txt")
    parser.add_argument("--hosts", type=int, metavar="N", help="predict the time on N such hosts")
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
        print(table([found[key]])[1], flush=True)
        write_json(records, {name: asdict(one) for name, one in found.items()})
    chosen = [found[key] for key in keys]
    facts = {**collect_host_facts([]), "workers": workers, "source": options.source, "load": read_load_average()}
    write_json(options.output / "data-scale.json", {**facts, "measured": [asdict(one) for one in chosen]})
    print("\n".join(["", *table(chosen), *(predictions(chosen, options.hosts) if options.hosts else ())]))


if __name__ == "__main__":
    run_main(main)
