"""Asking a question: what is refused, and the same answers as the pipeline of transformers 4."""

import json
import os
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from flows.cli import cli
from tasks.downstream.inference.entry import infer_entry, limit_rows
from tasks.downstream.inference.model import InferenceModel
from tasks.downstream.squad.answers import Answer, read_null_threshold
from tasks.downstream.squad.ask import WindowShape, ask, find_model, number_words
from tasks.downstream.squad.rows import make_features
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import load_tokenizer
from tests.places import ROOT
from tests.tasks.downstream.squad.question_files import VOCABULARY, transformers_4, windows
from tests.tasks.tiny_model import write_tiny_model, write_tokenizer

SHORT = "The town of Łódź-Mill was founded by Émile O'Brien, a miller, in 1423; the market and the river came later."
LONG = " ".join(f"In {1400 + i} the miller of town {i} was marketing the river-mill no. {i}." for i in range(40))
CASES = [
    ("Who founded the town?", SHORT),
    ("When?", "  1423,\n1424\tand 'in 1425'!  "),
    ("When was the market of the town by the river founded?", LONG),
]
ASKED = [(f"{word} the {thing}?", SHORT) for word in ("Who founded", "Who saw", "When founded", "When saw")
         for thing in ("town", "moon")]  # fmt: skip
TOP = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", VOCABULARY)


def answers_of(model, question, context, top=1):
    given = find_model(str(model))
    shape, odds = WindowShape.for_model(given), read_null_threshold(given.folder)
    return ask(given, question, context, shape, top=top, max_answer_length=15, null_threshold=odds)[0]


PIPELINE = """
import json, sys
from transformers import pipeline
asked = json.load(sys.stdin)
answer = pipeline("question-answering", model=asked["model"], tokenizer=asked["model"], device="cpu")
how = {"handle_impossible_answer": asked["nullable"]}
found = [answer(question=q, context=c, top_k=asked["top"], **how) for q, c in asked["cases"]]
best = [answer(question=q, context=c, **how) for q, c in asked["cases"]]
json.dump({"top": [f if isinstance(f, list) else [f] for f in found], "best": best}, sys.stdout)
"""


@pytest.mark.soak
@pytest.mark.parametrize("nullable", [False, True])
def test_the_answers_are_those_of_the_transformers_4_pipeline(model, tmp_path, nullable):
    """Where there may be no answer, with handle_impossible_answer."""
    python, reason = transformers_4()
    if python is None:
        pytest.skip(reason)
    if nullable:
        model = write_tiny_model(tmp_path / "nullable", VOCABULARY, seed=7)
        weights = load_file(model / "model.safetensors")
        weights["qa_outputs.weight"] *= 3  # large differences between tokens, so that [CLS] wins some of the questions
        save_file(weights, model / "model.safetensors", {"format": "pt"})
    cases = ASKED if nullable else CASES
    asked = json.dumps({"model": str(model), "cases": cases, "top": TOP, "nullable": nullable})
    how = {"capture_output": True, "text": True, "timeout": 120}
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([python, "-c", PIPELINE], input=asked, env=offline, **how)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    if nullable:
        (model / "podium.json").write_text('{"null_threshold": 0.0}')
    for (question, context), best, top in zip(cases, theirs["best"], theirs["top"], strict=True):
        ours = answers_of(model, question, context, TOP)
        assert (ours[0].text, ours[0].start, ours[0].end) == (best["answer"], best["start"], best["end"])
        assert ours[0].score == pytest.approx(best["score"], rel=1e-4)
        # The pipeline repeats spans that widen to the same words; ours come once, in the same order.
        distinct = list(dict.fromkeys((answer["start"], answer["end"]) for answer in top))
        assert [(answer.start, answer.end) for answer in ours[: len(distinct)]] == distinct
    without = sum(not best["answer"] for best in theirs["best"])
    assert without < len(cases)
    assert (without > 0) == nullable, "both kinds of answers were compared"


@pytest.mark.parametrize(
    ("released", "options", "longest"),
    [({}, [], 30), ({"max_answer_length": 7}, [], 7), ({}, ["--max-answer-length", "4"], 4)],
)
def test_an_answer_is_as_long_as_predict_and_evaluate_allow(model, tmp_path, monkeypatch, released, options, longest):
    folder = shutil.copytree(model, tmp_path / "release")
    entry = {"kind": "squad", "rows": {}, "evaluate": released}
    (folder / "provenance.json").write_text(json.dumps({"parameters": {"downstream": {"squad": entry}}}))
    lengths = []

    def note(*_, max_answer_length, **__):
        lengths.append(max_answer_length)
        return [Answer("x", 0, 1, 1.0, 1.0)], None

    monkeypatch.setattr("tasks.downstream.squad.ask.ask", note)
    done = CliRunner().invoke(cli, ["predict", str(folder), "--text", "Who?", "--context", "Ada came.", *options])
    assert (done.exit_code, lengths) == (0, [longest]), done.output
    assert options or infer_entry(find_model(str(folder))).params.evaluate.max_answer_length == longest


