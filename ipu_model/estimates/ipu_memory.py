"""Memory of each IPU of a replica, from the shapes of its part of the model.

The memory is a sum of tensors that exist for a whole call (weights, accumulators, moments, stashes, code) and of the
largest temporary use: the backward pass of a layer, that of the heads, or the update. Parts without a formula are
assumed three times: for the lower end, the likely sum and the upper end (ipu_constants.MemoryAssumptions).

Legend: as in shapes.py; i forward stage, F forward stages, B rows of a micro-batch, b bytes of a number.
"""

from __future__ import annotations

from typing import List, Tuple

from ipu_model import heads
from ipu_model.estimates import ipu_constants as constants
from ipu_model.estimates.estimate import Interval, MemoryEstimate, Term
from ipu_model.estimates.ipu_constants import MemoryAssumptions
from ipu_model.estimates.ipu_time import TOKEN_COLUMNS, IpuProgram
from ipu_model.estimates.shapes import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    pooler_parameters,
    table_parameters,
)

INTEGER = 4
"""Bytes of an int32 element in the columns of rows."""


def parameters_by_ipu(program: IpuProgram) -> List[int]:
    """Return the parameters on each IPU of a replica."""
    model, placement = program.model, program.placement
    counts = [0] * placement.ipus_per_replica
    counts[placement.embeddings] += embedding_parameters(model)
    for ipu in placement.layers:
        counts[ipu] += layer_parameters(model)
    if placement.pooler is not None:
        counts[placement.pooler] += pooler_parameters(model)
    counts[placement.heads] += head_parameters(model, placement.head, program.labels)
    return counts


def estimate_memories(program: IpuProgram) -> Tuple[MemoryEstimate, ...]:
    """Estimate the memory of each IPU of a replica, the fullest first."""
    memories = []
    for ipu in range(program.placement.ipus_per_replica):
        low, likely, high = (_terms(program, ipu, x) for x in (constants.LOW, constants.LIKELY, constants.HIGH))
        total = Interval(_sum(low), _sum(likely), _sum(high))
        where = f"IPU {ipu} of {program.placement.ipus_per_replica}"
        memories.append(MemoryEstimate(where, likely, total, constants.TILE_BYTES))
    return tuple(sorted(memories, key=lambda memory: -memory.total.likely))


def fits_memory(program: IpuProgram) -> bool:
    """Return whether even the upper ends fit; for searches, as it is faster than ipu_memories."""
    ipus = range(program.placement.ipus_per_replica)
    return all(_sum(_terms(program, ipu, constants.HIGH)) <= constants.TILE_BYTES for ipu in ipus)


def _sum(terms: Tuple[Term, ...]) -> float:
    return sum(term.amount for term in terms)


def _terms(program: IpuProgram, ipu: int, assumed: MemoryAssumptions) -> Tuple[Term, ...]:
    """Return the terms of one IPU that are not zero."""
    weights = parameters_by_ipu(program)[ipu]
    move = f"layers_per_ipu: fewer layers on IPU {ipu}"
    terms = [Term("weights", program.weight_bytes * weights, move)]
    if program.training:
        terms.append(Term("accumulated gradients", program.gradient_bytes * weights, move))
        if not program.state_offchip:
            amount = program.moment_bytes * weights / program.shards
            terms.append(Term("optimizer state", amount, "optimizer_state_offchip: true"))
    terms.append(_stash(program, ipu))
    terms.append(_fullest_instant(program, ipu, assumed))
    terms.append(_streams(program, ipu))
    terms.append(Term("code and exchange", assumed.code if program.training else assumed.inference_code))
    return tuple(term for term in terms if term.amount)


def _stash(program: IpuProgram, ipu: int) -> Term:
    """Return the activations stashed for the backward pass of micro-batches: 2 (F - 1 - i) + 1 of them on stage i.

    With recompute_checkpoint_every_layer one activation per layer is stashed, else one per stage (the stashes that a
    test in graphcore/examples:nlp/bert/pytorch counts). Integer columns are stashed where a stage reads them.
    """
    stages = program.placement.stages
    hidden = program.micro_batch_size * program.rows.length * program.model.hidden_size * program.weight_bytes
    integers = float(program.micro_batch_size * program.rows.length * INTEGER)
    total = 0.0
    for number, (of_stage, names) in enumerate(stages):
        if of_stage != ipu or not program.training:
            continue
        deep = 2 * (len(stages) - 1 - number) + 1
        layers = sum(name.startswith("encoder layer") for name in names)
        stashed = layers if program.keeps_every_layer else min(layers, 1)
        stashed = max(stashed, 1) if number else stashed  # the first stage begins with integers
        total += deep * (stashed * hidden + (integers if number else TOKEN_COLUMNS * integers))
    deeper = "micro_batch_size: smaller"
    if program.keeps_every_layer:
        return Term("stashed activations", total, f"{deeper}, or fewer IPUs in a replica")
    return Term("stashed activations", total, deeper)


