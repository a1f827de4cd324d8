"""The fingerprint of a program next to the key that PopART would find it by: both change, or neither."""

import dataclasses
import json
from contextlib import closing

import numpy as np
import pytest
from tiny_ipu import FOUR_LAYERS, ipu_job, ipu_runtime
from tiny_jobs import LABELS, add_teacher, head_of, make_columns

from ipu_model.ipu.config import IpuConfig
from ipu_model.jobs.job import BatchGeometry, ScheduleConfig
from ipu_model.models.config import HEAD_DROPOUTS, Distillation
from ipu_model.models.modeling import build_model
from ipu_model.rows.row_folder import Batch
from tests.optimizers import optimizer_config

ADAMW = optimizer_config(name="adamw", learning_rate=1e-3)
TWO_LAYERS = dataclasses.replace(FOUR_LAYERS, num_layers=2)
ROWS = 16
TRAINING, INFERENCE, EVALUATION = "training", "inference", "evaluation"
JUDGING = {INFERENCE, EVALUATION}
ALL = {TRAINING, *JUDGING}
OF_TRAINING, OF_PREDICT = {TRAINING, EVALUATION}, {INFERENCE}
ANSWERS, SEQUENCES, TOKENS = "question_answering", "sequence_classification", "token_classification"


def keys(rows=ROWS, **config):
    """Of an ipu_config; `rows` of an update keep the accumulation as it is."""
    return {"geometry": BatchGeometry(rows, 1), "ipu_config": config}


def optimizer(**changes):
    return {"optimizer": dataclasses.replace(ADAMW, **changes)}


def model(**changes):
    return {"model": dataclasses.replace(TWO_LAYERS, **changes)}


