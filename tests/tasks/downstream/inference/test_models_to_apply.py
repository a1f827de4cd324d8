"""Which entry a model stands for: as its release says, else by its classes; on IPUs (the double) as on a CPU."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from flows.commands.finetune import fit_rows
from flows.runs.model_source import model_parameters
from tasks.downstream.inference.entry import choose_entry, infer_entry
from tasks.downstream.inference.job import InferenceOptions, choose_place
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.predict import PredictionOutput, evaluate, predict
from tasks.downstream.squad.ask import WindowShape, ask
from tasks.downstream.texts.task_table import TASKS
from tasks.params.overlays import make_settings, resolve
from tasks.params.schema import load_params, parameter_values, validate_params
from tasks.params.sections import RuntimeSpec
from tasks.pretraining.base_model import write_base_model
from tasks.release.publish import publish
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tasks.vocabulary.tokenizer import make_tokenizer
from tests.places import ROOT
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS, run_jobs_here
from tests.tasks.tiny_model import SPECIAL, write_tiny_model
from tests.tasks.trained_checkout import make_checkout, write_gate

DOUBLE = ROOT / "tests" / "doubles" / "poptorch_double"
ENTAILMENT = ("entailment", "not_entailment")


def model_with(folder, labels=(), words=WORDS, positions=64, types=2):
    """A finished model; without labels one that answers questions."""
    head = "sequence_classification" if labels else "question_answering"
    head = "token_classification" if "O" in labels else head
    return find_model(str(write_head_model(folder, head, labels, words, positions, types)))


def how(place="cpu"):
    return InferenceOptions(RuntimeSpec(place, "fp32"), 4, lambda text: None)


def predicted(model, file, out, place="cpu"):
    return predict(infer_entry(model), model, file, PredictionOutput(out, "jsonl"), how(place))[1]


def test_a_release_says_how_its_model_was_judged(tmp_path):
    released = make_checkout(tmp_path / "checkout")
    change_parameters(released, {"downstream": {"squad": {"rows": {"doc_stride": 17}, "evaluate": {"n_best": 7}}}})
    write_gate(released)
    params = load_params(released / artifacts.PARAMS)
    publish(parameter_values(params), "squad", released)
    model = find_model(str(released / params.downstream["squad"].publish.folder))
    entry = infer_entry(model)
    assert (entry.rows, entry.params.evaluate) == (params.downstream["squad"].rows, params.downstream["squad"].evaluate)
    assert infer_entry(model, None, {"rows": {"doc_stride": 9}}).rows.model_dump()["doc_stride"] == 9
    (model.folder / "provenance.json").write_text('{"parameters": {"downstream": {"x": {"kind": "other"}}}}')
    with pytest.raises(InputError, match=r"provenance.json does not record what .* pass --task"):
        infer_entry(model)


@pytest.mark.parametrize(
    ("labels", "task", "expected"),
    [
        (ENTAILMENT, None, "valid: classification, qnli, rte"),
        (ENTAILMENT, "rte", {"task": "rte"}),
        (ENTAILMENT, "sst2", "--task sst2 does not fit"),
        (("LABEL_0", "LABEL_1"), None, "valid: classification, cola, mrpc, qnli, qqp, rte, sst2, wnli"),
        (("LABEL_0", "LABEL_1"), "sst2", {"task": "sst2"}),
        (("LABEL_0", "LABEL_1", "LABEL_2"), None, "valid: classification, mnli"),  # three classes make no MNLI
        (("red", "green", "blue"), None, {}),
    ],
)
def test_classes_that_two_tasks_share_need_the_word_of_one(tmp_path, labels, task, expected):
    model = model_with(tmp_path / "model", labels)
    if isinstance(expected, str):
        with pytest.raises(ParamsError, match=expected):
            infer_entry(model, task)
        return
    entry = infer_entry(model, task)
    assert entry.params.options.get("task") == expected.get("task")
    assert entry.kind == ("glue" if expected else "classification")


@pytest.mark.parametrize(
    ("classes", "columns", "expected"),
    [
        ("sst2", "text,label", "classification"),
        ("sst2", "sentence,label", "sst2"),
        ("mnli", "premise,hypothesis,label", "mnli"),
        ("rte", "question,sentence,label", "qnli"),
        ("sst2", "review,stars", r"fit sst2, .*--task classification: .*column.*; --task sst2: .*sentence, label"),
    ],
)
def test_columns_decide_between_glue_and_own_texts(tmp_path, classes, columns, expected):
    labels = TASKS[classes].labels
    model, file = model_with(tmp_path / "model", labels), tmp_path / "in.csv"
    values = [labels[0] if name == "label" else "a town" for name in columns.split(",")]
    file.write_text(f"{columns}\n{','.join(values)}\n")
    if "--task" in expected:
        with pytest.raises(InputError, match=expected):
            choose_entry(model, file, labelled=True)
        return
    params = choose_entry(model, file, labelled=True).params
    assert params.options.get("task", params.kind) == expected


def test_windows_shrink_to_what_a_model_bears(tmp_path):
    for positions, expected in ((512, (384, 64, 128)), (64, (64, 16, 16)), (20, (20, 5, 5))):
        rows = infer_entry(model_with(tmp_path / str(positions), positions=positions)).rows.model_dump()
        assert tuple(rows[name] for name in ("row_length", "max_question_length", "doc_stride")) == expected
    tagger = model_with(tmp_path / "ner", ("O", "B-x", "I-x"), positions=20)
    assert infer_entry(tagger).rows.model_dump()["overlap"] == 5


BF16, FP32 = {"runtime": "cpu", "precision": "bf16"}, {"runtime": "cpu", "precision": "fp32"}


@pytest.mark.parametrize(
    ("provenance", "precision"),
    [
        ({"prediction": BF16, "training": {"squad-finetune": FP32}}, "bf16"),
        ({"prediction": {"dev_matched": BF16, "dev_mismatched": BF16}, "training": {}}, "bf16"),
        ({"training": {"squad-finetune": BF16}}, "fp32"),
        ([], "fp32"),
    ],
)
def test_the_provenance_of_a_release_decides(tmp_path, provenance, precision):
    (tmp_path / "provenance.json").write_text(json.dumps(provenance))
    assert choose_place(tmp_path, "auto", None) == RuntimeSpec("auto", precision)
    assert choose_place(tmp_path, "cpu", "auto") == RuntimeSpec("cpu", "auto")
    assert choose_place(tmp_path, "ipu", None) == RuntimeSpec("ipu", "auto")
    (tmp_path / "provenance.json").write_text(json.dumps({"prediction": {"runtime": "ipu", "precision": "fp16"}}))
    assert choose_place(tmp_path, "cpu", None) == RuntimeSpec("cpu", "fp32"), "what only IPUs have"


@pytest.mark.soak
def test_the_ipu_double_gives_the_answers_of_a_cpu(tmp_path, monkeypatch):
    """With the IPU config that is in the folder of the model."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOUBLE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("PODIUM_EXECUTABLE_CACHE", raising=False)
    model, file = model_with(tmp_path / "model", ("negative", "positive")), tmp_path / "in.jsonl"
    (model.folder / "ipu_config.json").write_text('{"layers_per_ipu": [1], "inference_device_iterations": 2}')
    file.write_text("".join(f'{{"sentence": "word{n} word{n + 9}"}}\n' for n in range(30)))
    records = []
    for place in ("cpu", "ipu"):
        result = predicted(model, file, tmp_path / f"{place}.jsonl", place=place)
        assert (result.runtime, result.precision) == (place, "fp32")
        records.append([json.loads(line) for line in (tmp_path / f"{place}.jsonl").read_text().splitlines()])
    assert result.plan["device"]["config"]["inference_device_iterations"] == 2
    cpu, ipu = ([(record["label"], record["score"]) for record in place] for place in records)
    assert ipu == [(label, pytest.approx(score, abs=1e-5)) for label, score in cpu]
    (model.folder / "ipu_config.json").write_text("[1]")
    with pytest.raises(InputError, match="ipu_config.json is not a JSON object"):
        predicted(model, file, tmp_path / "out.jsonl", place="ipu")


