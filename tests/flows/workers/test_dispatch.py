"""Which stages go to which queue, and what the side that sends accepts from workers. No server."""

from types import SimpleNamespace
from unittest import mock
from uuid import uuid4

import httpx
import pytest
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.states import Cancelled, Running, Scheduled

from flows.runs import report
from flows.runs.log import check_log
from flows.runs.report import RunReport, StageRecord, run_outcome
from flows.runs.stopping import RunFailed, RunStopped
from flows.server import api, stage_tasks
from flows.server.stage_tasks import describe_cancellation
from flows.workers import dispatch, stage_flow
from flows.workers.dispatch import Queue, group_by_queue, resolve_queues
from tasks.stage.errors import ParamsError
from tasks.stage.process import STARTED_BY_A_WORKER
from tests.plans import plan_of, values_with

CPU, POD = Queue("cpu", "default"), Queue("ipu", "pod-a")


def test_consecutive_stages_of_one_queue_travel_together():
    before, after = ["corpus@text", "validate@corpus"], ["evaluate@squad", "gate@squad"]
    device = ["pretrain@phase1", "finetune@squad", "predict@squad"]
    plan, known = [*before, *device, *after], plan_of(values_with())
    assert list(group_by_queue(plan, known, CPU, POD)) == [(CPU, before), (POD, device), (CPU, after)]
    assert list(group_by_queue(plan, known, CPU, CPU)) == [(CPU, plan)]
    assert resolve_queues("ipu", "cpu/default", None) == (CPU, Queue("ipu", "default"))
    assert resolve_queues("cpu", "cpu/default", "ipu/pod-a") == (CPU, POD)


@pytest.mark.parametrize("text", ["cpu", "cpu/default?x=1#", "cpu?/default", "cpu/..", "cpu/a b", "cpu/%2e", "cpu/-x"])
def test_a_queue_that_an_address_would_cut_is_refused(text):
    for key, queues in (("cpu_queue", (text, None)), ("device_queue", ("cpu/default", text))):
        with pytest.raises(ParamsError, match=f"^{key}"):
            resolve_queues("cpu", *queues)


@pytest.mark.parametrize("log", ["/etc/passwd", "runs/logs/../../x.log", "runs/logs/passwords", "javascript:alert.log"])
def test_the_log_of_a_sent_run_is_a_file_among_the_logs(log):
    for good in (None, "runs/logs/20261125-043325-14027.log"):
        assert check_log(good) == good
    with pytest.raises(ParamsError):
        check_log(log)


def test_a_stage_that_was_sent_again_keeps_what_it_cost():
    run = RunReport(".")
    for name, status, seconds, host in (
        ("finetune@squad", "paused", 10.0, "pod-a"),
        ("finetune@squad", "ran", 5.0, "pod-b"),
        ("finetune@squad", "skipped", 0.5, "pod-b"),
        ("corpus@text", "ran", 9.0, "a"),
        ("corpus@text", "restored", 1.0, "b"),
    ):
        run.add_stage(StageRecord(name, status, seconds, host))
    tuned, corpus = StageRecord("finetune@squad", "ran", 15.5, "pod-b"), StageRecord("corpus@text", "ran", 10.0, "a")
    assert run.stages == [tuned, corpus]
    run.paused = "stage finetune@squad paused"
    assert run_outcome(run) == "paused"


def test_a_server_that_is_away_is_asked_again_and_one_that_stays_away_is_given_up(monkeypatch):
    monkeypatch.setattr(api, "WAIT_S", 0.0)
    call, lines = mock.Mock(side_effect=[httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), "here"]), []
    assert api.retry_call(call, lines.append) == "here"
    assert len(lines) == 2, "it went away, and is back"
    call.side_effect = httpx.ConnectError("refused")
    with pytest.raises(httpx.ConnectError):
        api.retry_call(call, lines.append, patience_s=-1.0)


def client_of(state):
    """A client of a server on which the run is in a state, or of one that forgot it."""
    client = mock.Mock(**{"read_artifacts.return_value": [], "read_flow_run.return_value.state": state})
    if state is None:
        client.read_flow_run.side_effect = ObjectNotFound(None)
    return client


@pytest.fixture
def send(tmp_path, monkeypatch):
    """Sends a run to the server of a client, and returns it; `send.deployment` is called with what is sent."""

    def send(client, queue=POD, folder="."):
        sender = dispatch.Dispatcher(tmp_path, {"checkout_name": "ours"}, RunReport(folder), print, str(uuid4()))
        return dispatch.RemoteRun(sender, client, queue, ["pretrain@phase1"], False)

    send.deployment = mock.Mock(return_value=SimpleNamespace(id=uuid4(), state=None))
    monkeypatch.setattr(dispatch, "run_deployment", send.deployment)
    return send


def test_a_sent_run_that_was_cancelled_is_cancelled_here_and_not_failed(send):
    run = send(client_of(Cancelled(message="by hand")), folder="runs/checkouts/evening")
    sent = send.deployment.call_args.kwargs
    assert (sent["flow_run_name"], sent["tags"]) == ("evening on ipu: pretrain@phase1", ["run:evening", "kind:ipu"])
    with pytest.raises(RunStopped, match="^pretrain@phase1$") as stopped:
        run.poll()
    assert describe_cancellation(stopped.value) == "a cancellation in Prefect"


@pytest.mark.parametrize(
    ("state", "reason"),
    [(Scheduled(), "podium deploy --queue ipu/pod-a"), (None, "lost the run sent to ipu/pod-a")],
)
def test_a_sent_run_whose_pool_was_deleted_or_whose_server_forgot_it_fails(
    prefect_session, monkeypatch, send, state, reason
):
    monkeypatch.setattr(dispatch, "REPORT_POLL_S", -1.0)
    with pytest.raises(RunFailed, match=reason):
        send(client_of(state)).poll()


@pytest.mark.parametrize(("state", "ending"), [(Scheduled(), "CANCELLED"), (Running(), "CANCELLING")])
def test_a_sent_run_that_no_worker_has_taken_is_cancelled_at_once(send, state, ending):
    client = client_of(state)
    send(client, CPU).cancel()
    assert [sent.args[1].type.value for sent in client.set_flow_run_state.call_args_list] == [ending]


@pytest.mark.parametrize(
    ("error", "cancelled", "outcome"),
    [
        (TerminationSignal(15), True, "cancelled"),
        (TerminationSignal(15), False, "interrupted"),
        (KeyboardInterrupt(), True, "cancelled"),
    ],
)
def test_a_run_whose_worker_ended_is_interrupted_and_not_cancelled(tmp_path, monkeypatch, error, cancelled, outcome):
    monkeypatch.setenv(STARTED_BY_A_WORKER, "of a test")
    monkeypatch.setattr(stage_tasks, "is_cancelled", lambda run: cancelled)
    with pytest.raises(type(error)), stage_flow._record_run(tmp_path, "of-a-test", values_with()) as run:
        raise error
    kept = report.read_report(tmp_path, tmp_path / run.folder)
    assert (run_outcome(kept), kept.ended is None) == (outcome, False)
