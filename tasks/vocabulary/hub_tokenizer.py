"""The tokenizer of a Hub model, or of a local model folder: its WordPiece vocabulary and clean-up, if it is fast.

It is read as AutoTokenizer of transformers 4 and 5 reads it. tokenizer_config.json decides the clean-up, whatever
tokenizer.json says: transformers builds BERT's tokenizer from it, defaults included. What the two versions read
differently, or what is not computed here, is refused by name.

A tokenizer.json may describe any program of replacements over the text, which could take forever or all memory. So none
is handed to the library as it is: BERT's own kind alone is read, of which the vocabulary and three switches are taken,
and what is read is built anew (tokenizer_files.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.plan.named_files import require_readable
from tasks.records.hub_inputs import download_files
from tasks.stage.errors import InputError
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
"""Everything that decides the ids of a text."""
SLOW = (".model", ".bpe", "merges.txt", "vocab.json")
"""How the files of tokenizers of other kinds end."""
KINDS: dict[str, tuple[str | None, ...]] = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "post_processor": ("TemplateProcessing", "BertProcessing", None),
    "decoder": ("WordPiece", None),
}
"""Parts of a tokenizer.json -> what they may be; None: left out."""
OF_MODEL = {
    "unk_token": "[UNK]",
    "continuing_subword_prefix": PREFIX,
    "max_input_chars_per_word": MAX_CHARACTERS_PER_WORD,
}
BERT = ("Bert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert")
"""Classes of transformers (...Tokenizer, ...TokenizerFast) that build one and the same tokenizer."""
AS_SAVED = ("PreTrained", "TokenizersBackend")
"""Classes that take tokenizer.json as it is."""
SWITCHES: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "lowercase": ("do_lower_case", True, (True, False)),
    "strip_accents": ("strip_accents", None, (True, False, None)),
    "handle_chinese_chars": ("tokenize_chinese_chars", True, (True, False)),
}
"""Switch of BertNormalizer -> its setting in tokenizer_config.json, what is meant where it is left out, and what is
taken."""
REFUSED = {
    "auto_map": (None, "brings Python code of its own (auto_map), which is not run"),
    "fast_tokenizer_files": (None, "has a tokenizer.json for each version (fast_tokenizer_files)"),
    "truncation_side": ("right", "cuts long texts at their beginning (truncation_side), and they are cut at their end"),
}
"""Setting -> its value that changes nothing, and what any other value does."""
OLD_NAMES = (*NAMES, "bos_token", "eos_token", "additional_special_tokens")
"""Special tokens that transformers 4 knows by these names; 5 takes any NAME_token, and extra_special_tokens."""


def given_vocabulary(path: Path, lowercase: bool, key: str = "tokenizer.path") -> Vocabulary:
    """The vocabulary of a vocab.txt, or of a model's folder with the tokenizer it was trained with.

    Args:
        path: a file, a folder with one .txt file, or the folder of a model.
        lowercase: used where what is there does not say it itself.
        key: the params key that named it, for messages.

    Raises:
        InputError: it cannot be used.
    """
    if any((path / name).is_file() for name in (TOKENIZER, CONFIG, VOCABULARY)):
        require_readable(path, key)
        return read_folder(path, lowercase, f"{key}={path}")
    return Vocabulary(read_vocabulary(path, key), lowercase)


def load_hub_vocabulary(repository: str | None, revision: str | None, lowercase: bool) -> Vocabulary:
    """The vocabulary of a Hub model (or of a local folder of that layout) with a fast WordPiece tokenizer.

    Args:
        repository: `user/name`, or a local folder.
        revision: branch, tag or commit; None is the main branch.
        lowercase: used only where the model comes with vocab.txt and does not say it itself.

    Raises:
        InputError: no name, not found, no connection, or a tokenizer that is slow, of another kind, or needs
            code of its own.
    """
    if not repository:
        raise InputError("tokenizer.source is hub and tokenizer.repository is not set: set it to a model, user/name")
    local, source = Path(repository), f"tokenizer.repository={repository}"
    if local.is_dir():
        require_readable(local, "tokenizer.repository")
        return read_folder(local, lowercase, source)
    _, present, files = download_files(repository, revision, set(FILES).intersection, "tokenizer")
    return _read(files, present, lowercase, source)


def read_folder(folder: Path, lowercase: bool, source: str) -> Vocabulary:
    """The vocabulary of a local folder in the layout of a model, as AutoTokenizer reads it.

    Args:
        folder: exists.
        lowercase: used only where there is a vocab.txt that nothing else is said about.
        source: what named the folder, for messages.

    Raises:
        InputError: as load_hub_vocabulary.
    """
    present = sorted(file.name for file in folder.iterdir() if file.is_file())
    return _read({name: folder / name for name in FILES if name in present}, present, lowercase, source)


def _read(files: Mapping[str, Path], present: list[str], lowercase: bool, source: str) -> Vocabulary:
    config = _read_config(files, source, TOKENIZER in files)
    if TOKENIZER in files:
        return _with_config(_read_tokenizer_json(files[TOKENIZER], source), config, None)
    if VOCABULARY in files:
        return _with_config(Vocabulary(read_vocabulary(files[VOCABULARY], source), lowercase), config, lowercase)
    raise _no_fast_tokenizer(source, present)


def _no_fast_tokenizer(source: str, present: list[str]) -> InputError:
    slow = [name for name in present if name.endswith(SLOW)]
    why = (
        f"; its {', '.join(slow)} make a slow tokenizer, which is refused: it gives no character offsets, "
        "which answers are found by"
        if slow
        else f" (found: {', '.join(present[:8]) or 'nothing'})"
    )
    return InputError(
        f"{source} has neither {TOKENIZER} nor {VOCABULARY}{why}. "
        "Set tokenizer.repository to a model with a fast WordPiece tokenizer"
    )


# ---------------------------------------------------------------------------------------------- tokenizer.json


def _read_object(path: Path, source: str) -> dict[str, Any]:
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


def _read_tokenizer_json(path: Path, source: str) -> Vocabulary:
    """The vocabulary and clean-up of a tokenizer.json.

    Args:
        path: the file.
        source: what named it, for messages.

    Raises:
        InputError: damaged, or of another kind; the message names the part.
    """
    values, where = _read_object(path, source), f"{source}: {path.name}"
    model = _part(values, "model", where)
    kind = model.get("type", "WordPiece" if "max_input_chars_per_word" in model else "an unnamed kind")
    if kind != "WordPiece":
        raise InputError(f"{where} is of kind {kind!s:.80}; WordPiece is required (a BERT model's tokenizer)")
    _require_kinds(values, where)
    for name, required in OF_MODEL.items():
        if model.get(name, required) != required:
            raise InputError(f"{where} has {name} {model[name]!r:.80}, {required!r} is required, as in BERT")
    entries, extra = _tokens(_part(model, "vocab", where), values.get("added_tokens"), where)
    check_vocabulary(entries, source)
    normalizer = _part(values, "normalizer", where)
    _switch(normalizer, "clean_text", True, (True,), where)
    switches = {
        ours: _switch(normalizer, ours, default, taken, where) for ours, (_, default, taken) in SWITCHES.items()
    }
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


def _switch(values: Mapping[str, Any], name: str, left_out: Any, taken: tuple[Any, ...], where: str) -> Any:
    """Return a switch of the clean-up, which is `left_out` where it is not there."""
    value = values.get(name, left_out)
    if not any(value is one for one in taken):
        raise InputError(f"{where} has {name} {value!r:.80}, required is one of {', '.join(map(str, taken))}")
    return value


def _tokens(vocabulary: dict[str, Any], added: Any, where: str) -> tuple[list[str], tuple[ExtraToken, ...]]:
    """Return the entries in order of their ids, and the added tokens other than BERT's own."""
    ids, extra = dict(vocabulary), {}
    for token in added or [] if isinstance(added, list | None) else [added]:
        one = _extra_token(token, where)
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