SET = {
    "inference_replication_factor": (1, OF_PREDICT),
    "layers_per_ipu": ([0, 2], ALL),
    "inference_layers_per_ipu": ([0, 2], JUDGING),
    "optimizer_state_offchip": (True, ALL),
    "replicated_tensor_sharding": (True, ALL),
    "matmul_proportion": (0.4, ALL),
    "inference_matmul_proportion": (0.4, JUDGING),
    "enable_half_partials": (False, ALL),
    "embedding_serialization_factor": (3, ALL),
    "inference_embedding_serialization_factor": (3, OF_PREDICT),
    "serialized_embedding_splits_per_ipu": ([3, 0], ALL),
    "inference_serialized_embedding_splits_per_ipu": ([3, 0], OF_PREDICT),
    "projection_serialization_factor": (3, OF_TRAINING),
    "inference_projection_serialization_factor": (3, {EVALUATION}),
    "serialized_projection_splits_per_ipu": ([3, 0], OF_TRAINING),
    "inference_serialized_projection_splits_per_ipu": ([3, 0], {EVALUATION}),
    "recompute_checkpoint_every_layer": (True, {TRAINING}),
    "device_iterations": (2, {TRAINING}),
    "inference_device_iterations": (6, JUDGING),
    "output_mode": ("all", {TRAINING}),
    "seed": (8, set()),
    "auto_loss_scaling": (True, {TRAINING}),
    "executable_cache_dir": ("elsewhere", set()),
    "explicit_ir_inference": (True, JUDGING),
}
"""Keys of an ipu_config whose one value decides these programs."""
STAGES = [["emb", "hid"], ["hid", "enc_out", "pool", "qa_head"]]
MAPPED = {"device_mapping": [0, 1], "pipeline_stages": STAGES}
LAID_OUT = keys(**{**MAPPED, "pipeline_stages": [["emb"], ["hid", *STAGES[1]]]})
SPREAD, SPREAD_INFERENCE = {"layers_per_ipu": [-1]}, {"inference_layers_per_ipu": [-1]}
SAME = {"layers_per_ipu": [1, -1], "gradient_accumulation_steps": 8, "matmul_proportion": [0.2, 0.2]}
ONE_EACH, TWO_EACH = ({"inference_ipus_per_replica": ipus} for ipus in (1, 2))
FOUR_AT_A_TIME = {"ipu_config": {"inference_device_iterations": 4}}
TAUGHT = {"distillation": Distillation(temperature=2.0, alpha=0.5)}
FP32 = {"precision": "fp32"}
FOUR_LABELS, RENAMED = {"labels": ["a", "b", "c", "d"]}, {"labels": ["a", "b", "c"]}
CASES = {
    **{
        name: ("pretrain" if "projection" in name else ANSWERS, keys(**{name: value}), keys(), decided)
        for name, (value, decided) in SET.items()
    },
    "replication_factor": (ANSWERS, keys(8, replication_factor=1), keys(), OF_TRAINING),
    "gradient_accumulation_steps": (ANSWERS, keys(8), keys(gradient_accumulation_steps=8), {TRAINING}),
    "ipus_per_replica": (ANSWERS, keys(**SPREAD, ipus_per_replica=1), keys(**SPREAD, ipus_per_replica=2), ALL),
    "inference_ipus_per_replica": (
        ANSWERS,
        keys(**SPREAD_INFERENCE, **ONE_EACH),
        keys(**SPREAD_INFERENCE, **TWO_EACH),
        JUDGING,
    ),
    "device_mapping": (ANSWERS, keys(device_mapping=[0, 0], pipeline_stages=STAGES), keys(), ALL),
    "pipeline_stages": (ANSWERS, LAID_OUT, keys(**MAPPED), ALL),
    "the same in other words": (ANSWERS, keys(**SAME), keys(), set()),
    "seed of the job": (ANSWERS, {}, {"seed": 8, "schedule": ScheduleConfig(steps=9)}, set()),
    "compiling alone": (ANSWERS, {}, {"compile_only": True}, set()),
    "rate and scaling": (ANSWERS, {}, optimizer(learning_rate=2e-3, loss_scaling=128.0, momentum=0.8), set()),
    "initializer_range": (ANSWERS, {}, model(initializer_range=0.5), set()),
    "half partials of fp32": (ANSWERS, FP32, {**FP32, "ipu_config": {"enable_half_partials": False}}, set()),
    "weight_decay": (ANSWERS, {}, optimizer(weight_decay=0.02), {TRAINING}),
    "beta2": (ANSWERS, {}, optimizer(beta2=0.98), {TRAINING}),
    "eps": (ANSWERS, {}, optimizer(eps=1e-5), {TRAINING}),
    "lamb": (ANSWERS, {}, optimizer(name="lamb"), {TRAINING}),
    "max_grad_norm": (ANSWERS, {}, optimizer(max_grad_norm=1.0), {TRAINING}),
    "accumulator_precision": (ANSWERS, FP32, {**FP32, **optimizer(accumulator_precision="fp16")}, {TRAINING}),
    "first_moment_precision": (ANSWERS, FP32, {**FP32, **optimizer(first_moment_precision="fp16")}, {TRAINING}),
    "hidden_dropout": (ANSWERS, {}, model(hidden_dropout=0.1), {TRAINING}),
    "attention_dropout": (ANSWERS, {}, model(attention_dropout=0.1), {TRAINING}),
    "rows of an update": (ANSWERS, {}, {"geometry": BatchGeometry(ROWS // 2, 1)}, {TRAINING}),
    "micro_batch_size": (ANSWERS, {}, {"geometry": BatchGeometry(ROWS, 2)}, ALL),
    "precision": (ANSWERS, {}, FP32, ALL),
    "layer_norm_eps": (ANSWERS, {}, model(layer_norm_eps=1e-6), ALL),
    "inference_execution": (ANSWERS, FOUR_AT_A_TIME, {**FOUR_AT_A_TIME, "inference_execution": "sharded"}, {INFERENCE}),
    **{
        name: (head, {}, model(**{name: 0.3}), {TRAINING})
        for name, head in zip(HEAD_DROPOUTS, (SEQUENCES, TOKENS, ANSWERS))
    },
    "labels of sequences": (SEQUENCES, {}, FOUR_LABELS, ALL),
    "labels of tokens": (TOKENS, {}, FOUR_LABELS, ALL),
    "names of labels": (TOKENS, {}, RENAMED, set()),
    "a teacher": (SEQUENCES, {}, TAUGHT, {TRAINING}),
    "temperature": (TOKENS, TAUGHT, {"distillation": Distillation(3.0, 0.5)}, {TRAINING}),
    "alpha": (ANSWERS, TAUGHT, {"distillation": Distillation(2.0, 0.9)}, {TRAINING}),
}
"""Head, two jobs by their changes, and the programs that the difference decides."""
_COMPILED = {}
"""Most pairs have one job in common."""


def programs_of(folder, head, changes):
    """Program -> our name of it, and PopART's; of an fp16 job on 2 replicas of 2 IPUs."""
    changes = dict(changes)
    config = changes.pop("ipu_config", {})
    if "device_mapping" not in config:
        config = {"layers_per_ipu": [1, 1], **config}
    labels = list(LABELS) if head in (SEQUENCES, TOKENS) else None
    values = {"model": TWO_LAYERS, "geometry": BatchGeometry(ROWS, 1), "precision": "fp16", "labels": labels, **changes}
    config = {"replication_factor": 2, "inference_replication_factor": 2, "output_mode": "sum", **config}
    job = dataclasses.replace(ipu_job(folder, head, optimizer=ADAMW), **{**values, "ipu_config": config})
    rows = job.geometry.global_batch_size * config.get("device_iterations", 1)
    columns = make_columns(head, rows, seed=3)
    held_out = Batch(np.arange(rows), columns)
    taught = held_out if job.distillation is None else Batch(np.arange(rows), add_teacher(head, columns))
    predicting = dataclasses.replace(job, kind="predict", distillation=None)
    for each, batches in ((job, (taught, held_out)), (predicting, (held_out,))):
        if each is job or head != "pretrain":
            built = build_model(head_of(head), values["model"], len(job.labels or ()))
            with closing(ipu_runtime(each, config=values["model"], model=built)) as runtime:
                runtime.compile(*batches)
    programs = {}
    for record in (folder / "cache").glob("*/podium.json"):
        mode = json.loads(record.read_text(encoding="utf-8"))["parts"]["mode"]
        programs[mode] = record.parent.name, {path.stem for path in record.parent.glob("*.popef")}
    return programs


def test_every_key_of_an_ipu_config_has_a_case():
    assert {field.name for field in dataclasses.fields(IpuConfig)} <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_fingerprint_of_a_program_changes_where_the_key_of_popart_does(name, tmp_path, monkeypatch, poptorch):
    head, *changes, decided = CASES[name]
    pair = []
    for number, change in enumerate(changes):
        job = f"{head} {change}"
        if job not in _COMPILED:
            monkeypatch.setenv("PODIUM_EXECUTABLE_CACHE", str(tmp_path / str(number) / "cache"))
            _COMPILED[job] = programs_of(tmp_path / str(number), head, change)
        pair.append(_COMPILED[job])
    programs = {TRAINING, EVALUATION} if head == "pretrain" else ALL
    assert set(pair[0]) == set(pair[1]) == programs
    for which, by in (("fingerprint", 0), ("key of PopART", 1)):
        assert {mode for mode in programs if pair[0][mode][by] != pair[1][mode][by]} == decided, which
