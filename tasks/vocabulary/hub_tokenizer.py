"""Tokenizer of a Hub model or of a local model folder: BERT's WordPiece, or a fast tokenizer of another kind.

BERT's is read as AutoTokenizer of transformers 4 and 5 reads it. tokenizer_config.json, defaults included, overrides
the normalization in tokenizer.json, because transformers builds BERT's tokenizer from it. Settings that the two
versions read differently, or that Podium does not support, are refused by name.

Only the vocabulary and three switches of BERT's own kind are read, and a new tokenizer is built from them
(tokenizer_files.py). A tokenizer.json of another kind is loaded by the library, without parts that could fill the
memory (fast_tokenizer.py).
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.plan.named_files import require_readable
from tasks.records.hub_inputs import download_files
from tasks.stage.errors import InputError
from tasks.vocabulary.fast_tokenizer import FastTokenizer, read_fast_tokenizer
from tasks.vocabulary.tokenizer_files import (
    MAX_CHARACTERS_PER_WORD,
    MAX_ENTRIES,
    NAMES,
    ExtraToken,
    Vocabulary,
    check_vocabulary,
    read_vocabulary,
)
from tasks.vocabulary.wordpiece import PREFIX, SPECIAL_TOKENS

log = logging.getLogger(__name__)

TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.txt"
CONFIG, SPECIAL_MAP, ADDED, MODEL = SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
FILES = (TOKENIZER, VOCABULARY, *SETTINGS)
"""All files that affect the ids of a text."""
SLOW = (".model", ".bpe", "merges.txt", "vocab.json")
"""Suffixes of the files of other kinds of tokenizers."""
KINDS: dict[str, tuple[str | None, ...]] = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "post_processor": ("TemplateProcessing", "BertProcessing", None),
    "decoder": ("WordPiece", None),
}
"""Part of a tokenizer.json -> accepted types; None: absent."""
REQUIRED_VALUES = {
    "unk_token": "[UNK]",
    "continuing_subword_prefix": PREFIX,
    "max_input_chars_per_word": MAX_CHARACTERS_PER_WORD,
}
BERT = ("Bert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert")
"""Classes of transformers (...Tokenizer, ...TokenizerFast) that build the same tokenizer as BERT's."""
UNCHANGED_CLASSES = ("PreTrained", "TokenizersBackend")
"""Classes that use tokenizer.json unchanged."""
SWITCHES: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "lowercase": ("do_lower_case", True, (True, False)),
    "strip_accents": ("strip_accents", None, (True, False, None)),
    "handle_chinese_chars": ("tokenize_chinese_chars", True, (True, False)),
}
"""Switch of BertNormalizer -> its setting in tokenizer_config.json, the default, and the accepted values."""
REFUSED = {
    "auto_map": (None, "needs its own Python code (auto_map), which is not run"),
    "fast_tokenizer_files": (None, "has a tokenizer.json for each version (fast_tokenizer_files)"),
    "truncation_side": ("right", "truncates texts at their beginning (truncation_side), Podium at their end"),
}
"""Setting -> its harmless value, and the problem with any other value."""
OLD_NAMES = (*NAMES, "bos_token", "eos_token", "additional_special_tokens")
"""Names of special tokens in transformers 4; version 5 accepts any NAME_token, and extra_special_tokens."""


AnyTokenizer = Vocabulary | FastTokenizer
"""BERT's tokenizer, or one of another kind."""


def load_local_vocabulary(path: Path, lowercase: bool, key: str = "tokenizer.path") -> AnyTokenizer:
    """Load the vocabulary of a vocab.txt, or of a model folder with its tokenizer.

    Args:
        path: a file, a folder with one .txt file, or a model folder.
        lowercase: used if the files do not specify it.
        key: params key that named the path, for messages.

    Raises:
        InputError: the vocabulary cannot be used.
    """
    if any((path / name).is_file() for name in (TOKENIZER, CONFIG, VOCABULARY)):
        require_readable(path, key)
        return read_tokenizer_folder(path, lowercase, f"{key}={path}")
    return Vocabulary(read_vocabulary(path, key), lowercase)


