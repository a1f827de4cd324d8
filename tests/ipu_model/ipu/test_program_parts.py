"""The fingerprint of a program next to the key that PopART would find it by: both change, or neither."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Set, Tuple

import numpy as np
import pytest
from tiny_ipu import FOUR_LAYERS, ipu_job, ipu_runtime, make_batches
from tiny_jobs import LABELS, add_teacher, make_columns

from ipu_model.ipu.config import IpuConfig
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.models.config import HEAD_DROPOUTS, Distillation
from ipu_model.models.modeling import build_model
from ipu_model.rows.row_folder import Batch
from tests.optimizers import optimizer_config

ADAMW = optimizer_config(name="adamw", learning_rate=1e-3)
TWO_LAYERS = dataclasses.replace(FOUR_LAYERS, num_layers=2)
ROWS = 16
NEITHER = {
    "seed": 8,
    "schedule": ScheduleConfig(steps=9),
    "optimizer": dataclasses.replace(
        ADAMW, learning_rate=2e-3, loss_scaling=128.0, momentum=0.8, accumulator_precision="fp32"
    ),
    "model": dataclasses.replace(TWO_LAYERS, initializer_range=0.5),
    "ipu_config": {
        "seed": 8,
        "layers_per_ipu": [1, -1],
        "gradient_accumulation_steps": 8,
        "enable_half_partials": False,
        "matmul_proportion": [0.2, 0.2],
    },
}
"""What decides no program of either mode, all at once. The job is in fp32, which has no half partials."""
TRAINING_ALONE = {
    "optimizer": dataclasses.replace(ADAMW, name="lamb", weight_decay=0.02, beta2=0.98, first_moment_precision="fp16"),
    "model": dataclasses.replace(TWO_LAYERS, hidden_dropout=0.1, attention_dropout=0.1),
    "ipu_config": {"device_iterations": 2, "output_mode": "all", "recompute_checkpoint_every_layer": True},
}
INFERENCE_ALONE = {
    "ipu_config": {
        "inference_device_iterations": 4,
        "inference_matmul_proportion": 0.3,
        "inference_layers_per_ipu": [2],
        "inference_embedding_serialization_factor": 3,
        "explicit_ir_inference": True,
    },
    "inference_execution": "sharded",
}
OF_TRAINING = [
    {"optimizer": dataclasses.replace(ADAMW, weight_decay=0.02)},
    {"optimizer": dataclasses.replace(ADAMW, beta2=0.98)},
    {"optimizer": dataclasses.replace(ADAMW, eps=1e-5)},
    {"optimizer": dataclasses.replace(ADAMW, name="lamb")},
    {"optimizer": dataclasses.replace(ADAMW, max_grad_norm=1.0)},
    {"optimizer": dataclasses.replace(ADAMW, accumulator_precision="fp16")},
    {"optimizer": dataclasses.replace(ADAMW, first_moment_precision="fp16")},
    {"model": dataclasses.replace(TWO_LAYERS, hidden_dropout=0.1)},
    {"model": dataclasses.replace(TWO_LAYERS, attention_dropout=0.1)},
    {"geometry": BatchGeometry(ROWS // 2, 1)},
]
OF_INFERENCE = [
    {"ipu_config": {"inference_device_iterations": 4}},
    {"ipu_config": {"inference_device_iterations": 4}, "inference_execution": "sharded"},
]
OF_BOTH = [
    {"precision": "fp16"},
    {"geometry": BatchGeometry(ROWS, 2)},
    {"model": dataclasses.replace(TWO_LAYERS, layer_norm_eps=1e-6)},
]
"""Keys of the ipu_config are below, each by itself."""
Names = Tuple[str, Set[str]]


@pytest.fixture
def name_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any) -> Callable[..., Names]:
    """name_of(mode, **changes of the job): our name of its program, and PopART's."""

    def name_of(mode: str, ipu_config: Optional[Dict[str, Any]] = None, **changes: Any) -> Names:
        cache = tmp_path / f"cache-{len(list(tmp_path.iterdir()))}"
        monkeypatch.setenv("PODIUM_EXECUTABLE_CACHE", str(cache))
        kind = "predict" if mode == "inference" else "finetune"
        config = {"layers_per_ipu": [1, 1], "inference_device_iterations": 1, **(ipu_config or {})}
        job = ipu_job("question_answering", ADAMW, tmp_path, 2, 1, kind=kind, ipu_config=config)
        job = dataclasses.replace(job, **{"geometry": BatchGeometry(ROWS, 1), "model": TWO_LAYERS, **changes})
        build(job)
        (folder,) = cache.iterdir()
        return folder.name, {path.stem for path in folder.glob("*.popef")}

    return name_of


