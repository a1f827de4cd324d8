"""The table of the fault matrix: every test enters how its row came out; printed at the end with counts.

    python -m tests.faults.table [FILE]        print the table of the last run

Rows are appended as JSON lines to the file that PODIUM_FAULT_TABLE names (default reports/faults.jsonl), one write
per line, so that several pytest workers may enter at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

OUTCOMES = ("held", "lost", "half-published", "leaked")
"""held: what the row promises was so. The others name what was broken."""


def table_file() -> Path:
    """Where rows are entered."""
    return Path(os.environ.get("PODIUM_FAULT_TABLE", "reports/faults.jsonl"))


def record(row: str, outcome: str) -> None:
    """Enter one case of `row`.

    Args:
        row: what went wrong, such as `hub: 503 at the commit`.
        outcome: one of OUTCOMES.
    """
    assert outcome in OUTCOMES, outcome
    table_file().parent.mkdir(parents=True, exist_ok=True)
    with table_file().open("a", encoding="utf-8") as table:
        table.write(json.dumps({"row": row, "outcome": outcome}) + "\n")


def counts(lines: list[str]) -> dict[str, Counter[str]]:
    """Row -> how often each outcome came, rows in the order they were first entered."""
    found: dict[str, Counter[str]] = {}
    for line in lines:
        entry = json.loads(line)
        found.setdefault(entry["row"], Counter())[entry["outcome"]] += 1
    return found


def text(found: dict[str, Counter[str]]) -> str:
    """The table for people, its sums last."""
    width = max([len(row) for row in found] + [len("row")])
    lines = [f"{'row':<{width}}  {'cases':>6}" + "".join(f"  {name:>14}" for name in OUTCOMES)]
    total: Counter[str] = Counter()
    for row, outcomes in found.items():
        total += outcomes
        lines.append(_line(row, outcomes, width))
    return "\n".join([*lines, _line("all", total, width)])


def _line(row: str, outcomes: Counter[str], width: int) -> str:
    cells = "".join(f"  {outcomes[name]:>14}" for name in OUTCOMES)
    return f"{row:<{width}}  {sum(outcomes.values()):>6}{cells}"


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else table_file()
    print(text(counts(file.read_text(encoding="utf-8").splitlines())))
