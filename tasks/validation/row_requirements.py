"""The requirements on packed rows of every kind, in words and limits; row_checks.py computes what they look at.

What a kind of rows adds is stated elsewhere, see row_rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.project.row_folders import Manifest
from tasks.validation.checks import Check


@dataclass(frozen=True)
class RowLimits:
    """What rows are measured against."""

    folder: Path
    section: str
    """Section of params.yaml that made the rows."""
    manifest: Manifest
    vocab_size: int
    """Vocabulary size of data/tokenizer."""
    tokenizer_sha256: str
    """SHA-256 of its tokenizer.json."""
    max_positions: int
    max_unknown_share: float = 1.0
    """Share of [UNK] among the tokens at most."""

    @property
    def again(self) -> str:
        return f"make the rows again (section {self.section} of params.yaml)"


def prerequisites(limits: RowLimits) -> tuple[Check, ...]:
    """Checks without which nothing else can be looked at."""
    again = f"{limits.folder} was changed or half-written: delete it; {limits.again}"
    return (
        Check(
            "schema",
            "all",
            f"the columns and types of a {limits.manifest.kind} row, {limits.manifest.row_length} tokens long",
            again,
        ),
        Check("manifest_files", "manifest.json", "the files and rows that manifest.json names", again),
        Check(
            "tokenizer",
            "manifest.json",
            f"the tokenizer of data/tokenizer: SHA-256 of tokenizer.json {limits.tokenizer_sha256}",
            f"the tokenizer changed after the rows were made: {limits.again}",
        ),
        Check(
            "vocab_size",
            "manifest.json",
            f"the tokenizer's {limits.vocab_size:,} tokens",
            limits.again,
            minimum=limits.vocab_size,
            maximum=limits.vocab_size,
        ),
    )


def total_checks(limits: RowLimits) -> tuple[Check, ...]:
    """Checks of the whole set."""
    manifest = limits.manifest
    return (
        Check(
            "rows",
            "all",
            "at least one row",
            "there was no text to make rows of: look at the corpus or the questions",
            minimum=1,
        ),
        Check("nulls", "all", "no null anywhere", limits.again),
        Check(
            "manifest_sequences",
            "sequence_ids",
            f"{manifest.sequences:,} sequences, as manifest.json says",
            limits.again,
            minimum=manifest.sequences,
            maximum=manifest.sequences,
        ),
        Check(
            "manifest_real_tokens",
            "sequence_ids",
            f"{manifest.real_tokens:,} real tokens, as manifest.json says",
            limits.again,
            minimum=manifest.real_tokens,
            maximum=manifest.real_tokens,
        ),
        Check(
            "unknown_share",
            "input_ids",
            f"at most {limits.max_unknown_share:.4g} of the tokens are [UNK]",
            "the vocabulary does not fit the text: use a model or vocabulary of its language (base_model, tokenizer), "
            "raise tokenizer.vocabulary_size if it is trained here, or raise validate.max_unknown_share",
            maximum=limits.max_unknown_share,
        ),
    )


def record_checks(limits: RowLimits) -> tuple[Check, ...]:
    """Checks of every row."""
    manifest, again = limits.manifest, limits.again
    return (
        Check(
            "sequences",
            "sequence_ids",
            f"1 to {manifest.max_sequences} sequences in a row",
            f"look at max_sequences_per_row; {again}",
            minimum=1,
            maximum=manifest.max_sequences,
        ),
        Check("sequences_in_order", "sequence_ids", "1, 2, 3, ... one after the other", again),
        Check("padding_at_end", "sequence_ids", "padding only after the last sequence", again),
        Check("padding_is_zero", "input_ids, token_type_ids, position_ids", "0 in padding", again),
        Check(
            "token_ids",
            "input_ids",
            f"token ids under {limits.vocab_size:,}, the size of the vocabulary",
            f"the tokenizer may have changed: {again}",
            maximum=limits.vocab_size - 1,
        ),
        Check("token_types", "token_type_ids", "0 or 1, and 0 at the start of a sequence", again),
        Check("positions_restart", "position_ids", "0, 1, 2, ... from the start of every sequence", again),
        Check(
            "positions_in_model",
            "position_ids",
            f"positions under model.max_positions={limits.max_positions}",
            f"raise model.max_positions or lower {limits.section}.row_length",
            maximum=limits.max_positions - 1,
        ),
        Check(
            "first_token_is_cls",
            "input_ids",
            "every sequence begins with [CLS]",
            f"the tokenizer may have changed: {again}",
        ),
        Check("cls_positions", "cls_positions", "the start of every sequence, -1 for none", again),
    )