def load_hub_vocabulary(repository: str | None, revision: str | None, lowercase: bool) -> AnyTokenizer:
    """Load the vocabulary of a Hub model (or of a local model folder) with a fast tokenizer.

    Args:
        repository: `user/name`, or a local folder.
        revision: branch, tag or commit; None is the main branch.
        lowercase: used only if the model has a vocab.txt and does not specify it.

    Raises:
        InputError: no name, not found, no connection, or a tokenizer that is slow or needs its own code.
    """
    if not repository:
        raise InputError("tokenizer.source is hub, but tokenizer.repository is not set: set it to a model, user/name")
    local, source = Path(repository), f"tokenizer.repository={repository}"
    if local.is_dir():
        require_readable(local, "tokenizer.repository")
        return read_tokenizer_folder(local, lowercase, source)
    _, present, files = download_files(repository, revision, set(FILES).intersection, "tokenizer")
    return _read(files, present, lowercase, source)


def read_tokenizer_folder(folder: Path, lowercase: bool, source: str) -> AnyTokenizer:
    """Load the vocabulary of a local model folder as AutoTokenizer reads it.

    Args:
        folder: an existing folder.
        lowercase: used only for a vocab.txt without settings.
        source: setting that named the folder, for messages.

    Raises:
        InputError: see load_hub_vocabulary.
    """
    present = sorted(file.name for file in folder.iterdir() if file.is_file())
    return _read({name: folder / name for name in FILES if name in present}, present, lowercase, source)


def _read(files: Mapping[str, Path], present: list[str], lowercase: bool, source: str) -> AnyTokenizer:
    config = _read_config(files, source)
    if TOKENIZER in files:
        values = _read_object(files[TOKENIZER], source)
        if not _is_bert(values):
            named = _find_special_tokens(config.values, source)
            return read_fast_tokenizer(values, config.values, config.added, named, source)
        _require_bert_class(config, True)
        return _apply_config(_read_tokenizer_json(values, source), config, None)
    if VOCABULARY in files:
        _require_bert_class(config, False)
        return _apply_config(Vocabulary(read_vocabulary(files[VOCABULARY], source), lowercase), config, lowercase)
    raise _no_fast_tokenizer_error(source, present)


def _no_fast_tokenizer_error(source: str, present: list[str]) -> InputError:
    slow = [name for name in present if name.endswith(SLOW)]
    why = (
        f"; its {', '.join(slow)} belong to a slow tokenizer, which has no character offsets to locate answers with"
        if slow
        else f" (found: {', '.join(present[:8]) or 'nothing'})"
    )
    return InputError(
        f"{source} has neither {TOKENIZER} nor {VOCABULARY}{why}. "
        "Set tokenizer.repository to a model with a fast tokenizer, or save this one with save_pretrained of "
        "transformers, which writes tokenizer.json"
    )


# ---------------------------------------------------------------------------------------------- tokenizer.json


def _read_object(path: Path, source: str) -> dict[str, Any]:
    """Return the object in a JSON file of a tokenizer.

    Raises:
        InputError: not a JSON object; the message begins with `source`, which named the file.
    """
    try:
        values = read_json(path)
    except ValueError as error:
        raise InputError(f"{source}: {path.name} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{source}: {path.name} must be a JSON object, found {type(values).__name__}")
    return values


def _is_bert(values: Mapping[str, Any]) -> bool:
    """Tell whether a tokenizer.json is WordPiece with one of BERT's special tokens."""
    model = values.get("model")
    if not isinstance(model, dict) or model.get("type", "WordPiece") != "WordPiece":
        return not isinstance(model, dict)
    vocabulary = model.get("vocab")
    return not isinstance(vocabulary, dict) or not {"[CLS]", "[SEP]", "[PAD]", "[MASK]"}.isdisjoint(vocabulary)


