"""Model folders with small tokenizers of other kinds than BERT's, trained here and saved by transformers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.tasks.pretraining.row_inputs import LETTERS, WORDS

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


def merged(**options: Any) -> dict[str, Any]:
    vocabulary, merges = byte_level(SPECIAL)
    return {"vocab": vocabulary, "merges": merges, **options}


def words() -> dict[str, Any]:
    entries = (*SPECIAL, "[UNK]", *LETTERS, *",.!", *(f"##{letter}" for letter in LETTERS), *WORDS)
    return {"vocab": {word: number for number, word in enumerate(entries)}}


def bert_names() -> dict[str, Any]:
    """Byte-level BPE with BERT's names, as ModernBERT has it, whose class uses tokenizer.json unchanged."""
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
    names = ("pad_token", "cls_token", "sep_token", "unk_token", "mask_token")
    return {"tokenizer_object": made, **dict(zip(names, BERT_LIKE, strict=True))}


CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>")
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
KINDS: dict[str, tuple[str, str, Callable[[], dict[str, Any]]]] = {
    "roberta": ("roberta", "RobertaTokenizer", merged),
    "roberta-prefix": ("roberta", "RobertaTokenizer", lambda: merged(add_prefix_space=True)),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaTokenizer", lambda: {"vocab": unigram(SPECIAL, "<unk>")}),
    "camembert": ("camembert", "CamembertTokenizer", lambda: {"vocab": unigram(CAMEMBERT, "<unk>")}),
    "deberta": ("deberta-v2", "DebertaV2Tokenizer", lambda: {"vocab": unigram(BERT_LIKE, "[UNK]")}),
    "albert": ("albert", "AlbertTokenizer", lambda: {"vocab": unigram(ALBERT, "<unk>")}),
    "mpnet": ("mpnet", "MPNetTokenizer", words),
    "modernbert": ("modernbert", "PreTrainedTokenizerFast", bert_names),
}
"""Name -> the model_type in config.json, the class of transformers, and what it is made of."""


def save_fast_tokenizer(kind: str, folder: Path) -> Path:
    """Write a model folder as transformers saves it, without weights."""
    import transformers

    model_type, name, make_values = KINDS[kind]
    getattr(transformers, name)(**make_values()).save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder
