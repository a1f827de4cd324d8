"""One run in full: what it was asked for, what its stages did, what it scored and where everything lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows import report, run_params, runs
from tasks.project import artifacts
from tasks.project.params import default_values
from tasks.project.strict_yaml import read_yaml


def differences(project: Path, run: runs.Run) -> list[tuple[str, list[Any]]]:
    """Name, value there and value here of each parameter that is not as params.yaml has it, or with a preset as the
    defaults have it; of an entry that is not there, those that are not as its kind has them.
    """
    of_preset = run.record is not None and run.record.preset is not None
    base = default_values() if of_preset else read_yaml(project / artifacts.PARAMS)
    return run_params.against(base, run_params.params_of(project, run.folder))


def scores(run: runs.Run) -> list[str]:
    """A line for each entry: every score with its 95% interval."""
    lines = []
    for entry, found in run.scores.items():
        figures = report.read_json_object(run.folder / artifacts.metrics_file(entry)) or {}
        words = [
            f"{name} {value:.2f}" + (f" ({within})" if (within := report.interval(figures, name)) else "")
            for name, value in found.items()
        ]
        lines.append(f"{entry}: {', '.join(words) or 'no scores'}")
    return lines


def in_words(project: Path, run: runs.Run) -> str:
    """For people."""
    record = run.record
    head = [f"{run.name}: {run.status}", f"in {run.folder.relative_to(project)}"]
    rows = differences(project, run)
    origin = "the defaults" if record is not None and record.preset else str(artifacts.PARAMS)
    asked = run_params.in_words(rows, (origin, run.name)).rstrip() if rows else f"parameters: those of {origin}"
    if record is None:
        return "\n".join([*head, "", asked]) + "\n"
    head.append(f"started {record.began or 'at a time that was not kept'}, ended {record.ended or '-'}")
    head.append(f"by {record.command or 'words that were not kept'}")
    stages = [report.HEADER, *map(report.row, record.stages), report.total(record)] if record.stages else []
    verdicts = [
        line for line in report.results(record) if line not in map(report.scores_in_words, record.results.values())
    ]
    why = [text for text in (record.error, record.paused) if text is not None]
    ends = [report.to_look_at(record), *([f"log of this run: {record.log}"] if record.log else [])]
    parts = [head, [asked], stages, [*scores(run), *verdicts], why, ends]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def as_values(project: Path, run: runs.Run) -> dict[str, Any]:
    """For programs: the line of the list, the record, and the parameters that differ."""
    differ = {name: {"base": base, "run": value} for name, (base, value) in differences(project, run)}
    return {**run.as_values(), "record": run.record and run.record.as_values(), "parameters": differ}
