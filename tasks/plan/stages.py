"""The stages of the pipeline: one table, from which dvc.yaml and the plan of a run are made.

A path or parameter in the table may have fields in braces: `key` is the item of a stage, the part of its name after
the @, and `items` has the others. If a field of an input or parameter is None, a stage does not have it.

DVC has no conditions: a group of dvc.yaml has the same number of inputs for every item. Therefore `define` repeats the
first input or parameter of a stage in place of one that it does not have.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tasks.params.entries import BASE, Entry, entries, find_upstream, learns_text, needs_corpus, start_model
from tasks.params.schema import Params
from tasks.params.sections import DEFAULT_PHASES, PRETRAINING_HEADS, RuntimeSpec
from tasks.plan.plan_file import COMPILER, DEVICE
from tasks.stage import artifacts

FIELD = re.compile(r"\{(\w+)\}")
Fields = dict[str, Any]
"""Text or path of each field, or None."""
Items = dict[str, Fields]
"""Item -> its fields."""
META = ("host", "page", "part", "because", "publish")
"""Attributes of stages that the graph of paths does not show."""


@dataclass(frozen=True)
class StageGroup:
    """Stages that run the same command, one for each item."""

    name: str
    desc: str
    module: str
    items: Callable[[Params], Items]
    """Items for these parameters; the item "" is a stage without an @ in its name."""
    inputs: str
    """Paths, separated by blanks, as in the next four."""
    params: str
    """Parameters of params.yaml."""
    listed: str = ""
    """Field with a list of further inputs."""
    outs: str = ""
    metrics: str = ""
    """Scores that `dvc metrics` shows; other figures are outs."""
    plots: Mapping[str, dict[str, str]] = field(default_factory=dict)
    """Plot -> its settings in DVC."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """JSON file of another stage -> the keys in it that these stages depend on."""
    host: str = ""
    """Part of `meta` in dvc.yaml, which tasks/plan/plan_file.py describes, as are the next four."""
    page: str = ""
    part: str = ""
    because: str = ""
    publish: str = ""
    names_stage: bool = True
    """The command has the name of the stage."""

    def define(self, items: Items) -> dict[str, Any]:
        """Return the group with these items as in dvc.yaml."""
        if self.listed:
            names = [f"{self.listed}{n}" for n in range(max(len(fields[self.listed]) for fields in items.values()))]
            group = replace(self, listed="", inputs=" ".join([self.inputs, *(f"{{{name}}}" for name in names)]))
            return group.define(
                {key: {**fields, **dict(zip_longest(names, fields[self.listed]))} for key, fields in items.items()}
            )
        filled = {key: self._fill({"key": key, **fields}) for key, fields in items.items()}
        (first, *others) = filled.values()
        definition = self._state(items)
        if not others:
            body = _replace(definition, first)
            return {"foreach": list(items), "do": body} if first["key"] else body
        names = [name for name in dict.fromkeys(FIELD.findall(str(definition))) if name not in ("key", "stage")]
        differing = [name for name in names if any(fields[name] != first[name] for fields in others)]
        foreach = {key: {name: fields[name] for name in differing} for key, fields in filled.items()}
        variables = {
            "key": "${key}",
            "stage": f"{self.name}@${{key}}",
            **{name: f"${{item.{name}}}" for name in differing},
        }
        return {"foreach": foreach, "do": _replace(definition, first | variables)}

    def _state(self, items: Items) -> dict[str, Any]:
        """Return the group as in dvc.yaml, with its fields."""
        params = [text for text in self.params.split() if any(_has(fields, text) for fields in items.values())]
        definition = {
            "desc": self.desc,
            "cmd": f"python -m tasks.stage.start {self.module}" + (' "$DVC_STAGE"' if self.names_stage else ""),
            "meta": {name: value for name in META if (value := getattr(self, name))},
            "deps": self.inputs.split(),
            "params": [*params, *({file: keys.split()} for file, keys in self.keys.items())],
            "outs": [*self.outs.split(), str(artifacts.stage_run_file("{stage}"))],
            "metrics": self.metrics.split(),
            "plots": [{path: settings} for path, settings in self.plots.items()],
        }
        return {name: value for name, value in definition.items() if value}

    def _fill(self, fields: Fields) -> dict[str, str]:
        """Return the fields of an item as text, with a repeated input or parameter in place of None."""
        # DVC would replace ${...} in a path.
        strings = {name: str(value).replace("${", "\\${") for name, value in fields.items() if value is not None}
        strings["stage"] = f"{self.name}@{fields['key']}" if fields["key"] else self.name
        for texts in (self.inputs.split(), self.params.split()):
            first = next(text for text in texts if _has(fields, text))
            absent = [name for text in texts if not _has(fields, text) for name in FIELD.findall(text)]
            strings |= dict.fromkeys(absent, _replace(first, strings))
        return strings


def _has(fields: Fields, text: str) -> bool:
    """Return True if an item has the input or parameter of this text."""
    return all(fields.get(name, "") is not None for name in FIELD.findall(text))


def _replace(part: Any, fields: Mapping[str, str]) -> Any:
    """Return a part of the table with its fields replaced."""
    if isinstance(part, dict):
        return {_replace(name, fields): _replace(value, fields) for name, value in part.items()}
    if isinstance(part, list):
        return [_replace(value, fields) for value in part]
    return FIELD.sub(lambda match: fields[match[1]], part)


def define(params: Params) -> dict[str, Any]:
    """Return the stages for these parameters as in dvc.yaml, by group."""
    return {group.name: group.define(items) for group in STAGES if (items := group.items(params))}


def input_path(section: Any, key: str = "path") -> str | None:
    """Return the path in a section that reads files."""
    return str(getattr(section, key)) if section.source in ("files", "file", "folder") else None


def _corpus(params: Params) -> Items:
    return {"text": {"given": input_path(params.corpus)}} if needs_corpus(params, params.pretrain.list_phases()) else {}


def _tokenizer(params: Params) -> Items:
    return {"": _made_of(params.tokenizer.source == "train", input_path(params.tokenizer))}


def _made_of(from_corpus: bool, path: str | None) -> Fields:
    """Return the source of something and its verdict: the corpus with its verdict, or a path."""
    if from_corpus:
        return {"source": artifacts.CORPUS, "verdict": artifacts.validation_report("corpus")}
    return {"source": path, "verdict": None}


def _validated(params: Params) -> Items:
    code = _job_code("", params.pretrain_rows.row_kind)
    corpus = {"corpus": {"data": artifacts.CORPUS, "tokenizer": None, **code}} if _corpus(params) else {}
    rows = {phase: artifacts.rows_folder(phase) for phase in params.pretrain.list_phases()}
    return corpus | {phase: {"data": data, "tokenizer": artifacts.TOKENIZER, **code} for phase, data in rows.items()}


def _base_model(params: Params) -> Items:
    return {"given": {"path": input_path(params.base_model)}} if params.base_model.source != "none" else {}


def _phases(params: Params) -> Items:
    """Return the phases; each starts from the one before it."""
    rows, starts = params.pretrain_rows, [BASE if _base_model(params) else None, *params.pretrain.list_phases()]
    return {
        phase: {
            **_made_of(rows.source == "corpus", rows.get_phase(phase).path if rows.source == "files" else None),
            "start": start and artifacts.MODELS / start,
            "original": artifacts.BASE_MODEL if _base_model(params) else None,
            "program": _program(phase, params),
            "ipu_config": params.ipu.config,
            "ipu": f"ipu.{phase}" if phase in DEFAULT_PHASES or params.ipu.get_phase(phase) is not None else None,
            "theta": (setter := params.pretrain.find_theta(phase)) and f"pretrain.{setter}.global_rope_theta",
            **_job_code(PRETRAINING_HEADS[rows.row_kind], rows.row_kind),
        }
        for phase, start in zip(params.pretrain.list_phases(), starts, strict=False)
    }


def _job_code(head: str, row_kind: str) -> Fields:
    return {"head_code": f"ipu_model/heads/{head}.py", "row_code": f"ipu_model/row_kinds/{row_kind}.py"}


def _compiles_ahead(params: Params) -> bool:
    """Return True if programs are compiled before training; if `auto` chooses IPUs, the training compiles them."""
    return params.device.runtime == "ipu"


def _program(job: str, params: Params, runtime: str = "") -> Any:
    """Return the path that determines the program of a job, or the IPU config that the job may read, or None.

    `runtime` is that of the job, if it is not device.runtime.
    """
    if _compiles_ahead(params):
        return artifacts.compile_report(job)
    return params.ipu.config if (runtime or params.device.runtime) in ("auto", "ipu") else None


OPTIONS = 2
"""Maximum number of options of a kind."""


def _entry(entry: Entry, params: Params) -> Fields:
    name, settings, upstream = entry.name, entry.params, find_upstream(entry, params)
    paths = [key for key in type(settings.data).model_fields if key == "path" or key.endswith("_path")]
    inputs = [input_path(settings.data, key) for key in paths if getattr(settings.data, key) is not None]
    options = [f"downstream.{name}.{option}" for option in settings.option_names]
    package, distill = Path(*settings.package().split(".")), settings.distill
    base_model = artifacts.BASE_MODEL / "base_model.json"
    return {
        "entry": name,
        "kind": entry.kind,
        "code": package,
        "labels": package / settings.label_table if settings.label_table else None,
        **_job_code(settings.head, settings.row_kind),
        **dict(zip_longest((f"option{n}" for n in range(OPTIONS)), options)),
        "train": inputs[0],
        "dev": inputs[-1],
        "text": artifacts.CORPUS if learns_text(entry, params) else None,
        "start": start_model(entry),
        "before": start_model(entry) if settings.compares_start else None,
        "teacher": distill.teacher,
        "taught": entry.training_rows,
        "layers": distill.layers and entry.key("distill", "layers"),
        **{key: entry.key("distill", key) if distill.has_teacher else None for key in ("temperature", "alpha")},
        "ipu_config": params.ipu.config,
        **{job: _program(artifacts.job_name(name, job), params) for job in ("finetune", "predict")},
        "held_out": entry.key("rows", "held_out_fraction") if artifacts.HELD_OUT in entry.predicted else None,
        "released": entry.released,
        "seeds": entry.seeds,
        "against": artifacts.EVALUATION / settings.against if settings.against else None,
        "exports": artifacts.exports_folder(name) if settings.export.formats else None,
        "exported": artifacts.metrics_file(name, "export") if settings.export.formats else None,
        "corpus": artifacts.validation_report("corpus") if upstream.corpus else None,
        "base_model": base_model if upstream.base_model else None,
        "scores": artifacts.teacher_folder(name) if distill.has_teacher else None,
        "phases": [path for phase in upstream.phases for path in _list_phase_files(phase)],
    }


def _list_phase_files(phase: str) -> list[Path]:
    return [
        artifacts.rows_folder(phase) / "manifest.json",
        artifacts.validation_report(phase),
        artifacts.METRICS / f"pretrain-{phase}.json",
    ]


def _entries(applies: Callable[[Entry, Params], object] = lambda entry, params: True) -> Callable[[Params], Items]:
    """Return the items of stages that exist for some entries."""
    return lambda params: {entry.name: _entry(entry, params) for entry in entries(params) if applies(entry, params)}


def _has_gate(entry: Entry, params: Params) -> bool:
    """Return False for an entry that others are only compared with."""
    return entry.name not in params.only_compared


def _parity(params: Params) -> Items:
    return {
        f"{entry.name}-{runtime}": {
            **_entry(entry, params),
            "place": runtime,
            "program": _program(artifacts.job_name(entry.name, "predict"), params, RuntimeSpec.parse(runtime).runtime),
        }
        for entry in entries(params)
        for runtime in entry.params.parity.against
    }


DEVICE_CODE = """
    {head_code} {row_code} ipu_model/distributed ipu_model/ipu ipu_model/jobs ipu_model/models ipu_model/optim
    ipu_model/rows ipu_model/runtimes ipu_model/train tasks/jobs """
LABEL_CODE = " tasks/records/labels.py {labels} "
INFERENCE_CODE = """
    {code} tasks/downstream/inference tasks/downstream/gate tasks/downstream/packed_rows.py
    tasks/downstream/reading.py tasks/downstream/scoring tasks/corpus tasks/models tasks/records tasks/rows
    tasks/vocabulary """
INFERENCE_PARAMS = " device.runtime device.precision device.micro_batch_size "
DEVICE_PARAMS = INFERENCE_PARAMS + " device.compile device.processes "
OPTION_PARAMS = " ".join(f" {{option{number}}} " for number in range(OPTIONS))
OPTIMIZER = (
    *("optimizer", "weight_decay", "beta1", "beta2", "eps", "bias_correction", "first_moment_precision"),
    *("max_grad_norm", "evaluate_every_updates"),
)
ROW_SHAPE = "kind row_length max_sequences vocab_size packing_factor "
STUDENT_PARAMS = " {layers} {temperature} {alpha} "
LOSS = {"x": "step", "y": "loss"}

# fmt: off
STAGES = (
    StageGroup(
        "corpus", "download or generate the corpus", "tasks.corpus.corpus", _corpus,
        inputs="{given} tasks/corpus tasks/records", params="corpus", outs="data/corpus", names_stage=False,
    ),
    StageGroup(
        "tokenizer", "train a vocabulary, or import one", "tasks.vocabulary.tokenizer", _tokenizer,
        inputs="{source} {verdict} tasks/records tasks/vocabulary", params="tokenizer model.max_positions",
        outs="data/tokenizer", names_stage=False,
    ),
    StageGroup(
        "validate", "validate {key}; invalid data fail here", "tasks.validation.validate", _validated,
        inputs="""
            {data} {tokenizer} {row_code} ipu_model/rows tasks/pages tasks/records tasks/rows tasks/validation
            tasks/vocabulary""",
        params="validate pretrain_rows.masked_fraction pretrain_rows.next_sentence model.max_positions",
        outs="reports/validation/{key}.json reports/validation/{key}.html reports/expectations/{key}.json",
        page="reports/validation/{key}.html",
    ),
    StageGroup(
        "pretrain_rows", "build rows (sequences of sentences, masking, packing), or pack prepared data",
        "tasks.pretraining.rows.pretrain_rows", _phases,
        inputs="""
            {source} {verdict} data/tokenizer {row_code} ipu_model/rows tasks/pretraining/rows tasks/records
            tasks/rows tasks/vocabulary""",
        params="""
            packing pretrain_rows.source pretrain_rows.seed pretrain_rows.masked_fraction pretrain_rows.next_sentence
            pretrain_rows.short_sequence_probability pretrain_rows.max_sequences_per_row
            pretrain_rows.held_out_fraction pretrain_rows.{key}""",
        outs="data/rows/{key}",
    ),
    StageGroup(
        "base_model", "import a BERT, verify it and rename its weights", "tasks.pretraining.base_model", _base_model,
        inputs="""
            {path} data/tokenizer ipu_model/heads/masked_lm.py ipu_model/heads/pretraining.py
            ipu_model/heads/question_answering.py ipu_model/heads/sequence_classification.py ipu_model/models
            ipu_model/rows tasks/pretraining/base_model.py tasks/models tasks/records tasks/rows tasks/vocabulary""",
        params="base_model model", outs="models/base", because="base_model.source", names_stage=False,
    ),
    StageGroup(
        "compile_pretrain", "compile IPU programs before training; other hosts restore them",
        "tasks.pretraining.compile", lambda params: _phases(params) if _compiles_ahead(params) else {},
        inputs=DEVICE_CODE + "{ipu_config} tasks/pretraining/compile.py tasks/pretraining/pretrain.py",
        # Only the shape of the rows; no learning rate, number of updates, seed or weights.
        keys={"data/rows/{key}/manifest.json": ROW_SHAPE + "max_predictions"},
        params=DEVICE_PARAMS + " ".join(f"pretrain.{name}" for name in OPTIMIZER) + """
            model {ipu} ipu.inference_execution pretrain.{key}.global_batch_size
            pretrain.{key}.micro_batch_size {theta}""",
        outs="executables/{key} reports/compile-{key}.json", host=COMPILER, because="device.runtime",
    ),
    StageGroup(
        "pretrain", "pre-train; each phase starts from the one before it", "tasks.pretraining.pretrain", _phases,
        inputs="data/rows/{key} {start} {original} {program} reports/validation/{key}.json data/tokenizer"
        + DEVICE_CODE + "tasks/pretraining/pretrain.py",
        params=DEVICE_PARAMS + " ".join(f"pretrain.{name}" for name in OPTIMIZER) + """
            model {ipu} pretrain.seed pretrain.evaluate_rows pretrain.masking pretrain.{key}""",
        outs="models/{key} measurements/pretrain-{key}.json", metrics="metrics/pretrain-{key}.json",
        plots={"plots/pretrain-{key}.csv": LOSS, "plots/pretrain-{key}-held-out.csv": LOSS}, host=DEVICE,
        part="pretraining", because="pretrain.enabled",
    ),
    StageGroup(
        "examples", "read and validate the examples of {key}, one Parquet file per split; invalid data fail here",
        "tasks.downstream.examples", _entries(),
        inputs="""
            {train} {dev} {code} tasks/downstream/examples.py tasks/downstream/reading.py ipu_model/rows tasks/corpus
            tasks/pages tasks/records tasks/rows tasks/validation tasks/vocabulary""",
        params="downstream.{key}.data" + OPTION_PARAMS,
        outs="""
            data/examples/{key} reports/validation/{key}.json reports/validation/{key}.html
            reports/expectations/{key}.json""",
        page="reports/validation/{key}.html",
    ),
    StageGroup(
        "rows", "pack the examples of {key} into rows and validate them", "tasks.downstream.rows", _entries(),
        inputs="""
            data/examples/{key} data/tokenizer {row_code} ipu_model/rows {code} tasks/downstream/packed_rows.py
            tasks/downstream/rows.py tasks/pages tasks/records tasks/rows tasks/validation tasks/vocabulary""",
        params="""
            packing downstream.{key}.rows model.max_positions validate.max_cut_share
            validate.max_unknown_share""" + OPTION_PARAMS,
        outs="""
            data/rows/{key} reports/validation/{key}-rows.json reports/validation/{key}-rows.html
            reports/expectations/{key}-rows.json""",
        page="reports/validation/{key}-rows.html",
    ),
    StageGroup(
        "teacher", "predict the examples of {key} with the teacher of its model",
        "tasks.downstream.inference.teacher", _entries(lambda entry, params: entry.params.distill.has_teacher),
        inputs="{teacher} data/examples/{key} data/rows/{key} data/tokenizer reports/validation/{key}-rows.json"
        + " tasks/downstream/jobs" + DEVICE_CODE + INFERENCE_CODE,
        params="downstream.{key}.distill.repository downstream.{key}.distill.revision"
        + INFERENCE_PARAMS + OPTION_PARAMS,
        outs="data/teacher/{key}", host=DEVICE, because="downstream.*.distill.teacher",
    ),
    StageGroup(
        "compile", "compile the IPU programs of {key}", "tasks.downstream.jobs.entry_jobs",
        _entries(lambda entry, params: _compiles_ahead(params)),
        inputs=DEVICE_CODE + "{ipu_config} tasks/downstream/jobs {taught}" + LABEL_CODE,
        keys={"data/rows/{key}/train/manifest.json": ROW_SHAPE + "num_labels"},
        params=DEVICE_PARAMS + " ".join(f"downstream.{{key}}.finetune.{name}" for name in OPTIMIZER) + """
            model downstream.{key}.ipu ipu.inference_execution downstream.{key}.finetune.global_batch_size
            downstream.{key}.finetune.micro_batch_size downstream.{key}.finetune.hidden_dropout
            downstream.{key}.finetune.attention_dropout""" + OPTION_PARAMS + STUDENT_PARAMS,
        outs="""
            executables/{key}-finetune executables/{key}-predict reports/compile-{key}-finetune.json
            reports/compile-{key}-predict.json""",
        host=COMPILER, because="device.runtime",
    ),
    StageGroup(
        "finetune", "fine-tune on {key}", "tasks.downstream.jobs.entry_jobs", _entries(),
        inputs="data/rows/{key} {start} {finetune} reports/validation/{key}-rows.json tasks/downstream/jobs {taught}"
        + DEVICE_CODE + LABEL_CODE,
        params="downstream.{key}.finetune downstream.{key}.ipu.finetune model"
        + DEVICE_PARAMS + OPTION_PARAMS + STUDENT_PARAMS,
        outs="models/{key} metrics/{key}-finetune.json measurements/{key}-finetune.json",
        plots={"plots/{key}-finetune.csv": LOSS, "plots/{key}-finetune-held-out.csv": LOSS}, host=DEVICE,
    ),
    StageGroup(
        "predict", "predict the logits of the development sets of {key}", "tasks.downstream.jobs.entry_jobs",
        _entries(),
        inputs="data/rows/{key} models/{key} {predict} {before} reports/validation/{key}-rows.json"
        + " tasks/downstream/jobs" + DEVICE_CODE + LABEL_CODE,
        params="device.compile downstream.{key}.ipu.predict ipu.inference_execution {held_out}"
        + INFERENCE_PARAMS + OPTION_PARAMS,
        outs="predictions/{key} metrics/{key}-predict.json measurements/{key}-predict.json", host=DEVICE,
    ),
    StageGroup(
        "parity", "recompute the model of {entry} in {place} and compare with predict", "tasks.downstream.parity",
        _parity,
        inputs="""
            data/examples/{entry} data/rows/{entry} models/{entry} predictions/{entry} metrics/{entry}-predict.json
            {program} reports/validation/{entry}-rows.json {code} tasks/downstream/jobs tasks/downstream/parity.py
            tasks/downstream/scoring tasks/records""" + DEVICE_CODE,
        params="""
            downstream.{entry}.parity.max_logit_difference downstream.{entry}.evaluate downstream.{entry}.ipu.predict
            device.micro_batch_size ipu.inference_execution""" + OPTION_PARAMS,
        outs="metrics/{entry}-parity-{place}.json", host="{place}", because="downstream.*.parity.against",
    ),
    StageGroup(
        "predict_released",
        "score the released model on the development sets of {key}, unless its release contains the scores",
        "tasks.downstream.inference.predict_released",
        _entries(lambda entry, params: entry.fetches_released and _has_gate(entry, params)),
        inputs="released data/examples/{key} models/{key}" + DEVICE_CODE + INFERENCE_CODE,
        params=INFERENCE_PARAMS + OPTION_PARAMS, outs="predictions/{key}-released", host=DEVICE,
        because="downstream.*.gate.released",
    ),
    StageGroup(
        "evaluate", "evaluate {key} with official metrics, intervals, a page and plots", "tasks.downstream.evaluate",
        _entries(),
        inputs="""
            data/examples/{key} {text} {against} data/rows/{key} models/{key} predictions/{key} {code} ipu_model/rows
            tasks/downstream/evaluate.py tasks/downstream/scoring tasks/pages tasks/records tasks/rows
            tasks/validation""",
        params="downstream.{key}.evaluate validate.near_duplicates" + OPTION_PARAMS, outs="evaluation/{key}",
        metrics="metrics/{key}.json",
        plots={
            "plots/{key}-slices.csv": {"x": "score", "y": "slice", "template": "bar_horizontal"},
            "plots/{key}-calibration.csv": {"x": "confidence", "y": "accuracy"},
        },
        page="evaluation/{key}/report.html",
    ),
    StageGroup(
        "export", "export the model of {key} to ONNX, and score the exported files", "tasks.downstream.export.export",
        _entries(lambda entry, params: entry.params.export.formats),
        inputs="""
            data/examples/{key} data/rows/{key} data/tokenizer models/{key} predictions/{key} evaluation/{key} {code}
            tasks/downstream/export tasks/downstream/inference/onnx_answers.py tasks/downstream/scoring tasks/pages
            tasks/records tasks/rows""",
        params="downstream.{key}.export downstream.{key}.evaluate downstream.{key}.gate.confidence" + OPTION_PARAMS,
        outs="exports/{key} measurements/export/{key} metrics/{key}-export.json measurements/{key}-export.json",
        page="measurements/export/{key}/report.html", because="downstream.*.export.formats",
    ),
    StageGroup(
        "gate", "decide whether {key} may be published, with reasons", "tasks.downstream.gate.gate",
        _entries(_has_gate),
        inputs="""
            {released} {seeds} data/tokenizer data/examples/{key} data/rows/{key} evaluation/{key} models/{key}
            metrics/{key}.json metrics/{key}-finetune.json plots/{key}-finetune.csv plots/{key}-finetune-held-out.csv
            reports/validation/{key}.json reports/validation/{key}-rows.json {exports} {exported} {corpus}
            {base_model} {scores} {code} ipu_model/rows tasks/downstream/gate tasks/downstream/scoring tasks/records
            tasks/rows""",
        listed="phases",
        params="downstream.{key}.gate downstream.{key}.finetune" + OPTION_PARAMS, outs="metrics/{key}-gate.json",
        part="{kind}", publish="tasks.release.publish",
    ),
)
# fmt: on
"""All stages, in the order of dvc.yaml."""
