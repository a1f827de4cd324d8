"""Every IPU preset, compiled with all its layers: what PopTorch recorded is what placement, config and job say."""

import dataclasses
import math
from contextlib import closing

import numpy as np
import poptorch
import pytest
from preset_layouts import LAYOUTS
from tiny_ipu import DROPPING, ipu_runtime, unsupported_operations
from tiny_jobs import make_columns

from ipu_model import heads
from ipu_model.estimates.ipu import build_program, plan_for_estimate
from ipu_model.estimates.ipu_memory import parameters_by_ipu
from ipu_model.estimates.shapes import RowShape
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.rows.format import Manifest
from ipu_model.rows.row_folder import Batch

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
SEED = 7


def forward_stages(layout):
    """One per IPU, and one more where the heads come back to IPU 0."""
    return len(layout.layers) + (layout.head == "pretraining" or layout.head_on is not None)


def accumulation(layout):
    """The least that fills the pipeline; 1 in predict."""
    return 2 * forward_stages(layout) - 1 if layout.training else 1


def model_config(layout):
    """Dropout is on, as in every preset."""
    return dataclasses.replace(DROPPING, num_layers=sum(layout.layers), initializer_range=0.02)


def job_of(layout, folder, **config):
    """The preset's job on rows of 24 tokens, one row in a micro-batch, compiled for IPUs that are not there."""
    return Job(
        kind={"phase1": "pretrain", "phase2": "pretrain"}.get(layout.job, layout.job),
        head=layout.head,
        rows="",
        output=str(folder / "out"),
        run_folder=str(folder / "run"),
        geometry=BatchGeometry(accumulation(layout) * layout.replicas, 1),
        runtime="ipu",
        precision="fp16",
        seed=SEED,
        model=model_config(layout),
        optimizer=layout.optimizer,
        schedule=ScheduleConfig(steps=1) if layout.training else None,
        ipu_config={**layout.ipu_config(), **config},
        compile_only=True,
    )


