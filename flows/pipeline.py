"""The whole pipeline as one Prefect flow: one task per stage of dvc.yaml, then publish.

    python -m flows.pipeline [--preset NAME] [--set section.key=value ...] [--no-publish]

Exit codes: 0 done, 1 failed, 2 wrong parameters, 3 rejected by the gate. Needs no server; with
PREFECT_API_URL set it reports there.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Read by Prefect when it is imported: nobody is called, and the temporary server serves no pages.
for _name in ("PREFECT_SERVER_ANALYTICS_ENABLED", "PREFECT_SERVER_UI_ENABLED"):
    os.environ.setdefault(_name, "false")
os.environ.setdefault("DO_NOT_TRACK", "1")

from prefect import flow  # noqa: E402
from prefect.artifacts import create_markdown_artifact  # noqa: E402
from prefect.client.schemas.objects import State  # noqa: E402
from prefect.states import Completed, Failed  # noqa: E402

from flows import checkout, dvc, report, run_page, stages  # noqa: E402
from tasks import artifacts  # noqa: E402
from tasks.errors import FAILED, REJECTED, ParamsError, run_main  # noqa: E402

REJECTED_STATE = "Rejected"


@flow(name="podium", retries=0)
def pipeline(preset: str | None = None, overrides: list[str] | None = None, publish: bool = True) -> State:
    """Bring every stage up to date, then publish if the gate accepts.

    Args:
        preset: one of presets/*.yaml, laid over params.yaml.
        overrides: `section.key=value`, laid over both.
        publish: False stops after the gate.

    Raises:
        ParamsError: before anything runs.

    Returns:
        Completed, Completed named "Rejected", or Failed with the reason; reports/run.json says the same.
    """
    project = Path.cwd()
    if not (project / "dvc.yaml").is_file():
        raise ParamsError(f"{project} holds no dvc.yaml: run from the project's folder")
    overrides = overrides or []
    values = checkout.resolved_params(project, preset, overrides)
    root = checkout.prepare(project, values, preset, overrides)
    run = report.RunReport(os.path.relpath(root, project), preset, overrides)
    try:
        _run_stages(run, root, publish)
    except stages.RunFailed as error:
        run.error = str(error)
        return Failed(message=run.error)
    finally:
        run.write(*{project, root})
        artifacts.write_text(root / artifacts.RUN_PAGE, run_page.page(run, root))
        create_markdown_artifact(report.markdown(run), key="podium-run", description="Podium run")
    name = REJECTED_STATE if report.outcome(run) == "rejected" else None
    return Completed(name=name, message=report.outcome(run))


def _run_stages(run: report.RunReport, root: Path, publish: bool) -> None:
    nothing_to_do = dvc.is_up_to_date(root)
    for stage in stages.PLAN:
        stages.reproduce(stage, root, run, nothing_to_do)
    run.read_results(root)
    if publish and run.gate is not None and run.gate["accepted"]:
        run.enter_receipt(stages.publish(root, run))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the pipeline, from the corpus to the published model.")
    parser.add_argument("--preset", help="one of presets/*.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")
    parser.add_argument("--no-publish", action="store_true", help="stop after the gate")
    arguments = parser.parse_args()
    project = Path.cwd()
    checkout.resolved_params(project, arguments.preset, arguments.overrides)  # exit 2 within a second
    (project / artifacts.RUN_REPORT).unlink(missing_ok=True)
    state = pipeline(arguments.preset, arguments.overrides, not arguments.no_publish, return_state=True)
    said = report.read_summary(project)
    sys.stdout.write("\n" + (said or f"the flow ended before its first stage: {state.message}") + "\n")
    if not state.is_completed():
        raise SystemExit(FAILED)
    if state.name == REJECTED_STATE:
        raise SystemExit(REJECTED)


if __name__ == "__main__":
    run_main(main)
