"""Fast tokenizers of any kind, from their tokenizer.json: byte-level BPE, Unigram, WordPiece and others.

The library builds them from the file, completed from the settings next to it as AutoTokenizer does. What is written for
a release names no class of transformers, so that AutoTokenizer uses tokenizer.json unchanged and gives the same ids.
"""

import base64
import contextlib
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tokenizers import Tokenizer

from ipu_model.core.files import write_json
from tasks.stage.bounded import run_bounded
from tasks.stage.errors import InputError
from tasks.vocabulary.wordpiece import MAX_CHARACTERS_PER_WORD, NAMES, PREFIX, SPECIAL_TOKENS, build_wordpiece

MAX_ENTRIES = 1_000_000
"""Twice the largest known vocabulary."""
USUAL_TOKENS = {"pad_token": ("<pad>", "[PAD]"), "unk_token": ("<unk>", "[UNK]"), "mask_token": ("<mask>", "[MASK]")}
"""Special tokens that the template does not contain -> the usual ones, used if no file names one."""
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
"""Names of special tokens that cannot be in a text."""
STRIPPING = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
"""Flags of an added token that does not state them."""
BERT_MODEL = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": PREFIX,
    "max_input_chars_per_word": MAX_CHARACTERS_PER_WORD,
}
BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": True}
PER_WORD = ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "StripAccents", "Strip")
"""Normalizers that do not read across a blank between words."""
BLANKS = ({"Regex": " {2,}"}, {"Regex": r"\s{2,}|[\n\r\t]"}, {"String": "``"}, {"String": "''"})
"""Patterns of replacements that do not read across a single blank between words."""
PROBE = "a b c"
MAX_PARTS = 64
"""Steps of a normalizer, pre-tokenizer or post-processor."""
MAX_SPECIAL = 16
"""Tokens of a template, and ids of each."""
MAX_REPLACEMENT = 64
"""Bytes that a table of characters may give for one character; Unicode's longest has 33."""
TRIAL, TRIAL_SECONDS = "tasks.vocabulary.try_patterns", 10.0
"""Module that tries patterns on texts, and its time limit."""
BLANK_NEEDED = (
    "reads words, but the byte-level tokenizer has no blank before the first word of a text: transformers would give "
    "the released model other tokens. Set tokenizer.add_prefix_space=true"
)
"""Message on a tokenizer of sentences that are split into words."""


class LibraryErrors(contextlib.AbstractContextManager["LibraryErrors"]):
    """Context in which errors of the tokenizers library, which raises plain Exception, become InputErrors."""

    def __init__(self, where: str, what: str = "cannot be loaded") -> None:
        self._where, self._what = where, what

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is Exception or (kind is not None and kind.__name__ == "PanicException"):
            raise InputError(
                f"{self._where} {self._what} ({error!s:.200}). Save the tokenizer again with save_pretrained"
            ) from None


@dataclass(frozen=True)
class Template:
    """Special tokens of a sequence: `cls` text `sep`, or `cls` text `between` text `sep`."""

    cls: int
    between: tuple[int, ...]
    sep: int
    second_type: int | None
    """Number of tokens of `between` with token type 0; the rest of the sequence has type 1. None: all types are 0."""


def read_template(tokenizer: Tokenizer, where: str) -> Template:
    """Return the template with which a tokenizer encodes one text and pairs of texts.

    Raises:
        InputError: another template; the message begins with `where`.
    """
    single, pair = tokenizer.encode("a"), tokenizer.encode("a", "a")
    ids, types, texts = pair.ids, pair.type_ids, pair.sequence_ids
    middle, first = 1 + texts.count(0), len(texts) - 1 - texts.count(1)
    switch = types.index(1) if 1 in types else None
    if (
        texts != [None, *[0] * (middle - 1), *[None] * (first - middle), *[1] * (len(texts) - 1 - first), None]
        or not 1 < middle < first
        or single.ids != [*ids[:middle], ids[-1]]
        or types != ([0] * len(ids) if switch is None else [0] * switch + [1] * (len(ids) - switch))
        or not (switch is None or middle <= switch <= first)
    ):
        raise InputError(
            f"{where} encodes a text as {single.tokens!s:.80} and a pair as {pair.tokens!s:.120}; one special token "
            "before the first text, at least one between texts and one at the end are required"
        )
    return Template(ids[0], tuple(ids[middle:first]), ids[-1], None if switch is None else switch - middle)


