"""What the Prefect server knows of the stages of all runs: their records, fingerprints and releases."""

import hashlib
import json
from dataclasses import dataclass, field

from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowFilter,
    FlowFilterName,
)

from flows.workers import stage_flow
from tasks.params.strict_yaml import parse_yaml

AT_ONCE = 200
"""Most that the server gives in one answer."""
PUBLISH = "publish@"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Ended:
    """A stage, or a release, that ended on a worker."""

    parameters: str
    """The name of the checkout, which stands for them."""
    stage: str
    status: str
    began: float
    """Seconds since 1970."""
    seconds: float
    fingerprint: str
    """Of command, parameters and inputs; empty where no run of these parameters came to its end."""


@dataclass
class Records:
    """All that ended."""

    stages: list[Ended] = field(default_factory=list)
    releases: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Parameters -> tag and SHA-256 of the weights of each release."""


def read_all(read):
    offset = 0
    while found := read(offset):
        yield from found
        offset += len(found)


def read_flow_runs(client, flow):
    wanted = FlowFilter(name=FlowFilterName(any_=[flow]))
    return list(read_all(lambda offset: client.read_flow_runs(flow_filter=wanted, limit=AT_ONCE, offset=offset)))


def read_records(client):
    """Return what ended on workers."""
    # The checkout has the name of its run, or `set`, and a hash of the parameters.
    of_run = {
        run.id: run.parameters["checkout_name"].rpartition("-")[2]
        for run in read_flow_runs(client, stage_flow.FLOW_NAME)
    }
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[stage_flow.REPORT_KEY]))
    read = lambda offset: client.read_artifacts(artifact_filter=wanted, limit=AT_ONCE, offset=offset)  # noqa: E731
    found = [(artifact.flow_run_id, json.loads(str(artifact.data))) for artifact in read_all(read)]
    locks = [(run, fingerprints(one["files"]["dvc.lock"])) for run, one in found if "dvc.lock" in one["files"]]
    by_run = dict(locks)
    by_parameters = {}
    for run, lock in locks:
        by_parameters.setdefault(of_run[run], {}).update(lock)
    records = Records()
    for run, one in found:
        parameters = of_run[run]
        for name, text in one["files"].items():
            if name.startswith("reports/publish-"):
                receipt = json.loads(text)
                released = (receipt["tag"], receipt["files"][WEIGHTS])
                records.releases.setdefault(parameters, []).append(released)
        if (record := one.get("record")) is not None:
            stage = record["name"]
            known = by_run.get(run, {}).get(stage) or by_parameters.get(parameters, {}).get(stage, "")
            ended = Ended(parameters, stage, record["status"], record["began"], record["seconds"], known)
            if ended not in records.stages:  # sent twice, as the server did not answer in time
                records.stages.append(ended)
    return records


def fingerprints(lock):
    """Return the hash of command, parameters and inputs of each stage of a dvc.lock."""
    stages = parse_yaml(lock)["stages"]
    read = {name: {key: stage.get(key) for key in ("cmd", "deps", "params")} for name, stage in stages.items()}
    return {
        name: hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()[:12] for name, one in read.items()
    }
