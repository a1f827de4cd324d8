"""What the Prefect server knows of the stages of all runs: their records, fingerprints and releases."""

import hashlib
import json
from dataclasses import dataclass, field

from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowFilter, FlowFilterName

from flows.workers import stage_flow
from tasks.params.strict_yaml import parse_yaml

AT_ONCE = 200
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
    fingerprint: str
    """Of command, parameters and inputs; empty where no run of these parameters came to its end."""


@dataclass
class Records:
    """The stages that ended, each once, and parameters, tag and SHA-256 of the weights of each release."""

    stages: set[Ended] = field(default_factory=set)
    releases: list[tuple[str, str, str]] = field(default_factory=list)


def read_all(read):
    offset = 0
    while found := read(limit=AT_ONCE, offset=offset):
        yield from found
        offset += len(found)


def read_flow_runs(client, flow):
    wanted = FlowFilter(name=FlowFilterName(any_=[flow]))
    return list(read_all(lambda **page: client.read_flow_runs(flow_filter=wanted, **page)))


def read_records(client):
    # The checkout has the name of its run, or `set`, and a hash of the parameters.
    of_run = {
        run.id: run.parameters["checkout_name"].rpartition("-")[2]
        for run in read_flow_runs(client, stage_flow.FLOW_NAME)
    }
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[stage_flow.REPORT_KEY]))
    artifacts = read_all(lambda **page: client.read_artifacts(artifact_filter=wanted, **page))
    found = [(artifact.flow_run_id, json.loads(str(artifact.data))) for artifact in artifacts]
    by_run = {run: fingerprints(one["files"]["dvc.lock"]) for run, one in found if "dvc.lock" in one["files"]}
    by_parameters = {}
    for run, lock in by_run.items():
        by_parameters.setdefault(of_run[run], {}).update(lock)
    records = Records()
    for run, one in found:
        parameters = of_run[run]
        for name, text in one["files"].items():
            if name.startswith("reports/publish-"):
                receipt = json.loads(text)
                records.releases.append((parameters, receipt["tag"], receipt["files"][WEIGHTS]))
        if (record := one.get("record")) is not None:
            stage = record["name"]
            known = by_run.get(run, {}).get(stage) or by_parameters.get(parameters, {}).get(stage, "")
            records.stages.add(Ended(parameters, stage, record["status"], record["began"], known))
    return records


def fingerprints(lock):
    """Return the hash of command, parameters and inputs of each stage of a dvc.lock."""
    read = {
        name: [one.get(key) for key in ("cmd", "deps", "params")] for name, one in parse_yaml(lock)["stages"].items()
    }
    return {name: hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest() for name, one in read.items()}
