from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import read_json, write_json
from ipu_model.ipu.config import IpuConfig, ModeConfig, read_ipu_config
from ipu_model.ipu.migration import FLIPPED_DEFAULTS


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


BASE, LARGE = [0, 4, 4, 4], [3, 7, 7, 7]
PER_POD = {"default": 1, "pod4": 1, "pod8": 2, "pod16": 4, "pod32": 8, "pod64": 16}

BERT_BASE_IPU = {
    "decompose_grad_sum": False,
    "device_iterations": 1,
    "embedding_serialization_factor": 1,
    "enable_half_first_order_momentum": True,
    "enable_half_partials": True,
    "executable_cache_dir": "",
    "execute_encoder_on_cpu_for_generation": False,
    "gradient_accumulation_steps": 16,
    "inference_device_iterations": 5,
    "inference_replication_factor": PER_POD,
    "ipus_per_replica": 4,
    "layers_per_ipu": [0, 4, 4, 4],
    "matmul_proportion": 0.25,
    "optimizer_state_offchip": False,
    "optimum_version": "1.3.0",
    "output_mode": "final",
    "profile_dir": "",
    "recompute_checkpoint_every_layer": True,
    "replicated_tensor_sharding": True,
    "replication_factor": PER_POD,
    "seed": None,
    "sharded_execution_for_inference": False,
    "transformers_version": "4.20.1",
    "use_popdist": False,
}
BERT_LARGE_IPU = {
    **BERT_BASE_IPU,
    "embedding_serialization_factor": 2,
    "inference_device_iterations": 4,
    "layers_per_ipu": [3, 7, 7, 7],
    "matmul_proportion": [0.15, 0.18, 0.2, 0.25],
    "optimizer_state_offchip": True,
}
BERT_BASE_UNCASED = {
    "device_iterations": 1,
    "embedding_serialization_factor": 2,
    "enable_half_first_order_momentum": True,
    "enable_half_partials": True,
    "executable_cache_dir": "./exe_cache",
    "gradient_accumulation_steps": 512,
    "inference_device_iterations": 4,
    "inference_replication_factor": 4,
    "ipus_per_replica": 4,
    "layers_per_ipu": [0, 4, 4, 4],
    "matmul_proportion": 0.22,
    "optimizer_state_offchip": False,
    "optimum_version": "0.1.2",
    "output_mode": "final",
    "recompute_checkpoint_every_layer": True,
    "replicated_tensor_sharding": True,
    "replication_factor": 4,
    "seed": 42,
}
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
}
"""Files that Graphcore published with its notebooks and, by an older release, with a model. Replicas, layers,
proportions and factor of both modes; iterations of inference; accumulation; is the optimizer's state off chip, sharded.
"""


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
    assert (once.training, once.inference) == (config.training, config.inference)
    assert saved_and_loaded(once, tmp_path) == once


def test_a_saved_file_holds_sorted_keys_that_optimum_knows_and_no_null(tmp_path: Path) -> None:
    write_json(tmp_path / "ipu_config.json", IpuConfig(layers_per_ipu=[2, 2], matmul_proportion=1, seed=0).to_dict())
    values = json.loads((tmp_path / "ipu_config.json").read_text(encoding="utf-8"))
    assert list(values) == sorted(values)
    assert None not in values.values()
    assert (values["layers_per_ipu"], values["matmul_proportion"], values["seed"]) == ([2, 2], 1.0, 0)


def test_the_serialization_factor_of_inference_is_written_where_optimum_would_take_another() -> None:
    assert "inference_embedding_serialization_factor" not in IpuConfig(embedding_serialization_factor=1).to_dict()
    assert IpuConfig(embedding_serialization_factor=2).to_dict()["inference_embedding_serialization_factor"] == 2
    config = read_ipu_config({"projection_serialization_factor": 3, "inference_projection_serialization_factor": 1})
    assert read_ipu_config(config.to_dict()).inference.projection_serialization_factor == 1


EIGHT, STATED = [2, 3, 3, 3, 3, 3, 3, 4], [0.1, 0.2, 0.3, 0.4]
OWN = {
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
}
SPLITS = {
    "layers_per_ipu": BASE,
    "serialized_embedding_splits_per_ipu": [3, 0, 0, 0],
    "inference_serialized_projection_splits_per_ipu": [2, 0, 0, 0],
}
PLACED = {
    "device_mapping": [0, 1, 0],
    "pipeline_stages": [["emb", "hid"], ["hid", "hid"], ["enc_out", "pool", "heads"]],
    "matmul_proportion": [0.2, 0.3],
}
APART = {"layers_per_ipu": BASE, "inference_layers_per_ipu": [6, 6], "matmul_proportion": STATED}


