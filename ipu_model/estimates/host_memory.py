"""Memory of a device job on CPU or CUDA: what stays, and the most of what comes and goes.

Legend: H hidden size, I inner size, A heads, V vocabulary, T tokens of a micro-batch, K its tokens as attention holds
them, M its masked tokens, P weights, e bytes of a number in the precision of products.

What a layer keeps for its way back is read off the code: models/encoder.py, attention.py, dropout.py; what the losses
and the update need off masked_tokens.py, optim/blocked.py and optimizers.py; what is copied for checkpoints off
train/saving.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ipu_model import heads
from ipu_model.estimates import host_constants as constants
from ipu_model.estimates.estimate import Term
from ipu_model.estimates.host_shapes import Shape
from ipu_model.estimates.shapes import model_parameters, table_parameters
from ipu_model.models.config import ModelConfig
from ipu_model.models.tiles import BLOCK, LOGITS_AT_ONCE, TOKENS_PER_PASS

FP32 = 4
INDEX = 8
"""Bytes of an int64."""
BYTES = {"fp32": 4, "bf16": 2}
MASK = {"cpu": 2, "cuda": 1}
"""Bytes of an element of a dropout mask: dropout.py, and torch's own on a GPU."""
MICRO_BATCH = "lower device.micro_batch_size: the result stays the same but for rounding"
RECOMPUTE = "device.recompute=true, or a smaller device.micro_batch_size"
MODEL = "a smaller model"


@dataclass(frozen=True)
class Weights:
    """How many numbers a model has."""

    every: int
    """P."""
    products: int
    """Those of which bf16 keeps a copy."""
    words: int
    """V H."""


@dataclass(frozen=True)
class Work:
    """One process of a job, as far as its memory goes."""

    config: ModelConfig
    device: str
    """cpu or cuda."""
    precision: str
    """fp32 or bf16."""
    shape: Shape
    """Its fullest micro-batch; of a prediction, its fullest call."""
    training: bool
    head: str
    labels: int = 2
    optimizer: str = "adamw"
    bias_correction: bool = True
    accumulation: int = 1
    update_tokens: float = 0.0
    """Tokens of all micro-batches of an update, of this process; of a call of predict, of the call."""
    recompute: bool = False
    processes: int = 1
    evaluates: bool = False
    keeps_best: bool = False
    makes_checkpoints: bool = False
    starts_from_model: bool = False
    """From a model folder, whose files stay mapped."""

    @property
    def counted(self) -> Weights:
        """Its numbers."""
        return count_weights(self.config, self.head, self.labels)

    @property
    def words_predicted(self) -> bool:
        """Whether the head computes vocabulary logits of masked tokens."""
        return heads.outline(self.head).tied

    @property
    def wide(self) -> int:
        """e."""
        return BYTES[self.precision]

    @property
    def moments(self) -> int:
        """Numbers that the optimizer keeps for each weight."""
        return 1 if self.optimizer == "sgd" else 2


def count_weights(config: ModelConfig, head: str, labels: int) -> Weights:
    """The numbers of a BERT with this head."""
    h, found = config.hidden_size, heads.outline(head)
    products = config.num_layers * (4 * h * h + 2 * h * config.intermediate_size) + (h * h if found.pooler else 0)
    words = table_parameters(config)
    products += h * h + 2 * h + words if found.tied else labels * h
    return Weights(model_parameters(config, head, labels), products, words)


def staying(work: Work) -> List[Term]:
    """What a process holds from the first update to the last one."""
    counted = work.counted
    terms = [Term("weights", FP32 * counted.every, MODEL)]
    if work.precision == "bf16":
        terms.append(Term("copies of matrices in bf16", BYTES["bf16"] * counted.products, "device.precision=fp32"))
    if work.training:
        terms.append(Term(f"moments of {work.optimizer}", work.moments * FP32 * counted.every, MODEL))
    if work.processes > 1:
        terms.append(Term("sums over processes", FP32 * counted.every, "device.processes=1"))
    return terms


def instants(work: Work) -> Dict[str, List[Term]]:
    """What is there beside `staying` at each instant that may be the fullest, on the device that computes."""
    if not work.training:
        return {"prediction": [*_rows(work), Term("passes", _pass_bytes(work, _pass_of(work)), MODEL)]}
    found = {**_passes(work), "update": [*_rows(work), *_update(work)]}
    if work.evaluates:
        judged = Term("passes over held-out rows", _judged_bytes(work), MICRO_BATCH)
        found["evaluation"] = [*_rows(work), _gradients(work), judged]
    return found


def copies(work: Work) -> Dict[str, List[Term]]:
    """What the host holds beside `staying` while the state is copied: for a checkpoint, and for the finished model."""
    every = work.counted.every
    state = Term("copy of the weights", FP32 * every, MODEL)
    found = {"saving the model": [_gradients(work), state]} if work.training else {}
    if work.makes_checkpoints:
        copy = Term("copy of weights and moments", (1 + work.moments) * FP32 * every, "less often makes it no smaller")
        found["checkpoint"] = [*_rows(work), _gradients(work), copy]
    return found


