"""What the probe measures, and that it keeps to its time."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from tiny_jobs import ROOT, TINY, make_columns

from ipu_model.models.config import ModelConfig
from ipu_model.models.flat import flatten
from ipu_model.rows.reading import Batch
from ipu_model.runtimes.host import cpu_flags
from ipu_model.runtimes.precision_probe import BUDGET_SECONDS, Work, lengths_of, measure, passes_of

BASE = ModelConfig(vocab_size=30522)
SMALL = dataclasses.replace(BASE, hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512)
LARGE = dataclasses.replace(BASE, hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
ROWS = (128,) * 24 + (77,) * 8


class Clock:
    """Time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Side:
    """Passes that take as long as they are told."""

    def __init__(self, clock: Clock, of_product: float, of_token: float, disturbed: int = 0) -> None:
        self._clock, self._of_product, self._of_token, self._disturbed = clock, of_product, of_token, disturbed
        self.pieces: List[int] = []

    def product(self) -> float:
        self._clock.now += self._of_product
        return self._of_product

    def run(self, work: Work) -> float:
        self.pieces.append(work.tokens)
        slower = 3 if self._disturbed and len(self.pieces) % self._disturbed else 1
        self._clock.now += slower * self._of_token * work.tokens
        return slower * self._of_token


def probe(work: Work, *, disturbed: int = 0, **of_token: float) -> Any:
    """The rates, the seconds that went by, and both sides; a product takes as long as its operations of a layer."""
    clock, c = Clock(), work.config
    share = 32 * c.hidden_size**2 / (4 * c.hidden_size**2 + 2 * c.hidden_size * c.intermediate_size)
    sides: Dict[str, Any] = {p: Side(clock, share * s, s, disturbed) for p, s in of_token.items()}
    rates = measure(work, lambda _: sides, clock, clock)
    return rates, clock.now - 100, sides


@pytest.mark.parametrize("config", [SMALL, BASE, LARGE])
@pytest.mark.parametrize("gflop_per_second", [5, 50, 1000])
@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.0, 2.0, 16.0])
def test_it_keeps_to_its_time_on_fast_and_slow_hosts(config: ModelConfig, gflop_per_second: int, ratio: float) -> None:
    c = config
    speed = 6 * (4 * c.hidden_size**2 + 2 * c.hidden_size * c.intermediate_size) / gflop_per_second / 1e9
    rates, seconds, _ = probe(Work(config, ROWS, 0, True), fp32=speed, bf16=speed / ratio)
    assert seconds <= 1
    assert rates.bf16 / rates.fp32 == pytest.approx(ratio)


def test_as_much_of_the_work_is_measured_as_fits() -> None:
    _, _, sides = probe(Work(SMALL, ROWS, 0, True), fp32=1e-6, bf16=1e-6)
    assert sides["fp32"].pieces[-1] == sum(ROWS)
    _, _, sides = probe(Work(SMALL, ROWS, 0, True), fp32=1e-4, bf16=1e-4)
    assert 300 < sides["fp32"].pieces[-1] < 1200
    assert sides["fp32"].pieces == sides["bf16"].pieces
    assert len(sides["fp32"].pieces) >= 5


def test_of_disturbed_passes_the_fastest_counts() -> None:
    rates, _, _ = probe(Work(SMALL, ROWS, 0, True), disturbed=3, fp32=2e-5, bf16=1e-5)
    assert (rates.fp32, rates.bf16) == (pytest.approx(5e4), pytest.approx(1e5))
    assert rates.unit in ("real tokens per CPU second", "real tokens/s")


def test_with_a_share_of_a_busy_cpu_less_is_begun() -> None:
    """A process that is given a tenth of the time plans passes of a tenth of the tokens."""
    first = []
    for share in (1.0, 0.1):
        clock = Clock()
        sides: Dict[str, Any] = {precision: Side(clock, 4e-4, 1e-4) for precision in ("fp32", "bf16")}
        measure(Work(SMALL, ROWS, 0, True), lambda _, s=sides: s, clock, lambda c=clock, part=share: part * c.now)
        first.append(sides["fp32"].pieces[0])
    assert first[1] < 0.25 * first[0]


def test_where_no_pass_fits_products_tell() -> None:
    rates, seconds, sides = probe(Work(LARGE, ROWS, 0, True), fp32=1e-3, bf16=5e-2)
    assert rates.unit == "GFLOP/s"
    assert rates.fp32 / rates.bf16 == pytest.approx(50)
    assert sides["bf16"].pieces == []
    assert seconds < BUDGET_SECONDS


