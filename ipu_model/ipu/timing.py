"""How long a training call keeps the IPUs, worked out before anything runs: nobody hears the host meanwhile.

    seconds of a call = updates x (accumulation + 2F - 2) x micro-batch + fixed cost
    micro-batch = 4 x forward FLOPs of the fullest IPU for its rows / (USED_SHARE x PEAK_FLOPS)

F forward stages: 2F - 2 micro-batches are ramp-up and ramp-down. 4: forward, once more when activations are recomputed,
and twice that on the way back. Fitted on published figures; nothing here was measured on a device by us.
"""

from __future__ import annotations

from typing import List

from ipu_model.ipu.placement import Placement
from ipu_model.models.config import ModelConfig

PASSES = 4
"""Of one micro-batch through an IPU, in forward passes."""
PEAK_FLOPS = 250e12
"""fp16.16 of one Mk2 IPU, per second (Graphcore's datasheet); a Bow has 350e12 and answers sooner."""
USED_SHARE = 0.35
"""Of that peak. With it three published trainings of BERT base on a POD16 of Mk2 come out within 6 %: phase 1, 11,700
sequences/s, and phase 2 of 384 tokens, 3,470 (both Paddle's), and of 512, 2,409.4 (Graphcore/bert-base-uncased)."""
CALL_SECONDS = 0.17
SECONDS_PER_WEIGHT = 9.1e-10
"""The fixed cost of a call: a line through what is left of the published seconds of SQuAD on a POD16 of Mk2, 0.27 of
0.355 a call with BERT base (720.877 questions/s) and 0.48 of 0.708 with large (361.48)."""

SWAP_SECONDS = 30.0
"""Assumed of an evaluation, as nobody published it: its program and the weights go to the IPUs, then those of training
with the optimizer's state. To fill 16 IPUs of 900 MB takes 1.2 s through a host link of 100 Gb/s; loading does more."""
WORTHWHILE_SHARE = 0.01
"""Of a training, for its evaluations: where they take more, a line says how to make them fewer."""


def call_seconds(
    model: ModelConfig,
    placement: Placement,
    row_length: int,
    masked: int,
    micro_batch_size: int,
    accumulation: int,
    updates: int = 1,
) -> float:
    """Seconds that one training call takes on Mk2 IPUs, within some 10 % of what was published.

    Args:
        placement: of training.
        row_length: tokens of a row, padding included.
        masked: slots for masked positions of a row; 0 where there are none.
        micro_batch_size: rows of one forward pass of a replica.
        accumulation: micro-batches of a replica behind one update.
        updates: of one call.
    """
    micro_batch = PASSES * micro_batch_size * max(forward_flops(model, placement, row_length, masked))
    beats = accumulation + 2 * placement.forward_stages - 2
    fixed = CALL_SECONDS + SECONDS_PER_WEIGHT * _weights(model)
    return updates * beats * micro_batch / (USED_SHARE * PEAK_FLOPS) + fixed


def evaluation_seconds(
    model: ModelConfig,
    placement: Placement,
    row_length: int,
    masked: int,
    micro_batch_size: int,
    iterations: int,
    calls: int,
) -> float:
    """Seconds that IPUs are kept from training by one evaluation: the forward passes of call_seconds, and the change.

    Args:
        placement, micro_batch_size: of inference; the others as for call_seconds.
        iterations: micro-batches of a replica in one call.
        calls: that all held-out rows take.
    """
    micro_batch = micro_batch_size * max(forward_flops(model, placement, row_length, masked))
    beats = iterations + placement.forward_stages - 1
    return SWAP_SECONDS + calls * (beats * micro_batch / (USED_SHARE * PEAK_FLOPS) + CALL_SECONDS)


def evaluations_in_words(seconds: float, count: int, training_seconds: float) -> str:
    """What the evaluations of a training cost.

    Args:
        seconds: of one evaluation.
        count: how many the training makes; one of them follows the last update.
        training_seconds: of all updates.
    """
    share = count * seconds / training_seconds
    told = (
        f"held-out rows are judged {count} times on the IPUs, by turns with training: about {seconds:.0f} s each, "
        f"{SWAP_SECONDS:.0f} s of them assumed for changing programs, {share:.1%} of the training"
    )
    if share <= WORTHWHILE_SHARE:
        return told
    fits = int(WORTHWHILE_SHARE * training_seconds / seconds)
    enough = f"make it at most {fits}, with evaluate_every_updates" if fits else "set evaluate_every_updates to null"
    return f"{told}; to stay under {WORTHWHILE_SHARE:.0%}, {enough}"


def forward_flops(model: ModelConfig, placement: Placement, row_length: int, masked: int) -> List[float]:
    """FLOPs of the forward pass of one row on each IPU of a replica; only matrix products count."""
    hidden, flops = model.hidden_size, [0.0] * placement.ipus_per_replica
    dense = 8 * hidden * hidden + 4 * hidden * model.intermediate_size
    for ipu in placement.layers:
        flops[ipu] += dense * row_length + 4 * row_length * row_length * hidden
    flops[placement.heads] += masked * (2 * hidden * model.vocab_size + 2 * hidden * hidden)
    return flops


def _weights(model: ModelConfig) -> int:
    """Numbers in the matrices of a BERT."""
    hidden = model.hidden_size
    return model.vocab_size * hidden + model.num_layers * (4 * hidden * hidden + 2 * hidden * model.intermediate_size)


def stops_in_words(seconds: float, every_minutes: float, every_updates: int) -> str:
    """What follows from the seconds of a call for who stops a training, or loses its host.

    Args:
        every_minutes: between checkpoints; 0 for never.
        every_updates: the same in updates.
    """
    kept = [f"{every_minutes:g} minutes"] * bool(every_minutes) + [f"{every_updates} updates"] * bool(every_updates)
    lost = (
        f"the last {' or '.join(kept)}, a call and the time of writing a checkpoint"
        if kept
        else "everything, as no checkpoints are made while it trains (checkpoint_every_minutes)"
    )
    return (
        f"a call of the IPUs takes about {seconds:.1f} s on Mk2, going by published figures: a stop is answered after "
        f"it, with a checkpoint. What is killed loses at most {lost}"
    )
