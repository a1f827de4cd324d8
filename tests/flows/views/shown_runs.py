"""Runs as the page of all shows them, without a project."""

from pathlib import Path

from flows.runs import listing
from flows.runs.report import RunReport

CURVE = [(float(step), 3.0 / step) for step in range(1, 31)]


def shown(number, text="", folder=Path("/project"), **details):
    """A finished run with a score, an interval, a floor, curves and parameters of its own."""
    name = f"run-{number}{text}"
    record = RunReport(f"runs/checkouts/{name}", f"small{text}", began="2026-11-23T10:00:00+0000")
    record.ended, record.command = "2026-11-23T10:12:31+0000", f"podium run {text}"
    record.results["gate"] = {
        "name": "squad",
        "scores": {f"f1{text}": 80.0 + number % 10, "exact_match": 70.0},
        "intervals": {f"f1{text}": [78.0, 92.0]},
        "checks": [{"name": f"f1{text}", "found": 80.0 + number % 10, "required": 85.0, "ok": number % 2 == 0}],
        "decision": {"accepted": number % 2 == 0, "reasons": []},
        "published": {"folder": f"published/{text}"} if number % 2 == 0 else None,
    }
    record.details = {
        "runtime": f"cpu{text}",
        "entries": {"squad": "squad"},
        "changed": {f"pretrain.seed{text}": str(number), "model.num_layers": '"2"'},
        "curves": {f"squad-finetune{text}": CURVE, f"squad-finetune{text}, held-out": CURVE[::10]},
        **details,
    }
    return listing.Run(name, folder / "runs/checkouts" / name, record, False)
