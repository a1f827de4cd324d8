"""Parameters of named entity recognition."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.params.downstream import EntryParams, ExpectedExamples, LabelledDataParams, Points, ReleaseParams, RowsParams
from tasks.params.sections import Epochs, FinetuneParams, Name, Positive, Rate, Section


class NerColumnParams(Section):
    """Columns of a table, with the words and tags of a sentence or one word with its tag in each row; in CoNLL files
    their numbers, from 1."""

    tokens: Name | None = None
    """Column of the words; null: tokens, words, token or word; in CoNLL files the first that is not a running number.
    """
    tags: Name | None = None
    """Column of the tags; null: ner_tags, tags, labels, ner_tag, tag or label; in CoNLL files the last."""
    sentence: Name | None = None
    """Column that the rows of a sentence share, in tables of one word a row; null: sentence_id, sentence, sentence #,
    ...; row: every row is a sentence."""
    document: Name | None = None
    """Column that the rows of a document share, in the same tables; null: document_id, document or doc_id, if there is
    one."""


class NerDataParams(LabelledDataParams):
    source: Literal["files", "hub"] = "files"
    train_path: Name = "inputs/ner"
    dev_path: Name | None = "inputs/ner"
    columns: NerColumnParams = NerColumnParams()
    """Column names of tables and Hub data sets."""
    tag_scheme: Literal["auto", "iob1", "iob2"] = "auto"
    """Tagging scheme: iob1, iob2, or auto, which detects it and also reads BIOES and BILOU."""


class NerRowsParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 128
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 8
    overlap: Annotated[int, Field(ge=0)] = 32
    """Maximum tokens shared by neighbouring windows of a long sentence, at most half a window."""

    @model_validator(mode="after")
    def _check_windows_advance(self) -> NerRowsParams:
        most = (self.row_length - 2) // 2
        if self.overlap > most:
            raise ValueError(
                f"overlap={self.overlap} must be at most half a window: (row_length {self.row_length} - 2 special "
                f"tokens) / 2 = {most}"
            )
        return self


class NerFinetuneParams(FinetuneParams):
    global_batch_size: Positive = 16
    learning_rate: Rate = 5e-5
    epochs: Epochs = 4.0


class NerGateParams(ReleaseParams):
    min_f1: Points | None = None
    """Floor of the F1 of entities, in percent; null: none."""
    max_f1_drop: Points = 0.0
    """Tolerated drop of F1 against the released model, in points."""


CONLL2003 = (14_041, 3_250)
"""Training and development sentences of CoNLL-2003 (arXiv cs/0306050, table 1, without document lines)."""
SENTENCE_TOKENS, SENTENCE_BYTES = 24, 234
"""Mean tokens (of 14.5 words, and two special tokens) and bytes (of eng.train, 3.3 MB) of a CoNLL-2003 sentence."""


class NerParams(EntryParams):
    """Entry of kind ner."""

    about: ClassVar[str] = (
        "Named entity recognition: a tag for each word, B- and I- with a type inside entities and O outside."
    )
    record: ClassVar[str] = "sentence"
    head: ClassVar[str] = "token_classification"
    has_labels: ClassVar[bool] = True
    reads_words: ClassVar[bool] = True

    data: NerDataParams = NerDataParams()
    rows: NerRowsParams = NerRowsParams()
    finetune: NerFinetuneParams = NerFinetuneParams()
    gate: NerGateParams = NerGateParams()

    @property
    def title(self) -> str:
        return "named entities"

    @property
    def expected(self) -> ExpectedExamples:
        of_conll = self.data.source == "hub" and "conll2003" in (self.data.dataset or "")
        train, dev = CONLL2003 if of_conll else (None, None)
        return ExpectedExamples(train, dev, SENTENCE_TOKENS, SENTENCE_BYTES)
