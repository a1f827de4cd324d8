"""Sections of params.yaml that say which data are read and what rows are made of them.

The defaults are those of BERT's own create_pretraining_data.py (github.com/google-research/bert), where it has the
parameter; what it is made of is the user's own text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_sections import Fraction, HeldOut, Name, Positive, RowLength, Section, Seed, Separator


class CorpusParams(Section):
    source: Literal["demo", "files", "hub", "none"] = "files"
    """demo: generated; files: your text in `path`; hub: a Hub data set; none: there is no text."""
    path: Name = "inputs/corpus"
    """A file or a folder (.txt, .jsonl, .csv, .parquet, WikiExtractor's output), for source: files."""
    text_column: Name = "text"
    """Column of the text, of .jsonl, .csv, .parquet and Hub data sets."""
    title_column: Name | None = None
    """Column of the title; null: `title`, where there is one."""
    id_column: Name | None = None
    """Column of a document's name; null: `document_id`, where there is one, else file and number."""
    separator: Separator | None = None
    """What separates the fields of .csv files (comma, semicolon, tab, pipe, or a sign); null: it is found."""
    layout: Literal["auto", "wikitext", "paragraphs", "wikiextractor"] = "auto"
    """Of .txt: wikitext (= Title = headings), paragraphs (a blank line begins a new document), wikiextractor, or
    auto."""
    seed: Seed = 1
    """Of the generated text, for source: demo."""
    demo_documents: Positive = 20000
    """Generated documents, about 52 tokens each; memory stays flat for any number."""
    dataset: str | None = None
    """Name of a Hub data set, for source: hub."""
    dataset_config: str | None = None
    """Configuration of that data set; null: its only one."""
    dataset_split: Name = "train"
    """Split of that data set."""
    dataset_revision: str | None = None
    """Commit, branch or tag of that data set; a commit makes the run reproducible."""


class TokenizerParams(Section):
    source: Literal["train", "file", "hub"] = "train"
    """train: WordPiece on the corpus; file: a vocab.txt in `path`; hub: a tokenizer of the Hub."""
    path: Name = "inputs/tokenizer"
    """A vocab.txt or a folder with one, for source: file."""
    vocabulary_size: Annotated[int, Field(ge=100, le=2**31)] = 30522
    """Entries at most, for source: train; bert-base-uncased has 30,522."""
    lowercase: bool = True
    """Whether text is put into small letters and loses its accents."""
    repository: str | None = None
    """Name of a Hub model, for source: hub."""
    revision: str | None = None
    """Commit, branch or tag of that model; a commit makes the run reproducible."""


class BaseModelParams(Section):
    """A model to start from, in place of fresh weights."""

    source: Literal["none", "folder", "hub"] = "none"
    """none, folder (in `path`) or hub: config.json with safetensors or pytorch_model.bin."""
    path: Name = "inputs/model"
    """Folder of the model, for source: folder."""
    repository: str | None = None
    """Name of a Hub model, for source: hub."""
    revision: str | None = None
    """Commit, branch or tag of that model; a commit makes the run reproducible."""


class PhaseRowsParams(Section):
    row_length: RowLength = 128
    """Tokens in a row."""
    max_predictions_per_row: Positive | None = None
    """Masked tokens of a row at most; null: 20 at 128, 56 at 384, 76 at 512, else masked_fraction of the row and
    one more."""
    duplicates: Positive = 10
    """Different maskings of the same text."""
    path: Name = "inputs/prepared"
    """A file or folder of .parquet, .arrow or .tfrecord, for source: files."""
    dataset: str | None = None
    """Name of a Hub data set, for source: hub."""
    dataset_revision: str | None = None
    """Commit, branch or tag of that data set."""


class Phase2RowsParams(PhaseRowsParams):
    row_length: RowLength = 512


class PretrainRowsParams(Section):
    source: Literal["corpus", "files", "hub"] = "corpus"
    """corpus: made of it; files, hub: sequences that are tokenized and masked already (docs/inputs.md)."""
    seed: Seed = 12345
    """Of sentence pairs, masking and what is held out."""
    masked_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.15
    """Share of the tokens that are masked."""
    short_sequence_probability: Fraction = 0.1
    """Share of the sequences that are made shorter than a row could hold."""
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 1
    """Sequences that share a row at most."""
    held_out_fraction: HeldOut = 0.01
    """Share of the documents whose rows no training sees, to evaluate pre-training on; 0: none. BERT has no such
    share."""
    shares: list[Positive] = Field(default_factory=list)
    """[1, 2, 3, 4]: with --on-workers, four workers make the rows together (docs/data-scale.md). It changes no row."""
    phase1: PhaseRowsParams = PhaseRowsParams()
    """The first phase, on short rows."""
    phase2: Phase2RowsParams = Phase2RowsParams()
    """The second phase, on long rows."""

    @model_validator(mode="after")
    def _shares_are_counted_up(self) -> PretrainRowsParams:
        if self.shares != list(range(1, len(self.shares) + 1)):
            raise ValueError(f"shares={self.shares} must count from 1 up, for example [1, 2, 3, 4] for four workers")
        if self.shares and self.source != "corpus":
            raise ValueError(f"shares are of rows that are made of text, found source={self.source}: set shares to []")
        return self
