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


def test_the_published_base_config_on_a_pod16_means_what_its_card_says_and_keeps_meaning_it(tmp_path: Path) -> None:
    config = read_ipu_config({**BERT_BASE_IPU, "pod_type": "pod16"})

    assert config.training == ModeConfig(4, 1, [0, 4, 4, 4], 4, [0.25, 0.25, 0.25, 0.25], 1, 1)
    assert config.inference == ModeConfig(4, 5, [0, 4, 4, 4], 4, [0.25, 0.25, 0.25, 0.25], 1, 1)
    assert config.gradient_accumulation_steps == 16
    assert (config.optimizer_state_offchip, config.replicated_tensor_sharding) == (False, True)
    assert (config.recompute_checkpoint_every_layer, config.enable_half_partials) == (True, True)
    assert (config.output_mode, config.seed, config.executable_cache_dir) == ("final", None, "")
    once = saved_and_loaded(config, tmp_path)
    assert once == saved_and_loaded(once, tmp_path) == config


def test_the_published_large_config_on_a_pod4_means_what_its_card_says_and_keeps_meaning_it(tmp_path: Path) -> None:
    config = read_ipu_config({**BERT_LARGE_IPU, "pod_type": "pod4"})

    assert config.training == ModeConfig(1, 1, [3, 7, 7, 7], 4, [0.15, 0.18, 0.2, 0.25], 2, 1)
    assert config.inference == ModeConfig(1, 4, [3, 7, 7, 7], 4, [0.15, 0.18, 0.2, 0.25], 2, 1)
    assert config.gradient_accumulation_steps == 16
    assert (config.optimizer_state_offchip, config.replicated_tensor_sharding) == (True, True)
    assert (config.output_mode, config.seed) == ("final", None)
    once = saved_and_loaded(config, tmp_path)
    again = saved_and_loaded(once, tmp_path)
    assert same_meaning(config, once)
    assert again == once


@pytest.mark.parametrize(
    ("published", "layers", "share", "replicas", "offchip"),
    [
        (BERT_BASE_UNCASED, [0, 4, 4, 4], [0.22, 0.22, 0.22, 0.22], 4, False),
        (BERT_LARGE_UNCASED, [3, 7, 7, 7], [0.1, 0.15, 0.15, 0.15], 16, True),
    ],
)
def test_the_configs_saved_with_the_pre_trained_models_load_and_save_unchanged_in_meaning(
    published: Dict[str, Any],
    layers: List[int],
    share: List[float],
    replicas: int,
    offchip: bool,
    tmp_path: Path,
) -> None:
    config = read_ipu_config(published)

    assert config.training == ModeConfig(replicas, 1, layers, 4, share, 2, 1)
    assert config.inference == ModeConfig(replicas, 4, layers, 4, share, 2, 1)
    assert (config.seed, config.executable_cache_dir, config.optimizer_state_offchip) == (42, "./exe_cache", offchip)
    assert config.gradient_accumulation_steps == 512
    assert same_meaning(config, saved_and_loaded(config, tmp_path))


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


def test_ipus_per_replica_is_the_length_of_layers_per_ipu() -> None:
    config = read_ipu_config({"layers_per_ipu": [2, 3, 3, 3, 3, 3, 3, 4]})
    assert config.training.ipus_per_replica == config.inference.ipus_per_replica == 8


def test_layers_are_spread_over_ipus_per_replica_when_only_that_is_stated() -> None:
    config = read_ipu_config({"ipus_per_replica": 4})
    assert config.training.layers_per_ipu == config.inference.layers_per_ipu == [-1, -1, -1, -1]


def test_inference_may_have_its_own_pipeline() -> None:
    config = read_ipu_config(
        {"layers_per_ipu": [0, 4, 4, 4], "inference_layers_per_ipu": [6, 6], "matmul_proportion": [0.1, 0.2, 0.3, 0.4]}
    )

    assert config.training.matmul_proportion == [0.1, 0.2, 0.3, 0.4]
    # Four entries say nothing about two IPUs, so the default is taken, as Optimum does.
    assert config.inference == ModeConfig(1, 1, [6, 6], 2, [0.2, 0.2], 1, 1)


def test_inference_on_one_ipu_after_training_on_four() -> None:
    config = read_ipu_config({"layers_per_ipu": [0, 4, 4, 4], "inference_layers_per_ipu": [-1]})
    assert (config.inference.layers_per_ipu, config.inference.ipus_per_replica) == ([-1], 1)


def test_what_inference_states_itself_is_taken() -> None:
    config = read_ipu_config(
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
        }
    )
    assert config.training == ModeConfig(4, 3, [2, 2], 2, [0.4, 0.4], 2, 3)
    assert config.inference == ModeConfig(2, 7, [2, 2], 2, [0.1, 0.3], 6, 3)


def test_splits_on_ipu_0_are_the_serialization_factor_they_add_up_to() -> None:
    config = read_ipu_config(
        {
            "layers_per_ipu": [0, 4, 4, 4],
            "serialized_embedding_splits_per_ipu": [3, 0, 0, 0],
            "inference_serialized_projection_splits_per_ipu": [2, 0, 0, 0],
        }
    )
    assert config.training.embedding_serialization_factor == config.inference.embedding_serialization_factor == 3
    assert config.training.projection_serialization_factor == 1
    assert config.inference.projection_serialization_factor == 2


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


