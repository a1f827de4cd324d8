"""The machinery from children to files, at the smallest size."""

import dataclasses
import json
from unittest.mock import Mock

import pytest

from bench.__main__ import choose, measure, parse, write_reports
from bench.cases import Case
from bench.results import Results
from bench.setup import Training
from bench.targets import OURS
from bench.variants import Variant
from ipu_model.core.files import write_text
from tasks.stage.errors import ParamsError
from tests.ipu_model.tiny_jobs import make_job, run_here

PEER = "hf fp32"


def make_case(rows, *variants):
    training = dataclasses.asdict(Training("pretrain", "test", str(rows), sequences=8, vocabulary=60))
    how = {"updates": 2, "rounds": 2, "seconds": 1, "warmup": 1, "threads": (1,)}
    return Case("pretrain-tiny", "a test", "real tokens", variants, {"training": training}, **how)


@pytest.mark.soak
def test_a_run_from_end_to_end(pretrain_rows, tmp_path, capsys):
    """Ours and the peer measured in rounds, a child that fails next to them, and all of it in the files."""
    case = make_case(
        pretrain_rows,
        Variant(OURS, "ours", {"precision": "fp32"}),
        Variant("broken", "ours", {"no_such_field": 1}),
        Variant(PEER, "peer", {"precision": "fp32"}),
    )
    results = Results()
    assert measure([case], results, lambda: write_reports(tmp_path / "out", results, {"command": "test"}))
    written = json.loads((tmp_path / "out" / "bench.json").read_text())
    by_name = {measured["variant"]: measured for measured in written["measured"]}
    rates = {}
    for name in (OURS, PEER):
        rounds = by_name[name]["rounds"]
        assert [len(samples) for samples in rounds] == [2, 2]
        assert all(s["cpu"] > 0 and s["wall"] > 0 and s["units"] > 0 for samples in rounds for s in samples)
        assert by_name[name]["facts"]["peak_memory_mb"] > 50
        assert by_name[name]["cpu_rate"]["count"] == 2
        rates[name] = [sum(s["units"] for s in samples) / sum(s["cpu"] for s in samples) for samples in rounds]
    assert by_name["broken"]["rounds"] == []
    assert "no_such_field" in by_name["broken"]["failure"], "the last lines of its stderr"
    bar = next(bar for bar in written["bars"] if bar["text"] == "pre-training tiny, against HF Trainer fp32 as is")
    pairs = [ours / peer for ours, peer in zip(rates[OURS], rates[PEER], strict=True)]
    assert (bar["measured"]["low"], bar["measured"]["high"]) == pytest.approx((min(pairs), max(pairs)))
    assert f"| pretrain-tiny | 1 | {PEER} |" in (tmp_path / "out" / "bench.md").read_text()
    assert "broken failed" in capsys.readouterr().out


FAKE_COMPILER = """
import atexit, os, pathlib
if "PODIUM_EXECUTABLE_CACHE" in os.environ:
    atexit.register(lambda: pathlib.Path(os.environ["PODIUM_EXECUTABLE_CACHE"], "program").write_text("compiled"))
"""
"""Stands for a compiler: a process that ends leaves a program in its cache."""


@pytest.mark.soak
def test_a_start_finds_what_another_process_compiled(pretrain_rows, tmp_path, monkeypatch):
    """Both caches are their own: the first begins empty, the second with what a run before left in it."""
    (tmp_path / "sitecustomize.py").write_text(FAKE_COMPILER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = [{"job": {"precision": "fp32"}, "filled": filled} for filled in (False, True)]
    results = Results()
    case = make_case(pretrain_rows, *(Variant(f"filled: {each['filled']}", "start", each) for each in settings))
    assert measure([case], results, lambda: None)
    assert [(each.failure, each.facts["files_found"], len(each.rounds)) for each in results.measured] == [
        (None, 0, 2),
        (None, 1, 2),
    ]


@pytest.mark.soak
def test_a_training_of_a_run_is_measured_beside_trainer(pretrain_rows, tmp_path):
    folder = tmp_path / "runs" / "pretrain" / "id"
    folder.mkdir(parents=True)
    job = dataclasses.replace(make_job(tmp_path, "pretrain", pretrain_rows), run_folder=str(folder))
    run_here(job)
    write_text(folder / "job.json", job.to_json())
    options = parse(["--job", str(folder / "job.json"), "--sequences", "4", "--rounds", "1", "--updates", "1"])
    results = Results()
    assert measure(choose(None, options), results, lambda: None)
    assert [(each.failure, len(each.rounds)) for each in results.measured] == [(None, 1)] * 3
    assert all(sample.units > 0 for each in results.measured for sample in each.rounds[0])


def test_ctrl_c_keeps_what_was_measured(pretrain_rows, monkeypatch):
    case, results = make_case(pretrain_rows, Variant(OURS, "ours", {"precision": "fp32"})), Results()
    monkeypatch.setattr("bench.__main__.say", Mock(side_effect=KeyboardInterrupt))
    assert not measure([case], results, lambda: None)
    assert [len(each.rounds) for each in results.measured] == [1]


def test_a_case_that_is_not_there_is_refused():
    with pytest.raises(ParamsError, match="squad-tinny.*squad-tiny"):
        choose(None, parse(["--only", "squad-tinny"]))
