"""`python -m bench.host_estimates`: how well memory and time of training on a CPU are foretold.

Each configuration of bench.host_cases is probed in one process and trained for a few updates in another, with one
thread. Its peak memory is held against the formula, which knows nothing of the run, and its CPU seconds against the
probe. What was measured is kept, so that a study that was broken off goes on; the table goes into docs/.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.children import THREAD_VARIABLES
from bench.host import host_facts
from bench.host_cases import CONFIGURATIONS, Configuration, generated, rows_of
from bench.host_fit import fit
from ipu_model.estimates.host import HostJob, estimate_host, update_seconds
from ipu_model.estimates.host_shapes import Shapes, read_shapes
from ipu_model.files import read_json, write_json, write_text
from ipu_model.jobs.probed import Probed
from ipu_model.rows.format import Manifest
from ipu_model.rows.reading import RowFolder, UpdateRows
from tasks.project.errors import InputError, ParamsError
from tasks.project.main import run_main
from tasks.project.process import describe_exit

KEPT = Path("bench/host_estimates.json")
DOCS = Path("docs/host-estimates.md")
BEGIN, END = "<!-- python -m bench.host_estimates -->", "<!-- end -->"
MB = 1 << 20
LEAST, WANTED, MOST = 0.95, 1.00, 1.30
"""Of foretold over measured peak memory: never less, and between the other two in SHARE_OF_MEMORY."""
SHARE_OF_MEMORY, SHARE_OF_TIME, TIME_ERROR = 0.95, 0.90, 0.15
RUN, PROBE = "run", "probed"
"""What is done with a configuration."""
FACTS = ("cpu", "flags", "memory_gb", "python", "versions")


@dataclass(frozen=True)
class Line:
    """One configuration: foretold and measured."""

    name: str
    fitted: bool
    """Constants were fitted on it; else it judges them."""
    peak_mb: tuple[float, float]
    seconds: tuple[float, float]

    @property
    def memory_ratio(self) -> float:
        """Foretold over measured."""
        return self.peak_mb[0] / self.peak_mb[1]

    @property
    def time_ratio(self) -> float:
        """Foretold over measured."""
        return self.seconds[0] / self.seconds[1]


def measure(one: Configuration, rows: Path, part: str) -> dict[str, Any]:
    """Run or probe a configuration; all that the estimates need, as plain data.

    Args:
        part: RUN or PROBE.

    Raises:
        InputError: a process failed; the message ends with its last lines.
    """
    with tempfile.TemporaryDirectory() as made:
        folder, source = Path(made), RowFolder(rows, _row_kind(one), one.model)
        job = one.job(rows.absolute(), source.manifest.packing_factor, folder)
        path = folder / "job.json"
        write_text(path, job.to_json())
        if part == PROBE:
            probed = _last_line(["ipu_model", "--probe", str(path)])
            return {name: value for name, value in probed.items() if name != "event"}
        asked = HostJob(job, one.model, source.manifest, precision=one.precision)
        order = UpdateRows(len(source), asked.division.rows_per_update, job.seed)
        shapes = read_shapes(source, asked.division.micro_batch_size, order, one.updates)
        facts = {"shapes": dataclasses.asdict(shapes), "manifest": dataclasses.asdict(source.manifest)}
        return {**facts, **_last_line(["bench.host_run", str(path)])}


def _row_kind(one: Configuration) -> str:
    return "pretrain" if one.task == "pretrain" else "question_answering"


def _last_line(words: list[str]) -> dict[str, Any]:
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "PODIUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        said = "\n".join((done.stderr + done.stdout).splitlines()[-12:])
        raise InputError(f"{' '.join(words)}: {describe_exit(done.returncode)}\n{said}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def asked_of(one: Configuration, run: dict[str, Any]) -> HostJob:
    """What was run, as it is asked to be foretold."""
    manifest = Manifest(**run["manifest"])
    shapes = Shapes.from_plain(run["shapes"])
    job = one.job(Path("rows"), manifest.packing_factor, Path("folder"))
    return HostJob(job, one.model, manifest, precision=one.precision, shapes=shapes, limit=float(1 << 62))


def line_of(one: Configuration, run: dict[str, Any], probed_of: dict[str, Any]) -> Line:
    """Foretell what was measured; the constants of now count, not those of then."""
    asked, probed = asked_of(one, run), Probed(**probed_of)
    memory = estimate_host(asked).memory[0]
    of_update = sum(update_seconds(asked, probed.cpu_seconds_of_micro_batch, probed.cpu_seconds_of_update, probed))
    # A long run has the mean number of tokens in an update, these few had others.
    expected = asked.division.rows_per_update * asked.manifest.real_tokens / asked.manifest.rows
    tokens = run["real_tokens"] / one.updates / expected
    counted = run["cpu_seconds"]
    seconds = (of_update * tokens * len(counted), sum(counted))
    return Line(one.name, is_fitted(one), (memory.total.likely / MB, run["peak_mb"]), seconds)


def lines_of(kept: dict[str, Any]) -> list[Line]:
    """Of the configurations that were both run and probed."""
    found = [one for one in CONFIGURATIONS if one.name in kept[RUN] and one.name in kept[PROBE]]
    return [line_of(one, kept[RUN][one.name], kept[PROBE][one.name]) for one in found]


def is_fitted(one: Configuration) -> bool:
    """The first and the last of every four."""
    return CONFIGURATIONS.index(one) % 4 in (0, 3)


def table(lines: Sequence[Line]) -> str:
    """In Markdown."""
    made = [
        "| task, size, row length, micro-batch x accumulation, optimizer, precision | foretold MB | peak MB | ratio "
        "| foretold CPU s | CPU s | ratio | used to |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for one in lines:
        memory = f"{one.peak_mb[0]:,.0f} | {one.peak_mb[1]:,.0f} | {one.memory_ratio:.2f}"
        seconds = f"{one.seconds[0]:.2f} | {one.seconds[1]:.2f} | {one.time_ratio:.2f}"
        made.append(f"| {one.name} | {memory} | {seconds} | {'fit' if one.fitted else 'judge'} |")
    return "\n".join(made)


def summary(lines: Sequence[Line]) -> str:
    """How many of them lie where they should."""
    said = []
    for what, chosen in (("all", lines), ("judging", [x for x in lines if not x.fitted])):
        if not chosen:
            continue
        ratios, times = [one.memory_ratio for one in chosen], [one.time_ratio for one in chosen]
        inside = sum(WANTED <= ratio <= MOST for ratio in ratios)
        near = sum(abs(ratio - 1) <= TIME_ERROR for ratio in times)
        said.append(
            f"{what}: {len(chosen)} configurations; memory between {WANTED:.2f} and {MOST:.2f} in {inside} "
            f"({inside / len(chosen):.0%}), least {min(ratios):.2f}, most {max(ratios):.2f}; CPU seconds within "
            f"{TIME_ERROR:.0%} in {near} ({near / len(chosen):.0%}), least {min(times):.2f}, most {max(times):.2f}"
        )
    return "\n".join(said)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    about = "How well memory and time of training on a CPU are foretold."
    parser = argparse.ArgumentParser(prog="python -m bench.host_estimates", description=about)
    parser.add_argument("--kept", type=Path, default=KEPT, help="JSON file of what was measured; default: %(default)s")
    parser.add_argument("--only", default="", metavar="WORDS", help="configurations whose name has these words")
    parser.add_argument("--again", action="store_true", help="measure them though they are kept")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--fit", action="store_true", help="print the constants that fit best; measure nothing")
    parser.add_argument("--docs", type=Path, help=f"put the table into this page, such as {DOCS}")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure what is not kept, print the table."""
    options = parse(sys.argv[1:])
    kept: dict[str, Any] = read_json(options.kept) if options.kept.is_file() else {"host": {}, RUN: {}, PROBE: {}}
    chosen = [one for one in CONFIGURATIONS if options.only in one.name]
    if not chosen:
        raise ParamsError(f"--only {options.only!r}: no configuration has that in its name")
    if options.fit:
        known = [one for one in CONFIGURATIONS if one.name in kept[RUN] and is_fitted(one)]
        found = fit([(asked_of(one, kept[RUN][one.name]), kept[RUN][one.name]["peak_mb"]) for one in known])
        print("\n".join(f"{name} {value:.3g}" for name, value in found.items()))
        return
    if not options.table:
        _measure_all(chosen, kept, options)
    lines = lines_of(kept)
    print(table(lines))
    print(summary(lines))
    if options.docs is not None:
        write_text(options.docs, with_table(options.docs.read_text(encoding="utf-8"), lines))


def _measure_all(chosen: Sequence[Configuration], kept: dict[str, Any], options: argparse.Namespace) -> None:
    data, facts = generated(), host_facts([])
    kept["host"] = {name: facts[name] for name in FACTS}
    for number, one in enumerate(sorted(chosen, key=lambda one: one.cost)):  # most of them are known soon
        for part in (RUN, PROBE):
            if one.name not in kept[part] or options.again:
                kept[part][one.name] = measure(one, rows_of(data, one), part)
                write_json(options.kept, kept)
                print(f"{part} {number + 1}/{len(chosen)}: {one.name}", file=sys.stderr, flush=True)


def with_table(page: str, lines: Sequence[Line]) -> str:
    """The page with the table of now between its two marks.

    Raises:
        InputError: the marks are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"the page lacks the marks {BEGIN} and {END}: put them where the table goes")
    return f"{before}{BEGIN}\n{table(lines)}\n\n{summary(lines)}\n{END}{after}"


if __name__ == "__main__":
    run_main(main)