def beside(work: Work) -> List[Term]:
    """What stays of checkpoints and evaluations on the host, whatever the device."""
    every = work.counted.every
    terms = []
    if work.starts_from_model:
        terms.append(Term("model that it starts from, mapped", FP32 * every, MODEL))
    if work.keeps_best:
        terms.append(Term("best weights so far", FP32 * every, "evaluation.keep=last"))
    if work.makes_checkpoints:
        numbers = (1 + work.moments + (1 if work.keeps_best else 0)) * every
        knob = "checkpoints by neither minutes nor updates"
        terms.append(Term("checkpoint that is written beside the training", FP32 * numbers, knob))
    return terms


def _gradients(work: Work) -> Term:
    """All of them, as they wait for the update; in bf16 those of the copies, unless micro-batches are added up."""
    counted = work.counted
    low = work.precision == "bf16" and work.accumulation == 1 and work.device == "cpu" and work.processes == 1
    if not low:
        return Term("gradients", FP32 * counted.every, MODEL)
    # The word table is looked up in fp32, and where words are predicted its copy has a gradient, too.
    wide = counted.every - counted.products + (counted.words if work.words_predicted else 0)
    return Term("gradients", FP32 * wide + BYTES["bf16"] * counted.products, MODEL)


def _update(work: Work) -> List[Term]:
    counted = work.counted
    blocked = work.device == "cpu" and work.optimizer in ("adamw", "lamb")
    if blocked:  # optim/blocked.py
        numbers = BLOCK + (max(counted.words, work.config.hidden_size**2) if work.optimizer == "lamb" else 0)
    elif work.optimizer == "adamw" and work.bias_correction:  # fused
        numbers = 0
    else:  # optim/optimizers.py: roots of the second moment, and directions
        numbers = 2 * counted.every
    return [_gradients(work), Term(f"directions of {work.optimizer}", FP32 * numbers, "optimizer.name=adamw")]


def _passes(work: Work) -> Dict[str, List[Term]]:
    """From the end of the way forward to the end of the way back."""
    counted = work.counted
    wide = work.wide
    before = [Term("gradients of other micro-batches", FP32 * counted.every if work.accumulation > 1 else 0, MODEL)]
    kept = [*_rows(work), *before, *_kept(work)]
    back = Term("a layer on its way back", _back_bytes(work), MICRO_BATCH)
    found = {"way back through the last layer": [*kept, back]}
    table = wide * counted.words if work.words_predicted else 0
    if work.words_predicted:
        logits = Term("vocabulary logits", _logits(work), MICRO_BATCH)
        words = Term("gradient of the word table", table, "a smaller vocabulary")
        found["vocabulary logits"] = [*kept, logits, words]
        found["way back through the last layer"] = [*kept, words, back]
    looked_up = Term("gradient of the word table", FP32 * counted.words, "a smaller vocabulary")
    here = FP32 * counted.every if work.accumulation > 1 else 0
    of_this = Term("gradients of other micro-batches", here, MODEL)
    found["way back through the embeddings"] = [*_rows(work), _of_this_pass(work), of_this, looked_up, _table(work)]
    return found


def _of_this_pass(work: Work) -> Term:
    """Gradients that this micro-batch made and that are not yet added to those of the others."""
    if work.accumulation == 1:
        term = _gradients(work)
        counted = work.counted
        return Term(term.name, term.amount - FP32 * counted.words, term.knob)  # the lookup's is counted apart
    counted = work.counted
    if work.precision == "bf16":
        return Term("gradients", BYTES["bf16"] * counted.products, MODEL)
    return Term("gradients", FP32 * counted.words if work.words_predicted else 0, MODEL)


def _table(work: Work) -> Term:
    """Embeddings on their way back."""
    numbers = 2 * work.shape.tokens * work.config.hidden_size
    if work.words_predicted and work.precision == "fp32" and work.accumulation == 1:  # both of one table, then added
        numbers += work.config.vocab_size * work.config.hidden_size
    return Term("embeddings on their way back", FP32 * numbers, MICRO_BATCH)


def _rows(work: Work) -> List[Term]:
    """The rows of an update, ready to be computed: tokens, and on a CPU where attention finds their heads."""
    heads = work.config.num_heads
    places = INDEX * heads * (1 + work.shape.padded / max(1.0, work.shape.tokens)) if work.device == "cpu" else 0.0
    of_token = 3 * INDEX + 8 + places  # and about 8 bytes as they lie on disk
    return [Term("rows of an update", of_token * work.update_tokens, "a smaller global_batch_size")]


