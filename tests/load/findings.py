"""What a trial must hold, whether it did, and the table and plot that show it."""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure

from tests.load.disturbances import CPUS, ENDED, FLOWS
from tests.load.records import PUBLISH

FLAT = 1.15
"""How much more memory or disk than at the begin is flat."""
LEAST_S = 120.0
"""Seconds between begin and end; nothing can be told of less."""
IN_FLIGHT = (1, 2, 4, 8, 16)
"""The least runs of each row of the table of seconds."""
COLORS = {"ran": "#1b6ca8", "restored": "#6b7f3a"}
SHOWN = 5


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    found: str
    required: str = ""
    holds: bool | None = None
    """None: it is stated, and not required, or nothing can be told."""


def rows(trial):
    return [*_ends(trial), *_stages(trial), *_releases(trial), *_sizes(trial), *_done(trial)]


def _ends(trial):
    count = trial.options.runs
    yield Row("runs ended right", f"{trial.right} of {count}", f"{count} of {count}", trial.right == count)
    yield Row("runs lost", _named(trial.wrong), "none", not trial.wrong)
    yield Row("stuck or still Running", _named(trial.stuck), "none", not trial.stuck)


def _stages(trial):
    ran = [one for one in trial.records.stages if one.status == "ran" and not one.stage.startswith(PUBLISH)]
    counts = Counter((one.fingerprint or one.parameters, one.stage) for one in ran)
    twice = [f"{stage} {count} times" for (_, stage), count in counts.items() if count > 1]
    found = f"{len(counts)} fingerprints, {len(ran)} computed; more than once: {_named(twice)}"
    yield Row("stages computed per fingerprint", found, "once each", not twice and bool(ran))
    others = Counter(one.status for one in trial.records.stages)
    yield Row("stages by status", ", ".join(f"{status} {count}" for status, count in sorted(others.items())))


def _releases(trial):
    found = trial.records.releases
    tags = {name: {tag for tag, _ in all_of} for name, all_of in found.items()}
    weights = {name: {sha256 for _, sha256 in all_of} for name, all_of in found.items()}
    sets = min(trial.options.sets, trial.options.runs)
    several = [f"{name}: {', '.join(sorted(tags[name]))}" for name in tags if len(tags[name]) > 1]
    said = f"{sum(map(len, tags.values()))} releases of {len(tags)} sets"
    holds = len(tags) == sets and not several
    yield Row("releases per parameter set", f"{said}; several: {_named(several)}", "1", holds)
    different = [f"{name}: {len(weights[name])}" for name in weights if len(weights[name]) > 1]
    said = f"{len(weights) - len(different)} of {len(weights)} sets"
    yield Row("bytes of weights equal", said, "all sets", not different and bool(weights))


def _sizes(trial):
    watch = trial.watch
    told = watch.warm is not None and watch.looks[-1].at - watch.warm >= LEAST_S
    for name in ("server", FLOWS, *CPUS):
        yield _flat(f"memory of {name}", "MB", *watch.memory(name), told)
    first, warm, last = watch.disks[0], watch.warm_disk(), watch.disks[-1]
    for name in (FLOWS, *CPUS):  # each set of parameters has a checkout of its own, on each host that has had it
        begin, end = (disk.sizes[name] / disk.checkouts[name] for disk in (warm, last))
        yield _flat(f"disk of {name}", "MB a checkout", begin, end, told)
    # It keeps the history of all runs, so that it grows with them.
    early, late = (
        (until.sizes["server"] - since.sizes["server"]) / max(until.ended - since.ended, 1)
        for since, until in ((first, warm), (warm, last))
    )
    yield _flat("growth of the server's disk", "MB a run", early, late, told)
    for name in ("server", FLOWS, *CPUS, "remote"):
        sizes = ", ".join(f"{disk.sizes[name]:.1f}" for disk in (first, warm, last))
        yield Row(f"disk of {name}, all", f"{sizes} MB at first, at the begin and at the end")


def _flat(what, unit, begin, end, told):
    told = told and begin > 0
    found = f"{begin:.1f} {unit}, then {end:.1f} ({end / max(begin, 0.001) - 1:+.0%})"
    found += "" if told else "; too short to tell"
    return Row(what, found, f"at most {FLAT - 1:+.0%}", end <= begin * FLAT if told else None)


