"""The whole pipeline as one Prefect flow: one task per stage of dvc.yaml, then publish.

    python -m flows.pipeline [--preset NAME] [--set section.key=value ...] [--no-publish] [--on-workers ...]

Exit codes: 0 done, 1 failed, 2 wrong parameters, 3 rejected by the gate, 4 paused at a checkpoint. Needs no server;
with PREFECT_API_URL set it reports there, and with --on-workers it sends the stages to the workers of that server.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, get_args

# Read by Prefect when it is imported: nobody is called, and the temporary server serves no pages.
for _name in ("PREFECT_SERVER_ANALYTICS_ENABLED", "PREFECT_SERVER_UI_ENABLED"):
    os.environ.setdefault(_name, "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
# Seconds; Prefect's own 20 are too few where a training keeps the cores busy.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

from prefect import flow, get_run_logger  # noqa: E402
from prefect.artifacts import create_markdown_artifact  # noqa: E402
from prefect.client.schemas.objects import State  # noqa: E402
from prefect.states import Completed, Failed  # noqa: E402

from flows import checkout, report, run_page, stages, workers  # noqa: E402
from flows.api import UNREACHED, end_without_server, extra  # noqa: E402
from flows.own_server import own_server  # noqa: E402
from tasks.common import artifacts  # noqa: E402
from tasks.common.errors import FAILED, PAUSED, REJECTED, run_main  # noqa: E402

REJECTED_STATE = "Rejected"
CODES = {"failed": FAILED, "rejected": REJECTED, "paused": PAUSED}
"""Exit codes of outcomes; of the others, 0."""


@flow(name="podium", retries=0)
def pipeline(
    preset: str | None = None,
    overrides: list[str] | None = None,
    publish: bool = True,
    part: stages.Part = "all",
    on_workers: bool = False,
    cpu_queue: str = workers.CPU_QUEUE,
    device_queue: str | None = None,
) -> State:
    """Bring every stage up to date, then publish if the gate accepts.

    Args:
        preset: one of presets/*.yaml, laid over params.yaml.
        overrides: `section.key=value`, laid over both, for example `finetune.learning_rate=3e-5`.
        publish: False stops after the gate.
        part: pretraining; finetuning, which restores what pre-training made; glue, both without questions; or all.
        on_workers: send the stages to queues; False runs them all in this process.
        cpu_queue: `pool/queue` for preparing and judging data, evaluation, gate and publish.
        device_queue: `pool/queue` for training and prediction, for example `ipu/pod-a`; by default the queue
            `default` of the pool named like `device.runtime`.

    Raises:
        ParamsError: before anything runs.

    Returns:
        Completed, Completed named "Rejected" or "Paused", or Failed with the reason; reports/run.json says the same.
    """
    project = Path.cwd()
    checkout.require_project(project)
    overrides = overrides or []
    values = checkout.resolved_params(project, preset, overrides)
    plan = stages.with_parity(stages.plan_of(part, values["glue"]["tasks"]), values["parity"]["against"])
    plan = stages.with_shares(plan, values["pretrain_rows"]["shares"])
    if not on_workers:
        root = checkout.prepare(project, values, preset, overrides)
        run = report.RunReport(os.path.relpath(root, project), preset, overrides)
        return _ended(run, project, root, lambda: stages.run_plan(plan, root, run, publish))
    queues = workers.queues_of(values["device"]["runtime"], cpu_queue, device_queue)
    for queue in queues:
        workers.require_deployment(queue)
    name = checkout.own_name(values, preset)
    root = checkout.prepare_own(project, values, name)
    parameters = {"values": values, "checkout_name": name, "code": checkout.code_hashes(project)}
    run = report.RunReport(os.path.relpath(root, project), preset, overrides)
    sender = workers.Sender(root, parameters, run, get_run_logger().info)
    return _ended(run, project, root, lambda: sender.run_plan(plan, *queues, publish))


def _ended(run: report.RunReport, project: Path, root: Path, body: Callable[[], None]) -> State:
    """Do what `body` does, report how it went, and put that into a state."""
    run.error = "the run ended early: it was cancelled, or has a defect (its log says which)"
    try:
        body()
        run.error = None
    except stages.RunFailed as error:
        run.error = str(error)
        return Failed(message=run.error)
    except stages.RunPaused as paused:
        run.error, run.paused = None, f"{paused}; run again to continue"
        return Completed(name=stages.PAUSED_STATE, message=run.paused)
    finally:
        _write_report(run, project, root)
    if run.error is not None:
        return Failed(message=run.error)
    rejected = report.outcome(run) == "rejected"
    return Completed(name=REJECTED_STATE if rejected else None, message=report.outcome(run))


def _write_report(run: report.RunReport, project: Path, root: Path) -> None:
    """Say how the run ended; a disk that is full now, or a server that is lost, must not hide it."""
    try:
        run.write(*{project, root})
        artifacts.write_text(root / artifacts.RUN_PAGE, run_page.page(run, root))
    except OSError as error:
        text = f"the report could not be written: {error}"
        get_run_logger().error(text)
        run.error = text if run.error is None else f"{run.error}\n{text}"
    text = report.markdown(run)
    extra(lambda: create_markdown_artifact(text, key="podium-run", description="Podium run"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the pipeline, from the corpus to the published model.")
    parser.add_argument("--preset", help="one of presets/*.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")
    parser.add_argument("--no-publish", action="store_true", help="stop after the gate")
    parser.add_argument(
        "--part",
        choices=get_args(stages.Part),
        default="all",
        help="pre-train only; what follows; or pre-training and GLUE alone",
    )
    parser.add_argument("--on-workers", action="store_true", help="send the stages to workers (PREFECT_API_URL)")
    parser.add_argument("--cpu-queue", default=workers.CPU_QUEUE, metavar="POOL/QUEUE", help="for all but device jobs")
    parser.add_argument("--device-queue", metavar="POOL/QUEUE", help="for training and prediction")
    arguments = parser.parse_args()
    project = Path.cwd()
    values = checkout.resolved_params(project, arguments.preset, arguments.overrides)  # exit 2 within a second
    stages.plan_of(arguments.part, values["glue"]["tasks"])
    (project / artifacts.RUN_REPORT).unlink(missing_ok=True)
    with own_server():
        try:
            state = pipeline(
                arguments.preset, arguments.overrides, not arguments.no_publish, arguments.part, arguments.on_workers,
                arguments.cpu_queue, arguments.device_queue, return_state=True,
            )  # fmt: skip
        except UNREACHED as error:
            _end_without_server(project, error)
    code = _tell(project, f"the run left no report: {state.message}")
    if not state.is_completed():
        code = FAILED
    if code:
        raise SystemExit(code)


def _tell(project: Path, without: str) -> int:
    """Print how the run ended, or `without` where it left no report; returns the exit code that says the same."""
    said = report.read(project)
    sys.stdout.write(f"\n{report.summary(said) if said else without}\n")
    return CODES.get(report.outcome(said), 0) if said else FAILED


def _end_without_server(project: Path, error: Exception) -> NoReturn:
    """Say how a run ended whose last word the server did not take, and end with the code that says the same."""
    code = _tell(project, "the run left no report")
    sys.stderr.write(
        f"the Prefect server does not answer ({type(error).__name__}), and does not know how this run ended; "
        f"{artifacts.RUN_REPORT} does\n"
    )
    end_without_server(code)


if __name__ == "__main__":
    run_main(main)