def build(job: Job, held_out: bool = False) -> None:
    assert job.model is not None
    assert job.ipu_config is not None
    rows = job.geometry.global_batch_size * int(job.ipu_config["device_iterations"])
    runtime = ipu_runtime(job, config=job.model)
    batch = make_batches(job.head, 1, rows)[0]
    runtime.compile(batch, batch if held_out else None)
    runtime.close()


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_the_fingerprint_changes_where_the_key_of_popart_does(mode: str, name_of: Callable[..., Names]) -> None:
    before = name_of(mode)
    for change in (NEITHER, INFERENCE_ALONE if mode == "training" else TRAINING_ALONE):
        assert name_of(mode, **change) == before
    names, keys = [before[0]], [before[1]]
    for change in [*(OF_TRAINING if mode == "training" else OF_INFERENCE), *OF_BOTH]:
        name, key = name_of(mode, **change)
        assert name not in names, change
        assert key not in keys, change
        names.append(name)
        keys.append(key)


def test_a_program_built_without_ipus_is_the_one_that_a_run_on_ipus_looks_for(name_of: Callable[..., Names]) -> None:
    assert name_of("training", compile_only=True) == name_of("training", seed=9)
    assert name_of("inference", compile_only=True) == name_of("inference")


TRAINING, INFERENCE, EVALUATION = "training", "inference", "evaluation"
JUDGING = {INFERENCE, EVALUATION}
ALL = {TRAINING, *JUDGING}
STAGES = [["emb", "hid"], ["hid", "enc_out", "pool", "qa_head"]]
IN_PIECES = {"serialized_embedding_splits_per_ipu": [3, 0]}
FIELDS: Dict[str, Tuple[Dict[str, Any], Dict[str, Any], Set[str]]] = {
    "replication_factor": ({"rows": 8, "replication_factor": 1}, {}, {TRAINING, EVALUATION}),
    "inference_replication_factor": ({"inference_replication_factor": 1}, {}, {INFERENCE}),
    "gradient_accumulation_steps": ({"rows": 8}, {"gradient_accumulation_steps": 8}, {TRAINING}),
    "layers_per_ipu": ({"layers_per_ipu": [0, 2]}, {}, ALL),
    "inference_layers_per_ipu": ({"inference_layers_per_ipu": [0, 2]}, {}, JUDGING),
    "ipus_per_replica": (
        {"layers_per_ipu": [-1], "ipus_per_replica": 1},
        {"layers_per_ipu": [-1], "ipus_per_replica": 2},
        ALL,
    ),
    "inference_ipus_per_replica": (
        {"inference_layers_per_ipu": [-1], "inference_ipus_per_replica": 1},
        {"inference_layers_per_ipu": [-1], "inference_ipus_per_replica": 2},
        JUDGING,
    ),
    "optimizer_state_offchip": ({"optimizer_state_offchip": True}, {}, ALL),
    "replicated_tensor_sharding": ({"replicated_tensor_sharding": True}, {}, ALL),
    "matmul_proportion": ({"matmul_proportion": 0.4}, {}, ALL),
    "inference_matmul_proportion": ({"inference_matmul_proportion": 0.4}, {}, JUDGING),
    "enable_half_partials": ({"enable_half_partials": False}, {}, ALL),
    "embedding_serialization_factor": ({"embedding_serialization_factor": 3}, {}, ALL),
    "inference_embedding_serialization_factor": ({"inference_embedding_serialization_factor": 3}, {}, {INFERENCE}),
    "serialized_embedding_splits_per_ipu": (IN_PIECES, {}, ALL),
    "inference_serialized_embedding_splits_per_ipu": (
        {f"inference_{name}": value for name, value in IN_PIECES.items()},
        {},
        {INFERENCE},
    ),
    "projection_serialization_factor": ({"projection_serialization_factor": 3}, {}, {TRAINING, EVALUATION}),
    "inference_projection_serialization_factor": ({"inference_projection_serialization_factor": 3}, {}, {EVALUATION}),
    "serialized_projection_splits_per_ipu": (
        {"serialized_projection_splits_per_ipu": [3, 0]},
        {},
        {TRAINING, EVALUATION},
    ),
    "inference_serialized_projection_splits_per_ipu": (
        {"inference_serialized_projection_splits_per_ipu": [3, 0]},
        {},
        {EVALUATION},
    ),
    "recompute_checkpoint_every_layer": ({"recompute_checkpoint_every_layer": True}, {}, {TRAINING}),
    "device_iterations": ({"device_iterations": 2}, {}, {TRAINING}),
    "inference_device_iterations": ({"inference_device_iterations": 6}, {}, JUDGING),
    "output_mode": ({"output_mode": "all"}, {}, {TRAINING}),
    "seed": ({"seed": 8}, {}, set()),
    "auto_loss_scaling": ({"auto_loss_scaling": True}, {}, {TRAINING}),
    "executable_cache_dir": ({"executable_cache_dir": "elsewhere"}, {}, set()),
    "explicit_ir_inference": ({"explicit_ir_inference": True}, {}, JUDGING),
    "device_mapping": ({"device_mapping": [0, 0], "pipeline_stages": STAGES}, {}, ALL),
    "pipeline_stages": (
        {"device_mapping": [0, 1], "pipeline_stages": [["emb"], [*STAGES[0][1:], *STAGES[1]]]},
        {"device_mapping": [0, 1], "pipeline_stages": STAGES},
        ALL,
    ),
}
"""Every key of an ipu_config -> two configs that differ in it, and the programs that it decides. `rows` of an update
keep the accumulation as it is. The projection is that of pre-training, which predicts nothing."""


