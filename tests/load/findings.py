"""What a trial must hold, whether it did, and the table that shows it."""

from collections import Counter, defaultdict
from typing import NamedTuple

from tests.load.disturbances import CPUS, ENDED, FLOWS
from tests.load.records import PUBLISH
from tests.load.trial import SERVER_DISK

FLAT = 1.15
"""How much more memory or disk than at the begin is flat."""
LEAST_S = 120.0
"""Seconds between begin and end; nothing can be told of less."""
WORDS = {True: "yes", False: "NO", None: ""}


class Row(NamedTuple):
    what: str
    found: str
    required: str = ""
    holds: bool | None = None


def rows(trial):
    return [*_ends(trial), *_stages(trial), *_releases(trial), *_sizes(trial), *_done(trial)]


def _ends(trial):
    count = trial.options.runs
    yield Row("runs ended right", f"{trial.right} of {count}", f"{count} of {count}", trial.right == count)
    yield Row("runs lost", _named(trial.wrong), "none", not trial.wrong)
    yield Row("stuck or still Running", _named(trial.stuck), "none", not trial.stuck)


def _stages(trial):
    ran = [stage for stage in trial.stages if stage.status == "ran" and not stage.name.startswith(PUBLISH)]
    counts = Counter((stage.fingerprint or stage.parameters, stage.name) for stage in ran)
    twice = [f"{name} {count} times" for (_, name), count in counts.items() if count > 1]
    text = f"{len(counts)} fingerprints, {len(ran)} computed; more than once: {_named(twice)}"
    yield Row("stages computed per fingerprint", text, "once each", not twice and bool(ran))


def _releases(trial):
    tags, weights = defaultdict(set), defaultdict(set)
    for name, tag, sha256 in trial.releases:
        tags[name].add(tag)
        weights[name].add(sha256)
    sets = min(trial.options.sets, trial.options.runs)
    for what, by_set in (("releases", tags), ("weights", weights)):
        several = [name for name, values in by_set.items() if len(values) > 1]
        text = f"of {len(by_set)} sets; several: {_named(several)}"
        yield Row(f"{what} per parameter set", text, "1", len(by_set) == sets and not several)


def _sizes(trial):
    watch = trial.watch
    long_enough = watch.warm is not None and watch.looks[-1].at - watch.warm >= LEAST_S
    for name in watch.looks[-1].sizes:
        begin, end = watch.sizes(name)
        if name == SERVER_DISK:  # it keeps the history of all runs, so that it grows with them
            warm = next((look for look in watch.looks if look.at >= (watch.warm or 0.0)), watch.looks[-1])
            begin = (begin - watch.looks[0].sizes[name]) / max(warm.ended, 1)
            end = (end - watch.looks[0].sizes[name]) / max(watch.looks[-1].ended, 1)
        text, holds = f"{begin:.1f} MB, then {end:.1f} ({end / max(begin, 0.001) - 1:+.0%})", end <= begin * FLAT
        if not long_enough or begin <= 0:
            text, holds = f"{text}; too short to tell", None
        yield Row(name, text, f"at most {FLAT - 1:+.0%}", holds)


def _done(trial):
    disturbances = trial.disturbances
    counts = ", ".join(f"{name} {disturbances.count(name)}" for name in (FLOWS, *CPUS, "server", "remote", ENDED))
    yield Row("killed, away, ended by themselves", counts)
    yield Row("tracebacks in logs", str(trial.tracebacks))
    again = disturbances.made_anew
    yield Row("remote made again while it was away", str(again), "no", not again)


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
            *(f"| {row.what} | {row.found} | {row.required} | {WORDS[row.holds]} |" for row in table),
            "",
            *(f"- {at:.0f} s: {what}" for at, _, what in trial.disturbances.done),
            "",
        ]
    )
