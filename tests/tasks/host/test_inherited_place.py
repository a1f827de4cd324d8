"""RANK and WORLD_SIZE that something else left in the environment: a job without a launcher is one process."""

from __future__ import annotations

import io

import pytest

from tasks.jobs import device_job

TELLS = "import os; print({name: os.environ.get(name) for name in ('RANK', 'WORLD_SIZE')}); raise SystemExit(3)"


@pytest.mark.parametrize(("alone", "said"), [(True, "'RANK': None, 'WORLD_SIZE': None"), (False, "'RANK': '0'")])
def test_a_job_without_a_launcher_does_not_inherit_a_place(tmp_path, monkeypatch, alone, said):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {device_job.device_python()} -c "{TELLS}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["-m", "ipu_model", "job.json"] if alone else ["--nproc-per-node", "2"]
    assert said in str(device_job._run([str(program), *words], device_job._JobOutput(io.StringIO(), print)))
