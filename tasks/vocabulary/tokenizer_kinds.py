"""Which tokenizer.json is read: BERT's own kind, of which the vocabulary and three switches are taken, nothing else.

A file may describe any program of replacements over the text, which could take forever or all memory. So none is handed
to the library as it is: what is read here is built anew (tokenizer_files.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.project.errors import InputError
from tasks.vocabulary.tokenizer_files import (
    MAX_CHARACTERS_PER_WORD,
    MAX_ENTRIES,
    ExtraToken,
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


def read_object(path: Path, source: str) -> dict[str, Any]:
    """Return the object in a JSON file of a tokenizer.

    Raises:
        InputError: something else; the message begins with `source`, which named the file.
    """
    try:
        values = read_json(path)
    except ValueError as error:
        raise InputError(f"{source}: {path.name} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{source}: {path.name} must hold an object, found {type(values).__name__}")
    return values


def read_tokenizer_json(path: Path, source: str) -> Vocabulary:
    """The vocabulary and clean-up of a tokenizer.json.

    Args:
        path: the file.
        source: what named it, for messages.

    Raises:
        InputError: damaged, or of another kind; the message names the part.
    """
    values, where = read_object(path, source), f"{source}: {path.name}"
    model = _part(values, "model", where)
    kind = model.get("type", "WordPiece" if "max_input_chars_per_word" in model else "an unnamed kind")
    if kind != "WordPiece":
        raise InputError(f"{where} is of kind {kind!s:.80}; WordPiece is required (a BERT model's tokenizer)")
    _require_kinds(values, where)
    for name, required in MODEL.items():
        if model.get(name, required) != required:
            raise InputError(f"{where} has {name} {model[name]!r:.80}, {required!r} is required, as in BERT")
    entries, extra = _tokens(_part(model, "vocab", where), values.get("added_tokens"), where)
    check_vocabulary(entries, source)
    switches = _switches(_part(values, "normalizer", where), where)
    return Vocabulary(tuple(entries), **switches, extra=extra)


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


def _switches(normalizer: dict[str, Any], where: str) -> dict[str, Any]:
    found = {name: normalizer.get(name, left_out) for name, (left_out, _) in SWITCHES.items()}
    for name, value in found.items():
        taken = SWITCHES[name][1]
        if not any(value is one for one in taken):
            raise InputError(f"{where} has {name} {value!r:.80}, required is one of {', '.join(map(str, taken))}")
    return {name: found[name] for name in ("lowercase", "strip_accents", "handle_chinese_chars")}


def _tokens(vocabulary: dict[str, Any], added: Any, where: str) -> tuple[list[str], tuple[ExtraToken, ...]]:
    """Return the entries in order of their ids, and the added tokens other than BERT's own."""
    ids, extra = dict(vocabulary), {}
    for token in added or [] if isinstance(added, list | None) else [added]:
        one = extra_token(token, where)
        number = token.get("id")
        if ids.setdefault(one.content, number) != number:
            raise InputError(f"{where} gives {one.content!r:.80} the ids {ids[one.content]!r:.20} and {number!r:.20}")
        if one.content not in SPECIAL_TOKENS:
            extra[one.content] = one
    if len(ids) > MAX_ENTRIES:
        raise InputError(f"{where} has {len(ids):,} entries; up to {MAX_ENTRIES:,} are read")
    entries = [token for token in ids if token in vocabulary or token in SPECIAL_TOKENS]
    for part in (ids, entries):  # the library gives added tokens the ids after those of the vocabulary
        numbers = {ids[token] for token in part} if all(type(ids[token]) is int for token in part) else set()
        if numbers != set(range(len(part))):
            raise InputError(f"{where}: the ids are not 0 to {len(part) - 1} without gaps")
    return sorted(entries, key=ids.__getitem__), tuple(extra[token] for token in sorted(extra, key=ids.__getitem__))


def extra_token(token: Any, where: str) -> ExtraToken:
    """Read a token as transformers and the tokenizers library describe one in JSON.

    Raises:
        InputError: it is described otherwise, or takes the blanks beside it along.
    """
    content = token.get("content") if isinstance(token, dict) else None
    if not isinstance(content, str) or any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip")):
        raise InputError(
            f"{where} adds {token!r:.120}: a token with content and id, and without single_word, lstrip and "
            "rstrip, is required"
        )
    special = bool(token.get("special", False))
    return ExtraToken(content, bool(token.get("normalized", not special)), special)