def _read_tokenizer_json(values: dict[str, Any], source: str) -> Vocabulary:
    """Read vocabulary and normalization from the content of a tokenizer.json.

    Args:
        values: content of the file.
        source: setting that named it, for messages.

    Raises:
        InputError: damaged, or of another kind; the message names the part.
    """
    where = f"{source}: {TOKENIZER}"
    model = _get_object(values, "model", where)
    _require_kinds(values, where)
    for name, required in REQUIRED_VALUES.items():
        if model.get(name, required) != required:
            raise InputError(f"{where} has {name} {model[name]!r:.80}; {required!r} is required, as in BERT")
    entries, extra = _read_tokens(_get_object(model, "vocab", where), values.get("added_tokens"), where)
    check_vocabulary(entries, source)
    normalizer = _get_object(values, "normalizer", where)
    _read_switch(normalizer, "clean_text", True, (True,), where)
    switches = {
        ours: _read_switch(normalizer, ours, default, taken, where) for ours, (_, default, taken) in SWITCHES.items()
    }
    return Vocabulary(tuple(entries), **switches, extra=extra)


def _get_object(values: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    part = values.get(name)
    if not isinstance(part, dict):
        raise InputError(f"{where} must have an object {name!r}, found {type(part).__name__}")
    return part


def _require_kinds(values: dict[str, Any], where: str) -> None:
    """Require the parts to be BERT's. Truncation and padding, which a saved tokenizer may have, are ignored."""
    for name, kinds in KINDS.items():
        part = values.get(name)
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in kinds:
            required = ", ".join(str(one) for one in kinds if one)
            required += " is required (the tokenizer of a BERT model)"
            raise InputError(f"{where} has the {name} {kind!s:.80}; {required}")


def _read_switch(values: Mapping[str, Any], name: str, left_out: Any, taken: tuple[Any, ...], where: str) -> Any:
    """Return a normalization switch; `left_out` is its default."""
    value = values.get(name, left_out)
    if not any(value is one for one in taken):
        raise InputError(f"{where} has {name} {value!r:.80}; one of {', '.join(map(str, taken))} is required")
    return value


def _read_tokens(vocabulary: dict[str, Any], added: Any, where: str) -> tuple[list[str], tuple[ExtraToken, ...]]:
    """Return the entries in order of their ids, and the added tokens without BERT's own."""
    ids, extra = dict(vocabulary), {}
    for token in added or [] if isinstance(added, list | None) else [added]:
        one = _read_extra_token(token, where)
        number = token.get("id")
        if ids.setdefault(one.content, number) != number:
            raise InputError(f"{where} gives {one.content!r:.80} the ids {ids[one.content]!r:.20} and {number!r:.20}")
        if one.content not in SPECIAL_TOKENS:
            extra[one.content] = one
    if len(ids) > MAX_ENTRIES:
        raise InputError(f"{where} has {len(ids):,} entries; at most {MAX_ENTRIES:,} are allowed")
    entries = [token for token in ids if token in vocabulary or token in SPECIAL_TOKENS]
    for part in (ids, entries):  # the library numbers added tokens after the vocabulary
        numbers = {ids[token] for token in part} if all(type(ids[token]) is int for token in part) else set()
        if numbers != set(range(len(part))):
            raise InputError(f"{where} has ids with gaps; 0 to {len(part) - 1} without gaps are required")
    return sorted(entries, key=ids.__getitem__), tuple(extra[token] for token in sorted(extra, key=ids.__getitem__))


def _read_extra_token(token: Any, where: str) -> ExtraToken:
    """Read a token from the JSON of transformers and the tokenizers library.

    Raises:
        InputError: not in that format, or a token that strips neighbouring white space.
    """
    content = token.get("content") if isinstance(token, dict) else None
    if not isinstance(content, str) or any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip")):
        raise InputError(
            f"{where} adds {token!r:.120}; a token with content and id, and without single_word, lstrip and "
            "rstrip, is required"
        )
    special = bool(token.get("special", False))
    return ExtraToken(content, bool(token.get("normalized", not special)), special)


# ---------------------------------------------------------------------------------------------- the files next to it


@dataclass(frozen=True)
class TokenizerConfig:
    """Settings of a tokenizer, and their source."""

    values: Mapping[str, Any]
    """Content of tokenizer_config.json, and of special_tokens_map.json if transformers reads that file."""
    added: Mapping[int, Any]
    """Added tokens by id, as in tokenizer.json, including those with a role."""
    model: Mapping[str, Any] | None
    """Content of config.json; None without that file."""
    source: str

    @property
    def named_class(self) -> str | None:
        """Class of transformers that the files name, without its endings."""
        named = self.values.get("tokenizer_class") or (self.model or {}).get("tokenizer_class")
        return None if named is None else str(named).removesuffix("Fast").removesuffix("Tokenizer")


def _read_config(files: Mapping[str, Path], source: str) -> TokenizerConfig:
    """Read the settings of a tokenizer folder.

    Args:
        files: files of the folder by name; each may be missing.
        source: setting that named the folder, for messages.

    Raises:
        InputError: damaged, or unsupported settings.
    """
    found = {name: _read_object(files[name], source) if name in files else {} for name in SETTINGS}
    values, where = found[CONFIG], f"{source}: {CONFIG}"
    for name, (harmless, why) in REFUSED.items():
        if values.get(name) not in (None, harmless):
            raise InputError(f"{source} {why}; a standard fast tokenizer (tokenizer.json or vocab.txt) is required")
    model = found[MODEL] if MODEL in files else None
    stated = values.get("added_tokens_decoder")
    if stated is not None:
        return TokenizerConfig(values, _read_added_tokens(stated, where), model, source)
    values = {**values, **found[SPECIAL_MAP]}
    special = {content for _, content in _find_special_tokens(values, source)}
    added = {}
    for content, number in found[ADDED].items():
        if type(number) is not int:
            raise InputError(f"{source}: {ADDED} gives {content!r:.80} the id {number!r:.80}; a number is required")
        added[number] = {"content": content, "normalized": content not in special, "special": content in special}
    return TokenizerConfig(values, added, model, source)


def _apply_config(vocabulary: Vocabulary, config: TokenizerConfig, lowercase: bool | None) -> Vocabulary:
    """Return the vocabulary as AutoTokenizer uses it.

    Args:
        vocabulary: content of tokenizer.json or vocab.txt.
        config: settings of the folder.
        lowercase: default of do_lower_case; None: BERT's default, with a warning if tokenizer.json differs.

    Raises:
        InputError: a setting of another type, another special token, or ids that differ from AutoTokenizer's.
    """
    builds_bert = _builds_bert(config, lowercase is None)
    if builds_bert:
        vocabulary = replace(vocabulary, **_read_normalization(vocabulary, config, lowercase))
    added = {number: _read_extra_token(token, f"{config.source}: {CONFIG}") for number, token in config.added.items()}
    vocabulary = replace(vocabulary, extra=_merge_extra_tokens(vocabulary, config, added, builds_bert))
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    for number, token in added.items():
        if ids.get(token.content) != number:
            raise InputError(
                f"{config.source} gives the added token {token.content!r:.80} the id {number!r:.20}, but "
                f"AutoTokenizer gives it {ids.get(token.content)}. Save the tokenizer again with save_pretrained"
            )
    if config.values.get("split_special_tokens") and any(token.special for token in vocabulary.extra):
        raise InputError(
            f"{config.source} adds special tokens, and sets split_special_tokens, which splits them like ordinary "
            "text. Remove one of the two settings"
        )
    return vocabulary


def _builds_bert(config: TokenizerConfig, has_tokenizer_json: bool) -> bool:
    """Tell whether normalization follows the settings; otherwise it follows tokenizer.json."""
    if config.named_class is None:
        return config.model is not None or not has_tokenizer_json
    return not (config.named_class in UNCHANGED_CLASSES and has_tokenizer_json)


def _require_bert_class(config: TokenizerConfig, has_tokenizer_json: bool) -> None:
    named = config.named_class
    if named is not None and named not in BERT and not (named in UNCHANGED_CLASSES and has_tokenizer_json):
        raise InputError(
            f"{config.source} has the tokenizer_class {named!s:.80}Tokenizer; BertTokenizer is required, or "
            "PreTrainedTokenizerFast with a tokenizer.json"
        )


def _read_normalization(vocabulary: Vocabulary, config: TokenizerConfig, lowercase: bool | None) -> dict[str, Any]:
    found = {}
    for ours, (name, default, taken) in SWITCHES.items():
        meant = lowercase if ours == "lowercase" and lowercase is not None else default
        value = found[ours] = _read_switch(config.values, name, meant, taken, f"{config.source}: {CONFIG}")
        if lowercase is None and name not in config.values and value != getattr(vocabulary, ours):
            log.warning(
                "%s: tokenizer.json has %s %s, but %s does not set %s: %s is used, as by AutoTokenizer",
                config.source, ours, getattr(vocabulary, ours), CONFIG, name, value,
            )  # fmt: skip
    return found


def _merge_extra_tokens(
    vocabulary: Vocabulary, config: TokenizerConfig, added: Mapping[int, ExtraToken], builds_bert: bool
) -> tuple[ExtraToken, ...]:
    """Return the tokens of both files in order of their ids, then special tokens without an id."""
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    ours = {ids[token.content]: token for token in vocabulary.extra}
    if "added_tokens_decoder" in config.values:
        stated = {token.content for token in added.values()}
        lost = [token.content for token in ours.values() if token.content not in stated]
        if lost and builds_bert:
            raise InputError(
                f"{config.source}: tokenizer.json adds the token {lost[0]!r:.80}, but added_tokens_decoder of {CONFIG} "
                "lacks it; transformers 4 and 5 read this differently. Save the tokenizer again with save_pretrained"
            )
        ours = {**ours, **added}
    else:
        ours = {**added, **ours}
    extra = {ours[number].content: ours[number] for number in sorted(ours)}
    for name, content in _find_special_tokens(config.values, config.source):
        if content != NAMES.get(name, content):
            raise InputError(f"{config.source} has {name} {content!r:.80}; {NAMES[name]} is required, as in BERT")
        if content not in (*extra, *SPECIAL_TOKENS) and name not in OLD_NAMES:
            raise InputError(
                f"{config.source} has {name} {content!r:.80}, which only transformers 5 reads as a token. Save the "
                "tokenizer again with save_pretrained"
            )
        extra.setdefault(content, ExtraToken(content, normalized=False, special=True))
    return tuple(token for token in extra.values() if token.content not in SPECIAL_TOKENS)


def _find_special_tokens(values: Mapping[str, Any], source: str) -> Iterator[tuple[str, str]]:
    """Yield the setting and the content of each special token.

    Raises:
        InputError: a value is not a token.
    """
    for name, stated in values.items():
        for value in _list_tokens(stated) if name.endswith("_special_tokens") else [stated]:
            content = value.get("content") if isinstance(value, Mapping) else value
            if content is None or isinstance(content, bool) or not name.endswith(("_token", "_special_tokens")):
                continue
            if not isinstance(content, str) or not content:
                raise InputError(f"{source} has {name} {value!r:.80}; a token is required")
            yield name, content


def _list_tokens(stated: Any) -> list[Any]:
    return list(stated.values()) if isinstance(stated, Mapping) else stated if isinstance(stated, list) else [stated]


def _read_added_tokens(stated: Any, where: str) -> dict[int, Any]:
    if not isinstance(stated, Mapping) or len(stated) > MAX_ENTRIES or not all(map(_is_id, stated)):
        raise InputError(f"{where} must have an object added_tokens_decoder of id: token")
    return {int(number): token for number, token in stated.items()}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
