"""Paired comparison of an ended run with the run before it of the same task."""

import contextlib
from pathlib import Path

from flows.runs import listing, report
from flows.runs.run_params import read_run_params
from tasks.stage.errors import PodiumError


def find_run_before(run: listing.Run, runs: list[listing.Run]) -> listing.Run | None:
    """Return the newest of these runs that began before a run and whose leading score can be compared with its own."""
    task = run.evaluated_on
    earlier = (other for other in runs if other.name != run.name and not other.at_work and other.began < run.began)
    alike = (other for other in earlier if task and other.evaluated_on == task)
    return max(alike, key=lambda other: other.began, default=None)


def compare_with_run_before(record: report.RunReport, project: Path) -> None:
    """Add to the result with the leading score its paired difference from the run before, on their common examples.

    Nothing is added if there is no such run, or if its files are missing or from another version of Podium.
    """
    run = listing.Run(record.name, project / record.folder, record, at_work=False)
    before = find_run_before(run, listing.list_shown(project))
    if before is None or before.record is None:
        return
    first, second = before.record.leading_score, record.leading_score
    if first is None or second is None or second.metric in report.LOWER_IS_BETTER:
        return
    from tasks.downstream.run_comparison import compare_runs, read_run  # imports numpy
    from tasks.params.entries import find_entry
    from tasks.params.schema import validate_params

    with contextlib.suppress(PodiumError, OSError, KeyError, ValueError):
        both = [
            read_run(find_entry(validate_params(read_run_params(project, ended.folder)), score.owner), ended.folder)
            for ended, score in ((before, first), (run, second))
        ]
        if both[0] is None or both[1] is None:
            return
        comparison = compare_runs(both[0], both[1])
        if difference := comparison.get("differences", {}).get(second.metric):
            result = next(result for result in record.results.values() if result["name"] == second.owner)
            result["before"] = {"run": before.name, "metric": second.metric, **difference}