TOWN = ["the", "town", "lies", "in", "a", "valley", "who", "where", "is", "what", "ada"]
CONTEXT, QUESTION = "The town sits in a valley", "where is the town"


def as_shards(folder, ending):
    state = load_file(folder / "model.safetensors")
    whole = "model.safetensors" if ending == "safetensors" else "pytorch_model.bin"
    names, places = sorted(state), {}
    for number, part in enumerate((names[:9], names[9:]), 1):
        name = f"{whole.split('.')[0]}-{number:05}-of-00002.{ending}"
        weights = {key: state[key] for key in part}
        save_file(weights, folder / name) if ending == "safetensors" else torch.save(weights, folder / name)
        places |= dict.fromkeys(part, name)
    (folder / f"{whole}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "model.safetensors").unlink()


def as_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_few_positions(folder):
    name = "bert.embeddings.position_embeddings.weight"
    state = load_file(folder / "model.safetensors")
    save_file({**state, name: state[name][:128].clone()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))


def with_vocabulary_file_only(folder):
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in [*SPECIAL, *TOWN]))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


FORMS = {
    "safetensors": lambda folder: None,
    "shards": lambda folder: as_shards(folder, "safetensors"),
    "pickle": as_pickle,
    "pickled shards": lambda folder: as_shards(folder, "bin"),
    "vocabulary file": with_vocabulary_file_only,
    "128 positions": with_few_positions,
}


