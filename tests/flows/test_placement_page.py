"""Parts of pages that are drawings of our own: where a job lies on IPUs."""

import json
import re

from flows.foretold import foresee
from flows.pages import placement, plan_page
from flows.preflight import checks
from ipu_model.ipu.placement import place
from tests.places import ROOT

STAGES = [
    (0, ["embeddings", "encoder layer 0", "encoder layer 1"]),
    (1, ["encoder layer 2"]),
    (0, ["MLM and NSP heads"]),
]


def test_a_job_lies_on_its_ipus_with_what_each_keeps_and_its_share_of_memory():
    found = placement.picture(STAGES, 3, True, [0.15, 0.25, 0.25], "pretrain")
    first, second, third = found["boxes"]
    assert [(one["ipu"], one["kept"]) for one in found["boxes"]] == [(0, 2), (1, 1), (0, 1)]
    assert first["lines"] == ["embeddings", "layers 0 to 1"]
    assert third["lines"] == ["MLM and NSP heads"], "a name of the demo is shown whole"
    assert first["x"] < second["x"] < third["x"]
    assert (first["y"], third["y"]) == (0, 0)
    assert [(one["share"], one["idle"]) for one in found["ipus"]] == [(0.15, False), (0.25, False), (0.25, True)]
    assert not placement.picture(STAGES, 3, None, [], "predict")["recomputed"]
    assert [one["kept"] for one in placement.picture(STAGES, 3, False, [], "finetune")["boxes"]] == [1, 1, 1]


def test_the_plan_on_ipus_draws_each_job_and_no_table_of_it_is_wider_than_a_phone():
    wanted = checks.of_run(ROOT, "ipu-large-pod16-examples", (), name="of-a-test")
    html = plan_page.page(foresee(wanted), wanted, "ipu-large-pod16-examples")
    jobs = re.findall(r"<figcaption>(\S+): the pipeline of a replica on its IPUs", html)
    assert jobs == ["pretrain@phase1", "pretrain@phase2", "finetune@squad", "predict@squad"]
    assert "15% of the memory of IPU 0 for products of matrices" in html
    tables = re.findall(r"(<div class=\"scroll\"[^>]*>\s*)?<table", html)
    assert len(tables) > len(jobs)
    assert all(tables), "each in a box that scrolls"


def test_a_job_that_ended_lies_where_its_result_says():
    placed = place("pretraining", 6, [0, 1, 2, 3], 4)
    config = {"recompute_checkpoint_every_layer": True, "matmul_proportion": [0.1, 0.2, 0.3, 0.4]}
    result = {"kind": "pretrain", "plan": {"device": {"placement": placed.as_dict(), "config": config}}}
    found = placement.of_result(json.loads(json.dumps(result)), "pretrain@phase1")
    assert found is not None
    said = [(one["ipu"], one["lines"], one["kept"]) for one in found["boxes"]]
    names = [[word.replace("encoder layer", "layer") for word in names] for _, names in placed.stages]
    assert [ipu for ipu, _, _ in said] == [ipu for ipu, _ in placed.stages]
    assert [kept for *_, kept in said] == [1, 1, 2, 3, 1]
    assert said[0][1][0] == names[0][0] == "embeddings"
    assert [one["share"] for one in found["ipus"]] == [0.1, 0.2, 0.3, 0.4]
    assert placement.of_result({"kind": "pretrain", "plan": {"device": {}}}, "on a CPU") is None