def _fullest_instant(program: IpuProgram, ipu: int, assumed: MemoryAssumptions) -> Term:
    proportion = assumed.proportion * program.matmul_proportion[ipu] * constants.TILE_BYTES
    candidates = [_layer(program, ipu, assumed), *_heads(program, ipu, assumed)]
    fullest = max(candidates, key=lambda term: term.amount)
    with_products = Term(
        f"{fullest.name}, with matmul temporaries" if fullest.amount else "matmul temporaries",
        fullest.amount + proportion,
        f"matmul_proportion: a smaller share of IPU {ipu}" if proportion > fullest.amount else fullest.knob,
    )
    return max((with_products, _update(program, ipu, assumed)), key=lambda term: term.amount)


def _layer(program: IpuProgram, ipu: int, assumed: MemoryAssumptions) -> Term:
    """Return the memory to recompute and differentiate a layer, or a whole stage if only its input is stashed."""
    layers = program.placement.layers.count(ipu)
    if not layers:
        return Term("", 0.0)
    hidden = program.micro_batch_size * program.rows.length * program.model.hidden_size * program.weight_bytes
    scores = program.micro_batch_size * program.model.num_heads * program.rows.length**2 * program.weight_bytes
    if not program.training:
        # Forward only: input, the wide activation of the feed-forward part and its output; scores and probabilities.
        return Term("forward pass of a layer", 6 * hidden + scores, "device.micro_batch_size: smaller")
    once = assumed.hidden * hidden + assumed.scores * scores
    if program.placement.forward_stages == 1:  # PopTorch recomputes in pipelines of several IPUs alone
        return Term("backward pass of all layers", layers * once, "layers_per_ipu: more IPUs")
    if program.keeps_every_layer:
        return Term("backward pass of a layer", once, "micro_batch_size: smaller")
    return Term("backward pass of a stage", layers * once, "recompute_checkpoint_every_layer: true")


def _heads(program: IpuProgram, ipu: int, assumed: MemoryAssumptions) -> Tuple[Term, ...]:
    """Return the logits of the vocabulary with the gradient of the table, or only the gradient of the look-up."""
    table = table_parameters(program.model) * program.weight_bytes
    tied = heads.get_head_spec(program.placement.head).tied
    logits = program.micro_batch_size * program.rows.masked * program.model.vocab_size * program.weight_bytes
    terms = []
    if tied and ipu == program.placement.heads:
        live = assumed.logits if program.training else 1.0
        gradient = table / program.decoder_pieces if program.training else 0.0
        knob = "micro_batch_size: smaller" if live * logits > gradient else "embedding_serialization_factor: larger"
        terms.append(Term("logits of the vocabulary", live * logits + gradient, knob))
    if program.training and not tied and ipu == program.placement.embeddings:
        factor, move = "embedding_serialization_factor: larger", f"layers_per_ipu: fewer layers on IPU {ipu}"
        knob = factor if program.table_cuts else move
        terms.append(Term("gradient of the word table", table / program.table_pieces, knob))
    return tuple(terms)


def _update(program: IpuProgram, ipu: int, assumed: MemoryAssumptions) -> Term:
    """Return the memory to update the largest tensor: intermediate results, and moments loaded from off chip."""
    if not program.training:
        return Term("", 0.0)
    largest = 0
    if ipu in program.placement.layers:
        largest = program.model.hidden_size * program.model.intermediate_size
    if ipu == program.placement.embeddings:
        largest = max(largest, table_parameters(program.model) // program.table_pieces)
    loaded = program.moment_bytes if program.state_offchip else 0.0
    amount = largest * (loaded + assumed.update) / program.shards
    return Term("update of the largest tensor", amount, "replicated_tensor_sharding: true, with more replicas")


def _streams(program: IpuProgram, ipu: int) -> Term:
    """Return the buffers of the columns that a stage reads, one micro-batch ahead."""
    stages = [number for number, (of_stage, _) in enumerate(program.placement.stages) if of_stage == ipu]
    rows = program.micro_batch_size * INTEGER
    numbers = (TOKEN_COLUMNS if 0 in stages else 1) * program.rows.length
    if ipu == program.placement.heads:
        numbers += 2 * program.rows.masked + 2 * program.rows.sequences
    return Term("streams", 2.0 * rows * numbers if stages else 0.0, "micro_batch_size: smaller")
