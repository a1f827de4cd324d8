import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import read_json, write_json
from ipu_model.ipu.config import IpuConfig, ModeConfig, read_ipu_config
from ipu_model.ipu.migration import FLIPPED_DEFAULTS


def refused(values):
    with pytest.raises(ConfigError) as caught:
        read_ipu_config(values)
    return str(caught.value)


def saved_and_loaded(config, folder):
    lines = []
    assert None not in config.to_dict().values()
    write_json(folder / "ipu_config.json", config.to_dict())
    loaded = read_ipu_config(read_json(folder / "ipu_config.json"), say=lines.append)
    assert lines == []  # what we write needs no translation
    return loaded


BASE, LARGE = [0, 4, 4, 4], [3, 7, 7, 7]
PER_POD = {"default": 1, "pod4": 1, "pod8": 2, "pod16": 4, "pod32": 8, "pod64": 16}
BERT_LARGE_IPU = {
    "decompose_grad_sum": False,
    "device_iterations": 1,
    "embedding_serialization_factor": 2,
    "enable_half_first_order_momentum": True,
    "enable_half_partials": True,
    "executable_cache_dir": "./exe_cache",
    "execute_encoder_on_cpu_for_generation": False,
    "gradient_accumulation_steps": 16,
    "inference_device_iterations": 4,
    "inference_replication_factor": PER_POD,
    "ipus_per_replica": 4,
    "layers_per_ipu": LARGE,
    "matmul_proportion": [0.15, 0.18, 0.2, 0.25],
    "optimizer_state_offchip": True,
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
"""The keys of a file that Graphcore published with its notebooks."""


def test_a_published_config_means_what_its_card_says_and_keeps_meaning_it(tmp_path):
    config = read_ipu_config({**BERT_LARGE_IPU, "pod_type": "pod16"})
    shares = [0.15, 0.18, 0.2, 0.25]
    assert config.training == ModeConfig(4, 1, LARGE, 4, shares, 2, 1)
    assert config.inference == ModeConfig(4, 4, LARGE, 4, shares, 2, 1)
    assert (config.gradient_accumulation_steps, config.seed, config.output_mode) == (16, None, "final")
    assert config.executable_cache_dir == "./exe_cache"
    for name in ("optimizer_state_offchip", "replicated_tensor_sharding", "recompute_checkpoint_every_layer"):
        assert getattr(config, name)
    once = saved_and_loaded(config, tmp_path)
    assert (once.training, once.inference) == (config.training, config.inference)
    assert saved_and_loaded(once, tmp_path) == once


def test_the_serialization_factor_of_inference_is_written_where_optimum_would_take_another():
    assert "inference_embedding_serialization_factor" not in IpuConfig(embedding_serialization_factor=1).to_dict()
    assert IpuConfig(embedding_serialization_factor=2).to_dict()["inference_embedding_serialization_factor"] == 2
    config = read_ipu_config({"projection_serialization_factor": 3, "inference_projection_serialization_factor": 1})
    assert read_ipu_config(config.to_dict()).inference.projection_serialization_factor == 1


EIGHT, SHARES = [2, 3, 3, 3, 3, 3, 3, 4], [0.1, 0.2, 0.3, 0.4]
OF_BOTH_MODES = {
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
APART = {"layers_per_ipu": BASE, "inference_layers_per_ipu": [6, 6], "matmul_proportion": SHARES}


@pytest.mark.parametrize(
    ("values", "training", "inference"),
    [
        ({"layers_per_ipu": EIGHT}, (1, 1, EIGHT, 8, [0.2] * 8, 1, 1), None),
        ({}, (1, 1, [-1], 1, [0.2], 1, 1), None),
        # layers are spread over ipus_per_replica; a whole number is fine where a fraction is wanted
        ({"ipus_per_replica": 4, "matmul_proportion": 1}, (1, 1, [-1] * 4, 4, [1.0] * 4, 1, 1), None),
        # Four entries say nothing about two IPUs, so the default is taken, as Optimum does.
        (APART, (1, 1, BASE, 4, SHARES, 1, 1), (1, 1, [6, 6], 2, [0.2, 0.2], 1, 1)),
        (OF_BOTH_MODES, (4, 3, [2, 2], 2, [0.4, 0.4], 2, 3), (2, 7, [2, 2], 2, [0.1, 0.3], 6, 3)),
        # splits on IPU 0 add up to the serialization factor
        (SPLITS, (1, 1, BASE, 4, [0.2] * 4, 3, 1), (1, 1, BASE, 4, [0.2] * 4, 3, 2)),
        (PLACED, (1, 1, [-1, -1], 2, [0.2, 0.3], 1, 1), None),
    ],
)
def test_both_modes_are_what_the_keys_mean(values, training, inference, tmp_path):
    config = read_ipu_config(values)
    assert config.training == ModeConfig(*training)
    assert config.inference == ModeConfig(*(inference or training))
    again = saved_and_loaded(config, tmp_path)
    assert (again.training, again.inference) == (config.training, config.inference)


TWO_STAGES = {"device_mapping": [0, 1], "pipeline_stages": [["emb"], ["hid"]]}
TWO_EMBEDDING_SPLITS = {"layers_per_ipu": BASE, "serialized_embedding_splits_per_ipu": [2, 1, 0, 0]}
THREE_PROBLEMS = {"layers_per_ipu": [3, 7], "ipus_per_replica": 4, "replication_factor": True, "layer_per_ipu": 1}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replication_factor": True}, ["replication_factor=true"]),
        ({"gradient_accumulation_steps": 0}, ["gradient_accumulation_steps="]),
        ({"layers_per_ipu": []}, ["layers_per_ipu="]),
        ({"layers_per_ipu": [1, -2]}, ["layers_per_ipu="]),
        ({"optimizer_state_offchip": 1}, ["optimizer_state_offchip="]),
        ({"matmul_proportion": 1.5}, ["matmul_proportion="]),
        ({"matmul_proportion": float("nan")}, ["matmul_proportion="]),
        ({"serialized_embedding_splits_per_ipu": [0]}, ["serialized_embedding_splits_per_ipu="]),
        ({"output_mode": "last"}, ["output_mode="]),
        ({"output_mode": ["all"]}, ["output_mode="]),
        ({"seed": 2**64}, ["seed="]),
        ({"executable_cache_dir": 3}, ["executable_cache_dir="]),
        ({"device_mapping": [0, -1]}, ["device_mapping="]),
        ({"pipeline_stages": [["emb"], ["decoder"]]}, ["pipeline_stages="]),
        ({"matmul_proportions": 0.2}, ["did you mean matmul_proportion?"]),
        ({"zzz": 1}, ["valid keys: auto_loss_scaling, "]),
        ([1], ["found list"]),
        ({"layers_per_ipu": [6, 6], "ipus_per_replica": 4}, ["layers_per_ipu=[6, 6]", "ipus_per_replica to 2"]),
        ({"inference_layers_per_ipu": [12], "inference_ipus_per_replica": 2}, ["inference_ipus_per_replica to 1"]),
        ({"layers_per_ipu": BASE, "matmul_proportion": [0.2, 0.3]}, ["matmul_proportion=[0.2, 0.3]", "4 IPUs"]),
        (TWO_EMBEDDING_SPLITS, ["embedding_serialization_factor=3"]),
        ({**SPLITS, "embedding_serialization_factor": 2}, ["keep embedding_serialization_factor"]),
        ({"layers_per_ipu": [2, 2], "serialized_embedding_splits_per_ipu": [2]}, ["1 entries", "2 IPUs"]),
        ({"device_mapping": [0]}, ["without pipeline_stages"]),
        ({"pipeline_stages": [["emb"]]}, ["without device_mapping"]),
        ({"device_mapping": [0, 1], "pipeline_stages": [["emb"]]}, ["2 stages but pipeline_stages has 1"]),
        ({**TWO_STAGES, "device_mapping": [0, 2]}, ["IPU 1"]),
        ({**TWO_STAGES, "layers_per_ipu": [0, 1]}, ["both place the layers"]),
        ({**TWO_STAGES, "ipus_per_replica": 4}, ["leave ipus_per_replica out"]),
        (THREE_PROBLEMS, ["3 problems", "- layers_per_ipu=[3, 7]", "- replication_factor=true", "- layer_per_ipu"]),
        ({"replication_factor": {"pod4": 1}, "pod_type": "pod64"}, ["pod64, only for pod4"]),
        ({"replication_factor": {"pod4": 1}}, ["default, only for pod4"]),
        ({**BERT_LARGE_IPU, "pod_type": "pod5"}, ['pod_type="pod5"', "pod4, pod8, pod16"]),
        ({"random_seed": 1, "seed": 2}, ["random_seed=1", "keep seed"]),
    ],
    ids=str,
)
def test_wrong_values_and_contradictions_are_refused_by_name_with_what_to_change(values, words):
    message = refused(values)
    assert [word for word in words if word not in message] == []


