"""How fast this CPU computes a job's passes in bf16 and in fp32, measured in less than a second.

One encoder layer runs forward, and for training backward, through the project's own modules, on sequences as long as
those of the job; so does the decoder of masked tokens. What a whole pass takes follows from the number of layers.
Embeddings, clipping and the update are left out: they are fp32 in both, and copies in bf16 cost the update no more
memory traffic (2 bytes written for each weight) than gradients in bf16 save it (2 of 4 bytes not read).
"""

from __future__ import annotations

import copy
import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model.models.attention import SequenceAttention
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Attention, Bert
from ipu_model.models.inference import EqualLengthAttention
from ipu_model.models.masked_tokens import PredictionHead, masked_token_loss
from ipu_model.models.precision import LowPrecisionCopies
from ipu_model.models.tiles import TOKEN_TILE

DTYPES: Dict[str, Optional[torch.dtype]] = {"fp32": None, "bf16": torch.bfloat16}
BUDGET_SECONDS = 0.8
"""Time for all that is timed or built; a pass that takes longer than those before it may overrun it a little."""
ROUNDS, MOST_ROUNDS = 3, 20
"""So many are to fit the time; more are made while there is some."""
GROWTH = 2
"""So many times the tokens must fit to begin anew with them: few tokens are slower, and bf16 loses more by it."""
FIRST_SHARE = 0.15
"""Share of the time for the first passes, which tell how many tokens fit into the rest."""
FEWEST_TOKENS = 8
"""Where less than that fits, the product alone is compared: bf16 without instructions for it may be 50 times slower."""
PRODUCT_ROWS = 32
SLOW_PRODUCT = 0.02
"""Seconds after which a product is not computed again."""
VOCABULARY, MASKED_SHARE = 1024, 0.5
"""Words that the decoder is measured with at most, and masked tokens for each token: fewer of those and more of these
than there are, as its time grows with both and products of few rows are slow."""


@dataclass(frozen=True)
class Work:
    """What a pass of the job computes."""

    config: ModelConfig
    lengths: Tuple[int, ...]
    """Lengths of the sequences, longest first."""
    masked: int
    """Tokens whose words are predicted; 0 where no head does that."""
    training: bool
    """Forward and backward, with dropout."""

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(self.lengths)

    def tokens_in(self, operations: float) -> int:
        """Tokens of a pass of so many operations: one layer without its attention, and the decoder."""
        c = self.config
        of_token = 4.0 * c.hidden_size**2 + 2 * c.hidden_size * c.intermediate_size
        if self.masked:
            of_token += MASKED_SHARE * c.hidden_size * min(c.vocab_size, VOCABULARY)
        return min(self.tokens, int(operations / of_token / (6.0 if self.training else 2.0)))

    def part(self, tokens: int) -> Work:
        """Some of the sequences, long and short ones alike, of about so many tokens; at least a piece of one."""
        if tokens >= self.tokens:
            return self
        count = max(1, round(len(self.lengths) * tokens / self.tokens))
        chosen = [self.lengths[int((i + 0.5) * len(self.lengths) / count)] for i in range(count)]
        if count == 1:
            chosen = [min(chosen[0], tokens)]
        return dataclasses.replace(self, lengths=tuple(chosen))


@dataclass(frozen=True)
class Rates:
    """What a probe found."""

    fp32: float
    bf16: Optional[float]
    """None: this torch cannot compute it here."""
    unit: str


class ProbeModel(nn.Module):
    """An encoder, and the decoder of masked tokens where the job has one."""

    def __init__(self, config: ModelConfig, decoder: bool) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=decoder)
        self.predictions = PredictionHead(config) if decoder else None

    def decoder(self) -> Tuple[Tensor, Tensor]:
        """Word table and bias, as PredictionHead gives them."""
        assert self.predictions is not None
        return self.predictions.decoder(self.bert.embeddings.word_embeddings.weight)


class Passes:
    """The passes of one precision.

    Args:
        work: Says of which model, and whether it trains.
        precision: Of DTYPES.
        model: A ProbeModel; it becomes this precision's own.
    """

    def __init__(self, work: Work, precision: str, model: Any) -> None:
        self._config, self._dtype = work.config, DTYPES[precision] or torch.float32
        self._masked, self._masked_share = work.masked, work.masked / work.tokens
        self._copies = LowPrecisionCopies(model, DTYPES[precision])
        self._model = model.train(work.training)
        self._layer = model.bert.encoder["layer"][0]
        # CPU time of one thread is hardly disturbed by other work on the host; of several it would count their waiting.
        self._clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def product(self) -> float:
        """Seconds of a small matrix product and its gradients."""
        values = self._values(PRODUCT_ROWS).requires_grad_()
        began = self._clock()
        _End.apply(self._layer.attention["self"].query(values), values.detach()).backward()
        seconds = self._clock() - began
        self._forget()
        return seconds

    def run(self, work: Work) -> float:
        """Seconds that the whole model needs for a token, from a pass over the sequences of `work`."""
        filler = -work.tokens % TOKEN_TILE
        hidden = self._values(work.tokens + filler)
        if not work.training:
            with torch.inference_mode():
                return self._of_layers(work, lambda: self._layer(hidden, EqualLengthAttention(work.lengths)))
        attention = SequenceAttention([*work.lengths, *([filler] if filler else [])])
        seconds = self._of_layers(work, lambda: self._train_layer(hidden.requires_grad_(), attention))
        if self._masked_share:
            seconds += self._of_decoder(min(self._masked, 1 + int(MASKED_SHARE * work.tokens)))
        self._forget()
        return seconds

    def _of_layers(self, work: Work, pass_one: Callable[[], Any]) -> float:
        began = self._clock()
        pass_one()
        return (self._clock() - began) * self._config.num_layers / work.tokens

    def _train_layer(self, hidden: Tensor, attention: Attention) -> None:
        _End.apply(self._layer(hidden, attention), hidden.detach()).backward()

    def _of_decoder(self, masked: int) -> float:
        hidden = self._values(masked).requires_grad_()
        labels = torch.zeros(masked, dtype=torch.int64)
        words, bias = self._model.decoder()
        began = self._clock()
        masked_token_loss(self._model.predictions(hidden), words, bias, labels).backward()
        of_one = (self._clock() - began) / masked * self._config.vocab_size / len(words)
        return of_one * self._masked_share

    def _values(self, rows: int) -> Tensor:
        return torch.randn(rows, self._config.hidden_size).to(self._dtype)

    def _forget(self) -> None:
        self._model.zero_grad(set_to_none=True)
        self._copies.zero_grad()


