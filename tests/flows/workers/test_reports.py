"""What the side that sends takes of what comes back through a server that others write to as well. Real dvc.yaml."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from flows.runs.report import StageRecord
from flows.runs.stopping import RunFailed
from flows.workers import reports
from tasks.plan.plan_file import read_plan
from tests.places import ROOT

NAMES = ["finetune@squad", "gate@squad"]
RECORD = dataclasses.asdict(StageRecord("finetune@squad", "ran", 1.5, "pod-a"))
MD5 = "0123456789abcdef0123456789abcdef"


def read(files, **record):
    """The result of an artifact with these files and this record; none: without a record."""
    sent = {"files": files, **({"record": {**RECORD, **record}} if record else {})}
    return reports.parse_report(json.dumps(sent), NAMES, ROOT)


def refused(files, **record):
    with pytest.raises(RunFailed, match="the report of finetune@squad"):
        read(files, **record)


def test_figures_records_and_the_receipt_are_taken():
    record, files = read(
        {"metrics/squad-finetune.json": '{"loss": 1.0}', "plots/squad-finetune.csv": "step,loss\n1,2.0\n"},
        name="finetune@squad",
    )
    assert record == StageRecord("finetune@squad", "ran", 1.5, "pod-a")
    assert list(files) == [Path("metrics/squad-finetune.json"), Path("plots/squad-finetune.csv")]
    _, receipt = read({"reports/publish-squad.json": "{}"}, name="publish@squad")
    assert list(receipt) == [Path("reports/publish-squad.json")]


def test_a_running_training_may_send_its_plots_and_nothing_else():
    evaluations = {"plots/squad-finetune-held-out.csv": "step,loss\n1,2.0\n"}
    record, files = read(evaluations)
    assert (record, list(files)) == (None, [Path("plots/squad-finetune-held-out.csv")])
    refused({"metrics/squad-finetune.json": "{}"})


OTHERS = (
    "dvc.yaml",
    "tasks/corpus/corpus.py",
    "../params.yaml",
    "metrics/../dvc.yaml",
    "/etc/passwd",
    "metrics/a/b.json",
)
OTHERS += ("metrics/squad-gate.json", "plots/other.csv", "reports/publish-squad.json", "dvc.lock")
OTHERS += ("metrics//squad-finetune.json",)
NO_JSON = ("", "[]", '{"a": NaN}', "[" * 100_000, "{", '"' + "x" * 1_000_001 + '"', 7, "!!python/object:os.system")


@pytest.mark.parametrize(
    "files",
    [
        *({name: "{}"} for name in OTHERS),
        *({"metrics/squad-finetune.json": text} for text in NO_JSON),
        *({"plots/squad-finetune.csv": text} for text in ("a,b\n1\n", 'a\n"x', "a\n\0\n")),
    ],
    ids=lambda files: str(files)[:60],
)
def test_files_that_the_stage_does_not_write_and_figures_that_are_none_are_refused(files):
    refused(files, name="finetune@squad")


@pytest.mark.parametrize(
    "record",
    [
        *({"name": name} for name in ("pretrain@phase1", "publish@glue-sst2")),
        *({"seconds": seconds} for seconds in ("1", float("nan"), -1.0, True)),
        *({"host": host} for host in ("a b", "<b>", None)),
        {"status": "published"},
        {"more": 1},
    ],
)
def test_a_record_of_something_else_is_refused(record):
    refused({}, **record)


def lock(name="finetune@squad", **out):
    entries = [{"path": path, "hash": "md5", "md5": MD5, "size": 1} for path in read_plan(ROOT)["finetune@squad"].outs]
    entries[0].update(out)
    return yaml.safe_dump({"schema": "2.0", "stages": {name: {"cmd": "python -m x", "outs": entries}}})


def test_of_a_lock_only_stages_of_the_plan_with_their_own_outs_are_kept():
    def kept(text):
        return list(yaml.safe_load(read({"dvc.lock": text})[1][Path("dvc.lock")])["stages"])

    assert kept(lock()) == ["finetune@squad"]
    assert kept(lock(name="of_older_code")) == []
    assert kept(lock(path="../../.ssh/authorized_keys")) == []


@pytest.mark.parametrize(
    "text",
    ["a: [", "stages: 1", "x: &a 1\nstages: *a", lock(md5="x"), lock(cloud={"x": 1}), "stages: {finetune@squad: 1}"],
)
def test_a_lock_that_is_none_is_refused(text):
    refused({"dvc.lock": text})


def test_nothing_is_written_through_a_link(tmp_path):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "metrics").symlink_to(elsewhere)
    with pytest.raises(RunFailed, match="metrics is a link"):
        reports.write_files(read({"metrics/squad-finetune.json": "{}"}, name="finetune@squad")[1], root)
    assert list(elsewhere.iterdir()) == []