def test_a_whole_number_is_fine_where_a_fraction_is_wanted() -> None:
    assert read_ipu_config({"matmul_proportion": 1}).training.matmul_proportion == [1.0]


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    assert refused({"matmul_proportions": 0.2}) == (
        "ipu_config: matmul_proportions is not known; did you mean matmul_proportion?"
    )
    assert "valid keys: auto_loss_scaling, " in refused({"zzz": 1})


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


def test_a_stale_ipus_per_replica_says_which_of_both_to_change() -> None:
    message = refused({"layers_per_ipu": [6, 6], "ipus_per_replica": 4, "matmul_proportion": [0.1, 0.2, 0.2, 0.2]})
    assert message == (
        "ipu_config: layers_per_ipu=[6, 6] places the layers on 2 IPUs (one entry each) but ipus_per_replica=4. "
        "If layers_per_ipu is what you want, for instance because you changed it in a stored config, set "
        "ipus_per_replica to 2 or remove it (and use 2 entries in matmul_proportion); if 4 IPUs are what you want, "
        "use 4 entries in layers_per_ipu, or [-1] for an even share"
    )


def test_following_either_advice_about_a_stale_ipus_per_replica_works() -> None:
    stored = {"layers_per_ipu": [0, 4, 4, 4], "ipus_per_replica": 4, "matmul_proportion": 0.25}
    assert read_ipu_config({**stored, "layers_per_ipu": [6, 6], "ipus_per_replica": 2}).training.ipus_per_replica == 2
    assert (
        read_ipu_config({**stored, "layers_per_ipu": [6, 6], "ipus_per_replica": None}).training.ipus_per_replica == 2
    )
    assert read_ipu_config({**stored, "layers_per_ipu": [-1]}).training.layers_per_ipu == [-1, -1, -1, -1]


def test_the_pipeline_of_inference_is_checked_by_its_own_names() -> None:
    message = refused({"layers_per_ipu": [6, 6], "inference_layers_per_ipu": [12], "inference_ipus_per_replica": 2})
    assert message.startswith("ipu_config: inference_layers_per_ipu=[12] places the layers on 1 IPUs")
    assert "set inference_ipus_per_replica to 1" in message


def test_a_list_of_proportions_needs_one_entry_per_ipu() -> None:
    message = refused({"layers_per_ipu": [0, 4, 4, 4], "matmul_proportion": [0.2, 0.3]})
    assert message == (
        "ipu_config: matmul_proportion=[0.2, 0.3] has 2 entries but a replica has 4 IPUs: use 4 entries, "
        "or one number for all IPUs"
    )


def test_parts_of_the_word_table_on_other_ipus_are_refused_with_the_reason() -> None:
    message = refused({"layers_per_ipu": [0, 4, 4, 4], "serialized_embedding_splits_per_ipu": [2, 1, 0, 0]})
    assert "one tensor shared with the decoder of masked words" in message
    assert message.endswith("use embedding_serialization_factor=3")


def test_parts_are_stated_once_and_for_every_ipu() -> None:
    both = refused(
        {"layers_per_ipu": [2, 2], "projection_serialization_factor": 2, "serialized_projection_splits_per_ipu": [2, 0]}
    )
    assert "both set the number of parts: keep projection_serialization_factor" in both
    short = refused({"layers_per_ipu": [2, 2], "serialized_embedding_splits_per_ipu": [2]})
    assert "has 1 entries but a replica has 2 IPUs" in short


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"device_mapping": [0]}, "device_mapping is set without pipeline_stages"),
        ({"pipeline_stages": [["emb"]]}, "pipeline_stages is set without device_mapping"),
        ({"device_mapping": [0, 1], "pipeline_stages": [["emb"]]}, "2 stages but pipeline_stages has 1"),
        ({"device_mapping": [0, 2], "pipeline_stages": [["emb"], ["hid"]]}, "leaves IPU 1 without a stage"),
        (
            {"device_mapping": [0, 1], "pipeline_stages": [["emb"], ["hid"]], "layers_per_ipu": [0, 1]},
            "both place the layers",
        ),
        (
            {"device_mapping": [0, 1], "pipeline_stages": [["emb"], ["hid"]], "ipus_per_replica": 4},
            "uses 2 IPUs: leave ipus_per_replica out",
        ),
    ],
)
def test_an_explicit_placement_that_contradicts_itself_is_refused(values: Dict[str, Any], reason: str) -> None:
    assert reason in refused(values)


def test_a_config_built_in_code_is_checked_like_one_read() -> None:
    with pytest.raises(ConfigError, match="ipus_per_replica=4"):
        IpuConfig(layers_per_ipu=[1, 1], ipus_per_replica=4)
    with pytest.raises(ConfigError, match="device_iterations=0 must be a whole number of at least 1"):
        IpuConfig(device_iterations=0)


def test_a_config_that_is_no_object_is_refused() -> None:
    assert refused([1]) == "ipu_config must be a JSON object, found list"