def _done(trial):
    done = trial.disturbances
    kills = ", ".join(f"{name} {done.count(name)}" for name in (FLOWS, *CPUS))
    yield Row("workers killed", f"{kills}; ended by themselves: {done.count(ENDED)}")
    yield Row("server restarted", str(done.count("server")))
    found = f"{done.count('remote')} times; {'made again meanwhile' if done.made_anew else 'no one made another'}"
    yield Row("tracebacks in logs", str(trial.tracebacks))
    yield Row("remote away", found, "not made again", not done.made_anew)


def _named(names):
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ("; ".join(names[:SHOWN]) or "none") + more


def holds(found):
    return all(row.holds is not False for row in found)


def seconds_rows(trial):
    """Return for each range of runs in flight how many stages there were, and the median seconds by status."""
    groups = defaultdict(lambda: defaultdict(list))
    for in_flight, one in in_flight_of(trial):
        least = max((least for least in IN_FLIGHT if least <= in_flight), default=IN_FLIGHT[0])
        groups[least][one.status].append(one.seconds)
    ends = {least: f"{least} to {more - 1}" for least, more in itertools.pairwise(IN_FLIGHT)}
    ends[IN_FLIGHT[-1]] = f"{IN_FLIGHT[-1]} or more"
    return [
        (
            ends[least],
            sum(map(len, by_status.values())),
            *(f"{median(by_status[status]):.1f} s" if by_status[status] else "-" for status in COLORS),
        )
        for least, by_status in sorted(groups.items())
    ]


def in_flight_of(trial):
    """Return each stage that was computed or restored, with the runs in flight when it began."""
    return [
        (trial.watch.in_flight_at(one.began - trial.began), one)
        for one in trial.records.stages
        if one.status in COLORS and not one.stage.startswith(PUBLISH)
    ]


def markdown(trial, found):
    """Return the tables as text that is readable in a terminal as well."""
    options = trial.options
    words = {True: "yes", False: "NO", None: ""}
    done = trial.disturbances
    return "\n".join(
        [
            f"{options.runs} runs of {options.sets} parameter sets in {trial.seconds / 60:.1f} minutes; the server "
            f"keeps its data in {trial.database}; one `flows` worker with {options.flows} runs at a time, and "
            f"{len(CPUS)} `cpu` workers.",
            "",
            "| what | found | must be | holds |",
            "|---|---|---|---|",
            *(f"| {row.what} | {row.found} | {row.required} | {words[row.holds]} |" for row in found),
            "",
            "| runs in flight | stages | computed, median | restored, median |",
            "|---|---|---|---|",
            *(f"| {' | '.join(map(str, row))} |" for row in seconds_rows(trial)),
            "",
            *(f"- {one.at:.0f} s: {one.what}" for one in done.done),
            "",
        ]
    )


def plot(trial, folder):
    """Write load.svg and load.png: seconds per stage against runs in flight, and the runs over time."""
    figure = Figure(figsize=(10.4, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for status, color in COLORS.items():
        points = [(count, one.seconds) for count, one in in_flight_of(trial) if one.status == status]
        name = {"ran": "computed", "restored": "restored"}[status]
        left.scatter([x for x, _ in points], [y for _, y in points], s=9, color=color, alpha=0.6, label=name)
    left.set_xlabel("runs in flight", fontsize=9)
    left.set_ylabel("seconds per stage", fontsize=9)
    times = [look.at for look in trial.watch.looks]
    right.plot(times, [look.in_flight for look in trial.watch.looks], color=COLORS["ran"], label="in flight")
    right.plot(times, [look.ended for look in trial.watch.looks], color=COLORS["restored"], label="ended")
    for one in trial.disturbances.done:
        color = {"server": "#c0622d", "remote": "#8a5a9e"}.get(one.kind, "#b9b9b9")
        right.axvline(one.at, color=color, lw=0.8)
    right.set_xlabel("seconds; grey: a worker was killed, orange: server restarted, violet: remote away", fontsize=8)
    right.set_ylabel("runs", fontsize=9)
    for axis in (left, right):
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", color="#e5e5e5", lw=0.8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8, frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(folder / f"load.{ending}", dpi=140, bbox_inches="tight")
