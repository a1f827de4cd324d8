"""What a worker starts for a run: one of Podium's two flows, from this checkout, by the run's id and parameters alone.

    python -m flows.worker_entry       # by a worker; PREFECT__FLOW_RUN_ID names the run, PODIUM_CHECKOUT the folder

Entrypoint, path, pull steps and variables of the deployment are what its author says, and are not read.
"""

from __future__ import annotations

import os
from uuid import UUID

from tasks.project.process import takes_no_words

HEARTBEAT_S = 30
"""Seconds between heartbeats of runs on workers; the automation of flows/deploy.py waits for three of them."""


def run_flow_of(run_id: UUID) -> None:
    """Run the flow of this checkout that has the name of the run's flow; a run of any other ends as Failed."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ParameterBindError, SignatureMismatchError
    from prefect.flow_engine import load_flow_run, run_flow
    from prefect.states import Failed

    from flows.on_worker import run_stages
    from flows.pipeline import pipeline

    run, flows = load_flow_run(run_id), (pipeline, run_stages)
    with get_client(sync_client=True) as client:
        name = client.read_flow(run.flow_id).name
        wanted = next((flow for flow in flows if flow.name == name), None)
        if wanted is None:
            message = f"this worker runs the flows {pipeline.name} and {run_stages.name} of its own checkout, no other"
            client.set_flow_run_state(run_id, Failed(message=message))
            return
        try:
            run_flow(wanted, flow_run=run, return_type="state")
        except (ParameterBindError, SignatureMismatchError) as error:
            client.set_flow_run_state(run_id, Failed(message=f"parameters of {name} are missing, or others: {error}"))


def main() -> None:
    """Run the flow, and end as Prefect's worker expects it."""
    takes_no_words("Run the flow of a run that a worker took; it names the run.")
    os.environ["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = str(HEARTBEAT_S)  # read when prefect is imported

    from prefect._internal.control_listener import configure_from_env
    from prefect.engine import handle_engine_signals

    os.chdir(os.environ["PODIUM_CHECKOUT"])
    run_id = UUID(os.environ["PREFECT__FLOW_RUN_ID"])
    configure_from_env()
    with handle_engine_signals(run_id):
        run_flow_of(run_id)


if __name__ == "__main__":
    main()
