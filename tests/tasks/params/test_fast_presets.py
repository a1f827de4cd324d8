"""The arithmetic of docs/ipu.md on fine-tuning, done again from the presets: what is expected, and that it fits."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ipu_model.estimates.estimate import FITS, Interval
from ipu_model.estimates.ipu import build_program, estimate_ipus
from ipu_model.estimates.ipu_time import call_interval
from ipu_model.estimates.shapes import RowShape
from tasks.downstream.jobs.entry_jobs import build_finetune_job
from tasks.jobs.training import model_config
from tasks.params.entries import find_entry
from tasks.stage import artifacts
from tests.places import ROOT
from tests.tasks.params.recipe_plans import SQUAD_PACKING_FACTOR, manifest, planned, resolved

FAST = ("ipu-base-pod16-run-qa-fast", "ipu-large-pod16-notebook-fast")
SECTION = (ROOT / "docs/ipu.md").read_text(encoding="utf-8").split("## Fine-tuning: memory and speed")[1]


def lines_of(name: str) -> list[list[str]]:
    """The cells of the lines that begin with this preset."""
    found = re.findall(rf"^\| `{name}`(.*)\|$", SECTION.split("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in found]


class Tuning:
    """The fine-tuning of a preset, planned."""

    def __init__(self, name: str, root: Path) -> None:
        params = resolved(name)
        rows = params.downstream["squad"].rows
        self.packing = SQUAD_PACKING_FACTOR[rows.row_length] if rows.max_sequences_per_row > 1 else 1.0
        self.length, self.model = rows.row_length, model_config(params.model, manifest("phase1", 128, 1.0))
        folder = root / artifacts.rows_folder("squad/train")
        folder.mkdir(parents=True)
        self.rows = dataclasses.replace(manifest("squad/train", self.length, self.packing), max_predictions=0)
        (folder / "manifest.json").write_text(self.rows.to_json())
        (root / params.ipu.config).mkdir(parents=True)
        self.job = build_finetune_job(find_entry(params, "squad"), params, root)
        self.plan = planned(self.job, self.model, self.packing)

    @property
    def windows(self) -> float:
        plan = self.plan
        return plan.micro_batches * plan.micro_batch_size * plan.updates_per_call * self.packing

    @property
    def call_s(self) -> Interval:
        return call_interval(build_program(self.job, self.model, self.plan, RowShape(self.length)))


@pytest.mark.parametrize("name", [*FAST, *(name[: -len("-fast")] for name in FAST)])
def test_what_is_expected_follows_from_the_preset(name: str, tmp_path: Path):
    [line] = [cells for cells in lines_of(name) if not cells[0].startswith(",")]
    tuning = Tuning(name, tmp_path)
    plan, between = tuning.plan, tuning.call_s
    seconds = between.likely
    assert line[1:3] == [
        f"{plan.micro_batch_size}, {plan.accumulation}, {plan.replicas}",
        str(plan.placement.forward_stages),
    ]
    assert line[3:5] == [f"{seconds:.2f}", f"{tuning.windows:,.0f}"]
    rate = float(line[5].replace(",", ""))
    assert rate == pytest.approx(tuning.windows / seconds, rel=0.005)
    if line[6]:
        published = float(line[6])
        assert tuning.windows / between.high <= published <= tuning.windows / between.low
        assert published == pytest.approx(rate, rel=0.05), "what was published comes out"
    else:
        preset = " ".join((ROOT / f"presets/{name}.yaml").read_text(encoding="utf-8").split())
        assert f"Estimated, not measured: {line[5]} sequences/s" in preset


@pytest.mark.parametrize("name", FAST)
def test_a_fast_preset_fits_into_the_memory_of_its_ipus(name: str, tmp_path: Path):
    tuning = Tuning(name, tmp_path)
    estimate = estimate_ipus(tuning.job, tuning.model, tuning.rows)
    assert estimate.verdict == FITS
    stated = re.search(r"upper\s+ends\s+included: (\d+) and (\d+) MB of (\d+) on the fullest", SECTION)
    assert stated is not None
    fullest = max(estimate.memory, key=lambda memory: memory.total.high)
    assert float(stated[1 + FAST.index(name)]) == round(fullest.total.high / 1e6)
    assert float(stated[3]) == round(fullest.limit / 1e6)
