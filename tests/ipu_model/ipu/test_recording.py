"""Every IPU preset, compiled with all its layers: what PopTorch recorded is what placement, config and job say.

Nothing is executed: the jobs are compile_only. preset_layouts.py lists the jobs. The model is fixed, so operations and
types of numbers stand for a preflight: one without support is found here, not by a user.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, List, Tuple

import poptorch  # noqa: F401  # marks what needs a recording, see conftest.py
import pytest
from preset_layouts import LAYOUTS, Layout
from recorded_presets import SEED, SUPPORTED, compiled, forward_stages, job_of, model_config, operations, record_of

from ipu_model.estimates.ipu import build_program, plan_for_estimate
from ipu_model.estimates.ipu_memory import parameters_by_ipu
from ipu_model.estimates.shapes import RowShape
from ipu_model.rows.format import Manifest

# Options that every IPU job has.
FRONT_END = {
    "instrumentWithHardwareCycleCounter",
    "rearrangeAnchorsOnHost",
    "ipuof_configs",
    "meanAccumulationAndReplicationReductionStrategy",
}
"""PopART options that PopTorch sets by itself."""
BERT_SWITCHES = {
    "disableGradAccumulationTensorStreams": True,
    "accumulateOuterFragmentSettings.schedule": 3,  # OverlapMemoryOptimized
    "accumulateOuterFragmentSettings.excludedVirtualGraphs": ["0"],
    "outlineThreshold": 10.0,
    "subgraphCopyingStrategy": 1,  # JustInTime
    "scheduleNonWeightUpdateGradientConsumersEarly": True,
    "patterns": {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True},
    "patterns_level": 2,
    "engineOptions": {"opt.useAutoloader": "true", "target.syncReplicasIndependently": "true"},
}
HALF_PARTIALS = {"partialsTypeMatMuls": "half", "convolutionOptions": {"partialsType": "half"}}
GENERAL = (
    "accumulation_and_replication_reduction_type",
    "auto_round_num_ipus",
    "connection_type",
    "device_iterations",
    "execution_mode",
    "gradient_accumulation",
    "ipu_id",
    "ipu_version",
    "output_mode",
    "random_seed",
    "replication_factor",
    "sync_pattern",
)
PIPELINED, SHARDED = 0, 1
ALL, SUM = 2, 3
NEVER = 2
MEAN = 1

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: x.name)
every_training = pytest.mark.parametrize("layout", [x for x in LAYOUTS if x.training], ids=lambda x: x.name)


def begun(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    return [x for x in record["blocks"] if x["event"] == "begin"]


def blocks_of(layout: Layout) -> List[Tuple[str, int]]:
    """By hand: (name, IPU) in order of execution."""
    ipus = [ipu for ipu, count in enumerate(layout.layers) for _ in range(count)]
    encoder = [(f"layer{number}", ipu) for number, ipu in enumerate(ipus)]
    if layout.head == "pretraining":
        return [("embeddings", 0), *encoder, ("pooler", 0), ("heads", 0)]
    last = len(layout.layers) - 1 if layout.head_on is None else layout.head_on
    return [("embeddings", 0), *encoder, ("heads", last)]


@every_layout
def test_every_block_is_on_its_ipu(layout: Layout, tmp_path: Path) -> None:
    record = record_of(layout, tmp_path)
    blocks = begun(record)
    assert [(x["user_id"], x["ipu_id"]) for x in blocks] == blocks_of(layout)
    assert [x["stage"] for x in blocks] == list(range(1, len(blocks) + 1)), "in the order of execution"
    assert record["ipus_used"] == list(range(len(layout.layers)))
    assert record["num_ipus"] == len(layout.layers) * layout.replicas


@every_layout
def test_nothing_is_computed_between_blocks(layout: Layout, tmp_path: Path) -> None:
    events = record_of(layout, tmp_path)["blocks"]
    assert [x["event"] for x in events] == ["begin", "end"] * (len(events) // 2)
    assert [x["at_op"] for x in events[2::2]] == [x["at_op"] for x in events[1:-1:2]]


@every_layout
def test_the_pipeline_has_the_stages_of_the_layout(layout: Layout, tmp_path: Path) -> None:
    """The accumulation here is the least, so one stage more would have been refused."""
    record = record_of(layout, tmp_path)
    forward = forward_stages(layout)
    assert record["pipeline_stages"] == (2 * forward - 1 if layout.training else forward)
    assert record["gradient_accumulation"] == (2 * forward - 1 if layout.training else 1)
    assert record["device_iterations"] == layout.iterations
    assert record["replication_factor"] == layout.replicas


@every_layout
def test_what_is_estimated_without_torch_is_what_was_recorded(layout: Layout, tmp_path: Path) -> None:
    """Stages, blocks, IPUs and weights of the estimates, from the job alone."""
    record, job, model = record_of(layout, tmp_path), job_of(layout, tmp_path), model_config(layout)
    manifest = Manifest("pretrain", 24, 1, 4, model.vocab_size, "0", 0, 100, 100, 1000, {})
    plan = plan_for_estimate(job, model, manifest)
    held = build_program(job, model, plan, RowShape.from_manifest(manifest))
    assert list(plan.placement.order) == [x["ipu_id"] for x in begun(record)]
    assert plan.placement.ipus_per_replica * plan.replicas == record["num_ipus"]
    stages = plan.placement.training_stages if layout.training else plan.placement.forward_stages
    assert stages == record["pipeline_stages"]
    kept = len(held.placement.layers) if held.training and held.keeps_every_layer else 0
    assert kept == record["recomputation_checkpoints"]
    assert sum(parameters_by_ipu(held)) == sum(math.prod(shape) for shape, *_ in record["parameters"].values())
    assert held.state_offchip == (not record["tensor_locations"]["location_optimizer"]["onChip"])


@every_layout
def test_one_activation_is_kept_per_layer_and_products_are_cut_as_the_factor_says(
    layout: Layout, tmp_path: Path
) -> None:
    record = record_of(layout, tmp_path)
    assert record["recomputation_checkpoints"] == (sum(layout.layers) if layout.training else 0)
    # 1 row with 4 masked slots and a vocabulary of 60, cut over the vocabulary, summed in no other type
    decoder = [[[1, 4, 60], "output_channels", layout.factor, False]]
    assert record["matmul_serialization"] == (decoder if layout.job.startswith("phase") and layout.factor > 1 else [])
    assert record["ops"]["aten.embedding.default"] == 2 + layout.table_pieces, "token types, positions and the words"
    assert record["attributes"] == [["__outline", "layer", "embeddings"]]


@every_layout
def test_the_word_table_is_a_parameter_for_each_of_its_pieces(layout: Layout, tmp_path: Path) -> None:
    """60 words of 16 numbers."""
    table = "bert_model.bert.embeddings.word_embeddings."
    parameters = record_of(layout, tmp_path)["parameters"]
    found = {name: tuple(shape) for name, (shape, *_) in parameters.items() if name.startswith(table)}
    names = [f"pieces.{number}" for number in range(layout.table_pieces)] if layout.table_pieces > 1 else ["weight"]
    assert found == {table + name: (60 // layout.table_pieces, 16) for name in names}


def test_no_slice_is_taken_of_the_word_table_in_pieces(tmp_path: Path) -> None:
    """PopART would pad the gradient of each slice back to the whole table, in every micro-batch."""
    layout = next(x for x in LAYOUTS if x.table_pieces > 1)
    whole = compiled(job_of(layout, tmp_path, embedding_serialization_factor=1), layout)
    assert record_of(layout, tmp_path)["ops"]["aten.slice.Tensor"] == whole["ops"]["aten.slice.Tensor"]
    assert record_of(layout, tmp_path)["ops"]["aten.embedding.default"] == 4
    assert whole["ops"]["aten.embedding.default"] == 3


@every_layout
def test_the_options_are_those_of_the_config(layout: Layout, tmp_path: Path) -> None:
    record = record_of(layout, tmp_path)
    calls = {call[1]: call[2] for call in record["option_calls"] if call[1] in GENERAL}
    assert calls == {
        "accumulation_and_replication_reduction_type": MEAN,
        "auto_round_num_ipus": True,
        "connection_type": NEVER,
        "device_iterations": layout.iterations,
        "execution_mode": PIPELINED,
        "gradient_accumulation": 2 * forward_stages(layout) - 1 if layout.training else 1,
        "ipu_version": 2,
        "output_mode": SUM if layout.training else ALL,
        "random_seed": SEED,
        "replication_factor": layout.replicas,
        "sync_pattern": 0,
    }
    popart = {key: value for key, value in record["popart_session_options"].items() if key not in FRONT_END}
    expected: Dict[str, Any] = {**BERT_SWITCHES, **HALF_PARTIALS, "enableStochasticRounding": layout.training}
    if "auto_loss_scaling" in layout.memory_saving:
        expected["automaticLossScalingSettings.enabled"] = True
    assert popart == expected
    assert record["executions"] == record["weight_updates"] == record["attach"] == 0, "compiled, not run"


@every_layout
def test_memory_is_shared_out_as_the_config_says(layout: Layout, tmp_path: Path) -> None:
    record = record_of(layout, tmp_path)
    shares = layout.memory if isinstance(layout.memory, tuple) else (layout.memory,) * len(layout.layers)
    memory = {call[1]: call[2] for call in record["option_calls"] if call[0] == "setMemoryProportion"}
    assert memory == dict(enumerate(shares))
    assert record["set_available_memory"] == [], "no single product has a share of its own"
    assert record["tensor_locations"] == {
        "location_optimizer": {
            "onChip": int(not layout.offchip),
            "useReplicatedTensorSharding": int(layout.sharded and layout.replicas > 1),
        }
    }


@every_layout
def test_every_operation_is_one_that_poptorch_supports(layout: Layout, tmp_path: Path) -> None:
    assert operations(record_of(layout, tmp_path)) - SUPPORTED == set()


@every_layout
def test_weights_are_fp16_inputs_int32_and_losses_fp32(layout: Layout, tmp_path: Path) -> None:
    """No int64 and no float64 reaches an IPU, which has neither."""
    record = record_of(layout, tmp_path)
    assert {(kind, trained) for _, kind, trained in record["parameters"].values()} == {("torch.float16", True)}
    columns = {"pretraining": 8, "question_answering": 6 if layout.training else 4}[layout.head]
    weights = ["torch.float32"] if layout.training else []  # of the labels
    assert [x["dtype"] for x in record["inputs"]] == ["torch.int32"] * columns + weights
    assert [x["shape"][0] for x in record["inputs"]] == [1] * (columns + len(weights)), "one row in a micro-batch"
    if layout.training:
        assert record["loss_types"] == ("torch.float32",) * 3, "the loss and its two parts"
        assert record["losses"][-1] == ["identity_loss", "none"]
    else:
        assert record["loss_types"] == ("torch.float32",), "logits"
        assert record["losses"] == []


@every_training
def test_the_optimizer_is_compiled_with_the_numbers_of_the_job(layout: Layout, tmp_path: Path) -> None:
    """[value, whether it is a constant]: only the rate and the loss scaling may change later."""
    config, found = layout.optimizer, record_of(layout, tmp_path)["optimizer"]
    assert config is not None
    assert (
        found["type"] == {"lamb": "LAMB" if config.bias_correction else "LAMB_NO_BIAS", "adamw": "ADAMW"}[config.name]
    )
    shared = {
        "learningRate": [1e-3, False],
        "beta1": [0.9, True],
        "beta2": [0.999, True],
        "eps": [config.eps, True],
    }
    limits: List[Dict[str, Any]] = [{}, {}]
    if config.name == "lamb":  # 0: biases and LayerNorm have no trust ratio
        limits = [{"maxWeightNorm": [65500.0, True]}, {"maxWeightNorm": [0.0, True]}]
    assert found["groups"] == [
        {**shared, "weightDecay": [config.weight_decay, True], **limits[0]},
        {**shared, "weightDecay": [0.0, True], **limits[1]},
    ]
    assert found["defaults"]["lossScaling"] == [config.loss_scaling, False]
    first_half = config.first_moment_precision == "auto"  # = that of the job, fp16
    assert (found["accum_type_half"], found["first_order_half"], found["second_order_half"]) == (
        True,
        first_half,
        False,
    )
    assert found["max_grad_norm"] == float("inf"), "nothing is clipped"


@every_training
def test_every_parameter_is_updated_by_exactly_one_group(layout: Layout, tmp_path: Path) -> None:
    record = record_of(layout, tmp_path)
    decayed, exempt = record["optimizer"]["parameter_groups"]
    assert sorted(decayed + exempt) == sorted(record["parameters"]), "every name once"
    assert record["trainable_parameters_not_in_optimizer"] == []
    assert all(name.endswith(".bias") or ".LayerNorm." in name for name in exempt)
    assert not [name for name in decayed if name.endswith("bias") or "LayerNorm" in name]
    # a layer: 6 matrices; 6 biases and two LayerNorms. Outside: 3 tables, that of words maybe in pieces, with a
    # LayerNorm; then pooler, transform
    # (with LayerNorm), decoder bias and next-sentence classifier, or the classifier of answers.
    layers, pretraining = sum(layout.layers), layout.head == "pretraining"
    assert len(decayed) == 6 * layers + 2 + layout.table_pieces + (3 if pretraining else 1)
    assert len(exempt) == 10 * layers + 2 + (6 if pretraining else 1)


def test_without_recomputation_nothing_is_kept_for_it(tmp_path: Path) -> None:
    layout = LAYOUTS[0]
    record = compiled(job_of(layout, tmp_path, recompute_checkpoint_every_layer=False), layout)
    assert record["recomputation_checkpoints"] == 0


def test_inference_that_cannot_fill_its_pipeline_is_sharded(tmp_path: Path) -> None:
    layout = next(x for x in LAYOUTS if x.job == "predict")
    record = compiled(job_of(layout, tmp_path, inference_device_iterations=1), layout)
    assert ["addUint64Option", "execution_mode", SHARDED] in record["option_calls"]
    assert [(x["user_id"], x["ipu_id"]) for x in begun(record)] == blocks_of(layout)


@pytest.mark.parametrize(("config", "seed", "expected"), [({"seed": 0}, 5, 0), ({}, 0, 0), ({"seed": 3}, 5, 3)])
@pytest.mark.parametrize("job", ["phase1", "predict"])
def test_the_seed_of_the_config_wins_zero_included_and_the_seed_of_the_job_stands_in(
    job: str, config: Dict[str, Any], seed: int, expected: int, tmp_path: Path
) -> None:
    layout = next(x for x in LAYOUTS if x.job == job)
    record = compiled(dataclasses.replace(job_of(layout, tmp_path, **config), seed=seed), layout)
    assert ["addUint64Option", "random_seed", expected] in record["option_calls"]


@pytest.mark.parametrize("job", ["phase1", "predict"])
def test_an_fp32_job_has_neither_stochastic_rounding_nor_fp16_partials(job: str, tmp_path: Path) -> None:
    layout = next(x for x in LAYOUTS if x.job == job)
    record = compiled(dataclasses.replace(job_of(layout, tmp_path), precision="fp32"), layout)
    popart = {key: value for key, value in record["popart_session_options"].items() if key not in FRONT_END}
    assert popart == {**BERT_SWITCHES, "enableStochasticRounding": False}
