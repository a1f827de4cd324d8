"""Parts of pages that are drawings of our own: where a job lies on IPUs."""

import json

import pytest

from flows.runs.report import RunReport, StageRecord
from flows.views import placement
from flows.views.run_view import RunView
from ipu_model.core.files import write_json
from ipu_model.ipu.placement import place_by_layers
from tasks.plan.plan_file import read_plan
from tests.places import ROOT

STAGES = [
    (0, ["embeddings", "encoder layer 0", "encoder layer 1"]),
    (1, ["encoder layer 2"]),
    (0, ["MLM and NSP heads"]),
]


def test_a_job_lies_on_its_ipus_with_what_each_keeps_and_its_share_of_memory():
    found = placement.describe_pipeline(STAGES, 3, True, [0.15, 0.25], "pretrain")
    assert [(one["ipu"], one["stored"], one["blocks"]) for one in found["stages"]] == [
        (0, 2, ["embeddings", "layers 0 to 1"]),
        (1, 1, ["layer 2"]),
        (0, 1, ["MLM and NSP heads"]),
    ]
    assert found["shares"] == [0.15, 0.25, None]
    for every_layer, stored in ((None, [0, 0, 0]), (False, [1, 1, 1])):
        found = placement.describe_pipeline(STAGES, 3, every_layer, [], "finetune")
        assert [one["stored"] for one in found["stages"]] == stored


def test_a_job_that_ended_lies_where_its_result_says():
    placed = place_by_layers("pretraining", 6, [0, 1, 2, 3], 4)
    config = {"recompute_checkpoint_every_layer": True, "matmul_proportion": [0.1, 0.2, 0.3, 0.4]}
    result = {"kind": "pretrain", "plan": {"device": {"placement": placed.as_dict(), "config": config}}}
    found = placement.describe_result(json.loads(json.dumps(result)), "pretrain@phase1")
    assert [one["ipu"] for one in found["stages"]] == [ipu for ipu, _ in placed.stages]
    assert [one["stored"] for one in found["stages"]] == [1, 1, 2, 3, 1]
    assert found["stages"][0]["blocks"][0] == "embeddings"
    assert found["shares"] == [0.1, 0.2, 0.3, 0.4]
    assert placement.describe_result({"kind": "pretrain", "plan": {"device": {}}}, "on a CPU") is None


@pytest.mark.parametrize(
    ("stated", "shares"),
    [
        ({"matmul_proportion": [0.1, 0.3], "inference_matmul_proportion": 0.4}, [0.4, 0.4]),
        ({"matmul_proportion": [0.1, 0.3]}, [0.1, 0.3]),
        ({"matmul_proportion": [0.1, 0.2, 0.3, 0.4]}, [None, None]),
    ],
)
def test_a_prediction_that_states_no_share_has_that_of_training_if_this_is_of_as_many_ipus(stated, shares):
    device = {"placement": place_by_layers("question_answering", 6, [3, 3], 2).as_dict(), "config": stated}
    found = placement.describe_result({"kind": "predict", "plan": {"device": device}}, "one")
    assert found["shares"] == shares


def test_a_prediction_shows_its_job_and_not_that_of_another_run_of_the_folder(tmp_path):
    job = {"kind": "predict", "sequences": 12, "train_seconds": 3.456, "plan": {"device": {"ipus": 4}}}
    write_json(tmp_path / "runs/squad-predict/dev/result.json", job)
    report = RunReport(".", stages=[StageRecord("predict@squad", "ran", 9.0)])
    figures, seconds, others = {"features": 12, "runtime": "ipu"}, {"predict_seconds": 3.46}, {"predict_seconds": 3.47}
    for metrics, measured, found in (
        (figures, seconds, job),
        ({"dev": figures}, {"dev": seconds}, job),
        (figures, others, {**figures, **others}),
    ):
        write_json(tmp_path / "metrics/squad-predict.json", metrics)
        write_json(tmp_path / "measurements/squad-predict.json", measured)
        run = RunView(report, tmp_path)
        run.plan = read_plan(ROOT)
        assert run.jobs == {"predict@squad": found}
