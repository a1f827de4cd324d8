"""What evaluate and gate read, for three questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.downstream.squad.examples import write_questions
from tasks.stage import artifacts
from tests.tasks.downstream.entries import make_question
from tests.tasks.downstream.squad.window_files import Window, words, write_windows

CONTEXTS = ("the red house by the sea", "one cat and two dogs", "from Ærø & <b>Fyn</b> to Lolland")
QUESTIONS = ("In what house?", "How many dogs?", "Islands?")
ANSWERS = {"q0": ["the red house"], "q1": ["two dogs"], "q2": ["Ærø & <b>Fyn</b>"]}


@dataclass(frozen=True)
class Inputs:
    questions: Path
    features: Path
    logits: Path
    weights: Path


def inputs_of(root: Path) -> Inputs:
    return Inputs(
        root / artifacts.examples_file("squad", "dev"),
        root / artifacts.rows_folder("squad", "dev") / artifacts.FEATURES,
        root / artifacts.logits_file("squad", "dev"),
        root / artifacts.model_folder("squad") / "model.safetensors",
    )


def write_checkout(root: Path, answers: Mapping[str, Sequence[str]] | None = None) -> Path:
    """Questions, features, logits and weights; the answers predicted are red house, two, Ærø & <b>Fyn</b>."""
    inputs = inputs_of(root)
    inputs.questions.parent.mkdir(parents=True)
    wanted = {**ANSWERS, **(answers or {})}
    questions = []
    for number, (text, context) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
        known = wanted[f"q{number}"]
        starts = [max(0, context.find(answer)) for answer in known]
        questions.append(make_question(f"q{number}", text, context, known, starts))
    for path in (inputs.questions, inputs.questions.with_name("train.parquet")):
        write_questions(questions, path)
    tokens = [words(context) for context in CONTEXTS]
    windows = [
        Window(0, tokens[0], start=[0, 5, 0, 0, 0, 0], end=[0, 0, 5, 0, 0, 0]),
        Window(1, tokens[1][:3], start=[1, 0, 0], end=[1, 0, 0]),
        Window(1, tokens[1][2:], start=[0, 4, 0], end=[0, 4, 0]),
        Window(2, tokens[2], start=[0, 6, 0, 0, 0, 0], end=[0, 0, 0, 6, 0, 0]),
    ]
    features, logits = write_windows(root / "written", windows, ["q0", "q1", "q2"])
    for written, path in ((features, inputs.features), (logits, inputs.logits)):
        path.parent.mkdir(parents=True)
        written.rename(path)
    (root / "written").rmdir()
    inputs.weights.parent.mkdir(parents=True)
    inputs.weights.write_bytes(b"weights")
    return root