def names_of(folder: Path, config: Dict[str, Any], head: str) -> Dict[str, Names]:
    """Program -> our name of it, and PopART's; of an fp16 job on 2 replicas of 2 IPUs."""
    config = dict(config)
    rows = config.pop("rows", ROWS)
    base = {"layers_per_ipu": [1, 1], "inference_device_iterations": 1}
    job = ipu_job(head, ADAMW, folder, 2, 1, ipu_config={**base, **config})
    if "layers_per_ipu" not in config and "device_mapping" in config:
        del job.ipu_config["layers_per_ipu"]  # type: ignore[union-attr]
    changes = {"model": TWO_LAYERS, "precision": "fp16", "geometry": BatchGeometry(rows, 1)}
    for kind in [job.kind] if head == "pretraining" else [job.kind, "predict"]:
        build(dataclasses.replace(job, kind=kind, **changes), held_out=kind != "predict")
    return read_names(folder)


def read_names(folder: Path) -> Dict[str, Names]:
    """Program -> our name of it, and PopART's."""
    found = {}
    for record in (folder / "cache").glob("*/podium.json"):
        mode = json.loads(record.read_text(encoding="utf-8"))["parts"]["mode"]
        found[mode] = record.parent.name, {path.stem for path in record.parent.glob("*.popef")}
    return found


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(IpuConfig)])
def test_every_key_of_an_ipu_config_is_in_the_fingerprint_of_the_programs_that_it_decides(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any
) -> None:
    head = "pretraining" if "projection" in name else "question_answering"
    *configs, decided = FIELDS[name]
    found = []
    for number, config in enumerate(configs):
        folder = tmp_path / str(number)
        monkeypatch.setenv("PODIUM_EXECUTABLE_CACHE", str(folder / "cache"))
        found.append(names_of(folder, config, head))
    programs = {TRAINING, EVALUATION} if head == "pretraining" else ALL
    assert set(found[0]) == set(found[1]) == programs
    for which, by in (("fingerprint", 0), ("key of PopART", 1)):
        assert {mode for mode in programs if found[0][mode][by] != found[1][mode][by]} == decided, which


