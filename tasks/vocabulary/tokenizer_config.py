"""What the files beside a vocabulary say about it, read as AutoTokenizer of transformers 4 and 5 reads them.

tokenizer_config.json decides the clean-up, whatever tokenizer.json says: transformers builds BERT's tokenizer from it,
defaults included. What the two versions read differently, or what is not computed here, is refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.project.errors import InputError
from tasks.vocabulary.tokenizer_files import MAX_ENTRIES, ExtraToken, Vocabulary
from tasks.vocabulary.tokenizer_kinds import extra_token, read_object
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS

log = logging.getLogger(__name__)

CONFIG, SPECIAL_MAP, ADDED, MODEL = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
FILES = (CONFIG, SPECIAL_MAP, ADDED, MODEL)
BERT = ("Bert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert")
"""Classes of transformers (...Tokenizer, ...TokenizerFast) that build one and the same tokenizer."""
AS_SAVED = ("PreTrained", "TokenizersBackend")
"""Classes that take tokenizer.json as it is."""
CLEAN_UP: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "do_lower_case": ("lowercase", True, (True, False)),
    "strip_accents": ("strip_accents", None, (True, False, None)),
    "tokenize_chinese_chars": ("handle_chinese_chars", True, (True, False)),
}
"""Setting -> our name, what is meant where it is left out, and what is taken."""
REFUSED = {
    "auto_map": (None, "brings Python code of its own (auto_map), which is not run"),
    "fast_tokenizer_files": (None, "has a tokenizer.json for each version (fast_tokenizer_files)"),
    "truncation_side": ("right", "cuts long texts at their beginning (truncation_side), and they are cut at their end"),
}
"""Setting -> its value that changes nothing, and what any other value does."""
OWN = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
OLD_NAMES = (*OWN, "bos_token", "eos_token", "additional_special_tokens")
"""Special tokens that transformers 4 knows by these names; 5 takes any NAME_token, and extra_special_tokens."""


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


def read_tokenizer_config(files: Mapping[str, Path], source: str, has_tokenizer_json: bool) -> TokenizerConfig:
    """Read the settings beside a vocabulary.

    Args:
        files: the files of the folder by their names; each may be missing.
        source: what named the folder, for messages.
        has_tokenizer_json: whether there is a tokenizer.json.

    Raises:
        InputError: damaged, or settings that are not computed here.
    """
    found = {name: read_object(files[name], source) if name in files else {} for name in FILES}
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


def with_config(vocabulary: Vocabulary, config: TokenizerConfig, lowercase: bool | None) -> Vocabulary:
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
    for name, (ours, default, taken) in CLEAN_UP.items():
        meant = lowercase if name == "do_lower_case" and lowercase is not None else default
        value = found[ours] = config.values.get(name, meant)
        if not any(value is one for one in taken):
            raise InputError(
                f"{config.source}: {CONFIG} has {name} {value!r:.80}, required is one of {', '.join(map(str, taken))}"
            )
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
            if content != OWN.get(name, content):
                raise InputError(f"{source} has {name} {content!r:.80}, {OWN[name]} is required, as in BERT")
            if content not in SPECIAL_TOKENS:
                yield name, content


def _listed(stated: Any) -> list[Any]:
    return list(stated.values()) if isinstance(stated, Mapping) else stated if isinstance(stated, list) else [stated]


def _decoder(stated: Any, where: str) -> dict[int, ExtraToken]:
    if not isinstance(stated, Mapping) or len(stated) > MAX_ENTRIES or not all(map(_is_id, stated)):
        raise InputError(f"{where} must hold added_tokens_decoder, an object of id: token")
    return {int(number): extra_token(token, where) for number, token in stated.items()}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
