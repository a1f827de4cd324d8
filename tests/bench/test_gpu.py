"""bench.gpu on a CPU with tiny models: everything but its figures."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from bench.gpu import __main__ as command
from bench.gpu import parity
from bench.gpu.cases import TEST_CASES, HeldRows
from bench.gpu.profiling import PASSES, find_group
from bench.gpu.report import read_results, write_report
from bench.peer_data import read_sequences
from bench.setup import SEED
from tests.places import ROOT


def run(folder, *words):
    line = [sys.executable, "-m", "bench.gpu", "--output", str(folder), *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.soak  # a minute; its parts are below
def test_the_whole_command_measures_every_part(tmp_path):
    done = run(tmp_path, "--device", "cpu", "--seconds", "400")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in command.PARTS:
        assert read_results(tmp_path, part.name), part.name
    assert read_results(tmp_path, "tests")[0]["passed"]
    assert all(pair["equal"] for pair in read_results(tmp_path, "parity"))
    _, *cases = read_results(tmp_path, "speed")
    assert [case["case"] for case in cases] == [case.name for case in command.list_cases("cpu")]
    for variant in (variant for case in cases for variant in case["variants"].values()):
        assert len(variant["rounds"]) == command.ROUNDS
        assert all(measured["tokens"] > 0 and measured["seconds"] > 0 for measured in variant["rounds"])
    assert {"gpu.md", "speed.png", "profile.png"} <= {path.name for path in tmp_path.iterdir()}


def test_a_part_writes_what_it_has_and_the_report_says_what_is_missing(tmp_path, monkeypatch):
    pairs = [("pretraining", "bert"), ("token_classification", "roberta")]
    monkeypatch.setattr(parity, "list_pairs", lambda: iter(pairs))
    part = next(part for part in command.PARTS if part.name == "parity")
    command.run_part(part, "cpu", 60.0, tmp_path)
    results = [(pair["head"], pair["precision"], pair["equal"]) for pair in read_results(tmp_path, "parity")]
    assert results == [(head, precision, True) for head, _ in pairs for precision in ("fp32", "bf16")]
    text = write_report(tmp_path, {"parity": "", "speed": "its 9 s were over"})
    assert "4 of 4 " in text
    assert "its 9 s were over" in text


def test_parity_tells_a_difference(monkeypatch):
    train = parity.train

    def disturbed(*arguments):
        losses, weights = train(*arguments)
        return [loss + (arguments[-1] == "bf16") for loss in losses], weights

    monkeypatch.setattr(parity, "train", disturbed)
    assert not parity.compare("pretraining", "bert", "cpu", "bf16")["equal"]
    assert parity.compare("pretraining", "bert", "cpu", "fp32")["equal"]


@pytest.mark.soak
def test_a_part_that_fails_says_why_and_one_that_hangs_is_ended(tmp_path, monkeypatch):
    missing = command.Part("nothing", 1.0, command.measure_parity)
    assert "invalid choice: 'nothing'" in command.start_part(missing, "cpu", 20.0, tmp_path)
    speed = next(part for part in command.PARTS if part.name == "speed")
    monkeypatch.setattr(command, "LAST_SECONDS", 0.0)
    assert command.start_part(speed, "cpu", 0.5, tmp_path) == "its 0 s were over"


@pytest.mark.soak
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, done.stdout.startswith(f"torch {torch.__version__} finds no GPU here")) == (2, True)


def test_kernels_are_told_apart_by_their_names():
    kernels = {
        "ampere_bf16_s16816gemm_bf16_128x128": "products",
        "nvjet_tst_128x256": "products",
        "void pytorch_flash::flash_fwd_kernel<...>": "attention",
        "Memcpy HtoD (Pinned -> Device)": "copies",
        "triton_per_fused_native_layer_norm_3": PASSES,
        "void at::native::vectorized_elementwise_kernel<4, ...>": PASSES,
    }
    assert {name: find_group(name) for name in kernels} == kernels


@pytest.mark.parametrize("case", TEST_CASES, ids=lambda case: case.name)
def test_held_rows_are_the_same_for_both_sides(case):
    rows = HeldRows(case)
    items = list(read_sequences(rows, 20, SEED))
    assert len(items) == 20
    assert items == list(read_sequences(HeldRows(case), 20, SEED))
    length = rows.take(np.arange(len(rows))).columns["input_ids"].shape[1]
    assert all(1 <= len(item["input_ids"]) <= length for item in items)
