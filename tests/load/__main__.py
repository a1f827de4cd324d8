"""`python -m tests.load`: many runs of few parameter sets, disturbed all the while; a table and a verdict."""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.load.findings import markdown, rows
from tests.load.trial import Options, try_load
from tests.places import ROOT

ARGUMENTS = {
    "runs": (int, "to be made"),
    "sets": (int, "parameter sets of these runs"),
    "minutes": (float, "that the runs may take"),
    "kill_every": (float, "seconds between two kills of workers, in turn"),
    "kills": (int, "of workers; default: until the end"),
    "flows": (int, "runs that its worker sends at once"),
}
"""Field of Options -> its type and what --help says of it."""


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    for name, (kind, about) in ARGUMENTS.items():
        default = getattr(Options(), name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, metavar="N", help=about)
    parser.add_argument("--output", type=Path, default=ROOT / "reports", metavar="FOLDER", help="of load.md")
    arguments = vars(parser.parse_args())
    output, options = arguments.pop("output"), Options(**arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="podium-load-"))
    folder.chmod(0o755)  # PostgreSQL's user passes through
    print(f"load: {options.runs} runs in {options.minutes:.0f} minutes; hosts and logs are in {folder}", flush=True)
    trial = try_load(options, folder)
    table = rows(trial)
    text = markdown(trial, table)
    output.mkdir(parents=True, exist_ok=True)
    (output / "load.md").write_text(text, encoding="utf-8")
    print(text, flush=True)
    if any(row.holds is False for row in table):
        print(f"load: hosts and logs are kept in {folder}", flush=True)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
