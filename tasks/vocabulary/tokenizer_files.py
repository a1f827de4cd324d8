"""Files of data/tokenizer: a fast BERT tokenizer that transformers 4 and 5 load alike; requirements of a vocabulary."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from ipu_model.files import write_json
from tasks.plan.named_files import require_readable
from tasks.records.text_files import read_raw_lines
from tasks.stage.errors import InputError
from tasks.vocabulary.wordpiece import PREFIX, SPECIAL_TOKENS

NAMES = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
"""Names of the special tokens in transformers."""
MAX_CHARACTERS_PER_WORD = 100
"""Longer words become [UNK], as in BERT."""
MAX_ENTRIES = 1_000_000
"""Twice the largest known vocabulary."""
MAX_BYTES = 64 << 20
"""Largest vocab.txt that is read; the largest known has 5 MB."""


@dataclass(frozen=True)
class ExtraToken:
    """A token that is matched in the text before it is split into words (`add_tokens`)."""

    content: str
    normalized: bool
    """Matched in the normalized text instead of the original text."""
    special: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """Entries in order of their ids, and the normalization of text before lookup."""

    entries: tuple[str, ...]
    lowercase: bool
    strip_accents: bool | None = None
    """None: as `lowercase`."""
    handle_chinese_chars: bool = True
    extra: tuple[ExtraToken, ...] = ()
    """Tokens that are not entries get the following ids, in this order."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Everything that has an id, in order of the ids."""
        known = set(self.entries)
        return (*self.entries, *(token.content for token in self.extra if token.content not in known))

    @property
    def kind(self) -> str:
        """Description for the terminal."""
        return "lower case" if self.lowercase else "cased"

    @property
    def roles(self) -> dict[str, str]:
        """Special tokens by their name in transformers."""
        return NAMES

    def build(self, *, for_texts: bool = False) -> Tokenizer:
        """Return BERT's fast tokenizer: pairs become [CLS] a [SEP] b [SEP] with type ids 0 and 1.

        Args:
            for_texts: special tokens without a role are ordinary added tokens, which are recognized in texts.
        """
        extra = tuple(replace(token, special=False) for token in self.extra) if for_texts else self.extra
        ids = {entry: number for number, entry in enumerate(self.entries)}
        longest = MAX_CHARACTERS_PER_WORD
        model = WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=longest, continuing_subword_prefix=PREFIX)
        tokenizer = Tokenizer(model)
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
        for token in extra:
            add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
            add([AddedToken(token.content, normalized=token.normalized, special=token.special)])
        tokenizer.normalizer = BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.handle_chinese_chars,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )
        tokenizer.pre_tokenizer = BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
        )
        return tokenizer

    def write(self, max_length: int, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and vocab.txt into `folder`.

        Args:
            max_length: positions of the model; the `model_max_length` at which transformers warns or truncates.
            folder: an existing folder.
        """
        self.build().save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.handle_chinese_chars,
            "clean_up_tokenization_spaces": True,
            "model_max_length": max_length,
            **NAMES,
        }
        write_json(folder / "tokenizer_config.json", config)
        write_json(folder / "special_tokens_map.json", NAMES)
        with (folder / "vocab.txt").open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(entry + "\n" for entry in self.entries)


def read_vocabulary(path: Path, key: str) -> tuple[str, ...]:
    """Return the entries of a vocab.txt (one per line), or of the only .txt file of a folder.

    Args:
        path: file or folder.
        key: params key that named it, for messages.

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
    entries = [line.rstrip("\r\n") for line in itertools.islice(read_raw_lines(path, key), MAX_ENTRIES + 1)]
    if len(entries) > MAX_ENTRIES:
        raise InputError(f"{path} has more than {MAX_ENTRIES:,} lines, the most that are allowed ({key})")
    while entries and not entries[-1]:
        entries.pop()
    check_vocabulary(entries, f"{path} ({key})")
    return tuple(entries)


def check_vocabulary(entries: list[str], source: str) -> None:
    """Refuse a vocabulary that Podium cannot train with; the list index is the token id.

    Raises:
        InputError: empty, an empty or repeated entry, a missing special token, or an id of [PAD] other than 0; all
            problems in one message.
    """
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
