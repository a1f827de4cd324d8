"""The requirements on packed rows, in words and limits; row_checks.py computes what they look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.project.row_folders import Manifest
from tasks.validation.checks import Check

ENOUGH_SEQUENCES = 100
"""From here on the share of random next sentences says something."""
TOKENS = "token_classification"
"""Rows whose labels are those of tokens."""
RANDOM_NEXT_SHARE = (0.05, 0.95)
"""Half is meant; documents too short for two segments move it up, so only what cannot be learnt from is refused."""


@dataclass(frozen=True)
class RowLimits:
    """What rows are measured against."""

    name: str
    """phase1, phase2, squad-train or squad-dev."""
    manifest: Manifest
    vocab_size: int
    """Vocabulary size of data/tokenizer."""
    tokenizer_sha256: str
    """SHA-256 of its tokenizer.json."""
    max_positions: int
    masked_fraction: float

    @property
    def knobs(self) -> str:
        """The section of params.yaml behind these rows."""
        if self.manifest.kind == "pretrain":
            return f"pretrain_rows.{self.name}"
        return "squad_rows" if self.manifest.kind == "question_answering" else "glue_rows"

    @property
    def again(self) -> str:
        return f"make the rows again (section {self.knobs} of params.yaml)"


def prerequisites(folder: Path, limits: RowLimits) -> tuple[Check, ...]:
    """Checks without which nothing else can be looked at."""
    again = f"{folder} was changed or half-written: delete it; {limits.again}"
    return (
        Check("schema", "all", f"the columns and types of a {limits.manifest.kind} row, "
              f"{limits.manifest.row_length} tokens long", again, maximum=0),
        Check("manifest_files", "manifest.json", "the files and rows that manifest.json names", again, maximum=0),
        Check("tokenizer", "manifest.json", "the tokenizer of data/tokenizer: SHA-256 of tokenizer.json "
              f"{limits.tokenizer_sha256}",
              f"the tokenizer changed after the rows were made: {limits.again}", maximum=0),
        Check("vocab_size", "manifest.json", f"the tokenizer's {limits.vocab_size:,} tokens", limits.again,
              minimum=limits.vocab_size, maximum=limits.vocab_size),
    )  # fmt: skip


def total_checks(limits: RowLimits) -> tuple[Check, ...]:
    """Checks of the whole set."""
    manifest = limits.manifest
    common = (
        Check("rows", "all", "at least one row",
              "there was no text to make rows of: look at the corpus or the questions", minimum=1),
        Check("nulls", "all", "no null anywhere", limits.again, maximum=0),
        Check("manifest_sequences", "sequence_ids", f"{manifest.sequences:,} sequences, as manifest.json says",
              limits.again, minimum=manifest.sequences, maximum=manifest.sequences),
        Check("manifest_real_tokens", "sequence_ids", f"{manifest.real_tokens:,} real tokens, as manifest.json says",
              limits.again, minimum=manifest.real_tokens, maximum=manifest.real_tokens),
    )  # fmt: skip
    of_kind = {"pretrain": _pretrain_totals, "question_answering": _question_totals}.get(manifest.kind, _label_totals)
    return common + of_kind(limits)


def _pretrain_totals(limits: RowLimits) -> tuple[Check, ...]:
    manifest = limits.manifest
    # A sequence has its share of masked tokens rounded up, and one at least.
    most = limits.masked_fraction + manifest.sequences / max(1, manifest.real_tokens)
    low, high = RANDOM_NEXT_SHARE if manifest.sequences >= ENOUGH_SEQUENCES else (0.0, 1.0)
    return (
        Check("masked_tokens", "masked_labels", "at least one masked token", limits.again, minimum=1),
        Check(
            "masked_share",
            "masked_labels",
            f"at most {most:.4g} of the real tokens: masked_fraction "
            f"{limits.masked_fraction:.4g} and one token more in every sequence",
            f"look at pretrain_rows.masked_fraction; {limits.again}",
            maximum=most,
        ),
        Check(
            "random_next_share",
            "next_sentence_labels",
            f"between {low:.4g} and {high:.4g} of the sequences have a random next sentence"
            + ("" if low else f" (from {ENOUGH_SEQUENCES} sequences on this is stricter)"),
            "documents of one sentence have no next one: look at corpus.layout",
            minimum=low,
            maximum=high,
        ),
    )


def _question_totals(limits: RowLimits) -> tuple[Check, ...]:
    smallest = 1 if limits.name == "squad-train" else 0
    return (
        Check("features_numbered", "features.parquet", "feature_id 0, 1, 2, ... in order", limits.again, maximum=0),
        Check(
            "features_once", "feature_ids", "every feature of features.parquet exactly once", limits.again, maximum=0
        ),
        Check(
            "answers",
            "start_positions",
            f"at least {smallest} with an answer in its window",
            "answers lie outside of every window: look at squad_rows.row_length and squad_rows.doc_stride",
            minimum=smallest,
        ),
    )


def _label_totals(limits: RowLimits) -> tuple[Check, ...]:
    sequences, again = limits.manifest.sequences, limits.again
    if limits.manifest.kind == TOKENS:
        labels = Check("labels", "token_labels", "at least one token has a label", again, minimum=1)
    else:
        every = "every sequence has a label"
        labels = Check("labels", "class_labels or targets", every, again, minimum=sequences, maximum=sequences)
    once = Check("examples_once", "feature_ids", "every example, from 0 on, exactly once", again, maximum=0)
    return once, labels


def record_checks(limits: RowLimits) -> tuple[Check, ...]:
    """Checks of every row."""
    of_kind = {"pretrain": _mask_checks, "question_answering": _answer_checks}.get(limits.manifest.kind, _label_checks)
    return _layout_checks(limits) + of_kind(limits)


def _layout_checks(limits: RowLimits) -> tuple[Check, ...]:
    manifest, again = limits.manifest, limits.again
    return (
        Check("sequences", "sequence_ids", f"1 to {manifest.max_sequences} sequences in a row",
              f"look at max_sequences_per_row; {again}", minimum=1, maximum=manifest.max_sequences),
        Check("sequences_in_order", "sequence_ids", "1, 2, 3, ... one after the other", again, maximum=0),
        Check("padding_at_end", "sequence_ids", "padding only after the last sequence", again, maximum=0),
        Check("padding_is_zero", "input_ids, token_type_ids, position_ids", "0 in padding", again, maximum=0),
        Check("token_ids", "input_ids", f"token ids under {limits.vocab_size:,}, the size of the vocabulary",
              f"the tokenizer may have changed: {again}", maximum=limits.vocab_size - 1),
        Check("token_types", "token_type_ids", "0 or 1, and 0 at the start of a sequence", again, maximum=0),
        Check("positions_restart", "position_ids", "0, 1, 2, ... from the start of every sequence", again,
              maximum=0),
        Check("positions_in_model", "position_ids", f"positions under model.max_positions={limits.max_positions}",
              f"raise model.max_positions or lower {limits.knobs}.row_length", maximum=limits.max_positions - 1),
        Check("first_token_is_cls", "input_ids", "every sequence begins with [CLS]",
              f"the tokenizer may have changed: {again}", maximum=0),
        Check("cls_positions", "cls_positions", "the start of every sequence, -1 for none", again, maximum=0),
    )  # fmt: skip


def _mask_checks(limits: RowLimits) -> tuple[Check, ...]:
    again = limits.again
    return (
        Check("masked_in_row", "masked_positions", "positions inside the row, 0 in unused slots", again, maximum=0),
        Check(
            "masked_in_sequence", "masked_positions", "masked positions hold real tokens, not padding", again, maximum=0
        ),
        Check("masked_once", "masked_positions", "no position masked twice", again, maximum=0),
        Check(
            "masked_labels",
            "masked_labels",
            f"labels from 0 to {limits.vocab_size - 1:,}, -100 in unused slots",
            f"the tokenizer may have changed: {again}",
            maximum=0,
        ),
        Check(
            "next_sentence_labels", "next_sentence_labels", "0 or 1 for every sequence, -100 for none", again, maximum=0
        ),
    )


def _answer_checks(limits: RowLimits) -> tuple[Check, ...]:
    again = limits.again
    return (
        Check("answer_slots", "start_positions, end_positions", "both or neither, and -100 where no sequence is",
              again, maximum=0),
        Check("answer_in_row", "start_positions, end_positions", "positions inside the row", again, maximum=0),
        Check("start_before_end", "start_positions, end_positions", "start <= end", again, maximum=0),
        Check("answer_in_sequence", "start_positions, end_positions", "both in the sequence they belong to", again,
              maximum=0),
        Check("answer_in_context", "start_positions, end_positions",
              "in the context of the window, or both at [CLS] where it has no answer", again, maximum=0),
        Check("feature_slots", "feature_ids", "a line of features.parquet for every sequence, -1 for none", again,
              maximum=0),
        Check("feature_lengths", "features.parquet n_tokens", "the tokens of the sequence", again, maximum=0),
    )  # fmt: skip


def _label_checks(limits: RowLimits) -> tuple[Check, ...]:
    labels, again = limits.manifest.num_labels, limits.again
    if limits.manifest.kind == TOKENS:
        column, required = "token_labels", f"a class from 0 to {labels - 1}, or -100, which padding has"
    else:
        known = "a finite number" if labels == 1 else f"a class from 0 to {labels - 1}"
        column, required = "class_labels or targets", f"{known}, -100 where no sequence is"
    return (
        Check("label_slots", column, required, again, maximum=0),
        Check(
            "feature_slots", "feature_ids", "the number of an example for every sequence, -1 for none", again, maximum=0
        ),
    )
