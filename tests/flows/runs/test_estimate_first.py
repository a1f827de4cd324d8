"""The cost of a large corpus is printed before it is built; here little text counts as large."""

import shutil

import pytest
import yaml

from flows.dvc import stages
from tasks.params.overlays import resolve
from tasks.params.strict_yaml import read_yaml
from tests.test_architecture import ROOT


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose corpus is to be 5 short documents: large here; an estimate needs more."""
    for name in ("tasks", "ipu_model"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "inputs", tmp_path / "inputs")
    values = resolve(read_yaml(ROOT / "params.yaml"), None, ["corpus.demo_documents=5"])
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setattr(stages, "LARGE_MB", 0.0001)
    return tmp_path


def told(checkout):
    said = []
    stages.print_estimate(checkout, said.append)
    return said


def test_a_large_corpus_is_estimated_and_an_estimate_that_fails_stops_nothing(checkout):
    assert told(checkout) == [
        "the corpus has 0 MB: preparing a sample first to estimate time and memory",
        "the estimate failed",
    ]
    estimate = checkout / "tasks/estimates/data_estimate.py"
    (checkout / "tasks").unlink()
    shutil.copytree(ROOT / "tasks", checkout / "tasks")
    estimate.write_text("import sys\nprint('0.5' if '--size' in sys.argv else '20 h')")
    assert told(checkout)[1] == "20 h"


def test_nothing_is_said_of_a_small_corpus_of_one_that_is_made_and_of_one_that_cannot_be_read(checkout, monkeypatch):
    monkeypatch.setattr(stages, "LARGE_MB", 200.0)
    assert told(checkout) == []
    monkeypatch.setattr(stages, "LARGE_MB", 0.0001)
    params = (checkout / "params.yaml").read_text()
    (checkout / "params.yaml").write_text(params.replace("demo_documents", "documents_of_the_demo"))
    assert told(checkout) == []
    (checkout / "params.yaml").write_text(params)
    (checkout / "data/corpus").mkdir(parents=True)
    assert told(checkout) == []
