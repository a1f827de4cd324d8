"""Runs with nothing to do. They are reported without Prefect, as its server takes longer to start than the check.

reports/run.json and reports/run.html keep describing the run that made the outputs.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from flows import dvc
from flows.dvc import releases
from flows.dvc.session import DvcSession
from flows.runs import checkout, report
from flows.runs.run_request import RunRequest
from flows.runs.stage_plan import PUBLISH, publish_step
from flows.server.local_server import may_be_configured
from flows.views import run_page
from flows.views.screen import current_screen, print_end
from tasks.plan.dvc_records import find_gate_damage
from tasks.plan.named_files import find_dvc_files, list_input_paths
from tasks.plan.plan_file import Stage
from tasks.stage import streams

FINISHED_OUTCOMES = ("finished", "published", "rejected")
KEPT_FIELDS = ("command", "began", "ended", "user", "host", "python", "commit", "changed", "details")
"""Fields taken from the record of the run that made the outputs."""


def finish_if_unchanged(request: RunRequest) -> int | None:
    """Report a run in which nothing changed and return its exit code; return None if there may be something to do.

    This includes publishing: a release folder that is missing or differs is published again.
    """
    project, root, plan = request.project, request.root, list(request.target)
    if (
        request.on_workers
        or may_be_configured()
        or (request.publish and request.values["publish"]["target"] != "local")
    ):
        return None
    if any(stage.group == releases.RELEASE_STAGES for stage in request.stages):
        return None  # there may be a newer release
    before = report.read_report(project, root)
    if before is None or report.run_outcome(before) not in FINISHED_OUTCOMES or dvc.has_remote(root):
        return None
    if plan != [stage.name for stage in before.stages if stage.name.partition("@")[0] != PUBLISH]:
        return None
    if find_dvc_files(project, list_input_paths(request.values)):
        return None  # the checks before a run refuse it, together with all other problems
    checkout.prepare_checkout(request.checkout, current_screen().tell)  # its code may be older than the project's
    gates = [stage for stage in request.stages if stage.is_gate]
    for text in find_gate_damage([gate.name for gate in gates], root):
        current_screen().tell(text)
    with DvcSession(root) as session:
        if session.check_plan(plan).unchanged != plan:
            return None
    made = {name: getattr(before, name) for name in KEPT_FIELDS}
    run = report.RunReport(os.path.relpath(root, project), request.preset, list(request.overrides), plan=plan, **made)
    run.stages = [report.StageRecord(name, "skipped", 0.0) for name in plan]
    run.read_results(root)
    streams.say(f"nothing changed: all {len(plan)} stages are up to date\n")
    published = False
    try:
        published = request.publish and _publish(gates, root, run)
    except releases.ReleaseFailed as error:
        run.error = str(error)
    if run.error is None and not published:
        before.write(project)
    else:
        run.write(project)
        run_page.write_ended(run, project, root)
    return print_end(run, [report.format_stage(stage) for stage in run.stages[len(plan) :]])


def _publish(gates: Sequence[Stage], root: Path, run: report.RunReport) -> bool:
    """Publish the accepted models; return whether a release was missing or had changed."""
    changed = False
    for gate in gates:
        if not run.accepts(gate.name):
            continue
        began = time.perf_counter()
        receipt = releases.publish_release(gate, root, current_screen().tell)
        run.add_receipt(receipt, gate.name)
        status = "skipped" if receipt.get("unchanged") else "ran"
        run.add_stage(report.StageRecord(publish_step(gate), status, round(time.perf_counter() - began, 2)))
        changed = changed or status == "ran"
    return changed
