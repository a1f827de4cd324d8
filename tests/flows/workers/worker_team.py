"""A server, hosts, and one more that starts runs: what tests of runs on workers share."""

import contextlib
import json

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Crashed

from flows.runs import checkout
from tasks.params.strict_yaml import read_yaml
from tests.flows.workers.worker_hosts import Host, Server, descendants, is_alive, wait_until


def start_deployment(name, **options):
    """Start a run of a deployment, as a form or another run does; its id."""
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(name)
        return client.create_flow_run_from_deployment(deployment.id, **options).id


def read_states(run):
    with get_client(sync_client=True) as client:
        return sorted(client.read_flow_run_states(run), key=lambda state: state.timestamp)


class Team:
    """The server, the hosts made so far, and one that starts runs."""

    def __init__(self, folder, server=Server, host=Host):
        self.folder, self.remote, self.host_class = folder, folder / "remote", host
        self.server = server(folder / "server")
        self.hosts = {}
        self.sender = self.host("sender")
        self.sender.environment["PREFECT_CLIENT_MAX_RETRIES"] = "1"  # else Prefect itself waits a minute, in silence
        assert self.sender.run("flows", "deploy", "--queue", "cpu/trainer") == 0, self.sender.said()

    def host(self, name):
        self.hosts[name] = self.host_class(self.folder / name, self.server, self.remote)
        return self.hosts[name]

    def start(self, *overrides):
        """Start a run from the host that sends; training goes to a queue of its own."""
        words = [word for override in overrides for word in ("--set", override)]
        return self.sender.start("flows", "run", "--on-workers", "--device-queue", "cpu/trainer", *words)

    def run(self, *overrides):
        return self.start(*overrides).wait(timeout=400)

    def start_training(self, *overrides):
        """Start a run whose training waits for `hold` to go; returns the run and the training stage's process id."""
        training = self.hosts["training"]
        before = len(training.ran())
        self.sender.hold.touch()
        run = self.start(*overrides)
        wait_until(lambda: len(training.ran()) > before, "training", alive=run)
        return run, training.processes()[-1]

    states = staticmethod(read_states)

    def start_deployment(self, **parameters):
        return start_deployment("podium/podium", parameters=parameters)

    def report(self):
        return json.loads((self.sender.project / "reports" / "run.json").read_text())

    def statuses(self):
        return {stage["name"]: stage["status"] for stage in self.report()["stages"]}

    def runs(self, *states):
        """Name, without that of the run it belongs to -> flow run, of the server's runs in these states."""
        wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))))
        with get_client(sync_client=True) as client:
            return {run.name.rpartition(": ")[2]: run for run in client.read_flow_runs(flow_run_filter=wanted)}

    def lost(self, run_name):
        """What the automation does 90 s after the last heartbeat of a running run."""
        with get_client(sync_client=True) as client:
            run = self.runs("RUNNING")[run_name]
            client.set_flow_run_state(run.id, Crashed(message="no heartbeat: its host or worker was lost"))

    def close(self):
        for host in self.hosts.values():
            if host.worker is not None:
                host.lose()
        self.server.stop()


def parameters_of_training(host, seed):
    """Arguments of `podium-stages` for the stages up to a training, as a run from this host would send them."""
    values = read_yaml(host.project / "params.yaml")
    values["pretrain"]["seed"] = seed
    names, code = ["corpus", "validate@corpus", "pretrain@phase1"], checkout.hash_code(host.project)
    return {"names": names, "values": values, "code": code, "checkout_name": checkout.default_name(values, None)}


class Training:
    """A run that was sent to the worker, and waits in its training."""

    def __init__(self, host, seed):
        before = host.ran().count("pretrain@phase1")
        self.id = start_deployment("podium-stages/cpu", parameters=parameters_of_training(host, seed))
        wait_until(lambda: host.ran().count("pretrain@phase1") > before, "training", alive=host.worker)
        self.stage, self.flow = host.processes()[-1], host.flow()
        self.processes = [self.flow, *descendants(self.flow)]
        assert self.stage in self.processes

    def state(self):
        with get_client(sync_client=True) as client:
            return client.read_flow_run(self.id).state

    def cancel(self):
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(self.id, Cancelling())

    def went_through(self, *states):
        wait_until(lambda: self.state().is_final(), "the run's end")
        names = [state.name for state in read_states(self.id) if not state.is_scheduled()]
        assert names == ["Pending", "Submitting", "Running", *states]

    def ends_as(self, *states):
        """And nothing of it is running by then."""
        wait_until(lambda: self.state().is_final(), "the run's end")
        assert not [pid for pid in self.processes if is_alive(pid)]
        self.went_through(*states)


@contextlib.contextmanager
def a_team(folder, server=Server, host=Host):
    """A team whose processes end with the body; clients of the body talk to its server, of the class `server`."""
    team = Team(folder, server, host)
    try:
        with temporary_settings({PREFECT_API_URL: team.server.url}):
            yield team
    finally:
        team.close()
