"""What `deploy` does on a server that others use as well: their pools, queues and limits; its own automation."""

import contextlib
import http.server
import json
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.events.schemas.automations import EventTrigger
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from flows.workers import deploy, dispatch, versions
from flows.workers.dispatch import Queue
from flows.workers.versions import check_workers, state_versions
from tasks.stage.errors import ParamsError, PodiumError
from tests.flows.workers.worker_hosts import Server, wait_until
from tests.places import ROOT, copy_project


@pytest.fixture
def client(prefect_session):
    """A client of the session's server; the pools and automations of a test go with it."""
    with get_client(sync_client=True) as client:
        yield client
        for pool in client.read_work_pools():
            client.delete_work_pool(pool.name)
        for automation in client.read_automations():
            client.delete_automation(automation.id)


@pytest.fixture
def lines():
    return []


def test_a_pool_of_another_type_is_refused_by_name_and_nothing_is_made(client, lines):
    client.create_work_pool(WorkPoolCreate(name="ipu", type="kubernetes"))
    with pytest.raises(PodiumError, match="the work pool ipu of type kubernetes"):
        deploy.create_pools(client, lines.append)
    assert ([pool.name for pool in client.read_work_pools()], lines) == (["ipu"], [])


def test_pools_keep_what_they_are_and_those_with_prefects_own_template_get_ours(client, lines):
    theirs = {"job_configuration": {"command": "{{ command }}"}, "variables": {"properties": {"command": {}}}}
    for name, values in {
        "cpu": {"description": "ours", "concurrency_limit": 3},
        "ipu": {"base_job_template": ProcessWorker.get_default_base_job_template()},
        "cuda": {"base_job_template": theirs},
    }.items():
        client.create_work_pool(WorkPoolCreate(name=name, type="process", **values))
    deploy.create_pools(client, lines.append)
    pools = {pool.name: pool for pool in client.read_work_pools()}
    ours = {name for name, pool in pools.items() if pool.base_job_template == deploy.TEMPLATE}
    assert ours == {"cpu", "ipu", "flows"}
    assert (pools["cpu"].description, pools["cpu"].concurrency_limit) == ("ours", 3)
    assert pools["cuda"].base_job_template == theirs
    [kept] = [line for line in lines if "the work pool cuda" in line]
    lines.clear()
    deploy.create_pools(client, lines.append)
    assert lines == [kept], "it is said each time"


@pytest.mark.parametrize(
    ("pools", "refused"), [(["cpu", "ipu"], ""), ([], "no pool has workers"), (["cuda", "ipu"], "pools cuda and ipu")]
)
def test_the_device_pool_of_runtime_auto_is_the_one_with_workers(client, pools, refused):
    deploy.create_pools(client, print)
    for pool in pools:
        client.send_worker_heartbeat(pool, "here")
    if refused:
        with pytest.raises(ParamsError, match=f"{refused}.*device_queue"):
            dispatch.resolve_queues("auto", "cpu/default", None)
    else:
        assert dispatch.resolve_queues("auto", "cpu/default", None)[1] == Queue(pools[-1], "default")


def test_a_limit_that_somebody_gave_a_queue_stays_unless_the_queue_is_named(client, lines):
    client.create_work_pool(WorkPoolCreate(name="cuda", type="process"))

    def queue_after(asked):
        deploy.create_queue(client, Queue("cuda", "default"), lines.append, asked)
        return client.read_work_queue_by_name("default", work_pool_name="cuda")

    queue = queue_after(asked=False)
    assert queue.concurrency_limit == 1, "no one had given it one"
    client.update_work_queue(queue.id, concurrency_limit=4)
    assert [queue_after(asked).concurrency_limit for asked in (False, True, True)] == [4, 1, 1]
    assert len(lines) == 3, "what changed, and what was kept"


@pytest.mark.soak
def test_deploy_keeps_the_schedules_limits_and_pauses_that_users_set(client, lines, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
    deploy.deploy(ROOT, [], lines.append)
    before = client.read_deployment_by_name("podium/podium")
    assert [schedule.active for schedule in before.schedules] == [False], "as prefect.yaml states"
    night = {"schedule": {"cron": "5 4 * * *", "timezone": "Europe/Berlin"}, "parameters": {"name": "{{ x }}"}}
    settings = {"paused": True, "concurrency_limit": 3, "concurrency_options": {"collision_strategy": "CANCEL_NEW"}}
    settings["schedules"] = [{**night, "active": True, "slug": "night"}]
    client.update_deployment(before.id, DeploymentUpdate.model_validate(settings))
    deploy.deploy(ROOT, [], lines.append)
    assert "the deployment podium keeps its schedules" in lines
    kept = client.read_deployment_by_name("podium/podium")
    [schedule] = kept.schedules
    assert (kept.id, kept.paused, kept.global_concurrency_limit.limit) == (before.id, True, 3)
    assert kept.concurrency_options.collision_strategy == "CANCEL_NEW"
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("5 4 * * *", "Europe/Berlin")
    assert (schedule.active, schedule.parameters, schedule.slug) == (True, {"name": "{{ x }}"}, "night")


def test_another_automation_of_that_name_is_replaced_and_one_that_is_up_to_date_is_not_and_so_forgets_no_run(
    client, lines
):
    wanted = deploy.lost_run_automation()
    older = wanted.trigger.model_copy(update={"match_related": EventTrigger(posture="Proactive").match_related})
    for _ in range(2):  # two hosts deployed at the same moment
        client.create_automation(wanted.model_copy(update={"trigger": older}))
    triggers = []
    for automation in (wanted, deploy.lost_run_automation(), deploy.lost_run_automation(timedelta(seconds=45))):
        deploy.create_automation(client, automation, lines.append)
        (there,) = client.read_automations()
        assert there.trigger == automation.trigger != older
        triggers.append(client.request("GET", f"/automations/{there.id}").json()["trigger"]["id"])
    assert triggers[0] == triggers[1] != triggers[2]
    assert lines == ["replaced the automation podium-lost-runs"] * 2


def test_a_queue_that_is_not_there_or_not_in_a_pool_that_runs_stages_is_refused(prefect_session):
    with pytest.raises(ParamsError, match="podium deploy --queue ipu/pod-z"):
        dispatch.require_deployment(Queue("ipu", "pod-z"))
    with pytest.raises(ParamsError, match=r"--queue='pod/a': .* cpu\|cuda\|ipu/QUEUE"):
        Queue.parse("pod/a", "--queue")


def test_without_a_server_deploy_says_what_to_name(tmp_path):
    settings = temporary_settings(restore_defaults={PREFECT_API_URL})
    with settings, pytest.raises(PodiumError, match="PREFECT_API_URL is not set"):
        deploy.deploy(tmp_path, [], print)


@contextlib.contextmanager
def webhook():
    """A server on loopback: its address, and the bodies that were posted to it."""
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):  # noqa: N802
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", received
        server.shutdown()