@pytest.mark.parametrize(
    ("values", "training", "inference"),
    [
        ({"layers_per_ipu": EIGHT}, (1, 1, EIGHT, 8, [0.2] * 8, 1, 1), None),
        ({}, (1, 1, [-1], 1, [0.2], 1, 1), None),
        # layers are spread over ipus_per_replica; a whole number is fine where a fraction is wanted
        ({"ipus_per_replica": 4, "matmul_proportion": 1}, (1, 1, [-1] * 4, 4, [1.0] * 4, 1, 1), None),
        # Four entries say nothing about two IPUs, so the default is taken, as Optimum does.
        (APART, (1, 1, BASE, 4, STATED, 1, 1), (1, 1, [6, 6], 2, [0.2, 0.2], 1, 1)),
        (OWN, (4, 3, [2, 2], 2, [0.4, 0.4], 2, 3), (2, 7, [2, 2], 2, [0.1, 0.3], 6, 3)),
        # splits on IPU 0 add up to the serialization factor
        (SPLITS, (1, 1, BASE, 4, [0.2] * 4, 3, 1), (1, 1, BASE, 4, [0.2] * 4, 3, 2)),
        (PLACED, (1, 1, [-1, -1], 2, [0.2, 0.3], 1, 1), None),
    ],
)
def test_both_modes_are_what_the_keys_mean(
    values: Dict[str, Any], training: Any, inference: Any, tmp_path: Path
) -> None:
    config = read_ipu_config(values)
    assert config.training == ModeConfig(*training)
    assert config.inference == ModeConfig(*(inference or training))
    again = saved_and_loaded(config, tmp_path)
    assert (again.training, again.inference) == (config.training, config.inference)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replication_factor", True),
        ("inference_replication_factor", "4"),
        ("gradient_accumulation_steps", 0),
        ("layers_per_ipu", []),
        ("layers_per_ipu", [1, -2]),
        ("inference_layers_per_ipu", [1.0]),
        ("optimizer_state_offchip", 1),
        ("matmul_proportion", 1.5),
        ("matmul_proportion", float("nan")),
        ("inference_matmul_proportion", [0.2, None]),
        ("embedding_serialization_factor", -1),
        ("serialized_embedding_splits_per_ipu", [0]),
        ("serialized_projection_splits_per_ipu", [-1]),
        ("output_mode", "last"),
        ("output_mode", ["all"]),
        ("seed", 2**64),
        ("executable_cache_dir", 3),
        ("device_mapping", [0, -1]),
        ("pipeline_stages", [["emb"], ["decoder"]]),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_by_name(name: str, value: Any) -> None:
    assert f"{name}=" in refused({name: value})


TWO_STAGES = {"device_mapping": [0, 1], "pipeline_stages": [["emb"], ["hid"]]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"matmul_proportions": 0.2}, ["did you mean matmul_proportion?"]),
        ({"zzz": 1}, ["valid keys: auto_loss_scaling, "]),
        ([1], ["found list"]),
        ({"layers_per_ipu": [6, 6], "ipus_per_replica": 4}, ["layers_per_ipu=[6, 6]", "ipus_per_replica to 2"]),
        (
            {"inference_layers_per_ipu": [12], "inference_ipus_per_replica": 2},
            ["inference_layers_per_ipu=[12]", "inference_ipus_per_replica to 1"],
        ),
        ({"layers_per_ipu": BASE, "matmul_proportion": [0.2, 0.3]}, ["matmul_proportion=[0.2, 0.3]", "4 IPUs"]),
        (
            {"layers_per_ipu": BASE, "serialized_embedding_splits_per_ipu": [2, 1, 0, 0]},
            ["embedding_serialization_factor=3"],
        ),
        ({**SPLITS, "embedding_serialization_factor": 2}, ["keep embedding_serialization_factor"]),
        ({"layers_per_ipu": [2, 2], "serialized_embedding_splits_per_ipu": [2]}, ["1 entries", "2 IPUs"]),
        ({"device_mapping": [0]}, ["without pipeline_stages"]),
        ({"pipeline_stages": [["emb"]]}, ["without device_mapping"]),
        ({"device_mapping": [0, 1], "pipeline_stages": [["emb"]]}, ["2 stages but pipeline_stages has 1"]),
        ({**TWO_STAGES, "device_mapping": [0, 2]}, ["IPU 1"]),
        ({**TWO_STAGES, "layers_per_ipu": [0, 1]}, ["both place the layers"]),
        ({**TWO_STAGES, "ipus_per_replica": 4}, ["leave ipus_per_replica out"]),
        (
            {"layers_per_ipu": [3, 7], "ipus_per_replica": 4, "replication_factor": True, "layer_per_ipu": 1},
            ["3 problems", "- layers_per_ipu=[3, 7]", "- replication_factor=true", "- layer_per_ipu"],
        ),
        ({"replication_factor": {"pod4": 1}, "pod_type": "pod64"}, ["pod64, only for pod4"]),
        ({"replication_factor": {"pod4": 1}}, ["default, only for pod4"]),
        ({**BERT_LARGE_IPU, "pod_type": "pod5"}, ['pod_type="pod5"', "pod4, pod8, pod16"]),
        ({"random_seed": 1, "seed": 2}, ["random_seed=1", "keep seed"]),
        ({"embedding_serialization_factor": False}, ["embedding_serialization_factor=false"]),
    ],
)
def test_a_config_that_contradicts_itself_is_refused_with_what_to_change(values: Any, words: List[str]) -> None:
    message = refused(values)
    assert [word for word in words if word not in message] == []


