"""Entry point that a worker starts for a run: one of Podium's two flows, from this checkout.

    python -m flows.commands.worker_entry       # by a worker, in its checkout; PREFECT__FLOW_RUN_ID names the run

Only the run's id and parameters are used. Entrypoint, path, pull steps and variables of the deployment are untrusted,
and are not read.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.engine import handle_engine_signals
from prefect.exceptions import Abort, ParameterBindError, SignatureMismatchError, TerminationSignal
from prefect.flow_engine import load_flow_run, run_flow
from prefect.states import Failed

from flows.commands import finetune
from flows.pipeline import pipeline, use_form_parser
from flows.server.api import retry_call, silence_outages
from flows.workers.stage_flow import run_stages
from tasks.stage.process import STARTED_BY_A_WORKER, die_with_parent, parse_no_arguments


def run_own_flow(run_id: UUID, worker: int) -> None:
    """Run this checkout's flow of the same name as the run's flow; a run of any other flow fails.

    Args:
        run_id: id of the run.
        worker: process id of the worker.
    """
    run, flows = retry_call(lambda: load_flow_run(run_id), print), (pipeline, run_stages)
    with get_client(sync_client=True) as client:
        name = client.read_flow(run.flow_id).name
        wanted = next((flow for flow in flows if flow.name == name), None)
        if wanted is None:
            message = f"this worker runs only the flows {pipeline.name} and {run_stages.name} of its own checkout"
            client.set_flow_run_state(run_id, Failed(message=message))
            return
        wanted.fn = _leave_end_to_worker(wanted.fn, worker)
        try:
            run_flow(wanted, flow_run=run, return_type="state")
        except (ParameterBindError, SignatureMismatchError) as error:
            client.set_flow_run_state(run_id, Failed(message=f"parameters of {name} are missing or unknown: {error}"))


def _leave_end_to_worker(flow: Callable[..., Any], worker: int) -> Callable[..., Any]:
    """Return the function of a flow, changed so that the worker reports the end of a terminated run.

    On SIGTERM Prefect would report a crash immediately, even of a cancelled run, and while its stages are still ending.
    """

    @functools.wraps(flow)
    def leaving(*args: Any, **kwargs: Any) -> Any:
        try:
            return flow(*args, **kwargs)
        except TerminationSignal as termination:
            if os.getppid() == worker:
                raise Abort from termination
            raise  # the worker is gone and cannot report it

    # Prefect resolves parameter types in the module of the function, which is now this one.
    leaving.__signature__ = inspect.signature(flow, eval_str=True)  # type: ignore[attr-defined]
    return leaving


def main() -> None:
    """Run the flow, and report how it ended."""
    parse_no_arguments("Run the flow of the run that a worker has taken, named by PREFECT__FLOW_RUN_ID.")
    worker = os.getppid()
    use_form_parser(finetune.parse_form)
    die_with_parent()
    silence_outages()
    run_id = UUID(os.environ[STARTED_BY_A_WORKER])
    with handle_engine_signals(run_id):
        run_own_flow(run_id, worker)


if __name__ == "__main__":
    main()
