import numpy as np
import pytest

from tasks.downstream.squad.answers import Answer
from tasks.downstream.squad.page import TITLE, excerpt, question_word, slice_scores, worst_mistakes
from tasks.downstream.squad.questions import SquadQuestion
from tests.tasks.downstream.entries import make_question


def make(context: str, reference: str) -> SquadQuestion:
    return make_question("q", "?", context, (reference,), (context.index(reference),))


def predicted(context: str, text: str, probability: float = 0.5) -> Answer:
    start = context.index(text) if text else 0
    return Answer(text, start, start + len(text), 1.0, probability)


@pytest.mark.parametrize(
    ("context", "reference", "prediction", "marked"),
    [
        (
            "a red house & a blue <sea>",
            "red house",
            "blue <sea>",
            [("", "a "), ("reference", "red house"), ("", " & a "), ("prediction", "blue <sea>")],
        ),
        (
            "the late red house",
            "late red",
            "red house",
            [("", "the "), ("reference", "late "), ("both", "red"), ("prediction", " house")],
        ),
        ("the late red house", "red", "", [("", "the late "), ("reference", "red"), ("", " house")]),
    ],
)
def test_reference_and_prediction_are_marked_where_they_stand(
    context: str, reference: str, prediction: str, marked: list[tuple[str, str]]
) -> None:
    assert excerpt(make(context, reference), predicted(context, prediction)) == marked


def test_a_long_context_is_cut_between_words_around_both() -> None:
    context = "first " + "much talk " * 100 + "last " + "and more " * 100
    pieces = excerpt(make(context, "first"), predicted(context, "last"))
    assert pieces[0] == ("reference", "first")
    assert pieces[1][1].startswith(" much talk")
    assert ("prediction", "last") in pieces
    assert pieces.count(("", " … ")) == 1  # between the two
    assert pieces[-1] == ("", " …")
    shown = "".join(text for _, text in pieces)
    assert len(shown) < 600
    for piece in shown.split(" … "):
        assert piece.split(" ")[0] in ("first", "much", "talk")


def test_mistakes_come_lowest_f1_first_then_surest_first() -> None:
    questions = [make_question(str(i), "?", "c", ("c",)) for i in range(4)]
    answers = [[Answer("x", 0, 1, 0.0, probability)] for probability in (0.9, 0.2, 0.8, 0.3)]
    wrong = worst_mistakes(questions, answers, np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.5], [0.0, 0.0]]))
    assert [mistake["question"].id for mistake in wrong] == ["3", "1", "2"]


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("What is it?", "what"),
        ("In which year?", "which"),
        ("Whose dog?", "who"),
        ("To  whom\nwas it given?", "who"),
        ("How many dogs?", "how many"),
        ("How  much?", "how many"),
        ("How old?", "how"),
        ("Name the river.", "other"),
        ("Somehow nowhere", "other"),  # question words inside other words
        ("The year when what happened?", "when"),  # the first one
        ("", "other"),
    ],
)
def test_question_word(question: str, word: str) -> None:
    assert question_word(question) == word


def test_titles_come_worst_first_and_those_with_few_questions_together() -> None:
    titles = ["good"] * 6 + ["bad"] * 5 + ["small"] * 2 + ["tiny"]
    questions = [make_question(str(i), "What?", "c", ("c",), title=title) for i, title in enumerate(titles)]
    f1 = [1.0] * 6 + [0.0] * 4 + [1.0] + [0.5] * 3
    scores = np.array([(float(x == 1.0), x) for x in f1])
    found = [part.record() for part in slice_scores(questions, [1] * 14, scores) if part.by == TITLE]
    assert [(part["slice"], part["questions"], part["f1"], part["exact_match"]) for part in found] == [
        ("bad", 5, 20.0, 20.0),
        ("good", 6, 100.0, 100.0),
        ("2 other titles", 3, 50.0, 0.0),
    ]
    assert 0.0 < found[0]["exact_match_low"] < 1.0  # Clopper and Pearson: 0.5 and 71.6
    assert 71.0 < found[0]["exact_match_high"] < 73.0
    one = [make_question(str(i), "What?", "c", ("c",), title="one") for i in range(9)]
    assert not [part for part in slice_scores(one, [1] * 9, np.ones((9, 2))) if part.by == TITLE]
