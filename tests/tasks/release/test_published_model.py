"""The whole command on a checkout, published to a Hub over real HTTP, and what others make of the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.params.schema import parameter_values
from tasks.release.publish import publish
from tests.hub_server import HubServer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import CALLS, NAME, TOKEN, commits
from tests.tasks.trained_checkout import PROJECT, params_with, write_gate, write_model


def run(root: Path, hub: HubServer, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {
        "PYTHONPATH": str(PROJECT),
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": TOKEN,
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(root.parent / "hf-home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


READ_BACK = """
import json, re, sys
from pathlib import Path
import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
folder = Path(snapshot_download("user/demo", revision=sys.argv[1]))
expected = json.loads(sys.argv[2])
found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
assert found == {*expected, ".gitattributes", "README.md", "stage_runs.json"}
for name, path in expected.items():
    assert path is None or (folder / name).read_bytes() == Path(path).read_bytes(), name
pair = "where does the river rise ?", "in northern hills"
inputs = AutoTokenizer.from_pretrained("user/demo")(*pair, return_tensors="pt")
here = AutoTokenizer.from_pretrained("data/tokenizer")(*pair, return_tensors="pt")
assert inputs["input_ids"].tolist() == here["input_ids"].tolist()
with torch.no_grad():
    there = AutoModelForQuestionAnswering.from_pretrained("user/demo").eval()(**inputs)
    here = AutoModelForQuestionAnswering.from_pretrained("models/squad").eval()(**inputs)
assert torch.equal(there.start_logits, here.start_logits) and torch.equal(there.end_logits, here.end_logits)
assert there.start_logits.unique().numel() > 3
code = re.search("```python\\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
exec(compile(code, "README.md", "exec"))
"""


@pytest.mark.soak
def test_what_was_published_downloads_equal_loads_with_equal_logits_and_the_cards_code_answers(
    hub: HubServer, checkout: Path
) -> None:
    root = checkout
    values = params_with(target="hub", repository=NAME)
    receipt = publish(parameter_values(values), "squad", root)
    stated = [receipt[key] for key in ("target", "repository", "commit", "unchanged")]
    assert stated == ["hub", NAME, commits(hub)[-1].oid, False]
    own = {
        "config.json": "models/squad/config.json",
        "model.safetensors": "models/squad/model.safetensors",
        "tokenizer.json": "data/tokenizer/tokenizer.json",
        "vocab.txt": "data/tokenizer/vocab.txt",
        "evaluation/predictions.json": "evaluation/squad/predictions.json",
    }
    expected = {name: own.get(name) for name in receipt["files"]}
    read = run(root, hub, "-c", READ_BACK, receipt["tag"], json.dumps(expected))
    assert read.returncode == 0, read.stderr
    answer = read.stdout.strip()
    assert answer
    assert answer in "The river rises in the northern hills and ends in a lake."


def test_the_token_is_in_nothing_that_a_run_writes(hub: HubServer, checkout: Path, tmp_path: Path) -> None:
    root = checkout
    to = {"publish": {"target": "hub"}, "downstream": {"squad": {"publish": {"repository": NAME}}}}
    change_parameters(root, to)
    hub.fault(*CALLS["head"], drop="before")
    done = run(root, hub, "-m", "tasks.release.publish")
    assert done.returncode == 0, done.stderr
    write_model(root, seed=5)
    write_gate(root)
    hub.fault(*CALLS["commit"], times=9, status=401)
    failed = run(root, hub, "-m", "tasks.release.publish")
    assert (failed.returncode, len(commits(hub))) == (1, 1)
    written = done.stdout + done.stderr + failed.stdout + failed.stderr
    places = [*root.rglob("*"), *(tmp_path / "hf-home").rglob("*"), *(tmp_path / "hub").rglob("*")]
    files = [path for path in places if path.is_file()]
    assert len(files) > 20
    assert TOKEN not in written
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


def test_a_dry_run_asks_nothing_of_the_hub_and_writes_nothing(hub: HubServer, checkout: Path) -> None:
    values = params_with(target="hub", repository=NAME)
    receipt = publish(parameter_values(values), "squad", checkout, dry_run=True)
    assert "model.safetensors" in receipt["files"]
    assert hub.requests == []
    assert not (checkout / "reports/publish-squad.json").exists()