def test_a_config_built_in_code_is_checked_like_one_read() -> None:
    with pytest.raises(ConfigError, match="ipus_per_replica=4"):
        IpuConfig(layers_per_ipu=[1, 1], ipus_per_replica=4)


def read(values: Dict[str, Any], pod_type: Optional[str] = None) -> Tuple[IpuConfig, List[str]]:
    """The config and the keys that notes begin with, without those of defaults that flipped."""
    said: List[str] = []
    before = dict(values)
    config = read_ipu_config(values if pod_type is None else {**values, "pod_type": pod_type}, say=said.append)
    assert values == before
    told = [line for line in said if not line.startswith(tuple(f"{name} is not" for name in FLIPPED_DEFAULTS))]
    return config, [line.partition(":")[0].partition("=")[0] for line in told]


def test_every_change_to_the_published_large_config_is_said_in_one_line() -> None:
    said = read(BERT_LARGE_IPU, pod_type="pod64")[1]
    of_pods = {"inference_replication_factor", "replication_factor"}
    versions = {"optimum_version", "transformers_version"}
    gone = {"decompose_grad_sum", "profile_dir", "use_popdist", "sharded_execution_for_inference"}
    assert len(said) == len(set(said))
    assert {*of_pods, *versions, *gone, "enable_half_first_order_momentum"} <= set(said)


@pytest.mark.parametrize(("stored", "replicas"), [(None, 1), ("pod8", 2), ("pod64", 16)])
def test_any_key_may_differ_between_pod_types(stored: Optional[str], replicas: int) -> None:
    assert read(BERT_LARGE_IPU, stored)[0].replication_factor == replicas
    values = {"matmul_proportion": {"pod8": [0.1, 0.2], "default": 0.3, "pod64": 0.3}, "layers_per_ipu": [2, 2]}
    expected = [0.1, 0.2] if stored == "pod8" else [0.3, 0.3]
    assert read(values, stored)[0].training.matmul_proportion == expected


@pytest.mark.parametrize(
    ("old", "current"),
    [
        ({"random_seed": 0}, {"seed": 0}),
        ({"random_seed": 2, "seed": 2}, {"seed": 2}),
        ({"training_layers_per_ipu": [3, 7, 7, 7]}, {"layers_per_ipu": [3, 7, 7, 7]}),
        (
            {"pipeline_device_mapping": [0, 0], "pipeline_stages": [["emb", "hid"], ["heads"]]},
            {"device_mapping": [0, 0]},
        ),
        ({"embedding_serialization_factor": 0}, {"embedding_serialization_factor": 1}),
        ({"layers_per_ipu": 12}, {"layers_per_ipu": [12]}),
        ({"executable_cache_dir": None}, {"executable_cache_dir": ""}),
        ({"decompose_grad_sum": True}, {}),
        ({"mode": "training"}, {}),
    ],
)
def test_an_old_name_or_value_is_translated_or_dropped_and_said(old: Dict[str, Any], current: Dict[str, Any]) -> None:
    config, said = read(old)
    assert {name: getattr(config, name) for name in current} == current
    assert current or config == IpuConfig()
    assert said == [next(iter(old))]


@pytest.mark.parametrize(
    "name",
    ["execute_encoder_on_cpu_for_generation", "synthetic_data", "parallelize_kwargs", "inference_parallelize_kwargs"],
)
def test_a_key_that_cannot_be_honoured_is_refused_when_it_asks_for_something(name: str) -> None:
    off, on = ({}, {"use_cache": True}) if name.endswith("kwargs") else (False, True)
    assert read({name: off})[0] == read({name: None})[0] == IpuConfig()
    for value in (on, 0):
        assert f"{name}=" in refused({name: value})


def test_an_old_file_that_leaves_a_key_out_is_told_where_the_default_flipped() -> None:
    said: List[str] = []
    read_ipu_config({"random_seed": 1, "enable_half_partials": True}, say=said.append)
    told = [line for line in said if " is not set: " in line]
    assert [(line.split()[0], line.split()[-1]) for line in told] == [
        ("optimizer_state_offchip", "true"),
        ("matmul_proportion", "0.6"),
    ]
