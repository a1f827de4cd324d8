"""Sentence embeddings as a kind of task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.downstream.kind_parts import Kind
from tasks.downstream.pairs.params import PairsParams
from tasks.params.entries import Entry

if TYPE_CHECKING:
    from tasks.downstream.card import CardFacts
    from tasks.downstream.pairs.checks import PairsData, PairsRowData
    from tasks.downstream.pairs.examples import PairsReader
    from tasks.downstream.pairs.inference import PairsInference
    from tasks.downstream.pairs.page import PairsReport
    from tasks.downstream.pairs.rows import PairsEncoder
    from tasks.downstream.pairs.scores import PairsScores
    from tasks.validation.row_checks import RowSource


class Pairs(Kind):
    """Kind `pairs`; see `Kind`."""

    params, suffix = PairsParams, "Model"

    def match_tasks(self, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, object]]:
        return {"pairs": {"kind": "pairs"}}

    def read_start(self, folder: Path) -> dict[str, object]:
        from tasks.models.sentence_modules import read_modules

        return read_modules(folder)

    def reader(self, entry: Entry) -> PairsReader:
        from tasks.downstream.pairs.examples import PairsReader

        return PairsReader(entry)

    def example_data(self, entry: Entry, folder: Path) -> PairsData:
        from tasks.downstream.pairs.checks import PairsData

        return PairsData(entry, folder)

    def encoder(self, entry: Entry) -> PairsEncoder:
        from tasks.downstream.pairs.rows import PairsEncoder

        return PairsEncoder(entry)

    def row_data(self, source: RowSource) -> PairsRowData:
        from tasks.downstream.pairs.checks import PairsRowData

        return PairsRowData(source)

    def scores(self, entry: Entry) -> PairsScores:
        from tasks.downstream.pairs.scores import PairsScores

        return PairsScores(entry)

    def report(self, entry: Entry) -> PairsReport:
        from tasks.downstream.pairs.page import PairsReport

        return PairsReport(self.scores(entry))

    def inference(self, entry: Entry) -> PairsInference:
        from tasks.downstream.pairs.inference import PairsInference

        return PairsInference(self.scores(entry))

    def card(self, facts: CardFacts) -> str:
        from tasks.downstream.pairs.card import make_card

        return make_card(self.scores(facts.entry), facts)
