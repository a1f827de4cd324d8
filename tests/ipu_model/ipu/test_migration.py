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
    """The config and the notes about its keys, without the lines on defaults that flipped."""
    said: List[str] = []
    config = read_ipu_config(of_pod(values, pod_type), say=said.append)
    return config, [line for line in said if not line.startswith(tuple(f"{name} is not" for name in FLIPPED_DEFAULTS))]


def refused(values: Dict[str, Any], pod_type: Optional[str] = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_ipu_config(of_pod(values, pod_type))
    return str(caught.value)


def test_every_change_to_the_published_large_config_is_said_in_one_line() -> None:
    config, said = read(BERT_LARGE_IPU, pod_type="pod64")

    assert (config.replication_factor, config.inference_replication_factor) == (16, 16)
    assert said == [
        "inference_replication_factor: 16, the value for pod64, is now the only value",
        "replication_factor: 16, the value for pod64, is now the only value",
        "decompose_grad_sum=false: dropped, PopART's gradient sums are no longer configurable",
        'profile_dir="": dropped, POPLAR_ENGINE_OPTIONS in the environment enables profiling',
        "use_popdist=false: dropped, a run under poprun is recognised by its environment",
        "sharded_execution_for_inference=false: dropped, inference_execution of the job decides: auto is pipelined "
        "where inference_device_iterations fill the stages",
        "enable_half_first_order_momentum=true: dropped, first_moment_precision of the job's optimizer decides",
        "execute_encoder_on_cpu_for_generation=false: dropped, it has no effect",
        'optimum_version="1.3.0": dropped, it describes the program that wrote the file',
        'transformers_version="4.20.1": dropped, it describes the program that wrote the file',
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


def test_a_pod_type_without_a_value_is_refused_with_those_that_have_one() -> None:
    values = {"replication_factor": {"pod4": 1, "pod16": 4}}
    assert refused(values, "pod64") == (
        "ipu_config: replication_factor has no value for pod64, only for pod16, pod4: "
        "add one, or choose another pod_type"
    )
    assert refused(values).endswith("no value for default, only for pod16, pod4: choose one of them as pod_type")


def test_an_unknown_pod_type_is_refused() -> None:
    assert 'pod_type="pod5" must be one of pod4, pod8, pod16' in refused(BERT_LARGE_IPU, "pod5")


def test_random_seed_is_now_seed() -> None:
    config, said = read({"random_seed": 0})
    assert (config.seed, said) == (0, ["random_seed: now named seed"])


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("training_layers_per_ipu", "layers_per_ipu", [3, 7, 7, 7]),
        ("training_ipus_per_replica", "ipus_per_replica", 4),
        ("training_matmul_proportion", "matmul_proportion", 0.4),
        ("training_replication_factor", "replication_factor", 2),
    ],
)
def test_the_training_twins_of_one_development_version_lose_their_prefix(old: str, new: str, value: Any) -> None:
    config, said = read({old: value})
    assert (getattr(config, new), said) == (value, [f"{old}: now named {new}"])


def test_the_mapping_of_the_tensorflow_example_has_its_own_name() -> None:
    config, said = read({"pipeline_device_mapping": [0, 0], "pipeline_stages": [["emb", "hid"], ["heads"]]})
    assert (config.device_mapping, said) == ([0, 0], ["pipeline_device_mapping: now named device_mapping"])


def test_an_old_name_beside_the_new_one_is_refused_unless_they_agree() -> None:
    assert refused({"random_seed": 1, "seed": 2}) == "ipu_config: random_seed=1 is the old name of seed=2: keep seed"
    assert read({"random_seed": 2, "seed": 2})[0].seed == 2


@pytest.mark.parametrize("name", ["embedding_serialization_factor", "inference_embedding_serialization_factor"])
def test_factor_zero_is_now_one_piece(name: str) -> None:
    config, said = read({name: 0})
    assert (getattr(config, name), said) == (1, [f"{name}: 0 is now written 1, one piece"])


def test_false_is_no_factor_zero() -> None:
    assert "embedding_serialization_factor=false must be" in refused({"embedding_serialization_factor": False})


def test_the_first_release_wrote_one_number_of_layers_and_a_null_cache() -> None:
    config, said = read({"layers_per_ipu": 12, "executable_cache_dir": None})
    assert (config.layers_per_ipu, config.executable_cache_dir) == ([12], "")
    assert said == [
        "layers_per_ipu: 12 is now written [12], one entry per IPU",
        'executable_cache_dir: null is now written "", no cache',
    ]


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
    config, said = read({name: value})
    assert config == IpuConfig()
    assert len(said) == 1
    assert said[0].startswith(f"{name}=")
    assert ": dropped, " in said[0]


@pytest.mark.parametrize(
    "name",
    ["execute_encoder_on_cpu_for_generation", "synthetic_data", "parallelize_kwargs", "inference_parallelize_kwargs"],
)
def test_a_key_that_cannot_be_honoured_is_refused_when_it_asks_for_something(name: str) -> None:
    off, on = ({}, {"use_cache": True}) if name.endswith("kwargs") else (False, True)
    assert read({name: off})[0] == read({name: None})[0] == IpuConfig()
    assert "is not supported: " in refused({name: on})
    assert "is not supported: " in refused({name: 0})


def test_an_old_file_that_leaves_a_key_out_is_told_where_the_default_flipped() -> None:
    said: List[str] = []
    read_ipu_config({"random_seed": 1, "enable_half_partials": True}, say=said.append)
    assert said == [
        "random_seed: now named seed",
        "optimizer_state_offchip is not set: the current default applies, older releases used true",
        "matmul_proportion is not set: the current default applies, older releases used 0.6",
    ]


def test_reading_leaves_the_values_alone() -> None:
    values = {"random_seed": 1, "replication_factor": {"default": 2}, "pod_type": "pod4", "profile_dir": ""}
    before = dict(values)
    with pytest.raises(ConfigError, match="no value for pod4"):
        read_ipu_config(values)
    assert values == before
