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

RECORD = StageRecord("finetune@squad", "ran", 1.5, "pod-a")
FIGURES, CURVE = "metrics/squad-finetune.json", "plots/squad-finetune.csv"
HELD_OUT = "plots/squad-finetune-held-out.csv"
MD5 = "0123456789abcdef0123456789abcdef"


def read(files, **record):
    """The result of an artifact with these files and this record; none: without a record."""
    sent = {"files": files, **({"record": {**dataclasses.asdict(RECORD), **record}} if record else {})}
    return reports.parse_report(json.dumps(sent), ["finetune@squad", "gate@squad"], ROOT)


def require_refused(files, **record):
    with pytest.raises(RunFailed, match="the report of finetune@squad"):
        read(files, **record)


def test_figures_records_and_the_receipt_are_taken_and_of_a_running_training_its_plots_alone():
    record, files = read({FIGURES: '{"loss": 1.0}', CURVE: "step,loss\n1,2.0\n"}, name="finetune@squad")
    assert (record, list(files)) == (RECORD, [Path(FIGURES), Path(CURVE)])
    _, receipt = read({"reports/publish-squad.json": "{}"}, name="publish@squad")
    assert list(receipt) == [Path("reports/publish-squad.json")]
    record, files = read({HELD_OUT: "step,loss\n1,2.0\n"})
    assert (record, list(files)) == (None, [Path(HELD_OUT)])
    require_refused({FIGURES: "{}"})


OTHERS = ("dvc.yaml", "tasks/corpus/corpus.py", "../params.yaml", "metrics/../dvc.yaml", "/etc/passwd", "dvc.lock")
OTHERS += ("metrics/squad-gate.json", "metrics/a/b.json", "metrics//squad-finetune.json", "plots/other.csv")
OTHERS += ("reports/publish-squad.json",)
NO_JSON = ("", "[]", '{"a": NaN}', "[" * 100_000, "{", '{"a": "' + "x" * 1_000_001 + '"}', 7)
NO_JSON += ("!!python/object:os.system",)
NO_CSV = ("a,b\n1\n", 'a\n"x', "a\n\0\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [*((name, "{}") for name in OTHERS), *((FIGURES, text) for text in NO_JSON), *((CURVE, text) for text in NO_CSV)],
    ids=lambda text: repr(text)[:30],
)
def test_files_that_the_stage_does_not_write_and_figures_that_are_none_are_refused(name, content):
    require_refused({name: content}, name="finetune@squad")


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
    require_refused({}, **record)


def lock(name="finetune@squad", **out):
    entries = [{"path": path, "hash": "md5", "md5": MD5, "size": 1} for path in read_plan(ROOT)["finetune@squad"].outs]
    entries[0].update(out)
    return yaml.safe_dump({"schema": "2.0", "stages": {name: {"cmd": "python -m x", "outs": entries}}})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (lock(), ["finetune@squad"]),
        (lock(name="of_older_code"), []),
        (lock(path="../../.ssh/authorized_keys"), []),
        *((text, None) for text in ("a: [", "stages: 1", "x: &a 1\nstages: *a", "stages: {finetune@squad: 1}")),
        *((text, None) for text in (lock(md5="x"), lock(cloud={"x": 1}))),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_of_a_lock_only_stages_of_the_plan_with_their_own_outs_are_kept(text, kept):
    if kept is None:
        require_refused({"dvc.lock": text})
    else:
        assert list(yaml.safe_load(read({"dvc.lock": text})[1][Path("dvc.lock")])["stages"]) == kept


def test_nothing_is_written_through_a_link(tmp_path):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (root / "metrics").symlink_to(elsewhere)
    with pytest.raises(RunFailed, match="metrics is a link"):
        reports.write_files(read({FIGURES: "{}"}, name="finetune@squad")[1], root)
    assert list(elsewhere.iterdir()) == []
