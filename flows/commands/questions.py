"""`podium predict MODEL --text QUESTION --context TEXT`: answer a question about a text."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands import model_options, options
from flows.commands.model_options import AT_LEAST_ONE
from flows.commands.project import resolve_path
from ipu_model.core.files import open_regular
from tasks.pages.markup import replace_hidden
from tasks.stage import streams
from tasks.stage.errors import InputError

if TYPE_CHECKING:
    from tasks.downstream.squad.answers import Answer
    from tasks.params.sections import RuntimeSpec

MAX_CONTEXT_BYTES = 64 << 20
"""Limit of a context. A long book has 5 MB."""


def _read_place(text: str) -> RuntimeSpec:
    from tasks.params.sections import RuntimeSpec

    try:
        return RuntimeSpec.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


question_options = options.combine_options(
    click.option("--context", metavar="TEXT", help="text with the answer, if --text is a question"),
    click.option("--context-file", metavar="FILE", help="file with that text; - reads standard input"),
    click.option("--max-answer-length", type=AT_LEAST_ONE, metavar="TOKENS", help="with --context: longest answer"),
    click.option("--compare", type=_read_place, metavar="RUNTIME[:PRECISION]", help="with --context: compare devices"),
)
"""Options of a question about one text."""


def answer_question(ctx: click.Context, name: str, question: str, as_json: bool, args: Mapping[str, Any]) -> None:
    """Print the answer of a model to a question about a text.

    Args:
        args: options of `podium predict`, among them `question_options`.
    """
    from tasks.downstream.inference.entry import infer_entry
    from tasks.downstream.inference.job import choose_place
    from tasks.downstream.squad import ask
    from tasks.downstream.squad.answers import read_null_threshold
    from tasks.downstream.squad.ask import WindowShape, find_model

    instead = shlex.join(["podium", "predict", name, "--text", args["context"] or question])
    find = partial(find_model, instead=instead)
    if args["context"] is not None and args["context_file"] is not None:
        raise click.UsageError("pass either --context TEXT or --context-file FILE", ctx)
    context = _read_context(ctx, args["context"], args["context_file"])
    model, run = model_options.resolve_model(ctx, name, args["tokenizer"], find)
    odds = read_null_threshold(model.folder) if args["null_threshold"] is None else args["null_threshold"]
    spec = choose_place(model.folder, args["runtime"], args["precision"])
    shape = WindowShape.for_model(model, args["row_length"], args["doc_stride"])
    evaluate: Any = infer_entry(model, "squad", run=run).params.evaluate
    longest = args["max_answer_length"] or evaluate.max_answer_length
    more = {"top": max(1, args["n_best"]), "max_answer_length": longest, "null_threshold": odds}
    answers, logits = ask.ask(model, question, context, shape, spec=spec, **more)
    if args["compare"] is not None:
        others, other_logits = ask.ask(model, question, context, shape, spec=args["compare"], **more)
        both = [(spec, answers[0]), (args["compare"], others[0])]
        _print_comparison(both, ask.compare_logits(logits, other_logits), as_json)
        return
    text = "".join(map(_format_answer, answers))
    options.print_result(as_json, ask.answer_record(answers), text, "--n-best 5 shows more answers, --json prints JSON")


def _read_context(ctx: click.Context, text: str | None, file: str | None) -> str:
    from tasks.downstream.squad.questions import require_room_for_text

    if text is not None:
        return text
    assert file is not None
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(MAX_CONTEXT_BYTES + 1)
        else:
            with open_regular(resolve_path(ctx, Path(file))) as stream:
                raw = stream.read(MAX_CONTEXT_BYTES + 1)
        if len(raw) > MAX_CONTEXT_BYTES:
            raise InputError(f"{file} has more than {MAX_CONTEXT_BYTES >> 20} MB of text: pass a part of it")
        decoded = raw.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): pass a text file, or -") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text ({error}): convert it to UTF-8") from None
    require_room_for_text(file, decoded)
    return decoded


def _format_answer(answer: Answer) -> str:
    text = replace_hidden(" ".join(answer.text.split())) or "(no answer)"
    return f"{text}  (score {answer.score:.4f})\n"


def _print_comparison(both: Sequence[tuple[RuntimeSpec, Answer]], differences: dict[str, Any], as_json: bool) -> None:
    records = [
        {"runtime": p.runtime, "precision": p.precision, "answer": a.text, "score": round(a.score, 6)} for p, a in both
    ]
    lines = [f"{spec.runtime}:{spec.precision}  {_format_answer(answer)}" for spec, answer in both]
    largest = f"{differences['max_logit_difference']:.4g}, the largest is {differences['max_logit']:.4g}"
    if as_json:
        options.print_json({"places": records, **differences})
    else:
        streams.say("".join([*lines, f"logits differ by up to {largest}\n"]))