def test_a_config_built_in_code_is_checked_like_one_read():
    with pytest.raises(ConfigError, match="ipus_per_replica=4"):
        IpuConfig(layers_per_ipu=[1, 1], ipus_per_replica=4)


def read(values):
    """The config and the keys that notes begin with, without those of defaults that flipped."""
    lines, before = [], dict(values)
    config = read_ipu_config(values, say=lines.append)
    assert values == before
    flipped = tuple(f"{name} is not" for name in FLIPPED_DEFAULTS)
    return config, [line.partition(":")[0].partition("=")[0] for line in lines if not line.startswith(flipped)]


def test_every_change_to_the_published_config_is_one_line():
    keys = read({**BERT_LARGE_IPU, "pod_type": "pod64"})[1]
    changed = """
        inference_replication_factor replication_factor optimum_version transformers_version decompose_grad_sum
        profile_dir use_popdist sharded_execution_for_inference enable_half_first_order_momentum
    """
    assert len(keys) == len(set(keys))
    assert set(changed.split()) <= set(keys)


@pytest.mark.parametrize(("pod", "replicas", "share"), [({}, 1, 0.3), ({"pod_type": "pod8"}, 2, 0.1)], ids=str)
def test_any_key_may_differ_between_pod_types(pod, replicas, share):
    assert read({**BERT_LARGE_IPU, **pod})[0].replication_factor == replicas
    values = {"matmul_proportion": {"pod8": [0.1, 0.2], "default": 0.3}, "layers_per_ipu": [2, 2]}
    assert read({**values, **pod})[0].training.matmul_proportion[0] == share


