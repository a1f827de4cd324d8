"""`python -m bench`: measure, compare with the targets, write reports/bench/. See bench/README.md."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.cases import CASES, Case, make_cases
from bench.data import Data, make_data
from bench.host import collect_host_facts, read_load_average
from bench.recorded import make_case
from bench.report import format_markdown, format_text_table, precision_lines, rate_rows, target_rows, to_json
from bench.results import Results
from bench.runner import run_case
from ipu_model.core.files import write_json, write_text
from ipu_model.core.strict import nearest
from tasks.plan.main import run_main
from tasks.stage.errors import ParamsError

REPORTS = Path("reports/bench")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare speed with Hugging Face's Trainer.")
    parser.add_argument("--data", type=Path, help="folder with wikitext/, squad/ and vocab/; default: generated data")
    parser.add_argument("--vocabulary", type=Path, help="a vocab.txt; default: that of --data, or a trained one")
    parser.add_argument("--job", type=Path, help="measure this training of a run instead, runs/NAME/ID/job.json")
    parser.add_argument("--sequences", type=int, help="sequences per update of --job; default: as recorded")
    parser.add_argument("--only", action="append", default=[], metavar="CASE", help="measure this case (repeatable)")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME", help="only this one (repeatable)")
    parser.add_argument("--quick", action="store_true", help="few rounds, one thread")
    parser.add_argument("--rounds", type=int, help="rounds per case")
    parser.add_argument("--updates", type=int, help="updates per round")
    parser.add_argument("--output", type=Path, default=REPORTS)
    return parser.parse_args(arguments)


def choose(data: Data | None, options: argparse.Namespace) -> list[Case]:
    """Return the selected cases in the selected size, and make their rows; without data, the case of `--job`.

    Raises:
        ParamsError: no such case.
    """
    for name in options.only:
        if name not in CASES:
            raise ParamsError(f"--only {name}: no such case{nearest(name, list(CASES))}")
    if data is None:
        cases = [make_case(options.job, options.sequences)]
    else:
        cases = make_cases(data, options.only or list(CASES))
    chosen = [resize_case(case, options) for case in cases]
    if not options.variant:
        return chosen
    return [
        dataclasses.replace(case, variants=tuple(v for v in case.variants if v.name in options.variant))
        for case in chosen
    ]


def resize_case(case: Case, options: argparse.Namespace) -> Case:
    """Return the case with the rounds, updates and threads of the command line."""
    if options.quick:
        case = dataclasses.replace(case, rounds=min(2, case.rounds), threads=case.threads[:1], seconds=case.seconds / 4)
    if options.rounds is not None:
        case = dataclasses.replace(case, rounds=options.rounds, seconds=case.seconds * options.rounds / case.rounds)
    return case if options.updates is None else dataclasses.replace(case, updates=options.updates)


def main() -> None:
    arguments = sys.argv[1:]
    options = parse(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell disables SIGINT for background processes
        signal.signal(number, signal.default_int_handler)
    facts: dict[str, Any] = {**collect_host_facts(arguments), "load_at_start": read_load_average()}
    print(f"bench: {facts['cpu']}, {facts['cores']} cores, load {facts['load_at_start']}")
    data = None if options.job is not None else make_data(options.data, options.vocabulary)
    facts["data"] = str(options.job) if data is None else data.source
    print(f"bench: data: {facts['data']}")
    results, started = Results(), time.monotonic()
    facts["interrupted"] = not measure(
        choose(data, options), results, lambda: write_reports(options.output, results, facts)
    )
    facts.update(load_at_end=read_load_average(), seconds=round(time.monotonic() - started))
    write_reports(options.output, results, facts)
    from bench.plots import write_plots

    write_plots(results, options.output)
    print("\n" + format_text_table(rate_rows(results)) + "\n\n" + format_text_table(target_rows(results)))
    print("".join(f"\n{line}" for line in precision_lines(results)))
    print(f"written to {options.output} in {facts['seconds']} s, load {facts['load_at_end']}")


def measure(cases: list[Case], results: Results, save: Callable[[], None]) -> bool:
    """Run the cases and save after each; return False if Ctrl-C ended the run early."""
    passes = [(case, threads) for case in cases for threads in case.threads]
    left = sum(case.seconds / len(case.threads) for case, _ in passes)
    expected = spent = 0.0
    try:
        for number, (case, threads) in enumerate(passes):
            pace = spent / expected if expected else 1.0  # of this host, relative to the one of Case.seconds
            print(
                f"[{number + 1}/{len(passes)}] {case.name}, threads {threads}: {case.title}; "
                f"about {left * pace / 60:.0f} min left in total",
                flush=True,
            )
            started = time.monotonic()
            run_case(case, threads, results, say)
            save()
            spent += time.monotonic() - started
            expected += case.seconds / len(case.threads)
            left -= case.seconds / len(case.threads)
    except KeyboardInterrupt:
        print("interrupted: finished cases are saved")
        return False
    return True


def say(text: str) -> None:
    """Print a line of progress and flush."""
    print(text, flush=True)


def write_reports(folder: Path, results: Results, facts: dict[str, object]) -> None:
    """Write bench.json and bench.md atomically."""
    write_json(folder / "bench.json", to_json(results, facts))
    write_text(folder / "bench.md", format_markdown(results, facts))


if __name__ == "__main__":
    run_main(main)