def answers(folder, place):
    model, file = find_model(str(folder)), place / "dev.jsonl"
    answer = {"text": ["valley"], "answer_start": [CONTEXT.index("valley")]}
    file.write_text(json.dumps({"id": "1", "context": CONTEXT, "question": QUESTION, "answers": answer}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        run_jobs_here(patch)
        metrics, _ = evaluate(infer_entry(model), model, file, place / f"evaluation-{folder.name}", how())
        predicted(model, file, place / f"{folder.name}.jsonl")
        [best], _ = ask(model, QUESTION, CONTEXT, WindowShape.for_model(model))
    return [metrics["f1"], (place / f"{folder.name}.jsonl").read_text(), best]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("forms") / "plain", TOWN)
    return folder, answers(folder, folder.parent)


@pytest.mark.parametrize("form", FORMS)
def test_every_command_reads_every_form(plain, tmp_path, form):
    """With the same answers as of the plain form."""
    other = write_tiny_model(tmp_path / "other", TOWN)
    FORMS[form](other)
    model = model_parameters("other", tmp_path, tmp_path)
    entry = "downstream.own={kind: squad, data: {source: files}}"
    overrides = [*make_settings(model), entry, *make_settings(fit_rows("squad", "downstream.own", model))]
    overrides += [f'base_model.path="{other}"', f'tokenizer.path="{other}"']
    params = validate_params(resolve({}, "finetune", overrides))
    make_tokenizer(params.tokenizer, 512, tmp_path, tmp_path / "tokenizer")
    record = write_base_model(params.base_model, params.model, tmp_path / "tokenizer", tmp_path / "base")
    assert record["left_out"] == []
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "base", plain[0]))
    assert all(torch.equal(theirs[name][: len(weight)], weight) for name, weight in ours.items())
    assert answers(other, tmp_path) == plain[1]


@pytest.mark.soak
def test_a_model_with_one_token_type_refuses_pairs_by_name(tmp_path):
    """Single texts are read: texts/test_other_encoders.py; podium finetune: tests/flows/checks/test_given_models.py."""
    asked = model_with(tmp_path / "qa", (), TOWN, 512, 1)
    (tmp_path / "dev.jsonl").write_text(json.dumps({"id": "1", "context": CONTEXT, "question": QUESTION}) + "\n")
    for answer in (
        lambda: ask(asked, QUESTION, CONTEXT, WindowShape.for_model(asked)),
        lambda: predicted(asked, tmp_path / "dev.jsonl", tmp_path / "spans.jsonl"),
    ):
        with pytest.raises(PodiumError, match="type_vocab_size of its config.json is 1"):
            answer()