Sides = Mapping[str, Passes]
"""By precision."""


def passes_of(work: Work) -> Sides:
    """Those of both precisions, with the same weights: one layer, and the decoder of some words."""
    words = min(work.config.vocab_size, VOCABULARY) if work.masked else 1
    config = dataclasses.replace(work.config, num_layers=1, vocab_size=words)
    model = ProbeModel(config, decoder=bool(work.masked))
    return {"fp32": Passes(work, "fp32", copy.deepcopy(model)), "bf16": Passes(work, "bf16", model)}


class _End(torch.autograd.Function):
    """A scalar whose gradient in `values` is what is given; backward() of other tensors first imports for seconds."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, d_end: Tensor) -> Tuple[Any, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient, None


def measure(
    work: Work,
    make: Callable[[Work], Sides] = passes_of,
    clock: Callable[[], float] = time.perf_counter,
    cpu: Callable[[], float] = time.process_time,
) -> Rates:
    """Real tokens per second of `work` in both precisions, in BUDGET_SECONDS. torch's generator is left as it was.

    Args:
        make: Gives the passes of both precisions.
        clock: Seconds of the wall.
        cpu: Seconds of this process's CPU time: of a busy host it gets a share only, and plans with that.
    """
    with torch.random.fork_rng(devices=[]):
        began, cpu_began = clock(), cpu()
        deadline = began + BUDGET_SECONDS
        sides = make(work)
        operations = 6.0 * PRODUCT_ROWS * work.config.hidden_size**2
        of_fp32 = operations / _fastest_product(sides["fp32"])
        try:
            of_bf16 = operations / _fastest_product(sides["bf16"])
        except RuntimeError:  # of oneDNN: it has no such product for this CPU
            return Rates(of_fp32 / 1e9, None, "GFLOP/s")
        share = min(1.0, (cpu() - cpu_began) / (clock() - began))
        seconds = share * FIRST_SHARE * (deadline - clock()) / 2  # there are two first rounds
        tokens = work.tokens_in(seconds / (1 / of_fp32 + 1 / of_bf16))
        if tokens < min(FEWEST_TOKENS, work.tokens):
            return Rates(of_fp32 / 1e9, of_bf16 / 1e9, "GFLOP/s")
        best = _best(work, tokens, sides, deadline, clock)
    unit = "real tokens per CPU second" if torch.get_num_threads() == 1 else "real tokens/s"
    return Rates(1 / best["fp32"], 1 / best["bf16"], unit)


def _fastest_product(side: Passes) -> float:
    """Seconds of the fastest of a few, the first left out where it was no slow one: it builds kernels."""
    first = side.product()
    return first if first > SLOW_PRODUCT else min(side.product() for _ in range(4))


def _best(work: Work, tokens: int, sides: Sides, deadline: float, clock: Callable[[], float]) -> Dict[str, float]:
    """Seconds for a token in each precision: of its fastest pass over as much of the work as fits the time.

    A round is a pass in each precision: what disturbs one soon disturbs the other.
    """
    fitting = tokens
    while True:
        piece = work.part(fitting)
        _round(piece, sides, clock)  # builds kernels, as shapes are new
        best, longest = _round(piece, sides, clock)
        fitting = int(piece.tokens * (deadline - clock()) / ((ROUNDS + 1) * longest))
        if piece is work or fitting < GROWTH * piece.tokens:
            break
    for _ in range(MOST_ROUNDS):
        if clock() + longest > deadline:
            break
        found, seconds = _round(piece, sides, clock)
        best, longest = {p: min(best[p], found[p]) for p in best}, max(longest, seconds)
    return best


def _round(piece: Work, sides: Sides, clock: Callable[[], float]) -> Tuple[Dict[str, float], float]:
    """Seconds that each precision says of itself, and those of the wall for both."""
    began = clock()
    found = {precision: max(side.run(piece), 1e-9) for precision, side in sides.items()}
    return found, max(clock() - began, 1e-9)


def lengths_of(sequence_ids: np.ndarray) -> List[int]:
    """Tokens of every sequence in the rows [R, L], longest first."""
    rows = np.arange(len(sequence_ids), dtype=np.int64)[:, None] << 8  # ids are below 256
    found, counts = np.unique(sequence_ids.astype(np.int64) + rows, return_counts=True)
    return sorted((int(count) for count in counts[found & 255 != 0]), reverse=True)
