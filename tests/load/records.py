"""What the Prefect server knows of the stages of all runs: their records, fingerprints and releases."""

import hashlib
import json
from collections import defaultdict
from typing import NamedTuple

from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowFilter, FlowFilterName

from flows.workers import stage_flow
from tasks.params.strict_yaml import parse_yaml

AT_ONCE = 200
PUBLISH = "publish@"
WEIGHTS = "model.safetensors"


class EndedStage(NamedTuple):
    """A stage, or a release, that ended on a worker."""

    parameters: str
    """The name of the checkout, which stands for them."""
    name: str
    status: str
    began: float
    fingerprint: str
    """Of command, parameters and inputs; empty where no run of these parameters came to its end."""


def read_all(read):
    offset = 0
    while page := read(limit=AT_ONCE, offset=offset):
        yield from page
        offset += len(page)


def read_flow_runs(client, flow):
    wanted = FlowFilter(name=FlowFilterName(any_=[flow]))
    return list(read_all(lambda **page: client.read_flow_runs(flow_filter=wanted, **page)))


def read_records(client):
    """The stages that ended, each once, and parameters, tag and SHA-256 of the weights of each release."""
    # The checkout has the name of its run, or `set`, and a hash of the parameters.
    of_run = {
        run.id: run.parameters["checkout_name"].rpartition("-")[2]
        for run in read_flow_runs(client, stage_flow.FLOW_NAME)
    }
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[stage_flow.REPORT_KEY]))
    artifacts = read_all(lambda **page: client.read_artifacts(artifact_filter=wanted, **page))
    reports = [(artifact.flow_run_id, json.loads(str(artifact.data))) for artifact in artifacts]
    by_run, by_parameters = {}, defaultdict(dict)
    for run, report in reports:
        if "dvc.lock" in report["files"]:
            by_run[run] = fingerprints(report["files"]["dvc.lock"])
            by_parameters[of_run[run]].update(by_run[run])
    stages, releases = set(), []
    for run, report in reports:
        parameters = of_run[run]
        for name, text in report["files"].items():
            if name.startswith("reports/publish-"):
                receipt = json.loads(text)
                releases.append((parameters, receipt["tag"], receipt["files"][WEIGHTS]))
        if (record := report.get("record")) is not None:
            name = record["name"]
            known = by_run.get(run, {}).get(name) or by_parameters[parameters].get(name, "")
            stages.add(EndedStage(parameters, name, record["status"], record["began"], known))
    return stages, releases


def fingerprints(lock):
    """Return the hash of command, parameters and inputs of each stage of a dvc.lock."""
    return {
        name: hashlib.sha256(
            json.dumps([stage.get(key) for key in ("cmd", "deps", "params")], sort_keys=True).encode()
        ).hexdigest()
        for name, stage in parse_yaml(lock)["stages"].items()
    }
