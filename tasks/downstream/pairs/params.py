"""Parameters of sentence embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.params.downstream import (
    EntryParams,
    ExpectedExamples,
    MissingTexts,
    OwnDataParams,
    Points,
    ReleaseParams,
    RowsParams,
)
from tasks.params.sections import Epochs, FinetuneParams, Name, Positive, Rate, Section

BEFORE = "before.json"
"""File of the evaluation with the answers of the model before training."""


class PairColumnParams(Section):
    """Columns of a table of pairs; null: usual names, see docs/pairs.md."""

    anchor: Name | None = None
    """Column of the text to search with, such as a question."""
    positive: Name | None = None
    """Column of the text to find."""
    negative: Name | None = None
    """Column of a text that is similar and wrong."""
    score: Name | None = None
    """Column of the similarity of both texts, for scores: use."""
    id: Name | None = None
    """Column of the example's id; null: id, else its number."""


class PairsDataParams(OwnDataParams):
    source: Literal["files", "hub"] = "files"
    train_path: Name = "inputs/pairs"
    dev_path: Name | None = "inputs/pairs"
    columns: PairColumnParams = PairColumnParams()
    """Column names of tables and Hub data sets."""
    missing_texts: MissingTexts = "refuse"
    """Examples with a text such as nan or None, which may stand for a missing one: refuse if they are more than 1 %,
    drop, or keep such texts."""


class PairsRowsParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=8192)] = 256
    """Tokens per text; longer texts are cut. A row has the two or three texts of an example."""
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 8
    """Maximum number of single texts packed into a row, for podium predict."""


class PairsFinetuneParams(FinetuneParams):
    global_batch_size: Positive = 64
    """Pairs per update, exactly; the last update may have fewer. Each ranks its positive among those of all."""
    micro_batch_size: Positive | None = 32
    learning_rate: Rate = 2e-5
    epochs: Epochs = 1.0
    scale: Annotated[float, Field(gt=0, le=1000)] = 20.0
    """Factor of similarities in the loss: the inverse of its temperature."""


class PairsGateParams(ReleaseParams):
    min_recall_1: Points | None = None
    """Floor of recall@1, in percent; null: none."""
    min_ndcg_10: Points | None = None
    """Floor of NDCG@10, in percent; null: none."""
    min_spearman: Annotated[float, Field(ge=-100, le=100)] | None = None
    """Floor of Spearman's correlation times 100, for scores: use; null: none."""
    max_drop: Points = 0.0
    """Tolerated drop against the released model, in points."""


class PairsParams(EntryParams):
    """Entry of kind pairs."""

    about: ClassVar[str] = (
        "Sentence embeddings from pairs of texts: a question and its passage, or two texts and their similarity."
    )
    record: ClassVar[str] = "pair"
    head: ClassVar[str] = "sentence_embedding"
    runs_on_ipus: ClassVar[bool] = False
    needs_own_family: ClassVar[bool] = True
    compares_start: ClassVar[bool] = True

    pooling: Literal["mean", "first"] = "mean"
    """Vector of a text: the mean of its tokens, or its first token; podium finetune takes that of the model, if it is
    one of sentence-transformers."""
    scores: Literal["refuse", "use", "ignore"] = "refuse"
    """Column of similarities: use it (the model learns their order), ignore it, or refuse files with one."""
    data: PairsDataParams = PairsDataParams()
    rows: PairsRowsParams = PairsRowsParams()
    finetune: PairsFinetuneParams = PairsFinetuneParams()
    gate: PairsGateParams = PairsGateParams()

    @model_validator(mode="after")
    def _check_no_teacher(self) -> PairsParams:
        if self.distill.has_teacher:
            raise ValueError("distill.teacher does not apply to embeddings. Set it to null; distill.layers is possible")
        if self.data.columns.score is not None and not self.is_scored:
            raise ValueError("data.columns.score needs scores: use (podium finetune: --scores use)")
        return self

    @property
    def is_scored(self) -> bool:
        """True if examples are two texts and their similarity."""
        return self.scores == "use"

    @property
    def head_settings(self) -> dict[str, object]:
        return {"pooling": self.pooling, "scale": self.finetune.scale}

    @property
    def decision_files(self) -> tuple[str, ...]:
        return (BEFORE,)

    @property
    def title(self) -> str:
        return "similarity of texts" if self.is_scored else "search"

    @property
    def expected(self) -> ExpectedExamples:
        return ExpectedExamples(tokens=2 * self.rows.row_length // 3, file_bytes=800)
