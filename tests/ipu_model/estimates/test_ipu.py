"""The door to the estimates of IPUs: jobs as they are, and no torch."""

import dataclasses

import pytest

from ipu_model.estimates.estimate import DOES_NOT_FIT, FITS, JobEstimate
from ipu_model.estimates.ipu import Proposal, estimate_ipus, find_faster_layout, moment_bytes, plan_for_estimate
from ipu_model.estimates.ipu_constants import BOW, FITTED, FittedConstants
from ipu_model.estimates.ipu_memory import estimate_memories
from ipu_model.estimates.ipu_time import IpuProgram, call_interval, micro_batch_seconds, update_seconds
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.placement import place_by_layers
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from tests.optimizers import optimizer_config

ANSWERS = "question_answering"
BASE = ModelConfig(vocab_size=30522)
LARGE = ModelConfig(vocab_size=30522, hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
SMALL = ModelConfig(vocab_size=10, hidden_size=4, num_layers=3, num_heads=2, intermediate_size=16)
ON_FOUR = {BASE: [0, 4, 4, 4], LARGE: [3, 7, 7, 7]}
ROWS = Manifest("pretrain", 128, 1, 20, 30522, "0", 0, 1_000_000, 1_000_000, 100_000_000, {})
CONFIG = {
    "layers_per_ipu": [0, 4, 4, 4],
    "replication_factor": 4,
    "inference_replication_factor": 2,
    "inference_device_iterations": 5,
    "matmul_proportion": 0.25,
    "optimizer_state_offchip": True,
    "recompute_checkpoint_every_layer": True,
}


def job_of(**changes):
    """Phase 1 of BERT base on a POD16, 10 updates."""
    values = {
        "kind": "pretrain",
        "head": "pretraining",
        "geometry": BatchGeometry(65536, 32),
        "runtime": "ipu",
        "model": BASE,
        "optimizer": optimizer_config("lamb"),
        "schedule": ScheduleConfig(steps=10),
        "ipu_config": CONFIG,
    }
    return Job(rows="", output="", run_folder="", **{**values, **changes})


def test_a_training_by_its_job():
    plan = plan_for_estimate(job_of(), BASE, ROWS)
    assert (plan.accumulation, plan.replicas, plan.placement.forward_stages, plan.half) == (512, 4, 5, True)
    estimate = estimate_ipus(job_of(), BASE, ROWS)
    assert estimate.device == "16 IPUs Mk2, 4 replicas of 4"
    assert sorted(memory.where for memory in estimate.memory) == [f"IPU {ipu} of 4" for ipu in range(4)]
    time = estimate.time
    assert time.updates == 10
    assert time.update_seconds.likely == pytest.approx(sum(term.amount for term in time.terms))
    assert time.sequences_per_second.likely == pytest.approx(65536 / time.update_seconds.likely)
    assert time.sequences_per_second.low < 11700 < time.sequences_per_second.high, "Paddle's"
    assert "IPU 1" in time.largest.name


def test_packed_rows_hold_more_sequences_and_a_bow_is_faster():
    packed = dataclasses.replace(ROWS, max_sequences=3, sequences=1_170_000)
    alone, more, bow = (
        estimate_ipus(job_of(), BASE, rows, *generation) for rows, *generation in ((ROWS,), (packed,), (ROWS, BOW))
    )
    assert more.time.update_seconds.likely < alone.time.update_seconds.likely, "fewer rows for as many sequences"
    assert more.time.sequences_per_second.likely > alone.time.sequences_per_second.likely
    assert bow.time.update_seconds.likely < alone.time.update_seconds.likely
    assert bow.memory == alone.memory


@pytest.mark.parametrize(
    ("iterations", "largest", "advice"),
    [
        (5, "host between calls", "inference_device_iterations"),
        (5000, "forward pass of a call", "inference_replication_factor"),
    ],
)
def test_a_prediction_is_estimated_in_calls_and_advises_on_the_larger_share(iterations, largest, advice):
    """2 replicas x 5 iterations x 8 rows are a call of 80: 1,000,000 rows take 12,500."""
    config = {**CONFIG, "inference_device_iterations": iterations}
    values = {"optimizer": None, "schedule": None, "ipu_config": config, "geometry": BatchGeometry(8, 8)}
    rows = dataclasses.replace(ROWS, max_predictions=0, kind=ANSWERS)
    estimate = estimate_ipus(job_of(kind="predict", head=ANSWERS, **values), BASE, rows)
    assert estimate.device == "8 IPUs Mk2, 2 replicas of 4"
    time = estimate.time
    assert time.updates == -(-1_000_000 // (16 * iterations))
    assert time.sequences_per_second.likely == pytest.approx(16 * iterations / time.update_seconds.likely)
    shares = {term.name: term.amount for term in time.terms}
    assert shares["host between calls"] == FITTED.host
    assert sum(shares.values()) == pytest.approx(time.update_seconds.likely)
    assert (time.largest.name, time.largest.knob.partition(":")[0]) == (largest, advice)
    assert estimate.memory[0].total.likely < estimate_ipus(job_of(), BASE, ROWS).memory[0].total.likely


def test_precisions_decide_the_bytes():
    half, whole = (
        {term.name: term.amount for term in estimate_ipus(job_of(precision=name), BASE, ROWS).memory[0].terms}
        for name in ("fp16", "fp32")
    )
    for name in ("weights", "accumulated gradients"):
        assert whole[name] == 2 * half[name]
    lamb = optimizer_config("lamb", first_moment_precision="fp32")
    assert [moment_bytes(x, True) for x in (lamb, optimizer_config("sgd"), None)] == [8.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("model", "head", "rows", "micro_batch", "accumulation", "offchip", "published"),
    [
        # Global batch over sequences/s, four replicas of four Mk2 IPUs.
        (BASE, "pretraining", RowShape(128, 20), 32, 512, True, 65536 / 11700),
        (BASE, "pretraining", RowShape(384, 56), 8, 512, True, 16384 / 3470),
        (BASE, "pretraining", RowShape(512, 96), 8, 512, False, 16384 / 2409.4),
        (BASE, ANSWERS, RowShape(384), 2, 32, False, 256 / 720.877),
        (LARGE, ANSWERS, RowShape(384), 1, 64, True, 256 / 361.48),
    ],
)
def test_published_trainings_take_as_long_as_they_took(
    model, head, rows, micro_batch, accumulation, offchip, published
):
    placement = place_by_layers(head, model.num_layers, ON_FOUR[model], 4)
    estimate = call_interval(IpuProgram(model, placement, rows, micro_batch, accumulation, 4, state_offchip=offchip))
    assert estimate.likely == pytest.approx(published, rel=0.10)
    assert estimate.low <= published <= estimate.high


def training_of(head="pretraining", **fitted):
    """Three layers on two IPUs, 5 tokens and 3 masked slots, 2 rows a micro-batch; other constants are 0."""
    rows, constants = RowShape(5, 3 if head == "pretraining" else 0), FittedConstants(0.0, 0.0, 0.0, 0.0, 0.0)
    constants = dataclasses.replace(constants, **fitted)
    return IpuProgram(SMALL, place_by_layers(head, 3, [1, 2], 2), rows, 2, 6, state_offchip=True, fitted=constants)


def test_products_with_weights_by_hand():
    """24 H^2 L a layer; P (2 H V + 2 H^2) of the heads, back on IPU 0; four passes of two rows, at the peak."""
    layer, decoder = 24 * 16 * 5, 3 * (2 * 4 * 10 + 2 * 16)
    for head, flops in (("pretraining", [layer + decoder, 2 * layer]), (ANSWERS, [layer, 2 * layer])):
        training = training_of(head, dense=1.0)
        assert micro_batch_seconds(training) == [pytest.approx(4 * 2 * x / 250e12) for x in flops]


def test_every_constant_counts_what_it_says_it_counts():
    """7 forward stages are 3 with the heads on IPU 0: beats are 6 + 2 x 3 - 2 = 10; 2 layers on the slower IPU."""
    scores = update_seconds(training_of(score=1.0))
    assert scores.micro_batches + scores.ramp == 10 * 2 * max(2 * 2 * 25, 2 * 25 + 3 * 10)
    layers = update_seconds(training_of(layer=1.0))
    assert (layers.slowest, layers.micro_batches, layers.ramp) == (1, 6 * 2, 4 * 2)
    assert update_seconds(dataclasses.replace(training_of(), state_offchip=False)).offchip == 0
    host = dataclasses.replace(training_of(host=1.0), updates_per_call=3)
    assert call_interval(host).likely == pytest.approx(1.0 + 3 * update_seconds(host).streams)


def test_gradients_of_one_replica_go_nowhere_and_those_of_several_racks_through_gateways():
    placement = place_by_layers("pretraining", 24, ON_FOUR[LARGE], 4)
    alone, pod16, pod64 = (
        update_seconds(IpuProgram(LARGE, placement, RowShape(128, 20), 8, 512, replicas)).collectives
        for replicas in (1, 4, 16)
    )
    assert alone == 0 < pod16 < pod64


def proposal_of(head, layers, micro_batch, accumulation, **changes):
    """A BERT base on four IPUs with rows of 128 tokens, 20 masked in pre-training."""
    placement, rows = place_by_layers(head, 12, layers, len(layers)), RowShape(128, 0 if head == ANSWERS else 20)
    values = {"state_offchip": True, "matmul_proportion": (0.2,) * len(layers), **changes}
    proposal = find_faster_layout(IpuProgram(BASE, placement, rows, micro_batch, accumulation, **values))
    if proposal.proposed is not None:  # the rows of an update are kept, the IPUs that there are, and a full pipeline
        cut, ipus = proposal.proposed, len(proposal.proposed.placement.layers_per_ipu)
        assert cut.micro_batch_size * cut.accumulation * cut.replicas == micro_batch * accumulation
        assert ipus * cut.replicas == len(layers)
        assert cut.accumulation >= 2 * ipus - 1
        assert verdict_of(cut) == FITS
    return proposal


def verdict_of(program):
    return JobEstimate("", estimate_memories(program), None).verdict


def test_a_slow_ipu_gives_layers_to_the_others_and_what_is_fastest_already_is_left_alone():
    proposal = proposal_of(ANSWERS, [9, 1, 1, 1], 4, 64)
    cut, counts = proposal.proposed, proposal.proposed.placement.layers_per_ipu
    assert max(counts) - min(counts) <= 1
    assert proposal.gain > 0.5
    keeps = {"keeps_every_layer": cut.keeps_every_layer}
    again = proposal_of(ANSWERS, list(counts), cut.micro_batch_size, cut.accumulation, **keeps)
    assert (again.proposed, again.gain, again.margin, again.is_worthwhile) == (None, 0.0, 0.0, False)


def test_a_proposal_names_what_is_changed():
    proposal = proposal_of(ANSWERS, [9, 1, 1, 1], 4, 64)
    changes = {"replicas": 2, "micro_batch_size": 4, "matmul_proportion": (0.2, 0.2), "keeps_every_layer": False}
    changes["placement"] = place_by_layers(ANSWERS, 12, [6, 6], 2)
    proposal = Proposal(proposal.current, dataclasses.replace(proposal.proposed, **changes))
    words = ["layers_per_ipu [6, 6]", "micro_batch_size 4", "replication_factor 2", "matmul_proportion 0.2"]
    words += ["recompute_checkpoint_every_layer false", f"{proposal.gain:.0%}", f"{1000 * proposal.margin:.2g} ms"]
    assert [word for word in words if word not in proposal.describe()] == []


@pytest.mark.parametrize(("micro_batch", "accumulation", "fits"), [(2, 512, True), (64, 16, False)])
def test_what_does_not_fit_is_not_proposed_however_fast(micro_batch, accumulation, fits):
    """fp32 numbers and many masked words: the logits of larger micro-batches do not fit IPU 0."""
    proposal = proposal_of("pretraining", [0, 4, 4, 4], micro_batch, accumulation, weight_bytes=4.0)
    assert (verdict_of(proposal.current) != DOES_NOT_FIT) == fits


def test_the_margin_is_what_the_first_ipu_may_take_on_top():
    """Two replicas may take twice as long for a row as one."""
    proposal = proposal_of("pretraining", [0, 4, 4, 4], 8, 64)
    assert proposal.is_worthwhile
    cut, counts = proposal.proposed, proposal.proposed.placement.layers_per_ipu
    placement = place_by_layers("pretraining", 12, list(counts), len(counts))
    first = micro_batch_seconds(IpuProgram(BASE, placement, RowShape(128, 20), cut.micro_batch_size))[0]
    slowest = max(micro_batch_seconds(proposal.current))
    assert proposal.margin == pytest.approx(cut.replicas * slowest / 8 - first / cut.micro_batch_size)
    fuller = place_by_layers("pretraining", 12, [11, *[0] * (len(counts) - 2), 1], len(counts))
    slow = Proposal(proposal.current, dataclasses.replace(cut, placement=fuller))
    assert slow.margin < 0
    assert not slow.is_worthwhile


def test_a_pod_is_shared_out_among_more_replicas_too():
    """BERT base on two IPUs a replica fills its pipeline sooner; its proportions, once a list, become the default."""
    cut = proposal_of(ANSWERS, [3, 3, 3, 3], 4, 16, matmul_proportion=(0.3, 0.2, 0.2, 0.2)).proposed
    assert (cut.replicas, cut.placement.layers_per_ipu, cut.matmul_proportion) == (2, (6, 6), (0.2, 0.2))
    kept = proposal_of(ANSWERS, [3, 3, 3, 3], 4, 16, matmul_proportion=(0.1,) * 4)
    assert set(kept.proposed.matmul_proportion) == {0.1}
