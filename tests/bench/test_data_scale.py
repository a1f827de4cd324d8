"""Cost against the size of the corpus: the arithmetic by hand, the measuring on processes that are known."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from bench import data_scale
from bench.data_scale import StageCost, check_targets, marginal_costs, table, validation
from bench.process_tree import run_measured
from tasks.stage.errors import InputError

PARENT = """
    import subprocess, sys, time
    block = bytearray(b"x" * (40 << 20))
    child = "held = bytearray(b'y' * (60 << 20)); sum(range(6_000_000)); import sys; sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE)
    started = time.perf_counter()
    while time.perf_counter() - started < 1.0:  # so long both are looked at
        pass
    process.communicate()
    sys.exit(3)
"""


def one(stage: str, megabytes: float, cpu_s: float, peak_mb: float = 100.0) -> StageCost:
    return StageCost(stage, megabytes, cpu_s, cpu_s, peak_mb, 0.0, 0.0)


def test_a_command_is_measured_with_all_its_processes(tmp_path: Path) -> None:
    used = run_measured([sys.executable, "-c", textwrap.dedent(PARENT)], tmp_path, os.environ, tmp_path / "log")
    assert used.code == 3
    assert used.cpu_s > 0.05, "the child's sum is counted"
    assert used.wall_s >= 1.0
    assert 100 < used.peak_mb < 200, "both blocks, and two interpreters"


def test_flat_and_small_are_judged_against_the_smallest_size() -> None:
    found = [
        one("corpus@text", 10, 10.0),
        one("corpus@text", 100, 114.0),
        one("tokenizer", 10, 5.0),
        one("tokenizer", 100, 20.0),
    ]
    flat, small = check_targets(found)
    assert "1.14 (corpus@text at 100 MB): met" in flat
    assert small.endswith("100 MB (corpus@text at 10 MB): met")
    steep, large = check_targets([*found, one("corpus@text", 1000, 1160.0, peak_mb=2100.0)])
    assert "1.16 (corpus@text at 1000 MB): NOT met" in steep
    assert large.endswith("2100 MB (corpus@text at 1000 MB): NOT met")
    assert "1.156 (10 to 100 MB)" in marginal_costs(found)[0]
    two = [one("validate@corpus", 10, 2.0), one("validate@phase1", 10, 1.5), one("corpus@text", 10, 9.0)]
    assert validation(two)[0].startswith("validation of 10.0 MB: 3.50 s of CPU")
    assert validation(two)[0].endswith("in 2 stages")
    assert table(found)[2].split()[:4] == ["corpus@text", "100.0", "1.140", "1.14"]


def test_a_stage_is_measured_once_for_each_size_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data_scale, "STAGES", {"corpus@text": ("tasks.corpus.corpus",)})
    monkeypatch.setenv("PODIUM_WORKERS", "1")
    words = ["--sizes", "1", "2", "--source", "files", "--work", str(tmp_path / "work"), "--output", str(tmp_path)]
    data_scale.main(words)
    values = json.loads((tmp_path / "data-scale.json").read_text())
    small, large = (StageCost(**entry) for entry in values["measured"])
    assert (small.megabytes, large.megabytes) == (pytest.approx(1.0, rel=0.03), pytest.approx(2.0, rel=0.03))
    assert large.disk_mb == pytest.approx(2 * small.disk_mb, rel=0.1)
    assert large.per_mb < 1.15 * small.per_mb, "the start of the process is in both"
    assert "target: cost per MB" in capsys.readouterr().out
    monkeypatch.setattr(data_scale, "measure", None)
    data_scale.main(words)
    assert json.loads((tmp_path / "data-scale.json").read_text())["measured"] == values["measured"]


def test_a_stage_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer in .* ended with code 2:\n.*params.yaml"):
        data_scale.measure("tokenizer", tmp_path)
