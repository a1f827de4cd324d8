"""Named entity recognition as a kind of task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.downstream.kind_parts import Kind
from tasks.downstream.ner.params import NerParams
from tasks.params.entries import Entry

if TYPE_CHECKING:
    from tasks.downstream.card import CardFacts
    from tasks.downstream.ner.checks import NerData, TagRows
    from tasks.downstream.ner.examples import NerReader
    from tasks.downstream.ner.inference import NerInference
    from tasks.downstream.ner.page import NerReport
    from tasks.downstream.ner.rows import NerEncoder
    from tasks.downstream.ner.scores import NerScores
    from tasks.validation.row_checks import RowSource


class Ner(Kind):
    """Kind `ner`; see `Kind`."""

    params, suffix = NerParams, "ForTokenClassification"

    def match_tasks(self, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, object]]:
        from tasks.records.tags import find_problem

        return {} if any(map(find_problem, labels)) else {"ner": {"kind": "ner"}}

    def limit_rows(self, longest: int) -> dict[str, object]:
        return {"row_length": longest, "overlap": longest // 4}

    def reader(self, entry: Entry) -> NerReader:
        from tasks.downstream.ner.examples import NerReader

        return NerReader(entry)

    def example_data(self, entry: Entry, folder: Path) -> NerData:
        from tasks.downstream.ner.checks import NerData

        return NerData(entry, folder)

    def encoder(self, entry: Entry) -> NerEncoder:
        from tasks.downstream.ner.rows import NerEncoder

        return NerEncoder(entry)

    def row_data(self, source: RowSource) -> TagRows:
        from tasks.downstream.ner.checks import TagRows

        return TagRows(source)

    def scores(self, entry: Entry) -> NerScores:
        from tasks.downstream.ner.scores import NerScores

        return NerScores(entry)

    def report(self, entry: Entry) -> NerReport:
        from tasks.downstream.ner.page import NerReport

        return NerReport(self.scores(entry))

    def inference(self, entry: Entry) -> NerInference:
        from tasks.downstream.ner.inference import NerInference

        return NerInference(self.scores(entry))

    def card(self, facts: CardFacts) -> str:
        from tasks.downstream.ner.card import make_card

        return make_card(facts)
