"""Tokenizer of a Hub model or of a local model folder, read as AutoTokenizer of transformers 4 and 5 reads it.

tokenizer_config.json, defaults included, overrides the normalization in the tokenizer.json of BERT's classes, because
transformers builds BERT's tokenizer from it.
"""

import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json
from tasks.plan.named_files import require_readable
from tasks.records.hub_inputs import download_files
from tasks.records.text_files import read_lines
from tasks.stage.errors import InputError
from tasks.vocabulary.fast_tokenizer import MAX_ENTRIES, FastTokenizer, make_wordpiece, read_fast_tokenizer
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS, build_wordpiece

log = logging.getLogger(__name__)

TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.txt"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
CONFIG, SPECIAL_MAP, ADDED, MODEL = SETTINGS
FILES = (TOKENIZER, VOCABULARY, *SETTINGS)
"""All files that affect the ids of a text."""
SLOW = (".model", ".bpe", "merges.txt", "vocab.json")
"""Suffixes of the files of tokenizers without tokenizer.json."""
BERT = ("Bert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "MPNet", "SqueezeBert")
"""Classes of transformers (...Tokenizer, ...TokenizerFast) that build BERT's normalization from the settings."""
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
    "split_special_tokens": (False, "splits special tokens like ordinary text (split_special_tokens)"),
}
"""Setting -> its harmless value, and the problem with any other value."""

MAX_BYTES = 64 << 20
"""Largest vocab.txt that is read; the largest known has 5 MB."""


def load_local_vocabulary(path: Path, lowercase: bool, key: str = "tokenizer.path") -> FastTokenizer:
    """Load the vocabulary of a vocab.txt, of a folder with one .txt file, or of a model folder with its tokenizer.

    Messages name `key`. For `lowercase` and errors see load_hub_vocabulary.
    """
    if any((path / name).is_file() for name in (TOKENIZER, CONFIG, VOCABULARY)):
        require_readable(path, key)
        return read_tokenizer_folder(path, lowercase, f"{key}={path}")
    return make_wordpiece(read_vocabulary(path, key), lowercase)