@pytest.mark.parametrize(
    ("positions", "longest", "shape"),
    [
        (512, "512", (384, 128)),  # the defaults of transformers 4
        (512, None, (384, 128)),
        (512, "1000000000000000019884624838656", (384, 128)),  # what transformers writes for "no limit"
        *((512, value, (384, 128)) for value in ("Infinity", "null")),
        (512, "100", (100, 50)),
        (64, "512", (64, 32)),
        *((512, value, None) for value in ("true", "NaN", "0", '"512"')),
    ],
)
def test_windows_are_as_long_as_model_and_tokenizer_bear(tmp_path, positions, longest, shape):
    folder = write_tokenizer(tmp_path, ["a"])
    (folder / "tokenizer_config.json").write_text("{}" if longest is None else f'{{"model_max_length": {longest}}}')
    given = InferenceModel(folder, folder, positions)
    if shape is None:
        with pytest.raises(InputError, match="model_max_length is "):
            WindowShape.for_model(given)
        return
    windows = WindowShape.for_model(given)
    assert (windows.row_length, windows.doc_stride) == shape


SIZES = '{"vocab_size": 6, "hidden_size": 16, "num_attention_heads": 2'
CONFIGS = {
    "{": "is not JSON",
    "{}": "vocab_size and hidden_size not found",
    f"{SIZES}}}": "max_position_embeddings is missing",
    f'{SIZES}, "_attn_implementation": "user/repo"}}': "code of a repository is not run",
    f'{SIZES}, "quantization_config": {{"bits": 4}}}}': "another number format",
    f"{SIZES}}}{' ' * (4 << 20)}": "at most 4,194,304 are read",
    f'{SIZES}, "max_position_embeddings": 8, "architectures": ["BertForPreTraining"]}}': "ForQ.* is required",
    **dict.fromkeys(
        (f'{SIZES}, "max_position_embeddings": {value}}}' for value in ("true", "NaN", "-1")), "1 to 32767"
    ),
}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(("config.json", content, message) for content, message in CONFIGS.items()),
        ("model.safetensors", None, "has no weights"),
        ("tokenizer.json", None, "--tokenizer data/tokenizer"),
    ],
)
def test_an_incomplete_model_folder_is_refused(tmp_path, name, content, message):
    folder = write_tiny_model(tmp_path / "model", ["a"])
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        find_model(str(folder))
    if name == "tokenizer.json":
        lender = write_tokenizer(tmp_path / "lender", ["a"])
        assert find_model(str(folder), lender).tokenizer == lender
        with pytest.raises(InputError, match="tokenizer.json is missing"):
            find_model(str(folder), tmp_path)


def test_words_of_windows_are_those_that_the_tokenizer_counts(tmp_path):
    write_tiny_model(tmp_path, ["po", "##dium", "mod", "##els", "who", "#", ",", "##lu"])
    tokenizer = load_tokenizer(tmp_path)
    context = "Podium models, noone ##lu #mod podiumlulu. " * 9
    features = make_features(tokenizer, ["who"], [context], 20, 7, max_question_length=20)
    bounds = features.features["offsets"].offsets.to_numpy() // 2
    words = number_words(tokenizer, SimpleNamespace(bounds=bounds), context, WindowShape(20, 7))
    numbers = np.array(tokenizer.encode(context, add_special_tokens=False).word_ids)
    spans = windows(len(numbers), 20 - 3 - 1, 7)
    assert len(spans) == len(features.lengths) > 5
    for (start, stop), last in zip(spans, bounds[1:], strict=True):
        assert np.array_equal(np.diff(numbers[start:stop]), np.diff(words[last - (stop - start) : last]))


def test_what_does_not_fit_into_a_model_is_refused_with_what_fits(model):
    for question, context in (("", "x"), (" \n", "x"), ("x", "\t ")):
        with pytest.raises(InputError, match="is empty"):
            answers_of(model, question, context)
    # Windows of 384: 384 - 3 special tokens - 128 shared - at least 1 new = 252.
    with pytest.raises(InputError, match="253 tokens .* 252 tokens fit"):
        answers_of(model, "who " * 253, "x")
    with pytest.raises(InputError, match="up to 512 tokens"):
        WindowShape.for_model(find_model(str(model)), row_length=513)
    for kind in ("squad", "ner", "classification", "glue"):
        with pytest.raises(InputError, match="up to 15 tokens, 16 are .* in tokenizer_con"):
            limit_rows(kind, 15)


@pytest.mark.parametrize("name", ["/no/such", "./nothing", "no such", "", "README.md", "someone/some-model"])
def test_a_path_that_is_no_folder_is_no_hub_name(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=name or None):
        find_model(name)
