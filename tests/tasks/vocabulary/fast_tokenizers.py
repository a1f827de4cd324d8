"""Model folders with small tokenizers of other kinds than BERT's, trained here and saved by transformers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.tasks.pretraining.row_inputs import WORDS

HOSTILE = (
    "Hello world",
    "  leading and trailing blanks  ",
    "emoji 👍🏽, family 👨\u200d👩\u200d👧, flag 🇫🇷",
    "combining e\u0301 a\u0308\u0323 x, and alone \u0301b",
    "ｆｕｌｌ ｗｉｄｔｈ\u3000ideographic ＜ｓ＞",
    "zero\u200bwidth\u200d join\ufeff bom \u200b x",
    "tab\tnew\nline\r\n  two  blanks \n x",
    "نص عربي 中文 文本。句子 한국어",
    "",
    "   ",
    "don't I'll we've 12,345.67 $5 (a)b [c] d/e",
    "\x00\x01ctrl \x1cfs \x85 nel \u2028 ls\xa0nbsp",
    "ﬁ ﬂ Ⅷ ½ ǆ İ ß",
    "`` quoted '' ``x''",
)
CORPUS = (*HOSTILE, *(f"{first} {second}{third}." for first in WORDS for second in WORDS[::9] for third in WORDS[:9:2]))
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_LIKE = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")


@functools.cache
def byte_level(special: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of byte-level BPE; the last special token is at the end."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(special[:-1]), initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    return {**model["vocab"], special[-1]: len(model["vocab"])}, [tuple(merge) for merge in model["merges"]]


@functools.cache
def unigram(special: tuple[str, ...], unknown: str) -> list[tuple[str, float]]:
    """Pieces with scores; special tokens at the beginning."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=list(special), unk_token=unknown, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    return [tuple(piece) for piece in json.loads(trained.to_str())["model"]["vocab"]]


def roberta(**options: Any) -> Any:
    from transformers import RobertaTokenizer

    vocabulary, merges = byte_level(SPECIAL)
    return RobertaTokenizer(vocab=vocabulary, merges=merges, **options)


def xlm_roberta() -> Any:
    from transformers import XLMRobertaTokenizer

    return XLMRobertaTokenizer(vocab=unigram(SPECIAL, "<unk>"))


def camembert() -> Any:
    from transformers import CamembertTokenizer

    special = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>")
    return CamembertTokenizer(vocab=unigram(special, "<unk>"))


def deberta() -> Any:
    from transformers import DebertaV2Tokenizer

    return DebertaV2Tokenizer(vocab=unigram(BERT_LIKE, "[UNK]"))


def albert() -> Any:
    from transformers import AlbertTokenizer

    return AlbertTokenizer(vocab=unigram(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), "<unk>"))


def mpnet() -> Any:
    from transformers import MPNetTokenizer

    words = ("[UNK]", *"abcdefghijklmnopqrstuvwxyz,.!", *(f"##{one}" for one in "abcdefghijklmnopqrstuvwxyz"), *WORDS)
    return MPNetTokenizer(vocab={one: number for number, one in enumerate((*SPECIAL, *words))})


def modernbert() -> Any:
    """Byte-level BPE with BERT's names, whose class uses tokenizer.json unchanged."""
    from tokenizers import decoders, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary, merges = byte_level(BERT_LIKE)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token", "mask_token"), BERT_LIKE, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "roberta": (roberta, "roberta"),
    "roberta-prefix": (functools.partial(roberta, add_prefix_space=True), "roberta"),
    "xlm-roberta": (xlm_roberta, "xlm-roberta"),
    "camembert": (camembert, "camembert"),
    "deberta": (deberta, "deberta-v2"),
    "albert": (albert, "albert"),
    "mpnet": (mpnet, "mpnet"),
    "modernbert": (modernbert, "modernbert"),
}
"""Name -> maker of the tokenizer of transformers, and the model_type in config.json."""


def save_fast_tokenizer(kind: str, folder: Path) -> Path:
    """Write a model folder as transformers saves it, without weights."""
    make, model_type = KINDS[kind]
    make().save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder
