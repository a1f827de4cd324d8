"""Cost against the size of the corpus: the arithmetic by hand, the measuring on processes that are known."""

import json
import os
import re
import sys
import textwrap

import pytest

from bench import data_scale
from bench.data_scale import StageCost, predictions, schedule, table
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


def cost_of(stage, megabytes, wall_s, maps):
    return StageCost(stage, megabytes, 2 * wall_s, wall_s, 100.0, 5.0, 0.0, maps)


def a_map(seconds, items, merge=0.0, processes=2):
    return {"seconds": seconds, "item_seconds": items, "merge_seconds": merge, "processes": processes}


def test_a_command_is_measured_with_all_its_processes(tmp_path):
    used = run_measured([sys.executable, "-c", textwrap.dedent(PARENT)], tmp_path, os.environ, tmp_path / "log")
    assert used.code == 3
    assert used.cpu_s > 0.05, "the child's sum is counted"
    assert used.wall_s >= 1.0
    assert 100 < used.peak_mb < 200, "both blocks, and two interpreters"


def test_items_go_in_order_to_the_process_that_is_free_first():
    assert schedule([3.0, 1.0, 1.0, 2.0], 2) == 4.0
    assert schedule([3.0, 1.0, 1.0, 2.0], 1) == 7.0
    assert schedule([1.0] * 3, 8) == 1.0


def test_more_hosts_shorten_only_the_maps():
    cost = cost_of("tokenizer", 10.0, 20.0, [a_map(12.0, [5.0] * 4), a_map(3.0, [1.0] * 4, merge=1.5)])
    assert cost.map_s == 15.0
    assert cost.predict(1) == pytest.approx(20.0), "today's time"
    serial, first, second = 5.0, 2.0 + 5.0, 1.0 + 1.5  # each map with its overhead; the second waits for the stage
    assert cost.predict(8) == pytest.approx(serial + first + second)


def test_the_table_has_map_and_serial_seconds_and_a_line_for_all_stages():
    costs = [cost_of("corpus@text", 10.0, 4.0, []), cost_of("tokenizer", 10.0, 20.0, [a_map(15.0, [7.5] * 4)])]
    assert table(costs)[2].split() == ["tokenizer", "10.0", "4.000", "2.000", "1.500", "0.500", "100", "5.0"]
    assert table(costs)[3].split() == ["all", "stages", "10.0", "4.800", "2.400", "1.500", "0.900", "100", "10.0"]
    (line,) = predictions(costs, 2)
    assert re.findall(r"[\d.]+", line) == ["10.0", "2", "16.5", "24.0", "1.5"]


@pytest.mark.soak
def test_a_stage_is_measured_once_for_each_size_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data_scale, "STAGES", {"corpus@text": ("tasks.corpus.corpus",)})
    monkeypatch.setenv("PODIUM_WORKERS", "1")
    words = ["--sizes", "1", "2", "--source", "files", "--work", str(tmp_path / "work"), "--output", str(tmp_path)]
    data_scale.main(words)
    values = json.loads((tmp_path / "data-scale.json").read_text())
    small, large = (StageCost(**entry) for entry in values["measured"])
    assert (small.megabytes, large.megabytes) == (pytest.approx(1.0, rel=0.03), pytest.approx(2.0, rel=0.03))
    assert large.disk_mb == pytest.approx(2 * small.disk_mb, rel=0.1)
    assert large.cpu_s < 2.3 * small.cpu_s, "the start of the process is in both"
    assert "all stages" in capsys.readouterr().out
    monkeypatch.setattr(data_scale, "measure", None)
    data_scale.main(words)
    assert json.loads((tmp_path / "data-scale.json").read_text())["measured"] == values["measured"]


def test_a_stage_that_fails_is_told_with_its_last_lines(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer .* code 2:\n.*params.yaml"):
        data_scale.measure("tokenizer", tmp_path)
