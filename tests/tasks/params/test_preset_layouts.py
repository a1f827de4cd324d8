"""The presets against the layouts that the tests of the IPU runtime compile, which are written by hand."""

from __future__ import annotations

import dataclasses

import pytest

from tasks.jobs.training import optimizer_config
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params
from tests.ipu_model.ipu.preset_layouts import LAYOUTS
from tests.places import ROOT
from tests.tasks.params.recipe_table import RECIPES

PRESETS = ROOT / "presets"
NAMES = sorted(path.stem for path in PRESETS.glob("ipu-*.yaml"))
LAYERS = {"base": 12, "large": 24}


def test_every_job_of_every_preset_has_one_layout() -> None:
    stated = sorted((f"ipu-{name}", layout.job) for layout in LAYOUTS for name in layout.presets.split())
    expected = [(name, job) for name in NAMES for job in ("phase1", "phase2", "finetune", "predict")]
    only_tuned = {name for name in NAMES if RECIPES[name].phase1 is None}
    assert stated == sorted(x for x in expected if x[0] not in only_tuned or x[1] in ("finetune", "predict"))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_lays_its_jobs_out_as_the_layouts_say(name: str) -> None:
    params = validate_params(resolve({}, name, [], PRESETS))
    for layout in (x for x in LAYOUTS if name[len("ipu-") :] in x.presets.split()):
        assert sum(layout.layers) == params.model.num_layers == LAYERS[name.split("-")[1]]
        squad = params.downstream["squad"]
        placed = getattr(squad.ipu if layout.job in ("finetune", "predict") else params.ipu, layout.job)
        assert placed == layout.ipu_config(), layout.job
        if layout.training:
            section = squad.finetune if layout.job == "finetune" else params.pretrain
            batch = squad.finetune if layout.job == "finetune" else getattr(params.pretrain, layout.job)
            found = optimizer_config(section, batch)
            assert dataclasses.replace(found, learning_rate=1e-3) == layout.optimizer, layout.job
