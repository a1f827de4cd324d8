"""The tokenizer of a Hub model, or of a local model folder: its WordPiece vocabulary and clean-up, if it is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.project.errors import InputError
from tasks.project.files import read_json
from tasks.project.given import require_readable
from tasks.reading.hub_inputs import download_files
from tasks.vocabulary.tokenizer_files import Vocabulary, read_vocabulary
from tasks.vocabulary.tokenizer_kinds import read_tokenizer_json

TOKENIZER, CONFIG, VOCABULARY = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
SLOW = (".model", ".bpe", "merges.txt", "vocab.json")
"""How the files of tokenizers of other kinds end."""


def given_vocabulary(path: Path, lowercase: bool, key: str = "tokenizer.path") -> Vocabulary:
    """The vocabulary of a vocab.txt, or of a model's folder with the tokenizer it was trained with.

    Args:
        path: a file, a folder with one .txt file, or the folder of a model.
        lowercase: used where what is there does not say it itself.
        key: the params key that named it, for messages.

    Raises:
        InputError: it cannot be used.
    """
    if any((path / name).is_file() for name in (TOKENIZER, CONFIG)):
        return load_hub_vocabulary(str(path), None, lowercase, key)
    return Vocabulary(read_vocabulary(path, key), lowercase)


def load_hub_vocabulary(
    repository: str | None, revision: str | None, lowercase: bool, key: str = "tokenizer.repository"
) -> Vocabulary:
    """The vocabulary of a Hub model (or of a local folder of that layout) with a fast WordPiece tokenizer.

    Args:
        repository: `user/name`, or a local folder.
        revision: branch, tag or commit; None is the main branch.
        lowercase: used only where the model comes with vocab.txt and does not say it itself.
        key: the params key that named it, for messages.

    Raises:
        InputError: no name, not found, no connection, or a tokenizer that is slow, of another kind, or needs
            code of its own.
    """
    if not repository:
        raise InputError("tokenizer.source is hub and tokenizer.repository is not set: set it to a model, user/name")
    local = Path(repository)
    if local.is_dir():
        require_readable(local, key)
        present = sorted(file.name for file in local.iterdir() if file.is_file())
        files = {name: local / name for name in (TOKENIZER, CONFIG, VOCABULARY) if name in present}
    else:
        wanted = (TOKENIZER, CONFIG, VOCABULARY)
        _, present, files = download_files(
            repository, revision, lambda names: [name for name in names if name in wanted], "tokenizer"
        )
    source = f"{key}={repository}"
    config = _read_json(files[CONFIG], source) if CONFIG in files else {}
    if "auto_map" in config:
        raise InputError(
            f"{source} brings Python code of its own (auto_map), which is not run: a fast WordPiece "
            "tokenizer (tokenizer.json or vocab.txt) of standard kind is required"
        )
    if TOKENIZER in files:
        return read_tokenizer_json(files[TOKENIZER], source)
    if VOCABULARY in files:
        entries = read_vocabulary(files[VOCABULARY], source)
        lower = config.get("do_lower_case", lowercase)
        return Vocabulary(entries, lower, config.get("strip_accents"), config.get("tokenize_chinese_chars", True))
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


def _read_json(path: Path, source: str) -> dict[str, Any]:
    try:
        values = read_json(path)
    except ValueError as error:
        raise InputError(f"{source}: {path.name} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{source}: {path.name} must hold an object, found {type(values).__name__}")
    return values
