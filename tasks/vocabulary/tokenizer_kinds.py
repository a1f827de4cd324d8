"""Which tokenizer.json is read: BERT's own kind, of which the vocabulary and three switches are taken, nothing else.

A file may describe any program of replacements over the text, which could take forever or all memory. So none is handed
to the library as it is: what is read here is built anew (tokenizer_files.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.project.errors import InputError
from tasks.project.files import read_json
from tasks.vocabulary.tokenizer_files import (
    MAX_CHARACTERS_PER_WORD,
    MAX_ENTRIES,
    Vocabulary,
    check_vocabulary,
)
from tasks.vocabulary.wordpiece import PREFIX, SPECIAL_TOKENS

KINDS: dict[str, tuple[str | None, ...]] = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "post_processor": ("TemplateProcessing", "BertProcessing", None),
    "decoder": ("WordPiece", None),
}
"""Parts of a tokenizer.json -> what they may be; None: left out."""
MODEL = {"unk_token": "[UNK]", "continuing_subword_prefix": PREFIX, "max_input_chars_per_word": MAX_CHARACTERS_PER_WORD}
SWITCHES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "clean_text": (True, (True,)),
    "lowercase": (True, (True, False)),
    "strip_accents": (None, (True, False, None)),
    "handle_chinese_chars": (True, (True, False)),
}
"""Setting of BertNormalizer -> what is meant where it is left out, and what is taken."""


def read_tokenizer_json(path: Path, source: str) -> Vocabulary:
    """The vocabulary and clean-up of a tokenizer.json.

    Args:
        path: the file.
        source: what named it, for messages.

    Raises:
        InputError: damaged, or of another kind; the message names the part.
    """
    try:
        values = read_json(path)
    except ValueError as error:
        raise InputError(f"{source}: {path.name} is not JSON ({error})") from None
    where = f"{source}: {path.name}"
    if not isinstance(values, dict):
        raise InputError(f"{where} must hold an object, found {type(values).__name__}")
    model = _part(values, "model", where)
    kind = model.get("type", "WordPiece" if "max_input_chars_per_word" in model else "an unnamed kind")
    if kind != "WordPiece":
        raise InputError(f"{where} is of kind {kind!s:.80}; WordPiece is required (a BERT model's tokenizer)")
    _require_kinds(values, where)
    for name, required in MODEL.items():
        if model.get(name, required) != required:
            raise InputError(f"{where} has {name} {model[name]!r:.80}, {required!r} is required, as in BERT")
    entries = _entries(_part(model, "vocab", where), values.get("added_tokens"), where)
    check_vocabulary(entries, source)
    return Vocabulary(tuple(entries), *_switches(_part(values, "normalizer", where), where))


def _part(values: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    part = values.get(name)
    if not isinstance(part, dict):
        raise InputError(f"{where} must hold {name!r}, an object; found {type(part).__name__}")
    return part


def _require_kinds(values: dict[str, Any], where: str) -> None:
    """The parts must be BERT's; truncation and padding, which a model may have been saved with, are not used."""
    for name, kinds in KINDS.items():
        part = values.get(name)
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in kinds:
            required = ", ".join(str(one) for one in kinds if one)
            raise InputError(f"{where} has the {name} {kind!s:.80}; {required} is required (a BERT model's tokenizer)")


def _switches(normalizer: dict[str, Any], where: str) -> list[Any]:
    found = {name: normalizer.get(name, left_out) for name, (left_out, _) in SWITCHES.items()}
    for name, value in found.items():
        taken = SWITCHES[name][1]
        if not any(value is one for one in taken):
            raise InputError(f"{where} has {name} {value!r:.80}, required is one of {', '.join(map(str, taken))}")
    return [found[name] for name in ("lowercase", "strip_accents", "handle_chinese_chars")]


def _entries(ids: dict[str, Any], added: Any, where: str) -> list[str]:
    """Entries in order of their ids, added tokens included."""
    ids = dict(ids)
    for token in added or [] if isinstance(added, list | None) else [added]:
        content, number = (token.get("content"), token.get("id")) if isinstance(token, dict) else (None, None)
        if not isinstance(content, str) or any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip")):
            raise InputError(
                f"{where} adds {token!r:.120}: a token with content and id, and without single_word, lstrip and "
                "rstrip, is required"
            )
        if content not in SPECIAL_TOKENS and not token.get("special"):
            raise InputError(
                f"{where} adds the token {content!r:.80}, which would be looked for across words: "
                f"{', '.join(SPECIAL_TOKENS)} and other special tokens are taken"
            )
        if ids.setdefault(content, number) != number:
            raise InputError(f"{where} gives {content!r:.80} the ids {ids[content]!r:.20} and {number!r:.20}")
    if len(ids) > MAX_ENTRIES:
        raise InputError(f"{where} has {len(ids):,} entries; up to {MAX_ENTRIES:,} are read")
    numbers = set(ids.values()) if all(type(number) is int for number in ids.values()) else set()
    if numbers != set(range(len(ids))):
        raise InputError(f"{where}: the ids are not 0 to {len(ids) - 1} without gaps")
    return sorted(ids, key=ids.__getitem__)