def load_hub_vocabulary(repository: str | None, revision: str | None, lowercase: bool) -> FastTokenizer:
    """Load the vocabulary of a Hub model (or of a local model folder) with a fast tokenizer.

    `lowercase` is used only if the model has a vocab.txt and does not specify it.

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


def read_tokenizer_folder(folder: Path, lowercase: bool, source: str) -> FastTokenizer:
    """Load the vocabulary of a local model folder as AutoTokenizer reads it; `source` names the folder in messages.

    For `lowercase` and errors see load_hub_vocabulary.
    """
    present = sorted(file.name for file in folder.iterdir() if file.is_file())
    return _read({name: folder / name for name in FILES if name in present}, present, lowercase, source)


def _read(files: Mapping[str, Path], present: list[str], lowercase: bool, source: str) -> FastTokenizer:
    objects = {name: _read_object(files[name], source) if name in files else {} for name in SETTINGS}
    settings = objects[CONFIG]
    for name, (harmless, why) in REFUSED.items():
        if settings.get(name) not in (None, harmless):
            raise InputError(f"{source} {why}; a standard fast tokenizer (tokenizer.json or vocab.txt) is required")
    named = settings.get("tokenizer_class") or objects[MODEL].get("tokenizer_class")
    kind = "Bert" if named is None else str(named).removesuffix("Fast").removesuffix("Tokenizer")
    if TOKENIZER in files:
        values = _read_object(files[TOKENIZER], source)
        if kind in BERT and (named is not None or MODEL in files):
            _apply_switches(values.get("normalizer"), settings, None, source)
    elif VOCABULARY in files:
        if kind not in BERT:
            raise InputError(
                f"{source} has the tokenizer_class {named!s:.80} and no tokenizer.json; BertTokenizer is required"
            )
        values = json.loads(build_wordpiece(read_vocabulary(files[VOCABULARY], source), lowercase).to_str())
        _apply_switches(values["normalizer"], settings, lowercase, source)
    else:
        raise _no_fast_tokenizer_error(source, present)
    if (added := settings.get("added_tokens_decoder")) is None:
        special = list(_find_special_tokens({**settings, **objects[SPECIAL_MAP]}, source))
        contents = [token for _, token in special]
        added = {
            str(number): {"content": token, "special": token in contents} for token, number in objects[ADDED].items()
        }
    else:
        special = list(_find_special_tokens(settings, source))
    valid = isinstance(added, dict) and all(re.fullmatch("[0-9]{1,9}", number) for number in added)
    if not valid or len(added) > MAX_ENTRIES:
        raise InputError(f"{source} must have added tokens with numbers as ids, found {added!s:.80}")
    tokens = {int(number): token for number, token in added.items()}
    if "added_tokens_decoder" in settings and kind not in UNCHANGED_CLASSES:
        known = [token.get("content") for token in tokens.values() if isinstance(token, dict)]
        declared = values.get("added_tokens") or []
        for added_token in (token for token in declared if isinstance(token, dict) and not token.get("special")):
            if added_token.get("content") not in known:
                raise InputError(
                    f"{source}: tokenizer.json adds the token {added_token.get('content')!r:.80}, but "
                    f"added_tokens_decoder of {CONFIG} lacks it; transformers 4 and 5 read this differently. "
                    "Save the tokenizer again with save_pretrained"
                )
    return read_fast_tokenizer(values, settings, tokens, special, source)


def _apply_switches(normalizer: Any, settings: Mapping[str, Any], lowercase: bool | None, source: str) -> None:
    """Set the switches of BERT's normalizer, a part of tokenizer.json, to those of the settings; others stay.

    `lowercase` is the default of do_lower_case; None: BERT's default, with a warning if tokenizer.json differs.

    Raises:
        InputError: a setting of another type.
    """
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return
    for ours, (name, default, taken) in SWITCHES.items():
        value = settings.get(name, lowercase if ours == "lowercase" and lowercase is not None else default)
        if not any(value is switch for switch in taken):
            options = ", ".join(map(str, taken))
            raise InputError(f"{source}: {CONFIG} has {name} {value!r:.80}; one of {options} is required")
        if lowercase is None and name not in settings and value != normalizer.get(ours, value):
            log.warning(
                "%s: tokenizer.json has %s %s, but %s does not set %s: %s is used, as by AutoTokenizer",
                source, ours, normalizer.get(ours), CONFIG, name, value,
            )  # fmt: skip
        normalizer[ours] = value


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


def _read_object(path: Path, source: str) -> dict[str, Any]:
    """Return the object in a JSON file of a tokenizer; messages begin with `source`, which named the file."""
    try:
        values = read_json(path)
    except ValueError as error:
        raise InputError(f"{source}: {path.name} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{source}: {path.name} must be a JSON object, found {type(values).__name__}")
    return values


def _find_special_tokens(values: Mapping[str, Any], source: str) -> Iterator[tuple[str, str]]:
    """Yield the setting and the content of each special token."""
    for name, tokens in values.items():
        for value in _list_tokens(tokens) if name.endswith("_special_tokens") else [tokens]:
            content = value.get("content") if isinstance(value, Mapping) else value
            if content is None or isinstance(content, bool) or not name.endswith(("_token", "_special_tokens")):
                continue
            if not isinstance(content, str) or not content:
                raise InputError(f"{source} has {name} {value!r:.80}; a token is required")
            yield name, content


def _list_tokens(tokens: Any) -> list[Any]:
    return list(tokens.values()) if isinstance(tokens, Mapping) else tokens if isinstance(tokens, list) else [tokens]


def read_vocabulary(path: Path, key: str) -> tuple[str, ...]:
    """Return the entries of a vocab.txt (one per line), or of the only .txt file of a folder.

    Raises:
        InputError: not found, several files, not a text file, or a vocabulary that cannot be used.
    """
    path = Path(path)
    require_readable(path, key)
    if path.is_dir():
        inside = sorted(file for file in path.glob("*.txt") if not file.name.startswith("."))
        if len(inside) != 1:
            names = ", ".join(file.name for file in inside[:5]) or "none"
            raise InputError(
                f"{key}={path} has {len(inside)} .txt files ({names}); exactly one is required. "
                f"Set {key} to the vocabulary file itself"
            )
        path = inside[0]
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path} has {path.stat().st_size:,} bytes; at most {MAX_BYTES:,} are allowed ({key})")
    entries = [line.rstrip("\r\n") for line in itertools.islice(read_lines(path, key, raw=True), MAX_ENTRIES + 1)]
    if len(entries) > MAX_ENTRIES:
        raise InputError(f"{path} has more than {MAX_ENTRIES:,} lines, the most that are allowed ({key})")
    while entries and not entries[-1]:
        entries.pop()
    check_vocabulary(entries, f"{path} ({key})")
    return tuple(entries)


def check_vocabulary(entries: list[str], source: str) -> None:
    """Refuse a vocabulary that Podium cannot train with, with all its problems; the list index is the token id."""
    if not entries:
        raise InputError(f"{source} is empty: {', '.join(SPECIAL_TOKENS)} and word pieces are required")
    problems = []
    missing = [token for token in SPECIAL_TOKENS if token not in set(entries)]
    if missing:
        problems.append(f"lacks {', '.join(missing)}: add these lines, or use the vocabulary of a BERT model")
    elif entries[0] != "[PAD]":
        problems.append(
            f"has [PAD] on line {entries.index('[PAD]') + 1} (id {entries.index('[PAD]')}): rows are padded "
            "with id 0, so [PAD] must be on line 1"
        )
    blank = [number for number, entry in enumerate(entries, 1) if not entry.strip()]
    if blank:
        problems.append(f"has empty lines: {', '.join(map(str, blank[:10]))}; every line must be a token")
    repeated = [entry for entry, count in Counter(entries).items() if count > 1 and entry.strip()]
    if repeated:
        shown = ", ".join(
            f"{entry!r} on lines {' and '.join(str(n) for n, e in enumerate(entries, 1) if e == entry)}"
            for entry in repeated[:5]
        )
        problems.append(f"has {len(repeated)} repeated entries: {shown}; every line must be unique")
    if problems:
        raise InputError(f"{source} " + "; it ".join(problems))