def compiled(job, layout):
    rows = accumulation(layout) * layout.replicas * layout.iterations
    columns = make_columns("pretrain" if layout.head == "pretraining" else layout.head, rows, seed=3)
    types = []
    kind = heads.get_head(layout.head).on_ipu
    forward = kind.forward

    def noting(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        types[:] = [str(x.dtype) for x in (outputs if isinstance(outputs, tuple) else (outputs,))]
        return outputs

    noting.__wrapped__ = forward  # PopTorch reads the names of the arguments
    with pytest.MonkeyPatch.context() as patch, closing(ipu_runtime(job, config=model_config(layout))) as runtime:
        patch.setattr(kind, "forward", noting)
        runtime.compile(Batch(np.arange(rows), columns))
        record = poptorch.poptorch_core.getRecord()["executables"][-1]
    return {**record, "loss_types": types}


def begun(record):
    return [x for x in record["blocks"] if x["event"] == "begin"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: x.name)
def test_a_job_is_compiled_as_placement_config_and_job_say(layout, tmp_path):
    job = job_of(layout, tmp_path)
    record = compiled(job, layout)
    check_estimate(layout, record, job)
    check_blocks(layout, record)
    check_pieces(layout, record)
    check_options(layout, record)
    if layout.training:
        check_optimizer(layout, record)
    check_types(layout, record)


def check_estimate(layout, record, job):
    """Stages, blocks, IPUs and weights of the estimates, from the job alone."""
    manifest = Manifest("pretrain", 24, 1, 4, job.model.vocab_size, "0", 0, 100, 100, 1000, {})
    plan = plan_for_estimate(job, job.model, manifest)
    held = build_program(job, job.model, plan, RowShape.from_manifest(manifest))
    assert list(plan.placement.order) == [x["ipu_id"] for x in begun(record)]
    assert plan.placement.ipus_per_replica * plan.replicas == record["num_ipus"]
    stages = plan.placement.training_stages if layout.training else plan.placement.forward_stages
    assert stages == record["pipeline_stages"]
    kept = len(held.placement.layers) if held.training and held.keeps_every_layer else 0
    assert kept == record["recomputation_checkpoints"]
    assert sum(parameters_by_ipu(held)) == sum(math.prod(shape) for shape, *_ in record["parameters"].values())
    assert held.state_offchip == (not record["tensor_locations"]["location_optimizer"]["onChip"])


def check_blocks(layout, record):
    """Every block is on its IPU, as worked out by hand, and nothing is computed between them."""
    blocks, events = begun(record), record["blocks"]
    ipus = [ipu for ipu, count in enumerate(layout.layers) for _ in range(count)]
    expected = [("embeddings", 0), *((f"layer{number}", ipu) for number, ipu in enumerate(ipus))]
    if layout.head == "pretraining":
        expected += [("pooler", 0), ("heads", 0)]
    else:
        expected.append(("heads", len(layout.layers) - 1 if layout.head_on is None else layout.head_on))
    assert [(x["user_id"], x["ipu_id"]) for x in blocks] == expected
    assert record["ipus_used"] == list(range(len(layout.layers)))
    assert record["num_ipus"] == len(layout.layers) * layout.replicas
    assert [x["event"] for x in events] == ["begin", "end"] * (len(events) // 2)
    assert [x["at_op"] for x in events[2::2]] == [x["at_op"] for x in events[1:-1:2]]
    assert unsupported_operations(record) == set()


def check_pieces(layout, record):
    """One activation is kept per layer; products and the word table are cut as the factor says."""
    assert record["recomputation_checkpoints"] == (sum(layout.layers) if layout.training else 0)
    # 1 row with 4 masked slots and a vocabulary of 60, cut over the vocabulary, summed in no other type
    decoder = [[[1, 4, 60], "output_channels", layout.factor, False]]
    assert record["matmul_serialization"] == (decoder if layout.job.startswith("phase") and layout.factor > 1 else [])
    assert record["ops"]["aten.embedding.default"] == 2 + layout.table_pieces, "token types, positions and the words"
    assert record["attributes"] == [["__outline", "layer", "embeddings"]]
    table = "bert_model.bert.embeddings.word_embeddings."
    pieces = {name: tuple(shape) for name, (shape, *_) in record["parameters"].items() if name.startswith(table)}
    names = [f"pieces.{number}" for number in range(layout.table_pieces)] if layout.table_pieces > 1 else ["weight"]
    assert pieces == {table + name: (60 // layout.table_pieces, 16) for name in names}


def check_options(layout, record):
    """The accumulation here is the least, so one stage more would have been refused."""
    stages = 2 * forward_stages(layout) - 1 if layout.training else forward_stages(layout)
    assert record["pipeline_stages"] == stages
    calls = {call[1]: call[2] for call in record["option_calls"] if len(call) == 3}
    expected = {
        "accumulation_and_replication_reduction_type": 1,  # mean
        "auto_round_num_ipus": True,
        "connection_type": 2,  # never
        "device_iterations": layout.iterations,
        "execution_mode": 0,  # pipelined
        "gradient_accumulation": stages if layout.training else 1,
        "ipu_version": 2,
        "output_mode": 3 if layout.training else 2,  # sum, all
        "random_seed": SEED,
        "replication_factor": layout.replicas,
        **dict(enumerate(layout.memory if len(layout.memory) > 1 else layout.memory * len(layout.layers))),
    }
    assert {name: calls[name] for name in expected} == expected
    sharded = int(layout.sharded and layout.replicas > 1)
    location = {"onChip": int(not layout.offchip), "useReplicatedTensorSharding": sharded}
    assert record["tensor_locations"] == {"location_optimizer": location}
    switches = {**BERT_SWITCHES, **HALF_PARTIALS, "enableStochasticRounding": layout.training}
    if layout.auto_loss_scaling:
        switches["automaticLossScalingSettings.enabled"] = True
    assert popart_options(record) == switches


def check_optimizer(layout, record):
    """[value, whether it is a constant]: only the rate and the loss scaling may change later."""
    config, recorded = layout.optimizer, record["optimizer"]
    kind = {"lamb": "LAMB" if config.bias_correction else "LAMB_NO_BIAS", "adamw": "ADAMW"}[config.name]
    assert recorded["type"] == kind
    numbers = {"beta1": [0.9, True], "beta2": [0.999, True], "eps": [config.eps, True], "learningRate": [1e-3, False]}
    limits = [{}, {}]
    if config.name == "lamb":  # 0: biases and LayerNorm have no trust ratio
        limits = [{"maxWeightNorm": [65500.0, True]}, {"maxWeightNorm": [0.0, True]}]
    decays = (config.weight_decay, 0.0)
    assert recorded["groups"] == [{**numbers, "weightDecay": [x, True], **limit} for x, limit in zip(decays, limits)]
    assert recorded["defaults"]["lossScaling"] == [config.loss_scaling, False]
    types = (recorded["accum_type_half"], recorded["first_order_half"], recorded["second_order_half"])
    assert types == (True, config.first_moment_precision == "auto", False)  # auto: that of the job, fp16
    assert recorded["max_grad_norm"] == float("inf"), "nothing is clipped"
    decayed, exempt = recorded["parameter_groups"]
    assert sorted(decayed + exempt) == sorted(record["parameters"]), "every name once"
    assert record["trainable_parameters_not_in_optimizer"] == []
    assert {name for name in decayed + exempt if name.endswith("bias") or "LayerNorm" in name} == set(exempt)
    # a layer: 6 matrices; 6 biases and two LayerNorms. Outside: 3 tables, that of words maybe in pieces, with a
    # LayerNorm; then pooler, transform (with LayerNorm), decoder bias and next-sentence classifier, or the classifier
    # of answers.
    layers, pretraining = sum(layout.layers), layout.head == "pretraining"
    assert len(decayed) == 6 * layers + 2 + layout.table_pieces + (3 if pretraining else 1)
    assert len(exempt) == 10 * layers + 2 + (6 if pretraining else 1)


def popart_options(record):
    return {key: value for key, value in record["popart_session_options"].items() if key not in FRONT_END}


def check_types(layout, record):
    """No int64 and no float64 reaches an IPU, which has neither; the loss and its two parts are fp32, as are logits."""
    assert {(kind, trained) for _, kind, trained in record["parameters"].values()} == {("torch.float16", True)}
    columns = {"pretraining": 8, "question_answering": 6 if layout.training else 4}[layout.head]
    weights = ["torch.float32"] if layout.training else []  # of the labels
    assert [x["dtype"] for x in record["inputs"]] == ["torch.int32"] * columns + weights
    assert [x["shape"][0] for x in record["inputs"]] == [1] * (columns + len(weights)), "one row in a micro-batch"
    assert record["loss_types"] == ["torch.float32"] * (3 if layout.training else 1)
    assert record["losses"][-1:] == [["identity_loss", "none"]] * layout.training


def test_no_slice_is_taken_of_the_word_table_in_pieces(tmp_path):
    """PopART would pad the gradient of each slice back to the whole table, in every micro-batch."""
    layout = next(x for x in LAYOUTS if x.table_pieces > 1)
    whole = compiled(job_of(layout, tmp_path, embedding_serialization_factor=1), layout)["ops"]
    pieces = compiled(job_of(layout, tmp_path), layout)["ops"]
    assert pieces["aten.slice.Tensor"] == whole["aten.slice.Tensor"]


@pytest.mark.parametrize("job", ["phase1", "predict"])
def test_an_fp32_job_rounds_not_without_recomputation_keeps_nothing_and_takes_a_seed_of_0(job, tmp_path):
    layout = next(x for x in LAYOUTS if x.job == job)
    plain = job_of(layout, tmp_path, recompute_checkpoint_every_layer=False, seed=0)
    record = compiled(dataclasses.replace(plain, precision="fp32"), layout)
    assert popart_options(record) == {**BERT_SWITCHES, "enableStochasticRounding": False}
    assert record["recomputation_checkpoints"] == 0
    assert ["addUint64Option", "random_seed", 0] in record["option_calls"]