TAUGHT = {"distillation": Distillation(temperature=2.0, alpha=0.5)}
HEADS: Dict[str, Tuple[str, Dict[str, Any], Dict[str, Any], Set[str]]] = {
    **{
        name: (head, {}, {"model": dataclasses.replace(TWO_LAYERS, **{name: 0.3})}, {TRAINING})
        for name, head in zip(HEAD_DROPOUTS, ("sequence_classification", "token_classification", "question_answering"))
    },
    "labels of sequences": ("sequence_classification", {}, {"labels": ["a", "b", "c", "d"]}, ALL),
    "labels of tokens": ("token_classification", {}, {"labels": ["a", "b", "c", "d"]}, ALL),
    "names of labels": ("token_classification", {}, {"labels": ["a", "b", "c"]}, set()),
    "a teacher": ("sequence_classification", {}, TAUGHT, {TRAINING}),
    "temperature": ("token_classification", TAUGHT, {"distillation": Distillation(3.0, 0.5)}, {TRAINING}),
    "alpha": ("question_answering", TAUGHT, {"distillation": Distillation(2.0, 0.9)}, {TRAINING}),
}
"""Head, two jobs by their changes, and the programs that the difference decides."""


def programs_of_head(folder: Path, head: str, changes: Dict[str, Any]) -> Dict[str, Names]:
    """As names_of, of a job with this head."""
    labelled = {} if head == "question_answering" else {"labels": list(LABELS)}
    values = {"geometry": BatchGeometry(ROWS, 1), "model": TWO_LAYERS, **labelled, **changes}
    config = {"layers_per_ipu": [1, 1], "inference_device_iterations": 1}
    columns = make_columns(head, ROWS, seed=3)
    held_out = Batch(np.arange(ROWS), columns)
    taught = Batch(np.arange(ROWS), add_teacher(head, columns)) if "distillation" in changes else held_out
    for kind in ("finetune", "predict"):
        own = {name: x for name, x in values.items() if kind == "finetune" or name != "distillation"}
        job = ipu_job(head, ADAMW, folder, 2, 1, kind=kind, ipu_config=dict(config), **own)
        model = build_model(head, values["model"], len(job.labels or ()))
        runtime = ipu_runtime(job, config=values["model"], model=model)
        runtime.compile(*((taught, held_out) if kind == "finetune" else (held_out,)))
        runtime.close()
    return read_names(folder)


@pytest.mark.parametrize("name", HEADS)
def test_what_decides_a_head_is_in_the_fingerprint_of_the_programs_that_it_decides(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any
) -> None:
    head, *changes, decided = HEADS[name]
    found = []
    for number, change in enumerate(changes):
        folder = tmp_path / str(number)
        monkeypatch.setenv("PODIUM_EXECUTABLE_CACHE", str(folder / "cache"))
        found.append(programs_of_head(folder, head, change))
    assert set(found[0]) == set(found[1]) == ALL
    for which, by in (("fingerprint", 0), ("key of PopART", 1)):
        assert {mode for mode in ALL if found[0][mode][by] != found[1][mode][by]} == decided, which