def test_a_precision_that_torch_does_not_compute_here_has_no_rate() -> None:
    class Broken(Side):
        def product(self) -> float:
            raise RuntimeError("could not create a primitive descriptor")

    clock = Clock()
    sides: Dict[str, Any] = {"fp32": Side(clock, 1e-3, 1e-3), "bf16": Broken(clock, 1, 1)}
    assert measure(Work(SMALL, ROWS, 0, True), lambda _: sides, clock, clock).bf16 is None


REAL = {"small": Work(SMALL, ROWS, 480, True), "base": Work(BASE, ROWS, 480, True)}
REAL.update(large=Work(LARGE, (512,) * 8, 600, True), predict=Work(LARGE, (384,) * 8, 0, False))
REAL["a few tokens"] = Work(SMALL, (9, 4), 1, True)


class Computed(Side):
    """Real passes, which take as long as they are told."""

    def __init__(self, passes: Any, clock: Clock, of_product: float, of_token: float) -> None:
        super().__init__(clock, of_product, of_token)
        self._passes = passes

    def product(self) -> float:
        assert self._passes.product() >= 0
        return super().product()

    def run(self, work: Work) -> float:
        assert self._passes.run(work) >= 0
        return super().run(work)


@pytest.mark.parametrize("work", REAL.values(), ids=list(REAL))
def test_the_real_passes_are_made_of_pieces_of_the_work_and_draw_no_numbers(work: Work) -> None:
    clock, state, sides = Clock(), torch.get_rng_state(), {}

    def make(asked: Work) -> Any:
        for precision, seconds in (("fp32", 1e-3), ("bf16", 5e-4)):
            sides[precision] = Computed(passes_of(asked)[precision], clock, 2.5 * seconds, seconds)
        return sides

    rates = measure(work, make, clock, clock)
    assert (rates.fp32, rates.bf16) == (pytest.approx(1e3), pytest.approx(2e3))
    assert 0 < sides["fp32"].pieces[-1] <= min(work.tokens, 400), "what fits into the time"
    assert clock.now - 100 < 1
    assert torch.equal(torch.get_rng_state(), state), "a training draws the same numbers with and without a probe"


def test_the_passes_are_those_of_the_job() -> None:
    sides: Any = passes_of(Work(TINY, (9, 4), 2, True))
    layers = {name: side._model.bert.precision for name, side in sides.items()}
    assert layers == {"fp32": torch.float32, "bf16": torch.bfloat16}
    assert sides["bf16"]._model.decoder()[0].dtype == torch.bfloat16
    assert sides["fp32"]._model.training
    assert not next(iter(passes_of(Work(TINY, (9, 4), 0, False)).values()))._model.training
    one_layer = sides["fp32"].run(Work(TINY, (9, 4), 2, True))
    assert one_layer > 0


def test_lengths_are_those_that_attention_keeps_apart() -> None:
    columns = make_columns("pretrain", 30)
    flat = flatten(Batch(np.arange(30), columns))
    assert lengths_of(columns["sequence_ids"]) == flat.lengths.tolist()


def test_a_part_holds_long_and_short_sequences() -> None:
    work = Work(SMALL, (100,) * 10 + (10,) * 10, 100, True)
    assert set(work.part(500).lengths) == {100, 10}
    assert work.part(500).tokens == pytest.approx(500, rel=0.2)
    assert work.part(5).lengths == (5,)
    assert work.part(10_000) is work


LIMITED = """
import torch
torch.set_num_threads(1)
from test_precision_probe import ROWS, SMALL, Work, measure
from ipu_model.runtimes.auto_precision import decide
print(decide(measure(Work(SMALL, ROWS, 480, True)), 1))
"""


@pytest.mark.slow
@pytest.mark.skipif("avx512f" not in cpu_flags(), reason="oneDNN must have an AVX-512 to be held to less of it")
@pytest.mark.parametrize("limit", ["AVX512_CORE", "AVX2"])
def test_bf16_without_instructions_for_it_is_found_to_be_slower(limit: str) -> None:
    """oneDNN held to what it had before bf16: computed in emulation, or not at all (torch 2.0 with AVX2)."""
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit, "PYTHONPATH": paths}
    said = subprocess.run(
        [sys.executable, "-c", LIMITED], env=environment, stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    assert "value='fp32'" in said, said
    assert "fp32 " in said or "no bf16 products" in said
