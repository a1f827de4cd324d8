"""Benchmark cases with their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench import variants
from bench.data import Data
from bench.setup import Training
from bench.variants import Variant

LENGTHS = (64, 128, 256, 384, 512)
"""Tokens per row in the plot of cost by length."""
TOKENS_PER_UPDATE = 4096
"""Tokens per update, equal for all LENGTHS."""
SEVERAL_THREADS_ROUNDS = 3
SHARES = (0.25, 1, 4, 16)
"""Relative corpus sizes in the plot of cost by corpus size."""


@dataclass(frozen=True)
class Case:
    """Benchmark case: configurations of the same task, measured in interleaved rounds."""

    name: str
    title: str
    unit: str
    variants: tuple[Variant, ...]
    inputs: dict[str, Any]
    """Plain data for the worker."""
    updates: int
    """Updates per round."""
    rounds: int
    """Rounds with one thread; wall times with several threads get fewer (SEVERAL_THREADS_ROUNDS)."""
    seconds: float
    """Approximate time of both passes on 2 cores of a Xeon; used for the remaining time only."""
    warmup: int = 2
    threads: tuple[int, ...] = (1, 2)
    fresh: bool = False
    """True to start a new process for every round, so that caches of one round do not speed up the next."""

    def rounds_at(self, threads: int) -> int:
        """Return the rounds of a pass; a single pass gets all rounds."""
        return self.rounds if threads == self.threads[0] else min(self.rounds, SEVERAL_THREADS_ROUNDS)

    def spec(self, variant: Variant, threads: int) -> dict[str, Any]:
        """Return the specification for bench.child."""
        return {
            **self.inputs,
            **variant.inputs,
            "worker": variant.worker,
            "threads": threads,
            "settings": variant.settings,
            "updates": self.updates * variant.updates_factor,
            "rounds": self.rounds_at(threads),
            "warmup": self.warmup,
        }


def _trained(task: str, size: str, rows: object, sequences: int) -> dict[str, Any]:
    return {"training": asdict(Training(task, size, str(rows), sequences))}


def _pretrain_tiny(data: Data) -> Case:
    inputs = _trained("pretrain", "tiny", data.pretrain_rows(), 32)
    what = ("pretrain-tiny", "pre-training, 2 layers of 128, 32 sequences of 128", "real tokens")
    return Case(*what, variants.PRETRAIN_TINY, inputs, updates=3, rounds=5, seconds=240)


def _pretrain_base(data: Data) -> Case:
    inputs = _trained("pretrain", "base", data.pretrain_rows(), 8)
    what = ("pretrain-base", "pre-training, 12 layers of 768, 8 sequences of 128", "real tokens")
    return Case(*what, variants.PRETRAIN_BASE, inputs, updates=2, rounds=5, seconds=160, warmup=1)


def _squad_tiny(data: Data) -> Case:
    inputs = _trained("squad", "tiny", data.squad_rows("train"), 16)
    what = ("squad-tiny", "SQuAD, 2 layers of 128, 16 features of 384", "real tokens")
    return Case(*what, variants.SQUAD_TINY, inputs, updates=10, rounds=5, seconds=350)


def _utilisation(data: Data) -> Case:
    inputs = _trained("pretrain", "base", data.pretrain_rows(), 32)
    what = ("utilisation", "base-size step against the matrix peak, 32 sequences of 128", "real tokens")
    return Case(*what, variants.UTILISATION, inputs, updates=1, rounds=5, seconds=55, warmup=1, threads=(2,))


def _lamb(data: Data) -> Case:
    what = ("lamb-base", "LAMB step, 12 layers of 768", "steps")
    return Case(*what, variants.LAMB, {"size": "base"}, updates=5, rounds=5, seconds=90)


def _adamw(data: Data) -> Case:
    what = ("adamw-base", "AdamW step, 12 layers of 768", "steps")
    return Case(*what, variants.ADAMW, {"size": "base"}, updates=5, rounds=5, seconds=35, threads=(1,))


def _predict(data: Data) -> Case:
    inputs = _trained("squad", "tiny", data.squad_rows("dev"), 32)
    what = ("predict-tiny", "SQuAD prediction, 2 layers of 128", "features")
    return Case(*what, variants.PREDICT, inputs, updates=1, rounds=3, seconds=170, warmup=1)


def _questions(data: Data) -> Case:
    inputs = {"stages": data.stages, "questions": str(data.questions("train")), "tokenizer": str(data.tokenizer)}
    what = ("prepare-squad", "questions to features of 384 with stride 128", "questions")
    return Case(*what, variants.QUESTIONS, inputs, updates=1, rounds=3, seconds=130, warmup=0, fresh=True)


def _pretraining_rows(data: Data) -> Case:
    inputs = {"stages": data.stages, "corpus": str(data.corpus), "tokenizer": str(data.tokenizer)}
    what = ("prepare-pretraining", "text to pre-training rows of 128, five maskings", "real tokens")
    return Case(*what, variants.PRETRAINING_ROWS, inputs, updates=1, rounds=3, seconds=25, warmup=0, fresh=True)


def _packing(data: Data) -> Case:
    inputs = _trained("squad", "tiny", data.squad_rows("train"), 16)
    what = ("packing", "lengths to rows of 384", "sequences")
    return Case(*what, variants.PACKING, inputs, updates=1, rounds=5, seconds=5, warmup=1, threads=(1,))


def _starts(data: Data) -> Case:
    inputs = _trained("squad", "tiny", data.squad_rows("train"), 16)
    what = ("start", "rows to the end of the first update, compiled", "starts")
    return Case(*what, variants.STARTS, inputs, updates=1, rounds=3, seconds=200, warmup=0, threads=(2,), fresh=True)


def _at_length(length: int) -> Callable[[Data], Case]:
    def build(data: Data) -> Case:
        inputs = _trained("pretrain", "tiny", data.pretrain_rows(length), TOKENS_PER_UPDATE // length)
        what = (
            f"length-{length}",
            f"pre-training, 2 layers of 128, {TOKENS_PER_UPDATE // length} x {length}",
            "real tokens",
        )
        return Case(*what, variants.ACROSS_LENGTHS, inputs, updates=2, rounds=3, seconds=45, threads=(1,))

    return build


def _corpus_rows(data: Data) -> Case:
    inputs = {"stages": data.stages, "tokenizer": str(data.tokenizer)}
    sizes = tuple(
        Variant(f"corpus x {share:g}", "pretraining-rows", inputs={"corpus": str(data.sized_corpus(share))})
        for share in SHARES
    )
    what = ("corpus-rows", "text to pre-training rows, by size of the corpus", "real tokens")
    return Case(*what, sizes, inputs, updates=1, rounds=3, seconds=60, warmup=0, threads=(1,), fresh=True)


def _corpus_training(data: Data) -> Case:
    sizes = tuple(
        Variant(
            f"corpus x {share:g}",
            "ours",
            variants.AUTO,
            inputs=_trained("pretrain", "tiny", data.pretrain_rows(corpus=data.sized_corpus(share)), 32),
        )
        for share in SHARES
    )
    what = ("corpus-training", "pre-training, 2 layers of 128, by size of the corpus", "real tokens")
    return Case(*what, sizes, {}, updates=8, rounds=3, seconds=45, threads=(1,))


CASES: dict[str, Callable[[Data], Case]] = {
    "pretrain-tiny": _pretrain_tiny,
    "squad-tiny": _squad_tiny,
    "pretrain-base": _pretrain_base,
    "utilisation": _utilisation,
    "lamb-base": _lamb,
    "adamw-base": _adamw,
    "predict-tiny": _predict,
    "prepare-squad": _questions,
    "prepare-pretraining": _pretraining_rows,
    "packing": _packing,
    "start": _starts,
    **{f"length-{length}": _at_length(length) for length in LENGTHS},
    "corpus-rows": _corpus_rows,
    "corpus-training": _corpus_training,
}
"""Name -> function that builds the case, in the order of measurement."""


def make_cases(data: Data, names: Sequence[str]) -> list[Case]:
    """Build the cases with these names, and make their rows."""
    return [build(data) for name, build in CASES.items() if name in names]