def _extra_token(token: Any, where: str) -> ExtraToken:
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


# ---------------------------------------------------------------------------------------------- the files next to it


@dataclass(frozen=True)
class TokenizerConfig:
    """The settings of a tokenizer, and where they are from."""

    values: Mapping[str, Any]
    """tokenizer_config.json, with special_tokens_map.json where transformers reads that file."""
    added: Mapping[int, ExtraToken]
    """Tokens by id, BERT's own included."""
    builds_bert: bool
    """Clean-up is what the settings say; else what tokenizer.json says."""
    source: str


def _read_config(files: Mapping[str, Path], source: str, has_tokenizer_json: bool) -> TokenizerConfig:
    """Read the settings beside a vocabulary.

    Args:
        files: the files of the folder by their names; each may be missing.
        source: what named the folder, for messages.
        has_tokenizer_json: whether there is a tokenizer.json.

    Raises:
        InputError: damaged, or settings that are not computed here.
    """
    found = {name: _read_object(files[name], source) if name in files else {} for name in SETTINGS}
    values, where = found[CONFIG], f"{source}: {CONFIG}"
    for name, (harmless, why) in REFUSED.items():
        if values.get(name) not in (None, harmless):
            raise InputError(
                f"{source} {why}: a fast WordPiece tokenizer (tokenizer.json or vocab.txt) of standard kind is required"
            )
    builds_bert = _builds_bert(values, found[MODEL], MODEL in files, has_tokenizer_json, source)
    stated = values.get("added_tokens_decoder")
    if stated is not None:
        return TokenizerConfig(values, _decoder(stated, where), builds_bert, source)
    values = {**values, **found[SPECIAL_MAP]}
    special = {content for _, content in _special_tokens(values, source)}
    added = {}
    for content, number in found[ADDED].items():
        if type(number) is not int:
            raise InputError(f"{source}: {ADDED} gives {content!r:.80} the id {number!r:.80}, a number is required")
        added[number] = ExtraToken(content, content not in special, content in special)
    return TokenizerConfig(values, added, builds_bert, source)