def _build(values: Mapping[str, Any], where: str) -> Tokenizer:
    with LibraryErrors(where):
        return Tokenizer.from_str(json.dumps(values))


@dataclass(frozen=True)
class FastTokenizer:
    """A tokenizer.json, the roles of its special tokens, and the settings that are kept for a release."""

    whole: Tokenizer
    """Built from `values`."""
    values: Mapping[str, Any]
    roles: Mapping[str, str]
    """Special tokens by their name in transformers, such as pad_token."""
    settings: Mapping[str, Any]
    source: str
    bert: bool = False
    """BERT's WordPiece."""

    @property
    def kind(self) -> str:
        """Description for the terminal."""
        if self.bert:
            accents = (
                "" if self.strips_accents == self.lowercase else f", accents {'kept' if self.lowercase else 'removed'}"
            )
            return ("lower case" if self.lowercase else "cased") + accents
        return str(self.values["model"].get("type", "no named kind"))

    @property
    def lowercase(self) -> bool:
        """Tell whether BERT's normalization folds capitals."""
        return bool(self.values["normalizer"].get("lowercase", True))

    @property
    def strips_accents(self) -> bool:
        """Tell whether BERT's normalization removes accents, vowel signs and tone marks."""
        setting = self.values["normalizer"].get("strip_accents") if self.bert else False
        return self.lowercase if setting is None else bool(setting)

    @functools.cached_property
    def tokens(self) -> tuple[str, ...]:
        """Everything that has an id, in order of the ids; empty texts for unused ids."""
        ids = self.whole.get_vocab(with_added_tokens=True)
        size, where = 1 + max(ids.values()), f"{self.source}: tokenizer.json"
        if size > MAX_ENTRIES:
            raise InputError(f"{where} has {size:,} entries; at most {MAX_ENTRIES:,} are allowed")
        if len(set(ids.values())) < len(ids):
            raise InputError(f"{where} gives several tokens the same id. Save the tokenizer again with save_pretrained")
        tokens = [""] * size
        for token, number in ids.items():
            tokens[number] = token
        return tuple(tokens)

    @property
    def entries(self) -> list[str]:
        """Tokens of BERT's vocabulary, without those that were added to it."""
        vocabulary = self.values["model"]["vocab"]
        return [token for token in self.tokens if token in vocabulary or token in SPECIAL_TOKENS]

    def is_wordpiece(self) -> bool:
        """Tell whether this is BERT's own kind, which its vocabulary and the switches of its normalizer describe."""
        model, normalizer, added = self.values["model"], self.values.get("normalizer"), self.values["added_tokens"]
        return (
            {**BERT_MODEL, **model, **BERT_MODEL} == {**BERT_MODEL, **model}
            and isinstance(normalizer, dict)
            and {**BERT_NORMALIZER, **normalizer, **BERT_NORMALIZER} == normalizer
            and self.values.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
            and {name: self.roles.get(name) for name in NAMES} == NAMES
            and read_template(self.whole, self.source).second_type == 1
            and self.tokens[0] == SPECIAL_TOKENS[0]
            and not any(token[flag] for token in added for flag in STRIPPING)
            and self.entries == list(self.tokens[: len(self.entries)])
        )

    def build_for_texts(self) -> Tokenizer:
        """Return the tokenizer in which special tokens without a role are ordinary ones, recognized in texts."""
        roles, declared = set(self.roles.values()), self.values["added_tokens"]
        added = [{**token, "special": token["special"] and token["content"] in roles} for token in declared]
        return self.whole if added == declared else _build({**self.values, "added_tokens": added}, self.source)

    def write(self, max_length: int, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json, and for BERT vocab.txt.

        The positions of the model, `max_length`, are `model_max_length` unless the settings of another kind have fewer.
        """
        self.whole.save(str(folder / "tokenizer.json"))
        if self.bert:
            normalizer = self.values["normalizer"]
            with (folder / "vocab.txt").open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(entry + "\n" for entry in self.entries)
            config = {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": self.lowercase,
                "strip_accents": normalizer.get("strip_accents"),
                "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
                "clean_up_tokenization_spaces": True,
            }
        else:
            limit = self.settings.get("model_max_length")
            max_length = min(max_length, limit) if type(limit) is int and limit > 0 else max_length
            typed = read_template(self.whole, self.source).second_type is not None
            byte_level = next(iter(_byte_levels(self.values)), None)
            config = {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **({"add_prefix_space": byte_level["add_prefix_space"]} if byte_level else {}),
                "clean_up_tokenization_spaces": bool(self.settings.get("clean_up_tokenization_spaces", False)),
                "model_input_names": ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"],
            }
        config |= {"model_max_length": max_length, **self.roles}
        write_json(folder / "tokenizer_config.json", config)
        write_json(folder / "special_tokens_map.json", dict(self.roles))

    def with_strip_accents(self, strip_accents: bool) -> "FastTokenizer":
        """Return the tokenizer with another strip_accents.

        Raises:
            InputError: it is not BERT's, whose normalization has this switch.
        """
        if not self.bert:
            raise InputError(
                f"tokenizer.strip_accents={strip_accents} is a switch of BERT's WordPiece, but {self.source} is "
                f"{self.kind}: set it to null"
            )
        values = {**self.values, "normalizer": {**self.values["normalizer"], "strip_accents": strip_accents}}
        return replace(self, values=values, whole=_build(values, self.source))

    @property
    def blank_before_words(self) -> bool:
        """Tell whether a word on its own needs a blank before it, as within a text."""
        return any(not part["add_prefix_space"] for part in _byte_levels(self.values))

    def with_prefix_space(self, prefix: bool | None) -> "FastTokenizer":
        """Return the tokenizer with this add_prefix_space, if it is byte-level; None: as it is."""
        if prefix is None:
            return self
        values = json.loads(json.dumps(self.values))
        _set_prefix_space(values, prefix)
        return replace(self, values=values, whole=_build(values, self.source))

    def treats_words_independently(self, tokenizer: Tokenizer) -> bool:
        """Tell whether the tokens of a text are those of its words, each with the single blank before it."""
        added = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
        if self.bert:  # is split at punctuation too, so that any ordinary added token may span several pieces
            return not added
        across = (
            token.lstrip or token.rstrip or token.normalized or len(token.content.split()) != 1 for token in added
        )
        if any(across) or not (
            _splits_at_blanks(self.values.get("pre_tokenizer")) and _reads_words(self.values.get("normalizer"))
        ):
            return False
        whole = tokenizer.encode(PROBE, add_special_tokens=False)
        ids, offsets = list[int](), list[tuple[int, int]]()
        for piece, start in zip(("a", " b", " c"), (0, 1, 3), strict=True):
            encoding = tokenizer.encode(piece, add_special_tokens=False)
            ids += encoding.ids
            offsets += [(first + start, last + start) for first, last in encoding.offsets]
        return (ids, offsets) == (whole.ids, whole.offsets)


def make_wordpiece(entries: Sequence[str], lowercase: bool, strip_accents: bool | None = None) -> FastTokenizer:
    """Return BERT's tokenizer with these entries, in order of their ids."""
    tokenizer = build_wordpiece(entries, lowercase, strip_accents)
    return FastTokenizer(tokenizer, json.loads(tokenizer.to_str()), NAMES, {}, "the vocabulary", bert=True)


def read_fast_tokenizer(
    values: dict[str, Any],
    settings: Mapping[str, Any],
    added: Mapping[int, Any],
    named: Iterable[tuple[str, str]],
    source: str,
) -> FastTokenizer:
    """Complete a tokenizer.json from the files next to it, as AutoTokenizer does.

    Args:
        values: content of tokenizer.json; changed.
        added: further added tokens by id.
        named: names and contents of the special tokens in the settings.
        source: setting that named the tokenizer, for messages.

    Raises:
        InputError: damaged, without a role or template that rows need, or with parts that are not deterministic or can
            fill the memory.
    """
    where, roles = f"{source}: tokenizer.json", dict[str, str]()
    values |= {"truncation": None, "padding": None}
    _require_safe(values, where)
    tokens = _merge_added_tokens(values.get("added_tokens") or [], added, where)
    values["added_tokens"] = list(tokens.values())
    if type(prefix := settings.get("add_prefix_space")) is bool:
        _set_prefix_space(values, prefix)
    tokenizer = _build(values, where)
    for token in tokens.values():
        if tokenizer.token_to_id(token["content"]) != token.get("id"):
            raise InputError(
                f"{where} gives the added token {token['content']!r:.80} the id {token.get('id')!r:.20}, but "
                f"AutoTokenizer gives it {tokenizer.token_to_id(token['content'])}. Save the tokenizer again "
                "with save_pretrained"
            )
    result = FastTokenizer(tokenizer, values, roles, settings, source)
    size, declared, named = len(result.tokens), [dict(entry) for entry in tokens.values()], list(named)
    roles |= _find_roles(tokenizer, dict(named), values["model"], where)
    for content in dict.fromkeys([*roles.values(), *(content for _, content in named)]):
        if content not in tokens:
            number = tokenizer.token_to_id(content)
            number, size = (size, size + 1) if number is None else (number, size)
            tokens[content] = {"id": number, "content": content, **STRIPPING, "normalized": False}
        tokens[content]["special"] = True
    if (completed := list(tokens.values())) != declared:
        values = {**values, "added_tokens": completed}
        result = FastTokenizer(_build(values, where), values, roles, settings, source)
    return replace(result, roles=NAMES, bert=True) if result.is_wordpiece() else result


def _merge_added_tokens(declared: Any, added: Mapping[int, Any], where: str) -> dict[str, dict[str, Any]]:
    """Return the added tokens of tokenizer.json and of the settings by content; the settings take precedence."""
    tokens: dict[str, dict[str, Any]] = {}
    further = [{**token, "id": number} if isinstance(token, dict) else token for number, token in added.items()]
    for entry in [*(declared if isinstance(declared, list) else [declared]), *further]:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise InputError(f"{where} adds {entry!r:.120}; a token with content and id is required")
        special = bool(entry.get("special", False))
        flags = {**STRIPPING, "normalized": not special, "special": special}
        tokens[entry["content"]] = {**flags, **tokens.get(entry["content"], {}), **entry}
    return tokens


def _find_roles(tokenizer: Tokenizer, named: Mapping[str, str], model: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the special tokens by name: those of the template, of the settings, of the model, and the usual ones."""
    roles = {name: named[name] for name in ROLES if name in named}
    with LibraryErrors(where):
        template = read_template(tokenizer, where)
    for name, number in (("cls_token", template.cls), ("sep_token", template.sep)):
        if roles.setdefault(name, token := tokenizer.id_to_token(number) or "") != token:
            raise InputError(f"{where} has {name} {roles[name]!r:.80}, but its template has {token!r:.80}")
    if isinstance(model.get("unk_token"), str):
        roles.setdefault("unk_token", model["unk_token"])
    if isinstance(model.get("unk_id"), int):
        roles.setdefault("unk_token", tokenizer.id_to_token(model["unk_id"]) or "")
    for name, usual in USUAL_TOKENS.items():
        roles.setdefault(name, next((word for word in usual if tokenizer.token_to_id(word) is not None), ""))
    missing = sorted(name for name, content in roles.items() if tokenizer.token_to_id(content) is None)
    if missing or roles["unk_token"] in [content for name, content in roles.items() if name != "unk_token"]:
        raise InputError(
            f"{where} has no {', '.join(missing) or 'unk_token of its own'}: add it to the tokenizer and save it with "
            "save_pretrained"
        )
    return roles


def _parts(part: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yield a part of tokenizer.json, or those of a sequence."""
    if isinstance(part, dict):
        inner = part.get(name)
        if part.get("type") == "Sequence" and isinstance(inner, list):
            for child in inner:
                yield from _parts(child, name)
        else:
            yield part


def _byte_levels(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the byte-level pre-tokenizers."""
    for part in _parts(values.get("pre_tokenizer"), "pretokenizers"):
        if part.get("type") == "ByteLevel":
            part.setdefault("add_prefix_space", True)
            yield part


def _set_prefix_space(values: Mapping[str, Any], prefix: bool) -> None:
    """Set add_prefix_space of a byte-level tokenizer, and of its post-processor, which adjusts the offsets."""
    byte_levels = list(_byte_levels(values))
    processors = _parts(values.get("post_processor"), "processors") if byte_levels else ()
    for part in (*byte_levels, *processors):
        if "add_prefix_space" in part:
            part["add_prefix_space"] = prefix


def _require_safe(values: Mapping[str, Any], where: str) -> None:
    """Refuse parts that draw at random, or lengthen a text without a limit."""
    model = values.get("model")
    if not isinstance(model, dict):
        raise InputError(f"{where} must have an object 'model', found {type(model).__name__}")
    if model.get("dropout"):
        raise InputError(f"{where} has dropout {model['dropout']!r:.20}; null is required, so that ids do not vary")
    normalizers = _list_parts(values, "normalizer", "normalizers", where)
    _list_parts(values, "pre_tokenizer", "pretokenizers", where)
    for part in normalizers:
        content = part.get({"Replace": "content", "Prepend": "prepend"}.get(str(part.get("type")), ""), "")
        if not isinstance(content, str) or len(content) > 1:
            raise InputError(
                f"{where} has a normalizer that inserts {content!r:.40}; at most one character is allowed, so that "
                "texts do not grow"
            )
        if part.get("type") == "Precompiled" and _longest_replacement(part) > MAX_REPLACEMENT:
            raise InputError(f"{where} has a table that replaces a character by more than {MAX_REPLACEMENT} bytes")
    for part in _list_parts(values, "post_processor", "processors", where):
        tokens = part.get("special_tokens")
        ids = [x.get("ids") for x in tokens.values() if isinstance(x, dict)] if isinstance(tokens, dict) else []
        if any(isinstance(x, list) and len(x) > MAX_SPECIAL for x in (part.get("single"), part.get("pair"), *ids)):
            raise InputError(f"{where} has a template of more than {MAX_SPECIAL} tokens")
    parts = {name: values.get(name) for name in ("normalizer", "pre_tokenizer")}
    if not {*find_patterns(parts)} <= {*find_patterns(list(BLANKS))}:
        _try_patterns(json.dumps(parts), where)


def _list_parts(values: Mapping[str, Any], name: str, inner: str, where: str) -> list[dict[str, Any]]:
    parts = list(itertools.islice(_parts(values.get(name), inner), MAX_PARTS + 1))
    if len(parts) > MAX_PARTS:
        raise InputError(f"{where} has a {name} of more than {MAX_PARTS} steps")
    return parts


def _longest_replacement(part: Mapping[str, Any]) -> int:
    """Return the bytes of the longest text in a table of characters: a trie with its size before it, then texts."""
    try:
        table = base64.b64decode(part["precompiled_charsmap"])
    except (KeyError, TypeError, ValueError):
        return 0  # the library refuses it
    return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))


def find_patterns(part: Any) -> Iterator[str]:
    """Yield the regular expressions in parts of tokenizer.json."""
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and isinstance(part.get("Regex"), str):
            yield part["Regex"]
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


@functools.lru_cache(maxsize=8)
def _try_patterns(parts: str, where: str) -> None:
    """Try the regular expressions of a tokenizer on texts that take long with many of them.

    Raises:
        InputError: they take too long, or are damaged.
    """
    try:
        run_bounded(TRIAL, [], TRIAL_SECONDS, "its patterns", parts)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _splits_at_blanks(part: Any) -> bool:
    """Tell whether a pre-tokenizer splits before every single blank between words, and regards nothing further."""
    kinds = list(_parts(part, "pretokenizers"))
    names = [kind.get("type") for kind in kinds]
    last = kinds[-1] if kinds else {}
    if names[-1:] == ["Metaspace"]:
        always = last.get("prepend_scheme", "always") == "always" and last.get("split", True) is True
        return always and names[:-1] in ([], ["WhitespaceSplit"])
    return names == ["BertPreTokenizer"] or (names == ["ByteLevel"] and last.get("use_regex", True) is True)


def _reads_words(part: Any) -> bool:
    """Tell whether a normalizer reads single words."""
    return all(
        step.get("type") in PER_WORD or (step.get("type") == "Replace" and step.get("pattern") in BLANKS)
        for step in _parts(part, "normalizers")
    )