def _kept(work: Work) -> List[Term]:
    """What the way forward leaves for the way back."""
    c, shape, wide, mask = work.config, work.shape, work.wide, MASK[work.device]
    layers = c.num_layers
    hidden = wide * shape.tokens * c.hidden_size
    masks = 2 * mask * shape.tokens * c.hidden_size if c.hidden_dropout else 0
    inner = 2 * wide * shape.tokens * c.intermediate_size
    one = 5 * hidden + masks + inner + 3 * _spread(work)
    scores = _scores(work)
    embedded = shape.tokens * (FP32 * c.hidden_size + mask * c.hidden_size)
    predicted = 5 * wide * shape.masked * c.hidden_size
    if work.recompute:
        layers, kept = 1, c.num_layers * hidden
    else:
        kept = 0.0
    return [
        Term("activations", layers * one + kept + embedded + predicted, RECOMPUTE),
        Term("attention scores", layers * scores, RECOMPUTE),
    ]


def _spread(work: Work) -> float:
    """Bytes of queries, keys or values as attention keeps them."""
    padded = work.shape.padded if work.device == "cpu" else work.shape.tokens
    return work.wide * padded * work.config.hidden_size


def _scores(work: Work) -> float:
    """Bytes of the attention probabilities that a layer keeps; flash and memory-efficient kernels keep none."""
    if work.device != "cpu":
        return 0.0
    wide = work.wide
    of_one = wide + (wide + MASK["cpu"] if work.config.attention_dropout else 0)
    return of_one * work.config.num_heads * work.shape.squares


def _back_bytes(work: Work) -> float:
    """What a layer holds beside its activations on its way back: gradients of its two halves, the larger one."""
    c, wide = work.config, BYTES[work.precision]
    feed_forward = 2 * wide * work.shape.tokens * c.intermediate_size
    attention = 4 * wide * work.shape.tokens * c.hidden_size + 4 * _spread(work)
    return max(feed_forward, attention) + wide * work.shape.tokens * c.hidden_size


def _pass_of(work: Work) -> float:
    """Tokens of one pass of a prediction: models/inference.py cuts them on a CPU."""
    return min(work.shape.tokens, TOKENS_PER_PASS) if work.device == "cpu" else work.shape.tokens


def _pass_bytes(work: Work, tokens: float) -> float:
    """A layer without a way back: its input, queries, keys, values and context, and the inner layer twice."""
    return work.wide * tokens * (6 * work.config.hidden_size + 2 * work.config.intermediate_size)


def _judged_bytes(work: Work) -> float:
    """A layer, its scores, and vocabulary logits: as they are computed, in fp32, with their bias, as log softmax."""
    c, wide = work.config, BYTES[work.precision]
    logits = _judged_at_once(work) * c.vocab_size * (wide + (0 if wide == FP32 else FP32) + 2 * FP32)
    layer = _pass_bytes(work, work.shape.tokens) + 4 * _spread(work)
    if work.device == "cpu":
        layer += wide * c.num_heads * work.shape.squares
    return max(layer, logits + wide * work.shape.tokens * c.hidden_size)


def fullest(work: Work, of_host: Optional[List[Term]] = None) -> Tuple[str, List[Term]]:
    """The fullest instant, and all terms of it, the largest first.

    Args:
        of_host: What else the same memory holds: on a CPU what Python and torch take; `beside` and `copies` are
            counted then, too. None: only what is on a GPU.
    """
    of_device = instants(work)
    every = dict(of_device) if of_host is None else {**of_device, **copies(work)}
    always = staying(work) if of_host is None else [*of_host, *staying(work), *beside(work)]
    found = {
        name: [*always, *passing, _holes(work, passing if name in of_device else [])] for name, passing in every.items()
    }
    name = max(found, key=lambda one: sum(term.amount for term in found[one]))
    if of_host is not None:
        total = sum(term.amount for term in found[name])
        found[name].append(Term("what the fit may miss", (constants.MARGIN - 1) * total))
    return name, sorted((term for term in found[name] if term.amount), key=lambda term: -term.amount)


def _holes(work: Work, passing: List[Term]) -> Term:
    """Memory that lies between tensors, in use by none: of tensors that come and go with every micro-batch."""
    name, amount = "holes between tensors", sum(term.amount for term in passing)
    if work.device != "cpu":
        return Term(name, (constants.CUDA_SLACK - 1) * amount, MICRO_BATCH)
    held = constants.HOLES_OF_PASSES[work.precision] * amount + constants.HOLES_OF_TABLE * FP32 * work.counted.words
    if work.training:
        held += constants.HOLES_OF_LOGITS * _logits(work)
    if work.evaluates:
        held += constants.HOLES_OF_EVALUATION * FP32 * _judged_at_once(work) * work.config.vocab_size
    return Term(name, held, MICRO_BATCH)


def _logits(work: Work) -> float:
    """Bytes of the vocabulary logits of a micro-batch."""
    return work.wide * work.shape.masked * work.config.vocab_size if work.words_predicted else 0.0


def _judged_at_once(work: Work) -> float:
    """Masked tokens whose logits an evaluation computes at once."""
    return min(work.shape.masked, max(1, LOGITS_AT_ONCE // work.config.vocab_size))