def _with_config(vocabulary: Vocabulary, config: TokenizerConfig, lowercase: bool | None) -> Vocabulary:
    """Return the vocabulary as AutoTokenizer uses it.

    Args:
        vocabulary: what tokenizer.json or vocab.txt holds.
        config: the settings beside it.
        lowercase: what is meant where do_lower_case is left out; None: BERT's default, and tokenizer.json is compared.

    Raises:
        InputError: a setting of another type, another special token, or ids that AutoTokenizer would not give.
    """
    if config.builds_bert:
        vocabulary = replace(vocabulary, **_clean_up(vocabulary, config, lowercase))
    vocabulary = replace(vocabulary, extra=_extra_tokens(vocabulary, config))
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    for number, token in config.added.items():
        if ids.get(token.content) != number:
            raise InputError(
                f"{config.source} gives the added token {token.content!r:.80} the id {number!r:.20}, and "
                f"AutoTokenizer {ids.get(token.content)}: save the tokenizer again with save_pretrained"
            )
    if config.values.get("split_special_tokens") and any(token.special for token in vocabulary.extra):
        raise InputError(
            f"{config.source} has special tokens of its own, and split_special_tokens, which reads them as ordinary "
            "text: set one of them otherwise"
        )
    return vocabulary


def _builds_bert(
    values: Mapping[str, Any], model: Mapping[str, Any], has_model: bool, has_tokenizer_json: bool, source: str
) -> bool:
    named = values.get("tokenizer_class") or model.get("tokenizer_class")
    if named is None:
        return has_model or not has_tokenizer_json
    kind = str(named).removesuffix("Fast").removesuffix("Tokenizer")
    if kind in AS_SAVED and has_tokenizer_json:
        return False
    if kind not in BERT:
        raise InputError(
            f"{source} has the tokenizer_class {named!s:.80}: BertTokenizer is required, or PreTrainedTokenizerFast "
            "with a tokenizer.json"
        )
    return True


def _clean_up(vocabulary: Vocabulary, config: TokenizerConfig, lowercase: bool | None) -> dict[str, Any]:
    found = {}
    for ours, (name, default, taken) in SWITCHES.items():
        meant = lowercase if ours == "lowercase" and lowercase is not None else default
        value = found[ours] = _switch(config.values, name, meant, taken, f"{config.source}: {CONFIG}")
        if lowercase is None and name not in config.values and value != getattr(vocabulary, ours):
            log.warning(
                "%s: tokenizer.json has %s %s, and %s does not state %s: it is %s, as for AutoTokenizer",
                config.source, ours, getattr(vocabulary, ours), CONFIG, name, value,
            )  # fmt: skip
    return found


def _extra_tokens(vocabulary: Vocabulary, config: TokenizerConfig) -> tuple[ExtraToken, ...]:
    """Return the tokens of both files in order of their ids, then special tokens that have none yet."""
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    ours = {ids[token.content]: token for token in vocabulary.extra}
    if "added_tokens_decoder" in config.values:
        stated = {token.content for token in config.added.values()}
        lost = [token.content for token in ours.values() if token.content not in stated]
        if lost and config.builds_bert:
            raise InputError(
                f"{config.source}: tokenizer.json adds the token {lost[0]!r:.80} and added_tokens_decoder of {CONFIG} "
                "does not, which transformers 4 and 5 read differently: save the tokenizer again with save_pretrained"
            )
        ours = {**ours, **config.added}
    else:
        ours = {**config.added, **ours}
    extra = {ours[number].content: ours[number] for number in sorted(ours)}
    for name, content in _special_tokens(config.values, config.source):
        if content not in extra and name not in OLD_NAMES:
            raise InputError(
                f"{config.source} has {name} {content!r:.80}, which only transformers 5 takes as a token: save the "
                "tokenizer again with save_pretrained"
            )
        extra.setdefault(content, ExtraToken(content, normalized=False, special=True))
    return tuple(token for token in extra.values() if token.content not in SPECIAL_TOKENS)


def _special_tokens(values: Mapping[str, Any], source: str) -> Iterator[tuple[str, str]]:
    """Give the setting and the content of each special token that is not BERT's own.

    Raises:
        InputError: another token in the place of one of BERT's, or something that is not a token.
    """
    for name, stated in values.items():
        for value in _listed(stated) if name.endswith("_special_tokens") else [stated]:
            content = value.get("content") if isinstance(value, Mapping) else value
            if content is None or isinstance(content, bool) or not name.endswith(("_token", "_special_tokens")):
                continue
            if not isinstance(content, str) or not content:
                raise InputError(f"{source} has {name} {value!r:.80}, a token is required")
            if content != NAMES.get(name, content):
                raise InputError(f"{source} has {name} {content!r:.80}, {NAMES[name]} is required, as in BERT")
            if content not in SPECIAL_TOKENS:
                yield name, content


def _listed(stated: Any) -> list[Any]:
    return list(stated.values()) if isinstance(stated, Mapping) else stated if isinstance(stated, list) else [stated]


def _decoder(stated: Any, where: str) -> dict[int, ExtraToken]:
    if not isinstance(stated, Mapping) or len(stated) > MAX_ENTRIES or not all(map(_is_id, stated)):
        raise InputError(f"{where} must hold added_tokens_decoder, an object of id: token")
    return {int(number): _extra_token(token, where) for number, token in stated.items()}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
