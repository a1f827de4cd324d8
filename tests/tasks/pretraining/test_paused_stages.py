"""A stage on a host whose time is over pauses; going on elsewhere: tests/tasks/host/test_checkpoint_sync.py."""

import os
import subprocess
import sys

import yaml

from ipu_model.core.files import write_text
from tasks.params.strict_yaml import read_yaml
from tasks.stage.errors import PAUSED
from tests.ipu_model.tiny_jobs import make_columns, write_rows
from tests.places import ROOT


def test_a_host_without_time_pauses_before_the_first_update(tmp_path):
    write_rows(tmp_path / "data/rows/phase1", "pretrain", make_columns("pretrain", 32))
    for path, text in (("data/tokenizer/tokenizer.json", "{}"), ("reports/validation/phase1.json", '{"valid": true}')):
        write_text(tmp_path / path, text)
    values = read_yaml(ROOT / "params.yaml")
    values["model"].update(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    values["pretrain"]["phase1"].update(steps=400, global_batch_size=12, micro_batch_size=4)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PODIUM_STOP_AT": "2020-01-01T00:00:00Z"}
    command = [sys.executable, "-m", "tasks.pretraining.pretrain", "phase1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True)
    assert done.returncode == PAUSED, done.stderr
    assert "PODIUM_STOP_AT (2020-01-01 00:00:00 UTC)" in done.stderr.splitlines()[-1]
