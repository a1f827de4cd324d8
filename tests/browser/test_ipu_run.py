"""A whole run on IPUs, which the double of PopTorch replaces: its page shows where its jobs say that they lay."""

import json
import os
import re

import pytest

from tests.browser.looking import problems
from tests.faults import small_run
from tests.places import ROOT

DOUBLE = ROOT / "tests" / "doubles" / "poptorch_double"
LAID = (
    "device.runtime=ipu",
    "device.precision=fp16",
    "device.micro_batch_size=1",
    "model.num_layers=3",
    "ipu.phase1={layers_per_ipu: [0, 1, 1, 1], matmul_proportion: [0.1, 0.2, 0.3, 0.4], "
    "recompute_checkpoint_every_layer: true}",
    "ipu.phase2={layers_per_ipu: [1, 2], matmul_proportion: 0.3}",
    "downstream.squad.ipu.finetune={layers_per_ipu: [1, 0, 0, 2], replication_factor: 2}",
    "downstream.squad.ipu.predict={layers_per_ipu: [2, 1], inference_matmul_proportion: 0.4}",
    "pretrain.max_grad_norm=null",
    "pretrain.phase1.steps=4",
    "pretrain.phase1.global_batch_size=36",
    "pretrain.phase2.steps=2",
    "pretrain.phase2.global_batch_size=48",
    "downstream.squad.finetune.max_grad_norm=null",
    "downstream.squad.finetune.global_batch_size=16",
)
PLACED = {
    "pretrain@phase1": (
        [(0, "embeddings"), (1, "layer 0"), (2, "layer 1"), (3, "layer 2"), (0, "pooler, heads")],
        [10, 20, 30, 40],
        5,
    ),
    "pretrain@phase2": ([(0, "embeddings, layer 0"), (1, "layers 1 to 2"), (0, "pooler, heads")], [30, 30], 3),
    "finetune@squad": ([(0, "embeddings, layer 0"), (3, "layers 1 to 2, heads")], [20, 20, 20, 20], 2),
    "predict@squad": ([(0, "embeddings, layers 0 to 1"), (1, "layer 2, heads")], [40, 40], 0),
}
"""Stage -> what lies on which IPU, percent of the memory of each IPU for products of matrices, and activations from
which the rest is computed again: of each layer, of each stage of the pipeline, none."""


def result_of(checkout, stage):
    what, entry = stage.split("@")
    folder = f"pretrain-{entry}" if what == "pretrain" else f"{entry}-{what}"
    (file,) = (checkout / "runs" / folder).glob("*/result.json")
    return json.loads(file.read_text())


@pytest.mark.soak
def test_the_page_of_a_run_on_ipus_shows_where_its_jobs_say_that_they_lay(browser, tmp_path):
    path = os.pathsep.join([str(DOUBLE), *filter(None, [os.environ.get("PYTHONPATH")])])
    host = {"PYTHONPATH": path, "PODIUM_EXECUTABLE_CACHE": str(tmp_path / "executables")}
    case = small_run.Case(small_run.make_project(tmp_path / "project"), tmp_path, extra=host)
    done = case.run("-m", "flows", "run", "--name", "on-ipus", *(word for key in LAID for word in ("--set", key)))
    assert done.returncode == 0, done.stdout
    checkout = case.project / "runs" / "checkouts" / "on-ipus"
    file = checkout / "reports" / "run.html"
    _, *figures = re.split(r"<figcaption>(?=\S+: pipeline of one replica on its IPUs)", file.read_text())
    shown = {figure.partition(":")[0]: figure.partition("</figure>")[0] for figure in figures}
    for stage, (places, shares, kept) in PLACED.items():
        placed, drawn = result_of(checkout, stage)["plan"]["device"]["placement"], shown.pop(stage)
        rows = [re.findall(r"<td>.*</td>", row) for row in drawn.split("</tr>")[:-1]]
        lies = {
            column: (ipu, ", ".join(re.findall(r"<div>(.*?)</div>", cell)))
            for ipu, cells in enumerate(rows)
            for column, cell in enumerate(cells)
            if "stage" in cell
        }
        assert [lies[column] for column in sorted(lies)] == places
        assert drawn.count('class="ipu"') == placed["ipus_per_replica"] == len(shares)
        assert drawn.count('class="stage"') == placed["forward_stages"]
        assert [int(share) for share in re.findall(r"(\d+)% for matmuls", drawn)] == shares
        assert drawn.count("●") == kept
    assert shown == {}
    html = file.read_text()
    assert "8 IPUs, 2 replicas of 4, fp16" in html
    assert "Mk2" not in html, "no one told the job which IPUs these are"
    assert "poptorch 3.4.0-double" in html
    assert problems(browser, file) == []
