"""Anyone who reaches the Prefect server, and what a worker does for them: a real server, a real worker, no password."""

import os
import shutil
import signal

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolUpdate
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling
from prefect.workers.process import ProcessWorker

from flows.workers import deploy
from tests.flows.workers.worker_hosts import wait_until
from tests.flows.workers.worker_team import a_team, parameters_of_training

pytestmark = pytest.mark.soak
THEIRS = """
import os, pathlib, sys, time
pathlib.Path({mark!r}, "entrypoint").touch()
from prefect import flow

@flow
def theirs():
    pathlib.Path({mark!r}, "flow").touch()
"""


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with a_team(tmp_path_factory.mktemp("team")) as team:
        yield team


@pytest.fixture
def client(team):
    with get_client(sync_client=True) as client:
        yield client


class Attacker:
    """Reaches the server, and can have files on the worker's host as well; what ran leaves its name in `mark`."""

    def __init__(self, client, folder):
        self.client, self.folder, self.mark = client, folder, folder / "ran"
        self.mark.mkdir(parents=True)
        self.script = folder / "theirs.py"
        self.script.write_text(THEIRS.format(mark=str(self.mark)))
        (folder / "sitecustomize.py").write_text(f"open({str(self.mark / 'environment')!r}, 'w')\n")
        environment = {"PYTHONPATH": str(folder), "LD_PRELOAD": "/nowhere.so"}
        self.variables = {"command": self.touch("command"), "working_dir": str(folder), "env": environment}

    def touch(self, name):
        return f"{shutil.which('touch')} {self.mark / name}"

    def open_pool(self):
        template = ProcessWorker.get_default_base_job_template()
        self.client.update_work_pool("cpu", WorkPoolUpdate(base_job_template=template))

    def deployment(self, flow, name, variables=None):
        """A deployment of the pool cpu with an entrypoint, a pull step and variables of its own."""
        return self.client.create_deployment(
            self.client.create_flow_from_name(flow),
            name,
            work_pool_name="cpu",
            entrypoint=f"{self.script}:theirs",
            path=str(self.folder),
            job_variables=variables,
            pull_steps=[{"prefect.deployments.steps.run_shell_script": {"script": self.touch("pull")}}],
        )

    def run(self, deployment, **parameters):
        return self.client.create_flow_run_from_deployment(deployment, parameters=parameters).id

    def state(self, run):
        return self.client.read_flow_run(run).state

    def ran(self):
        return sorted(path.name for path in self.mark.iterdir())


@pytest.fixture
def attacker(client, tmp_path):
    return Attacker(client, tmp_path / "theirs")


def test_the_pools_that_deploy_makes_take_no_variables(client, attacker):
    for name, value in attacker.variables.items():
        with pytest.raises(PrefectHTTPStatusError, match="422"):
            attacker.deployment("podium-stages", "theirs", {name: value})
    plain = attacker.deployment("podium-stages", "plain")
    with pytest.raises(PrefectHTTPStatusError, match="422"):
        client.create_flow_run_from_deployment(plain, job_variables=attacker.variables)
    assert client.read_work_pool("flows").base_job_template == deploy.TEMPLATE


def test_deploying_again_closes_a_pool_that_has_prefects_own_template(team, client, attacker):
    """A deployment may have a variable, with which the closed pool would refuse each of its runs."""
    attacker.open_pool()
    cpu = client.read_deployment_by_name("podium-stages/cpu")
    heartbeat = {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}
    client.update_deployment(cpu.id, DeploymentUpdate(job_variables=heartbeat))
    assert team.sender.run("flows", "deploy") == 0, team.sender.said()
    assert "the work pool cpu no longer takes commands, environments or folders" in team.sender.said()
    assert client.read_deployment(cpu.id).job_variables == {}


def test_a_worker_starts_its_own_flows_whatever_the_server_says(team, attacker):
    """They also give the pool Prefect's own template back."""
    host = team.host("worker")
    host.start_worker("cpu", "default", "cpu")
    attacker.open_pool()
    flows = {"ours": ("podium-stages", {}), "whole": ("podium", {"preset": "none"}), "theirs": ("theirs", {})}
    runs = {
        name: attacker.run(attacker.deployment(flow, name, attacker.variables), **parameters)
        for name, (flow, parameters) in flows.items()
    }
    for name, run in runs.items():
        wait_until(lambda run=run: attacker.state(run).is_final(), name)
    assert {name: attacker.state(run).type.value for name, run in runs.items()} == dict.fromkeys(flows, "FAILED")
    assert "runs only the flows podium and podium-stages of its own" in attacker.state(runs["theirs"]).message
    assert (attacker.ran(), host.ran()) == ([], [])


def test_a_run_of_theirs_that_is_cancelled_or_lost_loads_no_code_into_the_worker(team, client, attacker):
    host = team.hosts["worker"]
    host.hold.touch()
    parameters = parameters_of_training(host, 1)
    deployment = attacker.deployment("podium-stages", "held", attacker.variables)
    cancelled = attacker.run(deployment, **parameters)
    wait_until(lambda: "pretrain@phase1" in host.ran(), "training")
    client.set_flow_run_state(cancelled, Cancelling())
    wait_until(lambda: attacker.state(cancelled).is_cancelled(), "the end of the cancelled run")
    lost = attacker.run(deployment, **parameters)
    wait_until(lambda: host.ran().count("pretrain@phase1") == 2, "training again")
    os.kill(host.flow(), signal.SIGKILL)
    wait_until(lambda: attacker.state(lost).is_crashed(), "the end of the lost run")
    host.hold.unlink()
    assert attacker.ran() == []
