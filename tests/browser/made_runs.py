"""Checkouts with all that the stages of a run leave for its page, invented, and the records of runs in every state."""

import json
import math
import shutil
import time
from dataclasses import replace

from flows.runs.report import RunReport, StageRecord
from ipu_model.core.files import write_json, write_text
from tasks.stage.artifacts import stage_run_file
from tests.browser.planted import EVIL, LONG
from tests.places import ROOT

SECONDS = """corpus@text 4.5, tokenizer 4.6, examples@squad 12.4, validate@corpus 4.8, pretrain_rows@phase1 10.7,
pretrain_rows@phase2 4.7, rows@squad 3.7, validate@phase1 9.8, validate@phase2 12.2, pretrain@phase1 225.8,
pretrain@phase2 116.4, finetune@squad 295.6, predict@squad 11.3, evaluate@squad 7.2, gate@squad 5.1"""
STAGES = {name: float(seconds) for name, seconds in (entry.split() for entry in SECONDS.split(","))}
TRAININGS = {
    "pretrain-phase1": (1500, 8.4, 2.4),
    "pretrain-phase2": (200, 2.9, 2.5),
    "squad-finetune": (1532, 4.2, 0.2),
}
"""What its files are called -> updates, first and last loss."""
HOSTS = (f"gpu-1.{LONG[:40]}", "cpu-7.example")
BEGAN, EARLIER = 1795474000.0, 1795374000.0
PAGE = "<!doctype html><title>A page</title>"
FIGURES = {"final_loss": 2.4, "packing_efficiency": 0.9544, "precision": "fp32", "runtime": "cpu"}
MEASURED = {"peak_memory_mb": 473.3, "precision_reason": "as requested", "real_tokens_per_second": 10905.6}
MEASURED |= {"resumed_from_step": 0, "train_seconds": 201.64}


