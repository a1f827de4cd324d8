"""What each IPU of a replica holds, added up from the shapes of its part of the model.

A sum of what lives through a whole call (weights, accumulators, moments, stashes, code) and of the fullest instant
among those that follow one another: a layer on its way back, the heads on theirs, the update. What no formula gives is
assumed three times, for the lower end, the likely sum and the upper end (ipu_constants.Assumed).

Legend: as in shapes.py; i forward stage, F forward stages, B rows of a micro-batch, b bytes of a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

from ipu_model import heads
from ipu_model.estimates import ipu_constants as constants
from ipu_model.estimates.estimate import Interval, MemoryEstimate, Term
from ipu_model.estimates.ipu_constants import Assumed
from ipu_model.estimates.ipu_time import TOKEN_COLUMNS
from ipu_model.estimates.shapes import (
    RowShape,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    pooler_parameters,
    table_parameters,
)
from ipu_model.ipu.placement import Placement
from ipu_model.models.config import ModelConfig

INTEGER = 4
"""Bytes of a number in the columns of rows, int32."""


@dataclass(frozen=True)
class Held:
    """What decides the memory of a program."""

    model: ModelConfig
    placement: Placement
    rows: RowShape
    micro_batch_size: int
    matmul_proportion: Tuple[float, ...]
    """Of each IPU."""
    training: bool = True
    weight_bytes: float = 2.0
    """Of one number of the weights and activations."""
    gradient_bytes: float = 2.0
    """Of one number of the accumulated gradients."""
    moment_bytes: float = 8.0
    """Of all moments of one weight; 0 in inference."""
    state_offchip: bool = False
    shards: int = 1
    """Replicas that share the moments; 1 where each has all of them."""
    keeps_every_layer: bool = True
    """recompute_checkpoint_every_layer."""
    table_pieces: int = 1
    """Parameters that the word table is."""
    table_cuts: bool = True
    """Whether embedding_serialization_factor would cut it into more: LAMB trains it whole."""
    decoder_pieces: int = 1
    """Pieces that the product with the tied decoder is cut into."""
    labels: int = 2
    """Classes of a head that is not tied."""


def parameters_by_ipu(held: Held) -> List[int]:
    """Numbers in the weights of each IPU of a replica."""
    model, placement = held.model, held.placement
    found = [0] * placement.ipus_per_replica
    found[placement.embeddings] += embedding_parameters(model)
    for ipu in placement.layers:
        found[ipu] += layer_parameters(model)
    if placement.pooler is not None:
        found[placement.pooler] += pooler_parameters(model)
    found[placement.heads] += head_parameters(model, placement.head, held.labels)
    return found


def ipu_memories(held: Held) -> Tuple[MemoryEstimate, ...]:
    """The memory of each IPU of a replica, the fullest first."""
    found = []
    for ipu in range(held.placement.ipus_per_replica):
        low, likely, high = (_terms(held, ipu, x) for x in (constants.LOW, constants.LIKELY, constants.HIGH))
        total = Interval(_sum(low), _sum(likely), _sum(high))
        where = f"IPU {ipu} of {held.placement.ipus_per_replica}"
        found.append(MemoryEstimate(where, likely, total, constants.TILE_BYTES))
    return tuple(sorted(found, key=lambda memory: -memory.total.likely))


def fits(held: Held) -> bool:
    """Whether even the upper ends are there, for searches: ipu_memories says more and takes longer."""
    ipus = range(held.placement.ipus_per_replica)
    return all(_sum(_terms(held, ipu, constants.HIGH)) <= constants.TILE_BYTES for ipu in ipus)


def _sum(terms: Tuple[Term, ...]) -> float:
    return sum(term.amount for term in terms)


def _terms(held: Held, ipu: int, assumed: Assumed) -> Tuple[Term, ...]:
    """Bytes of one IPU, all that takes some."""
    weights = parameters_by_ipu(held)[ipu]
    move = f"layers_per_ipu: fewer layers on IPU {ipu}"
    terms = [Term("weights", held.weight_bytes * weights, move)]
    if held.training:
        terms.append(Term("accumulated gradients", held.gradient_bytes * weights, move))
        if not held.state_offchip:
            amount = held.moment_bytes * weights / held.shards
            terms.append(Term("optimizer state", amount, "optimizer_state_offchip: true"))
    terms.append(_stash(held, ipu))
    terms.append(_fullest_instant(held, ipu, assumed))
    terms.append(_streams(held, ipu))
    terms.append(Term("code and exchange", assumed.code if held.training else assumed.inference_code))
    return tuple(term for term in terms if term.amount)


def _stash(held: Held, ipu: int) -> Term:
    """Inputs kept until a micro-batch comes back: 2 (F - 1 - i) + 1 of them on stage i.

    With recompute_checkpoint_every_layer one activation a layer is kept, else one a stage (the stashes that a test of
    graphcore/examples:nlp/bert/pytorch counts); columns of integers are kept where a stage reads them.
    """
    stages = held.placement.stages
    hidden = held.micro_batch_size * held.rows.length * held.model.hidden_size * held.weight_bytes
    integers = float(held.micro_batch_size * held.rows.length * INTEGER)
    total = 0.0
    for number, (of_stage, names) in enumerate(stages):
        if of_stage != ipu or not held.training:
            continue
        deep = 2 * (len(stages) - 1 - number) + 1
        layers = sum(name.startswith("encoder layer") for name in names)
        kept = layers if held.keeps_every_layer else min(layers, 1)
        kept = max(kept, 1) if number else kept  # the first stage begins with integers
        total += deep * (kept * hidden + (integers if number else TOKEN_COLUMNS * integers))
    deeper = "micro_batch_size: smaller"
    if held.keeps_every_layer:
        return Term("stashed activations", total, f"{deeper}, or fewer IPUs in a replica")
    return Term("stashed activations", total, deeper)


def _fullest_instant(held: Held, ipu: int, assumed: Assumed) -> Term:
    """What lives for a moment only, at the worst of them."""
    proportion = assumed.proportion * held.matmul_proportion[ipu] * constants.TILE_BYTES
    candidates = [_layer(held, ipu, assumed), *_heads(held, ipu, assumed)]
    fullest = max(candidates, key=lambda term: term.amount)
    with_products = Term(
        f"{fullest.name}, and temporaries of products" if fullest.amount else "temporaries of products",
        fullest.amount + proportion,
        f"matmul_proportion: a smaller share of IPU {ipu}" if proportion > fullest.amount else fullest.knob,
    )
    return max((with_products, _update(held, ipu, assumed)), key=lambda term: term.amount)


def _layer(held: Held, ipu: int, assumed: Assumed) -> Term:
    """A layer that is recomputed and differentiated; all of a stage where only its input is kept."""
    layers = held.placement.layers.count(ipu)
    if not layers:
        return Term("", 0.0)
    hidden = held.micro_batch_size * held.rows.length * held.model.hidden_size * held.weight_bytes
    scores = held.micro_batch_size * held.model.num_heads * held.rows.length**2 * held.weight_bytes
    if not held.training:
        # Forward only: input, the wide activation of the feed-forward part and its output; scores and probabilities.
        return Term("a layer", 6 * hidden + scores, "device.micro_batch_size: smaller")
    once = assumed.hidden * hidden + assumed.scores * scores
    if held.placement.forward_stages == 1:  # PopTorch recomputes in pipelines of several IPUs alone
        return Term("all layers on their way back", layers * once, "layers_per_ipu: more IPUs")
    if held.keeps_every_layer:
        return Term("a layer on its way back", once, "micro_batch_size: smaller")
    return Term("a stage on its way back", layers * once, "recompute_checkpoint_every_layer: true")


def _heads(held: Held, ipu: int, assumed: Assumed) -> Tuple[Term, ...]:
    """Logits of the vocabulary with the table's gradient, or the gradient of the look-up alone."""
    table = table_parameters(held.model) * held.weight_bytes
    tied = heads.outline(held.placement.head).tied
    logits = held.micro_batch_size * held.rows.masked * held.model.vocab_size * held.weight_bytes
    found = []
    if tied and ipu == held.placement.heads:
        live = assumed.logits if held.training else 1.0
        gradient = table / held.decoder_pieces if held.training else 0.0
        knob = "micro_batch_size: smaller" if live * logits > gradient else "embedding_serialization_factor: larger"
        found.append(Term("logits of the vocabulary", live * logits + gradient, knob))
    if held.training and not tied and ipu == held.placement.embeddings:
        factor, move = "embedding_serialization_factor: larger", f"layers_per_ipu: fewer layers on IPU {ipu}"
        knob = factor if held.table_cuts else move
        found.append(Term("gradient of the word table", table / held.table_pieces, knob))
    return tuple(found)


def _update(held: Held, ipu: int, assumed: Assumed) -> Term:
    """The largest tensor while it is updated: its moments where they come from off chip, and what is computed of it."""
    if not held.training:
        return Term("", 0.0)
    largest = 0
    if ipu in held.placement.layers:
        largest = held.model.hidden_size * held.model.intermediate_size
    if ipu == held.placement.embeddings:
        largest = max(largest, table_parameters(held.model) // held.table_pieces)
    loaded = held.moment_bytes if held.state_offchip else 0.0
    amount = largest * (loaded + assumed.update) / held.shards
    return Term("update of the largest tensor", amount, "replicated_tensor_sharding: true, with more replicas")


def _streams(held: Held, ipu: int) -> Term:
    """Buffers of the columns that a stage reads, one micro-batch ahead."""
    stages = [number for number, (of_stage, _) in enumerate(held.placement.stages) if of_stage == ipu]
    rows = held.micro_batch_size * INTEGER
    numbers = (TOKEN_COLUMNS if 0 in stages else 1) * held.rows.length
    if ipu == held.placement.heads:
        numbers += 2 * held.rows.masked + 2 * held.rows.sequences
    return Term("streams", 2.0 * rows * numbers if stages else 0.0, "micro_batch_size: smaller")
