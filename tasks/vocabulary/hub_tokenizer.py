"""The tokenizer of a Hub model, or of a local model folder: its WordPiece vocabulary and clean-up, if it is fast."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.project.errors import InputError
from tasks.project.given import require_readable
from tasks.reading.hub_inputs import download_files
from tasks.vocabulary import tokenizer_config
from tasks.vocabulary.tokenizer_config import CONFIG, read_tokenizer_config, with_config
from tasks.vocabulary.tokenizer_files import Vocabulary, read_vocabulary
from tasks.vocabulary.tokenizer_kinds import read_tokenizer_json

TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.txt"
FILES = (TOKENIZER, VOCABULARY, *tokenizer_config.FILES)
"""Everything that decides the ids of a text."""
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
    if any((path / name).is_file() for name in (TOKENIZER, CONFIG, VOCABULARY)):
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
        return read_folder(local, lowercase, f"{key}={repository}")
    _, present, files = download_files(
        repository, revision, lambda names: [name for name in names if name in FILES], "tokenizer"
    )
    return _read(files, present, lowercase, f"{key}={repository}")


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
    config = read_tokenizer_config(files, source, TOKENIZER in files)
    if TOKENIZER in files:
        return with_config(read_tokenizer_json(files[TOKENIZER], source), config, None)
    if VOCABULARY in files:
        return with_config(Vocabulary(read_vocabulary(files[VOCABULARY], source), lowercase), config, lowercase)
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