RUNS = """
from prefect import flow
from prefect.states import Completed, Failed

STATES = [Failed(name="Rejected", message="F1 is below 80"), Failed(message="no space"), Completed(name="Paused")]

@flow(name="podium")
def podium(number):
    return STATES[number] if number < len(STATES) else "finished"

@flow(name="podium-stages")
def stages():
    return Failed(message="the flow podium reports this too")

stages(return_state=True)
for number in (3, 0, 1, 2):
    podium.with_options(flow_run_name=f"run-{number}")(number, return_state=True)
"""


def test_a_run_that_is_rejected_fails_or_pauses_calls_someone(tmp_path):
    server = Server(tmp_path / "server")
    try:
        with temporary_settings({PREFECT_API_URL: server.url}), webhook() as (url, received):
            text = {"text": "{{subject}} | {{body}}"}
            block = CustomWebhookNotificationBlock(name="team", url=url, json_data=text, allow_private_urls=True)
            block.save("team", overwrite=True)
            with get_client(sync_client=True) as client:
                automation = deploy.alarm_automation([deploy.find_block(client, "custom-webhook/team")])
                deploy.create_automation(client, automation, print)
            subprocess.run([sys.executable, "-c", RUNS], check=True, env=server.environment())
            wait_until(lambda: len(received) == 3, "three notifications", alive=server.process)
    finally:
        server.stop()
    texts = sorted(body["text"] for body in received)
    assert [text.partition("\n")[0] for text in texts] == [
        "Podium: run-0 is rejected | F1 is below 80",
        "Podium: run-1 is failed | no space",
        "Podium: run-2 is paused | ",
    ]
    assert "/runs/flow-run/" in texts[0]


def test_an_alarm_needs_a_block_that_notifies(client):
    Secret(value="x").save("key", overwrite=True)
    for block in ("slack-webhook/team", "secret/key"):
        with pytest.raises(ParamsError):
            deploy.find_block(client, block)


def test_a_worker_of_other_code_a_newer_prefect_or_none_stated_is_named_with_what_to_do(client, tmp_path, monkeypatch):
    def see(name, pool):
        deploy.create_pools(client, lambda text: None)
        body = {"name": name, "heartbeat_interval_seconds": 30}
        client.request("POST", f"/work_pools/{pool}/workers/heartbeat", json=body)

    other_code = copy_project(tmp_path / "project")
    with (other_code / "flows/cli.py").open("a") as file:
        file.write("# changed\n")
    assert [*check_workers(ROOT)] == [], "no worker is online"
    see("same", "cpu")
    state_versions(ROOT, "cpu", [], "same")
    [alike] = check_workers(ROOT)
    assert (alike.name, alike.level) == ("workers", "ok")

    see("other", "ipu")
    state_versions(other_code, "ipu", ["pod-a"], "other")
    see("silent", "flows")
    texts = [finding.text for finding in check_workers(ROOT)]
    silent, other = sorted(texts, key=lambda text: "runs other code" in text)
    assert silent.startswith("silent of pool flows states no versions")
    assert other.startswith("other of pool ipu on ")
    assert "in flows (commit " in other

    state_versions(ROOT, "flows", [], "silent")
    monkeypatch.setattr(versions.metadata, "version", lambda name: "99.1.0")
    state_versions(ROOT, "ipu", ["pod-a"], "other")
    host, worker = (finding.text for finding in check_workers(ROOT))
    assert "this host 99.1.0: update the server first" in host
    assert worker.startswith("other of pool ipu has Prefect 99.1.0, newer")

    probe = [sys.executable, "-m", "flows.workers.versions"]
    env = {"PATH": "/usr/bin", "PREFECT_API_URL": PREFECT_API_URL.value()}
    asked = json.dumps({"project": str(ROOT)})
    done = subprocess.run(probe, input=asked, env=env, cwd=ROOT, text=True, capture_output=True)
    assert json.loads(done.stdout)["text"] == worker, done.stderr