def checkout(folder, finished=True, f1=88.1, reason=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for name, (steps, first, last) in TRAININGS.items():
        if finished or name == "pretrain-phase1":
            _training(folder, name, steps if finished else steps // 3, first, last)
    for name in ("corpus", "phase1", "phase2", "squad", "squad-rows"):
        write_text(folder / f"reports/validation/{name}.html", PAGE)
    if finished:
        write_text(folder / "evaluation/squad/report.html", PAGE)
        scores = {"exact_match": f1 - 1, "exact_match_low": f1 - 3.3, "exact_match_high": f1 + 1.2, "f1": f1}
        scores |= {"f1_low": f1 - 2.2, "f1_high": f1 + 2.1, "total": 1000, "answered": 1000, "slices": [], "files": []}
        write_json(folder / "metrics/squad.json", scores)
        verdict = {"accepted": not reason, "reasons": [reason] if reason else [], "checks": _checks(f1), "judged": {}}
        write_json(folder / "metrics/squad-gate.json", verdict)
    return folder


def _training(folder, name, steps, first, last):
    """History, evaluations and figures of a training, as its stage writes them."""
    parts = "start_loss,end_loss" if name == "squad-finetune" else "mlm_loss,nsp_loss"
    lines, held_out = [f"step,loss,{parts},learning_rate"], ["step,loss,mlm_accuracy"]
    for step in range(10, steps + 1, 10):
        loss = last + (first - last) * math.exp(-4 * step / steps) + 0.1 * math.sin(step)
        rate = 1e-3 * min(step / (0.1 * steps), 1.1 * (1 - step / steps))
        lines.append(f"{step},{loss:.6f},{0.8 * loss:.6f},{0.2 * loss:.6f},{rate:.8f}")
        if step % max(10, steps // 4 // 10 * 10) == 0:
            held_out.append(f"{step},{loss + 0.1:.6f},{0.6:.6f}")
    write_text(folder / f"plots/{name}.csv", "\n".join(lines) + "\n")
    write_text(folder / f"plots/{name}-held-out.csv", "\n".join(held_out) + "\n")
    write_json(folder / f"metrics/{name}.json", {**FIGURES, "final_loss": last, "steps": steps})
    write_json(folder / f"measurements/{name}.json", MEASURED)


def _checks(f1, floor=85.0):
    checks = (
        ("f1", f1, floor, f1 >= floor),
        ("data_corpus", "valid", "valid", True),
        ("loss_pretrain-phase1", 2.45, "finite, or no update made", True),
        ("predictions_complete", 1000, 1000, True),
        (f"planted {EVIL}", EVIL, LONG, f1 >= floor),
    )
    return [dict(zip(("name", "found", "required", "ok"), check, strict=True)) for check in checks]


def _report(until="", last="ran", skipped=0.0, at=BEGAN, **more):
    report = RunReport(
        ".",
        overrides=[f"publish.title={EVIL}"],
        command=f"podium run --name evening --set 'publish.title={EVIL}' --set corpus.path={LONG}",
        began=_local_time(at),
        log="runs/logs/20261123-224542-9166.log",
        plan=list(STAGES),
        host=HOSTS[0],
        user=f"ana {EVIL}",
        python="3.11.2",
        commit="a1b2c3d",
        changed=True,
        **more,
    )
    for name in report.plan[: report.plan.index(until) + 1] if until else report.plan:
        seconds = STAGES[name]
        figures = {"cpu_seconds": round(1.6 * seconds, 1), "peak_memory_mb": 200 + 2 * seconds}
        if seconds < skipped:
            report.stages.append(StageRecord(name, "skipped", 0.1))
            continue
        if name == until and not last:
            report.at_work[name] = at
        else:
            report.stages.append(StageRecord(name, last if name == until else "ran", seconds, began=at, **figures))
        at += seconds
    if last:
        report.ended = _local_time(at + 1)
    return report


def recorded(root, stage, seconds, run, began="2026-11-22T10:00:00+00:00"):
    """Write what a stage records of itself when the run of this name makes it; None: `dvc repro` does."""
    process = {"began": EARLIER, "ended": EARLIER + seconds, "cpu_seconds": 2.0, "peak_memory_mb": 90.0}
    made = None if run is None else {"name": run, "began": began}
    write_text(root / stage_run_file(stage), json.dumps({"run": made, "process": process}))


def _local_time(moment):
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(moment))


def _result(accepted, f1=88.1, published=None):
    reasons = [] if accepted else [f"f1 {f1} is under the floor 85 ({EVIL})"]
    result = {
        "name": "squad",
        "scores": {"exact_match": f1 - 1, "f1": f1},
        "intervals": {"exact_match": [f1 - 3.3, f1 + 1.2], "f1": [f1 - 2.2, f1 + 2.1]},
        "checks": _checks(f1),
        "decision": {"accepted": accepted, "reasons": reasons},
        "published": published,
    }
    return {"results": {"gate@squad": result}, "packing": PACKING}


PRETRAINING = "pretrain@phase1"
PACKING = {PRETRAINING: {"packing_factor": 1.3, "packing_efficiency": 0.95}}
RECEIPT = {"folder": f"published/{LONG}", "unchanged": False}
STOPPED = f"the run ended early, by Ctrl-C, in {PRETRAINING}: nothing half-written was kept; podium run continues"
PAUSED = "pretrain@phase1 stopped at update 500 of 1,500 and continues there: podium run"
AT_WORK = "[ 33%] update 500/1500  loss 2.9000  learning rate 1.00e-04  10,905 tokens/s  2 min 05 s left"
PREVIOUS = {
    "began": "2026-11-16T09:30:00+0000",
    "scores": {"squad": {"f1": 84.0}},
    "intervals": {"squad": {"f1": [81.0, 87.0]}},
}
FAILED = f"pretrain@phase1 failed: the loss is not finite\n  {EVIL}\n  {LONG}"


def _of_hosts():
    report = _report(**_result(True, published=RECEIPT))
    report.stages = [replace(stage, host=HOSTS["@p" in stage.name or "squad" in stage.name]) for stage in report.stages]
    return report


STATES = {
    "published": lambda: _report(**_result(True, published=RECEIPT), previous=PREVIOUS),
    "rejected": lambda: _report(**_result(False, 84.5)),
    "failed": lambda: _report(PRETRAINING, "failed", error=FAILED),
    "paused": lambda: _report(PRETRAINING, "paused", paused=PAUSED, packing=PACKING),
    "cancelled": lambda: _report(PRETRAINING, "cancelled", interrupted="Ctrl-C", error=STOPPED),
    "running": lambda: _report(
        PRETRAINING, "", at=time.time() - 150, progress={PRETRAINING: AT_WORK}, previous=PREVIOUS
    ),
    "killed": lambda: _report(PRETRAINING, ""),
    "resumed": lambda: _report(**_result(True), skipped=5.0),
    "two hosts": _of_hosts,
    "skipped": lambda: _report(**_result(True), skipped=1000.0),
}
UNFINISHED = ("failed", "paused", "cancelled", "running", "killed")


def run(folder, state):
    reason = f"f1 84.5 is under the floor 85 ({EVIL})" if state == "rejected" else ""
    root = checkout(folder, state not in UNFINISHED, 84.5 if reason else 88.1, reason)
    report = STATES[state]()
    for stage in report.stages:
        if stage.status == "skipped":
            recorded(root, stage.name, STAGES[stage.name], "morning")
    write_text(root / str(report.log), f"22:46:09 {EVIL}\n")
    write_text(root / "runs/run.json", json.dumps(report.as_values()))
    return report, root
