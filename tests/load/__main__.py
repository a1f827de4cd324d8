"""`python -m tests.load`: many runs of few parameter sets, disturbed all the while; a table, a plot, and a verdict.

    python -m tests.load [--runs N] [--sets N] [--minutes M] [--kill-every S] [--flows N]

Needs no connection. The last line says where the logs are if something did not hold; else nothing is left.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.load.findings import holds, markdown, plot, rows
from tests.load.trial import Options, try_load
from tests.places import ROOT

REPORTS = ROOT / "reports"


def parse(words: Sequence[str]) -> tuple[Options, Path, bool]:
    """Return what is to be tried, where the table and plot go, and whether the logs are kept."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.load", description="Try many runs on a server and workers that are disturbed."
    )
    default = Options()
    parser.add_argument("--runs", type=int, default=default.runs, metavar="N")
    parser.add_argument("--sets", type=int, default=default.sets, metavar="N", help="parameter sets of these runs")
    parser.add_argument("--minutes", type=float, default=default.minutes, metavar="M", help="the runs may take")
    parser.add_argument("--kill-every", type=float, default=default.kill_every, metavar="S", help="a worker, in turn")
    parser.add_argument(
        "--flows", type=int, default=default.flows, metavar="N", help="runs that its worker sends at once"
    )
    parser.add_argument("--kills", type=int, metavar="N", help="of workers; default: until the end")
    parser.add_argument("--code", type=Path, metavar="FOLDER", help="another checkout, whose code the hosts run")
    parser.add_argument("--output", type=Path, default=REPORTS, metavar="FOLDER", help="takes load.md, .svg, .png")
    parser.add_argument("--keep", action="store_true", help="keep the hosts and logs though all holds")
    asked = parser.parse_args(words)
    numbers = (asked.runs, asked.sets, asked.minutes, asked.kill_every)
    options = Options(*numbers, asked.kills, asked.flows, asked.code)
    return options, asked.output, asked.keep


def main(words: Sequence[str]) -> int:
    """Try it, and return the exit code: 1 where something does not hold."""
    options, output, keep = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="podium-load-"))
    folder.chmod(0o755)  # PostgreSQL's user passes through
    print(
        f"load: {options.runs} runs, at most {options.minutes:.0f} minutes; hosts and logs are in {folder}", flush=True
    )
    outcome = try_load(options, folder)
    found = rows(outcome)
    text = markdown(outcome, found)
    output.mkdir(parents=True, exist_ok=True)
    (output / "load.md").write_text(text, encoding="utf-8")
    plot(outcome, output)
    print(text)
    print(f"load: {output / 'load.md'}, load.svg, load.png", flush=True)
    if holds(found) and not keep:
        shutil.rmtree(folder)
    else:
        print(f"load: hosts and logs are kept in {folder}", flush=True)
    return 0 if holds(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
