"""The table of the fault matrix: every case writes one line, `make faults` prints what they come to.

    from tests.faults import table
    with table.case("disk full", "models/phase1"):
        ...                                # raise table.Lost, table.HalfPublished or table.Leak, or fail an assert

`python -m tests.faults.table LINES.jsonl reports` prints the table and writes reports/faults.json and faults.md.
"""

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path

LINES = "PODIUM_FAULT_TABLE"
"""Environment variable: the JSON-lines file that the cases of one `make faults` write to; unset: nowhere."""
HELD, LOST, HALF_PUBLISHED, LEAKED, NOT_RUN = OUTCOMES = ("held", "lost", "half-published", "leaked", "not run")


class Lost(AssertionError):
    """Work was lost, differs, or was left damaged."""


class HalfPublished(AssertionError):
    """A target holds part of a release, or holds one twice."""


class Leak(AssertionError):
    """A process, a lock or a temporary file outlived its run."""


KINDS = ((HalfPublished, HALF_PUBLISHED), (Leak, LEAKED))


def record(row, outcome, case="", seconds=0.0, note=""):
    """Enter one case: its row, what came of it (one of OUTCOMES), which case it was, and what is worth saying."""
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome {outcome!r} is not known; valid: {', '.join(OUTCOMES)}")
    values = {"row": row, "outcome": outcome, "case": case, "seconds": round(seconds, 2), "note": note}
    path = os.environ.get(LINES)
    if path is None:
        return
    with open(path, "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # several workers of pytest write to it
        stream.write(json.dumps(values) + "\n")


@contextlib.contextmanager
def case(row, name=""):
    """Enter the result of the body: held, or the kind of its failure, which is passed on."""
    notes = []
    started_at, outcome = time.monotonic(), LOST
    try:
        yield notes
        outcome = HELD
    except AssertionError as error:
        outcome = next((word for kind, word in KINDS if isinstance(error, kind)), LOST)
        notes.append(str(error).splitlines()[0] if str(error) else "an assertion failed")
        raise
    except Exception as error:
        notes.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        record(row, outcome, name, time.monotonic() - started_at, "; ".join(notes))


def read(lines):
    if not lines.is_file():
        return []
    return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]


def rows(cases):
    """One entry per row in order of appearance: `row`, `cases`, a count per outcome, `seconds`."""
    found = {}
    for entry in cases:
        row = found.setdefault(
            entry["row"], {"row": entry["row"], "cases": 0, **dict.fromkeys(OUTCOMES, 0), "seconds": 0.0}
        )
        row["cases"] += 1
        row[entry["outcome"]] += 1
        row["seconds"] = round(row["seconds"] + entry["seconds"], 1)
    return sorted(found.values(), key=lambda row: str(row["row"]))


def page(cases, wall_seconds):
    """The table as Markdown, the cases that did not hold below it."""
    columns = ("row", "cases", *OUTCOMES, "seconds")
    entries = rows(cases)
    total = {name: round(sum(row[name] for row in entries), 1) for name in columns[1:]}
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [
        "| " + " | ".join(str(row[name]) for name in columns) + " |" for row in [*entries, {"row": "all", **total}]
    ]
    lines += [
        "",
        f"{len(cases)} cases in {wall_seconds / 60:.1f} minutes of wall time (`seconds` adds up parallel work).",
    ]
    failed = [entry for entry in cases if entry["outcome"] != HELD]
    lines += [f"- {entry['outcome']}: {entry['row']}, {entry['case']}: {entry['note']}" for entry in failed]
    return "\n".join(lines) + "\n"


def main(lines, reports):
    """Print the table and write it; 0 if every case held, else 1."""
    cases = read(lines)
    wall = time.time() - lines.with_suffix(".began").stat().st_mtime
    text = page(cases, wall)
    reports.mkdir(exist_ok=True)
    (reports / "faults.md").write_text(text, encoding="utf-8")
    values = {"wall_seconds": round(wall, 1), "rows": rows(cases), "cases": cases}
    (reports / "faults.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(text)
    return 0 if cases and all(entry["outcome"] == HELD for entry in cases) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
