"""Question answering as a kind of task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.downstream.kind_parts import Kind
from tasks.downstream.squad.params import SquadParams
from tasks.params.entries import Entry

if TYPE_CHECKING:
    from tasks.downstream.card import CardFacts
    from tasks.downstream.squad.checks import AnswerRows, QuestionData
    from tasks.downstream.squad.examples import SquadReader
    from tasks.downstream.squad.inference import SquadInference
    from tasks.downstream.squad.page import SquadReport
    from tasks.downstream.squad.rows import SquadEncoder
    from tasks.downstream.squad.scores import SquadScores
    from tasks.validation.row_checks import RowSource


class Squad(Kind):
    """Kind `squad`; see `Kind`."""

    params, suffix = SquadParams, "ForQuestionAnswering"

    def match_tasks(self, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, object]]:
        return {"squad": {"kind": "squad"}}

    def limit_rows(self, longest: int) -> dict[str, object]:
        question = longest // 4
        return {"row_length": longest, "max_question_length": question, "doc_stride": (longest - question) // 3}

    def read_params(self, folder: Path) -> dict[str, object]:
        from tasks.downstream.squad.answers import NULL_THRESHOLD, read_null_threshold

        threshold = read_null_threshold(folder)
        if threshold is None:
            return {}
        return {"data": {"unanswerable": "use"}, "evaluate": {NULL_THRESHOLD: threshold}}

    def recipe_for(self, train: Path, options: Mapping[str, object]) -> dict[str, object]:
        from tasks.downstream.squad.examples import recipe_for

        return recipe_for(train)

    def reader(self, entry: Entry) -> SquadReader:
        from tasks.downstream.squad.examples import SquadReader

        return SquadReader(entry)

    def example_data(self, entry: Entry, folder: Path) -> QuestionData:
        from tasks.downstream.squad.checks import QuestionData

        return QuestionData(entry, folder)

    def encoder(self, entry: Entry) -> SquadEncoder:
        from tasks.downstream.squad.rows import SquadEncoder

        return SquadEncoder(entry)

    def row_data(self, source: RowSource) -> AnswerRows:
        from tasks.downstream.squad.checks import AnswerRows

        return AnswerRows(source)

    def scores(self, entry: Entry) -> SquadScores:
        from tasks.downstream.squad.scores import SquadScores

        return SquadScores(entry)

    def report(self, entry: Entry) -> SquadReport:
        from tasks.downstream.squad.page import SquadReport

        return SquadReport(self.scores(entry))

    def inference(self, entry: Entry) -> SquadInference:
        from tasks.downstream.squad.inference import SquadInference
        from tasks.downstream.squad.scores import SquadScores

        return SquadInference(SquadScores(entry, answered=False))

    def card(self, facts: CardFacts) -> str:
        from tasks.downstream.squad.card import make_card

        return make_card(self.scores(facts.entry), facts)
