from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest
from published_configs import BERT_BASE_IPU, BERT_BASE_UNCASED, BERT_LARGE_IPU, BERT_LARGE_UNCASED

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import read_json, write_json
from ipu_model.ipu.config import IpuConfig, ModeConfig, read_ipu_config
from ipu_model.ipu.executables import cache_root


def refused(values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_ipu_config(values)
    return str(caught.value)


def saved_and_loaded(config: IpuConfig, folder: Path) -> IpuConfig:
    said: List[str] = []
    write_json(folder / "ipu_config.json", config.to_dict())
    loaded = read_ipu_config(read_json(folder / "ipu_config.json"), say=said.append)
    assert said == []  # what we write needs no translation
    return loaded


def same_meaning(one: IpuConfig, other: IpuConfig) -> bool:
    twins = (one.training, one.inference) == (other.training, other.inference)
    left = {"inference_embedding_serialization_factor"}  # compared above, resolved
    return twins and {k: v for k, v in one.to_dict().items() if k not in left} == {
        k: v for k, v in other.to_dict().items() if k not in left
    }


# --- the published files ---------------------------------------------------------------------------------------------


BASE, LARGE = [0, 4, 4, 4], [3, 7, 7, 7]
PUBLISHED = {
    "base on a POD16": ({**BERT_BASE_IPU, "pod_type": "pod16"}, (4, BASE, [0.25] * 4, 1), 5, 16, (False, True)),
    "large on a POD4": (
        {**BERT_LARGE_IPU, "pod_type": "pod4"},
        (1, LARGE, [0.15, 0.18, 0.2, 0.25], 2),
        4,
        16,
        (True, True),
    ),
    "base of the model": (BERT_BASE_UNCASED, (4, BASE, [0.22] * 4, 2), 4, 512, (False, True)),
    "large of the model": (BERT_LARGE_UNCASED, (16, LARGE, [0.1, 0.15, 0.15, 0.15], 2), 4, 512, (True, True)),
}
"""Replicas, layers, proportions and factor of both modes; iterations of inference; accumulation; and where the state
of the optimizer is: off chip, sharded."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_means_what_its_card_says_and_keeps_meaning_it(name: str, tmp_path: Path) -> None:
    published, (replicas, layers, share, factor), iterations, accumulation, state = PUBLISHED[name]
    config = read_ipu_config(published)
    assert config.training == ModeConfig(replicas, 1, layers, 4, share, factor, 1)
    assert config.inference == ModeConfig(replicas, iterations, layers, 4, share, factor, 1)
    assert config.gradient_accumulation_steps == accumulation
    assert (config.optimizer_state_offchip, config.replicated_tensor_sharding) == state
    assert (config.recompute_checkpoint_every_layer, config.enable_half_partials) == (True, True)
    assert (config.seed, config.executable_cache_dir) == (published["seed"], published["executable_cache_dir"])
    assert config.output_mode == "final"
    once = saved_and_loaded(config, tmp_path)
    assert same_meaning(config, once)
    assert saved_and_loaded(once, tmp_path) == once


def test_a_saved_file_holds_sorted_keys_that_optimum_knows_and_no_null(tmp_path: Path) -> None:
    write_json(tmp_path / "ipu_config.json", IpuConfig(layers_per_ipu=[2, 2], matmul_proportion=1).to_dict())

    text = (tmp_path / "ipu_config.json").read_text(encoding="utf-8")
    assert json.loads(text) == {
        "auto_loss_scaling": False,
        "device_iterations": 1,
        "enable_half_partials": True,
        "executable_cache_dir": "",
        "explicit_ir_inference": False,
        "inference_device_iterations": 1,
        "inference_replication_factor": 1,
        "layers_per_ipu": [2, 2],
        "matmul_proportion": 1.0,
        "optimizer_state_offchip": False,
        "output_mode": "sum",
        "recompute_checkpoint_every_layer": False,
        "replicated_tensor_sharding": False,
        "replication_factor": 1,
    }
    assert text.index('"auto_loss_scaling"') < text.index('"layers_per_ipu"') < text.index('"replication_factor"')
    assert [file.name for file in tmp_path.iterdir()] == ["ipu_config.json"]  # no temporary file is left


def test_the_serialization_factor_of_inference_is_written_where_optimum_would_take_another() -> None:
    assert "inference_embedding_serialization_factor" not in IpuConfig(embedding_serialization_factor=1).to_dict()
    assert IpuConfig(embedding_serialization_factor=2).to_dict()["inference_embedding_serialization_factor"] == 2
    config = read_ipu_config({"projection_serialization_factor": 3, "inference_projection_serialization_factor": 1})
    assert read_ipu_config(config.to_dict()).inference.projection_serialization_factor == 1


# --- defaults and twins ----------------------------------------------------------------------------------------------


def test_an_empty_config_is_one_ipu_with_optimums_defaults() -> None:
    config = read_ipu_config({})

    assert config == IpuConfig()
    assert config.training == config.inference == ModeConfig(1, 1, [-1], 1, [0.2], 1, 1)
    assert config.gradient_accumulation_steps is None
    assert config.enable_half_partials
    switches = ("optimizer_state_offchip", "replicated_tensor_sharding", "recompute_checkpoint_every_layer")
    assert not any(getattr(config, name) for name in (*switches, "auto_loss_scaling", "explicit_ir_inference"))


READINGS = {
    "ipus_per_replica is the length of layers_per_ipu": (
        {"layers_per_ipu": [2, 3, 3, 3, 3, 3, 3, 4]},
        ModeConfig(1, 1, [2, 3, 3, 3, 3, 3, 3, 4], 8, [0.2] * 8, 1, 1),
        ModeConfig(1, 1, [2, 3, 3, 3, 3, 3, 3, 4], 8, [0.2] * 8, 1, 1),
    ),
    "layers are spread over ipus_per_replica": (
        {"ipus_per_replica": 4, "matmul_proportion": 1},  # a whole number is fine where a fraction is wanted
        ModeConfig(1, 1, [-1] * 4, 4, [1.0] * 4, 1, 1),
        ModeConfig(1, 1, [-1] * 4, 4, [1.0] * 4, 1, 1),
    ),
    # Four entries say nothing about two IPUs, so the default is taken, as Optimum does.
    "inference has its own pipeline": (
        {"layers_per_ipu": [0, 4, 4, 4], "inference_layers_per_ipu": [6, 6], "matmul_proportion": [0.1, 0.2, 0.3, 0.4]},
        ModeConfig(1, 1, [0, 4, 4, 4], 4, [0.1, 0.2, 0.3, 0.4], 1, 1),
        ModeConfig(1, 1, [6, 6], 2, [0.2, 0.2], 1, 1),
    ),
    "inference on one IPU": (
        {"layers_per_ipu": [0, 4, 4, 4], "inference_layers_per_ipu": [-1]},
        ModeConfig(1, 1, [0, 4, 4, 4], 4, [0.2] * 4, 1, 1),
        ModeConfig(1, 1, [-1], 1, [0.2], 1, 1),
    ),
    "inference states its own values": (
        {
            "layers_per_ipu": [2, 2],
            "replication_factor": 4,
            "inference_replication_factor": 2,
            "device_iterations": 3,
            "inference_device_iterations": 7,
            "matmul_proportion": 0.4,
            "inference_matmul_proportion": [0.1, 0.3],
            "embedding_serialization_factor": 2,
            "inference_embedding_serialization_factor": 6,
            "projection_serialization_factor": 3,
        },
        ModeConfig(4, 3, [2, 2], 2, [0.4, 0.4], 2, 3),
        ModeConfig(2, 7, [2, 2], 2, [0.1, 0.3], 6, 3),
    ),
    "splits on IPU 0 add up to the serialization factor": (
        {
            "layers_per_ipu": [0, 4, 4, 4],
            "serialized_embedding_splits_per_ipu": [3, 0, 0, 0],
            "inference_serialized_projection_splits_per_ipu": [2, 0, 0, 0],
        },
        ModeConfig(1, 1, [0, 4, 4, 4], 4, [0.2] * 4, 3, 1),
        ModeConfig(1, 1, [0, 4, 4, 4], 4, [0.2] * 4, 3, 2),
    ),
}


@pytest.mark.parametrize("name", READINGS)
def test_both_modes_are_what_the_keys_mean(name: str) -> None:
    values, training, inference = READINGS[name]
    config = read_ipu_config(values)
    assert (config.training, config.inference) == (training, inference)


def test_seed_zero_is_a_seed_and_no_seed_is_none() -> None:
    assert read_ipu_config({"seed": 0}).seed == 0
    assert read_ipu_config({"seed": 0}).to_dict()["seed"] == 0
    assert read_ipu_config({"seed": None}).seed is None


@pytest.mark.parametrize(("stated", "folder"), [("", None), ("disabled", None), ("./exe_cache", "./exe_cache")])
def test_the_cache_is_off_when_its_folder_is_empty_or_disabled(stated: str, folder: Any) -> None:
    config = read_ipu_config({"executable_cache_dir": stated})
    assert cache_root({}, config.executable_cache_dir, lambda line: None) == (None if folder is None else Path(folder))


def test_a_config_does_not_change_with_the_values_it_was_read_from_or_written_to() -> None:
    values = {"layers_per_ipu": [2, 2]}
    config = read_ipu_config(values)
    values["layers_per_ipu"].append(9)
    config.to_dict()["layers_per_ipu"].append(9)
    config.training.layers_per_ipu.append(9)
    assert config.layers_per_ipu == [2, 2]


def test_blocks_may_be_placed_stage_by_stage(tmp_path: Path) -> None:
    stages = [["emb", "hid"], ["hid", "hid"], ["enc_out", "pool", "heads"]]
    config = read_ipu_config({"device_mapping": [0, 1, 0], "pipeline_stages": stages, "matmul_proportion": [0.2, 0.3]})

    assert config.training == config.inference == ModeConfig(1, 1, [-1, -1], 2, [0.2, 0.3], 1, 1)
    assert saved_and_loaded(config, tmp_path) == config


# --- refusals --------------------------------------------------------------------------------------------------------

WRONG_VALUES = [
    ("replication_factor", True),
    ("replication_factor", 0),
    ("replication_factor", None),
    ("replication_factor", 2.0),
    ("inference_replication_factor", "4"),
    ("gradient_accumulation_steps", 0),
    ("layers_per_ipu", []),
    ("layers_per_ipu", [1, -2]),
    ("layers_per_ipu", [1, True]),
    ("layers_per_ipu", "[1 2]"),
    ("inference_layers_per_ipu", [1.0]),
    ("ipus_per_replica", 0),
    ("inference_ipus_per_replica", False),
    ("optimizer_state_offchip", 1),
    ("replicated_tensor_sharding", "true"),
    ("matmul_proportion", 0),
    ("matmul_proportion", 1.5),
    ("matmul_proportion", float("nan")),
    ("matmul_proportion", True),
    ("matmul_proportion", []),
    ("inference_matmul_proportion", [0.2, None]),
    ("enable_half_partials", None),
    ("embedding_serialization_factor", -1),
    ("inference_projection_serialization_factor", 1.5),
    ("serialized_embedding_splits_per_ipu", [0]),
    ("serialized_projection_splits_per_ipu", [-1]),
    ("recompute_checkpoint_every_layer", 0),
    ("device_iterations", "1"),
    ("inference_device_iterations", 0),
    ("output_mode", "last"),
    ("output_mode", ["all"]),
    ("seed", -1),
    ("seed", True),
    ("seed", 2**64),
    ("auto_loss_scaling", None),
    ("executable_cache_dir", 3),
    ("explicit_ir_inference", "no"),
    ("device_mapping", [0, -1]),
    ("pipeline_stages", [["emb"], ["decoder"]]),
]


@pytest.mark.parametrize(("name", "value"), WRONG_VALUES)
def test_a_value_of_the_wrong_type_or_range_is_refused_by_name(name: str, value: Any) -> None:
    message = refused({name: value})
    assert message.startswith(f"ipu_config: {name}=")
    assert " must be " in message


def test_every_key_has_a_wrong_value_above() -> None:
    base = {name[len("inference_") :] if name.startswith("inference_") else name for name, _ in WRONG_VALUES}
    keys = {spec.name for spec in dataclasses.fields(IpuConfig)}
    assert {name for name in keys if not name.startswith("inference_")} == base


def test_all_problems_are_named_at_once() -> None:
    message = refused(
        {
            "layers_per_ipu": [3, 7],
            "ipus_per_replica": 4,
            "replication_factor": True,
            "layer_per_ipu": 1,
            "parallelize_kwargs": {"for_generation": True},
            "output_mode": "last",
        }
    )
    lines = message.splitlines()
    assert lines[0] == "ipu_config has 5 problems:"
    starts = ("parallelize_kwargs", "layer_per_ipu is not known", "replication_factor=true", 'output_mode="last"')
    assert [any(line.startswith(f"- {start}") for line in lines) for start in starts] == [True] * 4
    assert sum(line.startswith("- layers_per_ipu=[3, 7]") for line in lines) == 1


REFUSED = [
    ({"matmul_proportions": 0.2}, ["matmul_proportions is not known", "did you mean matmul_proportion?"]),
    ({"zzz": 1}, ["valid keys: auto_loss_scaling, "]),
    ([1], ["must be a JSON object, found list"]),
    (
        {"layers_per_ipu": [6, 6], "ipus_per_replica": 4, "matmul_proportion": [0.1, 0.2, 0.2, 0.2]},
        ["layers_per_ipu=[6, 6]", "ipus_per_replica=4", "ipus_per_replica to 2", "2 entries in matmul_proportion"],
    ),
    (
        {"layers_per_ipu": [6, 6], "inference_layers_per_ipu": [12], "inference_ipus_per_replica": 2},
        ["inference_layers_per_ipu=[12]", "set inference_ipus_per_replica to 1"],
    ),
    (
        {"layers_per_ipu": [0, 4, 4, 4], "matmul_proportion": [0.2, 0.3]},
        ["matmul_proportion=[0.2, 0.3] has 2 entries", "4 IPUs"],
    ),
    (
        {"layers_per_ipu": [0, 4, 4, 4], "serialized_embedding_splits_per_ipu": [2, 1, 0, 0]},
        ["use embedding_serialization_factor=3"],
    ),
    (
        {
            "layers_per_ipu": [2, 2],
            "projection_serialization_factor": 2,
            "serialized_projection_splits_per_ipu": [2, 0],
        },
        ["keep projection_serialization_factor"],
    ),
    ({"layers_per_ipu": [2, 2], "serialized_embedding_splits_per_ipu": [2]}, ["has 1 entries", "2 IPUs"]),
    ({"device_mapping": [0]}, ["device_mapping is set without pipeline_stages"]),
    ({"pipeline_stages": [["emb"]]}, ["pipeline_stages is set without device_mapping"]),
    ({"device_mapping": [0, 1], "pipeline_stages": [["emb"]]}, ["2 stages but pipeline_stages has 1"]),
    ({"device_mapping": [0, 2], "pipeline_stages": [["emb"], ["hid"]]}, ["leaves IPU 1 without a stage"]),
    (
        {"device_mapping": [0, 1], "pipeline_stages": [["emb"], ["hid"]], "layers_per_ipu": [0, 1]},
        ["both place the layers"],
    ),
    (
        {"device_mapping": [0, 1], "pipeline_stages": [["emb"], ["hid"]], "ipus_per_replica": 4},
        ["uses 2 IPUs: leave ipus_per_replica out"],
    ),
]


@pytest.mark.parametrize(("values", "words"), REFUSED)
def test_a_config_that_contradicts_itself_is_refused_with_what_to_change(values: Any, words: List[str]) -> None:
    message = refused(values)
    assert message.startswith("ipu_config")
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("change", "ipus", "layers"),
    [
        ({"layers_per_ipu": [6, 6], "ipus_per_replica": 2}, 2, [6, 6]),
        ({"layers_per_ipu": [6, 6], "ipus_per_replica": None}, 2, [6, 6]),
        ({"layers_per_ipu": [-1]}, 4, [-1, -1, -1, -1]),
    ],
)
def test_following_the_advice_about_a_stale_ipus_per_replica_works(
    change: Dict[str, Any], ipus: int, layers: List[int]
) -> None:
    stored = {"layers_per_ipu": [0, 4, 4, 4], "ipus_per_replica": 4, "matmul_proportion": 0.25}
    found = read_ipu_config({**stored, **change}).training
    assert (found.ipus_per_replica, found.layers_per_ipu) == (ipus, layers)


def test_a_config_built_in_code_is_checked_like_one_read() -> None:
    with pytest.raises(ConfigError, match="ipus_per_replica=4"):
        IpuConfig(layers_per_ipu=[1, 1], ipus_per_replica=4)
    with pytest.raises(ConfigError, match="device_iterations=0"):
        IpuConfig(device_iterations=0)
