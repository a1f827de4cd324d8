"""`python -m bench`: measure, compare with the bars, write reports/bench/. See bench/README.md."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cases import Case, make_cases
from bench.data import make_data
from bench.host import host_facts, load_average
from bench.report import as_json, bar_rows, markdown_table, rate_rows, text_table
from bench.results import Results
from bench.runner import run_case
from tasks import artifacts
from tasks.errors import ParamsError, run_main
from tasks.strict_yaml import nearest

REPORTS = Path("reports/bench")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure speed beside Hugging Face's Trainer.")
    parser.add_argument("--data", type=Path, help="folder with wikitext/, squad/ and vocab/; default: generated data")
    parser.add_argument("--vocabulary", type=Path, help="a vocab.txt; default: that of --data, or trained")
    parser.add_argument("--only", action="append", default=[], metavar="CASE", help="this case; may be repeated")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME", help="these configurations only")
    parser.add_argument("--quick", action="store_true", help="few rounds, one thread")
    parser.add_argument("--rounds", type=int, help="rounds of every case")
    parser.add_argument("--updates", type=int, help="updates of a round")
    parser.add_argument("--output", type=Path, default=REPORTS)
    return parser.parse_args(arguments)


def choose(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """The cases that were asked for, at the size asked for.

    Raises:
        ParamsError: no such case.
    """
    names = [case.name for case in cases]
    for name in options.only:
        if name not in names:
            raise ParamsError(f"--only {name}: no such case{nearest(name, names)}")
    chosen = [case for case in cases if not options.only or case.name in options.only]
    changes: dict[str, object] = {"rounds": 2, "threads": (1,)} if options.quick else {}
    for name in ("rounds", "updates"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    chosen = [dataclasses.replace(case, **changes) for case in chosen]  # type: ignore[arg-type]
    if not options.variant:
        return chosen
    return [
        dataclasses.replace(case, variants=tuple(v for v in case.variants if v.name in options.variant))
        for case in chosen
    ]


def main() -> None:
    arguments = sys.argv[1:]
    options = parse(arguments)
    say = print
    data = make_data(options.data, options.vocabulary)
    facts = {**host_facts(arguments), "data": data.source, "load_at_start": load_average()}
    say(f"bench: {facts['cpu']}, {facts['cores']} cores, load {facts['load_at_start']}; data: {data.source}")
    results, started, interrupted = Results(), time.monotonic(), False
    try:
        for case in choose(make_cases(data.rows), options):
            for threads in case.threads:
                say(f"{case.name}: {case.title}, {len(case.variants)} configurations, {threads} threads")
                run_case(case, threads, results, say)
                write_reports(options.output, results, facts)
    except KeyboardInterrupt:
        say("interrupted: what was finished is kept")
        interrupted = True
    facts.update(load_at_end=load_average(), seconds=round(time.monotonic() - started), interrupted=interrupted)
    write_reports(options.output, results, facts)
    say("\n" + text_table(rate_rows(results)) + "\n\n" + text_table(bar_rows(results)))
    say(f"\nwritten to {options.output} in {facts['seconds']} s, load {facts['load_at_end']}")


def write_reports(folder: Path, results: Results, facts: dict[str, object]) -> None:
    """bench.json and bench.md, each whole or not at all."""
    artifacts.write_json(folder / "bench.json", as_json(results, facts))
    text = f"{markdown_table(bar_rows(results))}\n\n{markdown_table(rate_rows(results))}\n"
    artifacts.write_text(folder / "bench.md", text)


if __name__ == "__main__":
    run_main(main)
