"""`python -m tests.load`: many runs of few parameter sets, disturbed all the while; a table and a verdict."""

import argparse
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.load.disturbances import CPUS, ENDED, FLOWS
from tests.load.records import PUBLISH
from tests.load.trial import SERVER_DISK, Options, try_load
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
FLAT = 1.15
"""How much more memory or disk than at the begin is flat."""
LEAST_S = 120.0
"""Seconds between begin and end; nothing can be told of less."""
WORDS = {True: "yes", False: "NO", None: ""}


class Row(NamedTuple):
    what: str
    measured: str
    required: str = ""
    holds: bool | None = None


def rows(trial):
    """What a trial must hold, and whether it did."""
    count = trial.options.runs
    yield Row("runs ended right", f"{trial.right} of {count}", f"{count} of {count}", trial.right == count)
    yield Row("runs lost", _named(trial.wrong), "none", not trial.wrong)
    yield Row("stuck or still Running", _named(trial.stuck), "none", not trial.stuck)
    ran = [stage for stage in trial.stages if stage.status == "ran" and not stage.name.startswith(PUBLISH)]
    counts = Counter((stage.fingerprint or stage.parameters, stage.name) for stage in ran)
    twice = [f"{name} {count} times" for (_, name), count in counts.items() if count > 1]
    text = f"{len(counts)} fingerprints, {len(ran)} computed; more than once: {_named(twice)}"
    yield Row("stages computed per fingerprint", text, "once each", not twice and bool(ran))
    tags, weights = defaultdict(set), defaultdict(set)
    for name, tag, sha256 in trial.releases:
        tags[name].add(tag)
        weights[name].add(sha256)
    sets = min(trial.options.sets, trial.options.runs)
    for what, by_set in (("releases", tags), ("weights", weights)):
        several = [name for name, values in by_set.items() if len(values) > 1]
        text = f"of {len(by_set)} sets; several: {_named(several)}"
        yield Row(f"{what} per parameter set", text, "1", len(by_set) == sets and not several)
    yield from _sizes(trial)
    disturbances = trial.disturbances
    counts = ", ".join(f"{name} {disturbances.count(name)}" for name in (FLOWS, *CPUS, "server", "remote", ENDED))
    yield Row("killed, away, ended by themselves", counts)
    yield Row("tracebacks in logs", str(trial.tracebacks))
    again = disturbances.made_anew
    yield Row("remote made again while it was away", str(again), "no", not again)


def _sizes(trial):
    first, last, warm = trial.looks[0], trial.looks[-1], trial.warm or 0.0
    for name in last.sizes:
        begin, end = trial.sizes(name)
        if name == SERVER_DISK:  # it keeps the history of all runs, so that it grows with them
            ended = next((look for look in trial.looks if look.at >= warm), last).ended
            begin = (begin - first.sizes[name]) / max(ended, 1)
            end = (end - first.sizes[name]) / max(last.ended, 1)
        text, holds = f"{begin:.1f} MB, then {end:.1f} ({end / max(begin, 0.001) - 1:+.0%})", end <= begin * FLAT
        if trial.warm is None or last.at - warm < LEAST_S or begin <= 0:
            text, holds = f"{text}; too short to tell", None
        yield Row(name, text, f"at most {FLAT - 1:+.0%}", holds)


def _named(names):
    return "; ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


def markdown(trial, table):
    options = trial.options
    return "\n".join(
        [
            f"{options.runs} runs of {options.sets} parameter sets in {trial.seconds / 60:.1f} minutes; the server "
            f"keeps its data in {trial.database}; one `flows` worker with {options.flows} runs at a time, and "
            f"{len(CPUS)} `cpu` workers.",
            "",
            "| what | found | must be | holds |",
            "|---|---|---|---|",
            *(f"| {row.what} | {row.measured} | {row.required} | {WORDS[row.holds]} |" for row in table),
            "",
            *(f"- {at:.0f} s: {what}" for at, _, what in trial.disturbances.done),
            "",
        ]
    )


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
    table = [*rows(trial)]
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
