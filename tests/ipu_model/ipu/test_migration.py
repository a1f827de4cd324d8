from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import pytest
from published_configs import BERT_BASE_UNCASED, BERT_LARGE_IPU

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.config import IpuConfig, read_ipu_config
from ipu_model.ipu.migration import FLIPPED_DEFAULTS


def of_pod(values: Dict[str, Any], pod_type: Optional[str]) -> Dict[str, Any]:
    return values if pod_type is None else {**values, "pod_type": pod_type}


def read(values: Dict[str, Any], pod_type: Optional[str] = None) -> Tuple[IpuConfig, List[str]]:
    """The config and the keys that notes begin with, without those of defaults that flipped."""
    said: List[str] = []
    config = read_ipu_config(of_pod(values, pod_type), say=said.append)
    told = [line for line in said if not line.startswith(tuple(f"{name} is not" for name in FLIPPED_DEFAULTS))]
    return config, [line.partition(":")[0].partition("=")[0] for line in told]


def refused(values: Dict[str, Any], pod_type: Optional[str] = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_ipu_config(of_pod(values, pod_type))
    return str(caught.value)


def test_every_change_to_the_published_large_config_is_said_in_one_line() -> None:
    config, said = read(BERT_LARGE_IPU, pod_type="pod64")
    assert (config.replication_factor, config.inference_replication_factor) == (16, 16)
    assert said == [
        "inference_replication_factor",
        "replication_factor",
        "decompose_grad_sum",
        "profile_dir",
        "use_popdist",
        "sharded_execution_for_inference",
        "enable_half_first_order_momentum",
        "execute_encoder_on_cpu_for_generation",
        "optimum_version",
        "transformers_version",
    ]


def test_a_current_config_is_read_without_a_word() -> None:
    current = {
        key: value for key, value in BERT_BASE_UNCASED.items() if not key.startswith(("optimum", "enable_half_f"))
    }
    assert read(current)[1] == []


@pytest.mark.parametrize(("stored", "replicas"), [(None, 1), ("pod8", 2), ("pod32", 8), ("pod4", 1), ("pod64", 16)])
def test_the_pod_type_is_the_key_or_the_default(stored: Optional[str], replicas: int) -> None:
    assert read(dict(BERT_LARGE_IPU), stored)[0].replication_factor == replicas


def test_any_key_may_differ_between_pod_types() -> None:
    values = {
        "matmul_proportion": {"pod4": [0.1, 0.2], "default": 0.3},
        "layers_per_ipu": {"pod4": [2, 2], "default": [4]},
    }
    assert read(values, "pod4")[0].training.matmul_proportion == [0.1, 0.2]
    assert read(values)[0].training.matmul_proportion == [0.3]


@pytest.mark.parametrize(
    ("old", "current"),
    [
        ({"random_seed": 0}, {"seed": 0}),
        ({"random_seed": 2, "seed": 2}, {"seed": 2}),
        ({"training_layers_per_ipu": [3, 7, 7, 7]}, {"layers_per_ipu": [3, 7, 7, 7]}),
        ({"training_ipus_per_replica": 4}, {"ipus_per_replica": 4}),
        ({"training_matmul_proportion": 0.4}, {"matmul_proportion": 0.4}),
        ({"training_replication_factor": 2}, {"replication_factor": 2}),
        (
            {"pipeline_device_mapping": [0, 0], "pipeline_stages": [["emb", "hid"], ["heads"]]},
            {"device_mapping": [0, 0]},
        ),
        ({"embedding_serialization_factor": 0}, {"embedding_serialization_factor": 1}),
        ({"inference_embedding_serialization_factor": 0}, {"inference_embedding_serialization_factor": 1}),
        ({"layers_per_ipu": 12}, {"layers_per_ipu": [12]}),
        ({"executable_cache_dir": None}, {"executable_cache_dir": ""}),
    ],
)
def test_an_old_name_or_value_is_translated_and_said(old: Dict[str, Any], current: Dict[str, Any]) -> None:
    config, said = read(old)
    assert {name: getattr(config, name) for name in current} == current
    assert said == [next(iter(old))]


@pytest.mark.parametrize(
    ("values", "pod_type", "words"),
    [
        ({"replication_factor": {"pod4": 1, "pod16": 4}}, "pod64", ["pod64, only for pod16, pod4", "another pod_type"]),
        ({"replication_factor": {"pod4": 1, "pod16": 4}}, None, ["default, only for pod16, pod4", "as pod_type"]),
        (BERT_LARGE_IPU, "pod5", ['pod_type="pod5"', "pod4, pod8, pod16"]),
        ({"random_seed": 1, "seed": 2}, None, ["random_seed=1", "seed=2: keep seed"]),
        ({"embedding_serialization_factor": False}, None, ["embedding_serialization_factor=false"]),
    ],
)
def test_what_has_no_single_meaning_is_refused(
    values: Dict[str, Any], pod_type: Optional[str], words: List[str]
) -> None:
    message = refused(values, pod_type)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decompose_grad_sum", True),
        ("profile_dir", "./profile"),
        ("use_popdist", True),
        ("compile_only", True),
        ("sharded_execution_for_inference", True),
        ("enable_half_first_order_momentum", True),
        ("mode", "training"),
        ("_mode", "inference"),
    ],
)
def test_an_old_key_without_effect_is_dropped_and_said(name: str, value: Any) -> None:
    assert read({name: value}) == (IpuConfig(), [name])


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
    assert [line.split()[0] for line in told] == ["optimizer_state_offchip", "matmul_proportion"]
    assert [line.split()[-1] for line in told] == ["true", "0.6"]


def test_reading_leaves_the_values_alone() -> None:
    values = {"random_seed": 1, "replication_factor": {"default": 2}, "pod_type": "pod4", "profile_dir": ""}
    before = dict(values)
    with pytest.raises(ConfigError, match="no value for pod4"):
        read_ipu_config(values)
    assert values == before
