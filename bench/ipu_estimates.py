"""`python -m bench.ipu_estimates`: fit IPU times to published results, check known layouts, propose better ones.

It prints the tables of docs/ipu-estimates.md, and with --write updates the document. A test compares them.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.ipu_fit import time_lines
from bench.ipu_layouts import KnownJob, check_oversized, list_preset_jobs, preset_jobs, sum_certain_bytes
from ipu_model.estimates.estimate import JobEstimate, MemoryEstimate
from ipu_model.estimates.ipu import propose_layout, rows_per_second
from ipu_model.estimates.ipu_memory import estimate_memories
from ipu_model.estimates.ipu_time import IpuProgram

DOCUMENT = Path(__file__).resolve().parent.parent / "docs/ipu-estimates.md"
BALANCED = tuple(f"ipu-{size}-{pod}-examples" for size in ("base", "large") for pod in ("pod4", "pod16"))
MB = 1e6


def make_tables() -> dict[str, list[str]]:
    """Return the lines of each table, by its name in the document."""
    return {"time": time_lines(), "fits": fitting_lines(), "bad": bad_lines(), "balance": balance_lines()}


def fitting_lines() -> list[str]:
    """Return the table of preset jobs, with one line for jobs that have the same verdict on the same IPU."""
    found: dict[tuple[str, ...], list[str]] = {}
    for known in list_preset_jobs():
        memory = known.fullest()
        cells = (known.name, known.verdict(), memory.where, *_sums(memory), _largest(memory))
        found.setdefault(cells, []).append(f"`{known.preset}`")
    head = ["job", "verdict", "fullest", "MB: low", "likely", "high", "largest term, MB", "presets"]
    return _table(head, [[*cells, ", ".join(names)] for cells, names in sorted(found.items())])


def bad_lines() -> list[str]:
    """Return the table of layouts that are known not to fit."""
    head = ["published layout", "pushed by", "because", "certain MB", "low", "verdict", "largest term, MB", "knob"]
    lines = []
    for bad, memory, refused in check_oversized():
        certain, low = f"{sum_certain_bytes(memory) / MB:,.0f}", f"{memory.total.low / MB:,.0f}"
        verdict = "does not fit" if refused else "WRONG"
        cells = [f"`{bad.preset}` {bad.name}", bad.change, f"{bad.why} ({memory.where})", certain, low, verdict]
        lines.append([*cells, _largest(memory), memory.largest.knob])
    return _table(head, lines)


def balance_lines() -> list[str]:
    """Return the table of proposed and published layouts for BERT base and large on POD4 and POD16."""
    head = ["recipe", "published", "rows/s", "proposed", "rows/s", "gain", "likely MB of 941", "margin, ms a row"]
    lines = []
    for preset in BALANCED:
        for known in preset_jobs(preset):
            if known.job.kind != "predict":
                lines.append(_proposal(known))
    return _table(head, lines)


def _proposal(known: KnownJob) -> list[str]:
    found = propose_layout(known.job, known.model, known.rows)
    fullest = estimate_memories(found.proposed or found.current)[0].total.likely
    cells = [f"`{known.preset}` {known.name}", _cut(found.current), f"{rows_per_second(found.current):,.0f}"]
    if found.proposed is None:
        return [*cells, "nothing faster fits", "", "", f"{fullest / MB:,.0f}", ""]
    cells += [_cut(found.proposed), f"{rows_per_second(found.proposed):,.0f}", f"{found.gain:+.0%}"]
    return [*cells, f"{fullest / MB:,.0f}", f"{1000 * found.margin:.3f}"]


def _cut(program: IpuProgram) -> str:
    verdict = JobEstimate("", estimate_memories(program), None).verdict
    recompute = "every layer" if program.keeps_every_layer else "stages"
    layers, batch = ", ".join(map(str, program.placement.layers_per_ipu)), program.micro_batch_size
    return f"[{layers}] x {program.replicas}, {batch} x {program.accumulation}, {recompute}, {verdict}"


def _sums(memory: MemoryEstimate) -> tuple[str, str, str]:
    total = memory.total
    return f"{total.low / MB:,.0f}", f"{total.likely / MB:,.0f}", f"{total.high / MB:,.0f}"


def _largest(memory: MemoryEstimate) -> str:
    return f"{memory.largest.name}, {memory.largest.amount / MB:,.0f}"


def _table(head: list[str], lines: list[list[str]]) -> list[str]:
    rule = "|" + "---|" * len(head)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(cells)} |" for cells in lines)]


def replace_tables(text: str, found: dict[str, list[str]]) -> str:
    """Return the document with new tables, each between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    for name, lines in found.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        block = "\n".join(lines)
        text, times = marked.subn(lambda match, block=block: match[1] + block + "\n" + match[2], text)  # type: ignore[misc]
        if times != 1:
            raise LookupError(f"{DOCUMENT.name} must mark the table {name} once; found {times} markers")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ipu_estimates", description="Check the estimates for IPUs.")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/ipu-estimates.md")
    options = parser.parse_args()
    found = make_tables()
    for name, lines in found.items():
        print(f"## {name}\n\n" + "\n".join(lines) + "\n")
    if options.write:
        DOCUMENT.write_text(replace_tables(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