@pytest.mark.parametrize(
    ("old", "current"),
    [
        ({"random_seed": 0}, {"seed": 0}),
        ({"random_seed": 2, "seed": 2}, {"seed": 2}),
        ({"training_layers_per_ipu": LARGE}, {"layers_per_ipu": LARGE}),
        ({"pipeline_device_mapping": [0, 0], "pipeline_stages": [["emb"], ["heads"]]}, {"device_mapping": [0, 0]}),
        ({"embedding_serialization_factor": 0}, {"embedding_serialization_factor": 1}),
        ({"layers_per_ipu": 12}, {"layers_per_ipu": [12]}),
        ({"executable_cache_dir": None}, {"executable_cache_dir": ""}),
        ({"decompose_grad_sum": True}, {}),
        ({"mode": "training"}, {}),
    ],
    ids=str,
)
def test_an_old_name_or_value_is_translated_or_dropped_in_one_line(old, current):
    config, keys = read(old)
    assert {name: getattr(config, name) for name in current} == current
    assert current or config == IpuConfig()
    assert keys == [next(iter(old))]


@pytest.mark.parametrize(
    "name",
    ["execute_encoder_on_cpu_for_generation", "synthetic_data", "parallelize_kwargs", "inference_parallelize_kwargs"],
)
def test_a_key_that_cannot_be_honoured_is_refused_when_it_asks_for_something(name):
    off, on = ({}, {"use_cache": True}) if name.endswith("kwargs") else (False, True)
    assert read({name: off})[0] == read({name: None})[0] == IpuConfig()
    for value in (on, 0):
        assert f"{name}=" in refused({name: value})


def test_an_old_file_that_leaves_a_key_out_learns_where_the_default_flipped():
    lines = []
    read_ipu_config({"random_seed": 1, "enable_half_partials": True}, say=lines.append)
    flipped = [(line.split()[0], line.split()[-1]) for line in lines if " is not set: " in line]
    assert flipped == [("optimizer_state_offchip", "true"), ("matmul_proportion", "0.6")]
