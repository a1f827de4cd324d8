"""Model cards, common to all kinds of task: front matter with a model-index, and the card text.

The template is card.md.j2; a kind fills its blocks in its own template.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipu_model.core.units import format_duration
from tasks.downstream.card_costs import name_hardware
from tasks.downstream.gate.verdict_text import COMPARED, RECIPE, format_figure, format_recipe
from tasks.downstream.scoring.near_duplicates import FROM
from tasks.jobs.original import describe_change
from tasks.models.model_folders import name_family, read_fields
from tasks.pages.render import render_markdown
from tasks.params.downstream import OwnDataParams
from tasks.params.entries import Entry
from tasks.records.duplicate_report import WITHOUT
from tasks.stage.artifacts import job_name
from tasks.stage.errors import PublishError

WITHHELD = "(not published)"
"""Stands for a text of the parameters that is the user's own."""
NUMBERS = ("", "one", "two", "three", "four", "five", "six")
PRETRAIN = "pretrain-"
"""Start of the name of the training of a phase."""
SCHEDULES = {
    "linear": "linear decay",
    "cosine": "cosine decay",
    "square_root": "square-root decay",
    "constant": "constant rate",
    "trapezoid": "linear decay at the end",
    "1-sqrt": "1-sqrt decay at the end",
}


@dataclass(frozen=True)
class CardFacts:
    """Content of a card as plain values, as in the files of the run."""

    entry: Entry
    name: str
    """Name to load the model by: a Hub repository, or "." for the folder, whose path is private."""
    title: str
    """Title of the release."""
    license: str | None
    language: str | list[str] | None
    parameters: Mapping[str, Any]
    """Published part of params.yaml."""
    metrics: Mapping[str, Any]
    """Content of the metrics file."""
    gate: Mapping[str, object]
    """Content of the gate's file."""
    config: Mapping[str, Any]
    """config.json of the model."""
    provenance: Mapping[str, Any]
    data_name: str | None = None
    """The user's name of the examples."""
    examples: bool = False
    """True if predictions and the evaluation page are published as well."""
    base_model: str | None = None
    """Name of the base model on the Hub; None: its repository, or unknown."""
    base_name: str | None = None
    """The user's name of a base model that is not on the Hub."""
    measured: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Measurements of each training, which differ between equal trainings; {}: leave them out."""
    files: Sequence[Mapping[str, Any]] = ()
    """Weights and exported files, see `list_model_files`; (): there are no exported files."""
    preferred: str | None = None
    """Name of the file to serve, if one was chosen."""
    speed: Mapping[str, Any] = field(default_factory=dict)
    """Measured speed of the files, which differs between equal exports; {}: leave it out."""

    @property
    def entry_parameters(self) -> Mapping[str, Any]:
        """Published parameters of the entry."""
        return self.parameters["downstream"][self.entry.name]

    @property
    def phases(self) -> list[str]:
        """Pre-training phases of the released model."""
        trained = self.provenance["training"]
        return [name.removeprefix(PRETRAIN) for name in trained if name.startswith(PRETRAIN)]


def write_card(
    module: str,
    template: str,
    facts: CardFacts,
    tuning: str,
    front_matter: Mapping[str, object],
    scores: Mapping[str, str],
    **values: object,
) -> str:
    """Return README.md of a release: deterministic, in English, without network access.

    Args:
        module: `__file__` of the caller; the template is next to it.
        template: template that extends card.md.j2.
        front_matter: see `hub_metadata`.
        scores: name of each metric in the metrics file -> its label.
        values: other values of this template.

    Raises:
        PublishError: a score is missing, or is not a finite number.
    """
    parameters, provenance = facts.parameters, facts.provenance
    ran_with = provenance.get("stages_git") or {}
    others = {n: git for n, git in ran_with.items() if git and git["revision"] != provenance["git"]["revision"]}
    return render_markdown(
        module,
        template,
        front_matter=front_matter,
        format_figure=format_figure,
        title=facts.title,
        name=facts.name,
        language=facts.language if isinstance(facts.language, str | None) else ", ".join(facts.language),
        sizes=read_fields(facts.config),
        family=name_family(facts.config),
        base={"source": "none", **(provenance["base_model"] or {}), "name": _base_name(facts) or facts.base_name},
        pretraining=_count_phases(len(facts.phases)),
        scores=[row for name, words in scores.items() for row in _rows(facts.metrics, name, words)],
        near=_near_duplicates(facts.metrics),
        trainings=_trainings(facts, tuning),
        optimizers=_optimizers(facts),
        distill=facts.entry.params.distill,
        files=facts.files,
        preferred=facts.preferred,
        served=next(
            (file["name"] for file in facts.files if file["accepted"] and file["name"].endswith(".onnx")), None
        ),
        speed=facts.speed and {**facts.speed, "hardware": name_hardware(facts.speed["hardware"])},
        costs=[_cost(name, measurement) for name, measurement in facts.measured.items()],
        row_length=facts.entry_parameters["rows"]["row_length"],
        gate={**dict.fromkeys(RECIPE, ()), COMPARED: None, **facts.gate},
        recipe=format_recipe(facts.gate, published=True),
        tokenizer=parameters["tokenizer"],
        withheld=WITHHELD,
        examples=facts.examples,
        git={**provenance["git"], "others": others},
        provenance=provenance,
        verdicts=len(provenance["data"]["verdicts"]),
        row_notes=[note for verdict in provenance["data"]["verdicts"].values() for note in verdict.get("notes", ())],
        **values,
    )


def _count_phases(count: int) -> str:
    number = NUMBERS[count] if count < len(NUMBERS) else str(count)
    return f"{number} phase{'s' * (count > 1)}" if count else ""


def _rows(metrics: Mapping[str, object], name: str, words: str) -> list[tuple[str, float, str]]:
    """Return label, percentage and 95% interval of a metric: for all examples, and without near-duplicates."""
    rows = [_score_row(metrics, name, words)]
    near = _near_duplicates(metrics)
    if near and near["examples"] and name in near["without"]:
        rows.append(_score_row(near["without"], name, f"{words}, without near-duplicates"))
    return rows


def _score_row(metrics: Mapping[str, object], name: str, words: str) -> tuple[str, float, str]:
    low, high = (score_of(metrics, f"{name}_{end}") for end in ("low", "high"))
    return words, score_of(metrics, name), f"{low:.2f} to {high:.2f}"


def _near_duplicates(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the near-duplicates that the evaluation found; None if it did not look for them."""
    if not (parts := metrics.get(WITHOUT)):
        return None
    sources = parts[:-1] or parts  # the last one covers all sources
    return {
        "sources": [(source["in"], source["examples"]) for source in sources],
        "examples": parts[-1]["examples"],
        "of": parts[-1]["of"],
        "left": parts[-1]["of"] - parts[-1]["examples"],
        "threshold": metrics[FROM],
        "without": parts[-1],
    }


def hub_metadata(
    facts: CardFacts,
    task: str,
    tags: Sequence[str],
    dataset: tuple[str, str],
    results: Sequence[Mapping[str, object]],
    library: str = "transformers",
) -> Any:
    """Return the Hub's YAML metadata as plain values.

    Args:
        task: the Hub's name of the kind of task.
        tags: tags in addition to the family and "podium".
        dataset: name and identifier from `evaluated_on`.
        results: other fields of `huggingface_hub.EvalResult`, whose split defaults to dev. Values must be Python
            floats: a numpy scalar would become a binary blob in the YAML, a NaN `.nan`.
    """
    from huggingface_hub import EvalResult, ModelCardData

    shared = {
        "task_type": task,
        "task_name": task.replace("-", " ").title(),
        "dataset_type": dataset[1],
        "dataset_name": dataset[0],
        "dataset_split": "dev",
    }
    data = ModelCardData(
        language=facts.language,
        license=facts.license,
        base_model=_base_name(facts),
        library_name=library,
        pipeline_tag=task,
        tags=[facts.config.get("model_type", "bert"), "podium", *tags],
        model_name=facts.title,
        eval_results=[EvalResult(**{**shared, **result}) for result in results],
    )
    return data.to_dict()


def list_results(
    metrics: Mapping[str, object], titles: Mapping[str, str], kinds: Mapping[str, str], whole: int = 100
) -> list[dict[str, object]]:
    """Return the scores of a release for `hub_metadata`.

    Args:
        titles: name of each metric in the metrics file -> its name on the Hub.
        kinds: the same -> the Hub's kind of metric, where its name differs.
        whole: what the Hub divides our percentages by: 100 for fractions.

    Raises:
        PublishError: a score is missing, or is not a finite number.
    """
    return [
        {
            "metric_type": kinds.get(name, name),
            "metric_name": title,
            "metric_value": round(score_of(metrics, name) / whole, 6),
        }
        for name, title in titles.items()
    ]


def _base_name(facts: CardFacts) -> str | None:
    return facts.base_model or (facts.provenance["base_model"] or {}).get("repository")


def evaluated_on(facts: CardFacts, examples: str) -> tuple[str, str]:
    """Return readable name and identifier of the files or the dataset of the scores, which has these `examples`."""
    data, unnamed = facts.entry_parameters["data"], f"own {examples}"
    params, identifier = facts.entry.params.data, unnamed.replace(" ", "-")
    if isinstance(params, OwnDataParams) and params.dev_is_apart:
        whole = facts.data_name or (data["dataset"] if data["source"] == "hub" else unnamed)
        name = unnamed if whole == WITHHELD else whole
        return f"{params.dev_fraction:g} of {name}, split off from training with seed {params.seed}", identifier
    if facts.data_name:
        return facts.data_name, identifier
    if data["source"] == "hub" and data["dataset"] != WITHHELD:
        return str(data["dataset"]), str(data["dataset"])
    known = data["source"] == "files" and data["dev_path"] != WITHHELD
    return f"{unnamed} ({data['dev_path']})" if known else unnamed, identifier


def _trainings(facts: CardFacts, tuning: str) -> list[dict[str, str]]:
    """Return a table row for each training of the released model."""
    parameters, lines = facts.parameters, []
    for phase in facts.phases:
        values, length = parameters["pretrain"][phase], parameters["pretrain_rows"][phase]["row_length"]
        what = "masked tokens and next sentence" if parameters["pretrain_rows"]["next_sentence"] else "masked tokens"
        stage = f"{phase}: {what}, rows of {length} tokens"
        lines.append(_training(facts, stage, f"{values['steps']:,}", values, f"pretrain-{phase}", phase))
    training = job_name(facts.entry.name, "finetune")
    values, steps = facts.entry_parameters["finetune"], facts.provenance["training"].get(training, {}).get("steps")
    updates = f"{values['epochs']:g} epochs" + ("" if steps is None else f", {steps:,}")
    stage = f"{tuning}, rows of {facts.entry_parameters['rows']['row_length']} tokens"
    return [*lines, _training(facts, stage, updates, values, training, f"{facts.entry.name}-train")]


def _training(
    facts: CardFacts, stage: str, updates: str, values: Mapping[str, object], training: str, rows: str
) -> dict[str, str]:
    """Return the cells of a table row; runtime and final loss only if the training recorded them."""
    counts = facts.provenance["data"]["rows"].get(rows, {})
    data = "not recorded"
    if "sequences" in counts and "real_tokens" in counts:
        data = f"{counts['sequences']:,} sequences, {counts['real_tokens']:,} tokens"
    done = facts.provenance["training"].get(training, {})
    if done.get("final_loss") is not None:
        data += f"; final loss {done['final_loss']:.4f}"
    if "runtime" in done and "precision" in done:
        data += f" ({done['runtime']}, {done['precision']})"
    if held_out := done.get("held_out"):
        data += f"; {describe_change(held_out['before'], held_out, held_out['rows'])}"
    batch, rate = str(values["global_batch_size"]), f"{values['learning_rate']:g}"
    return {"stage": stage, "updates": updates, "batch": batch, "rate": rate, "data": data}


def _cost(training: str, measured: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a training in the table of hardware; energy is in watt hours."""
    energy = measured.get("energy_wh")
    part = f" after update {measured['resumed_from_step']:,}" if measured.get("resumed_from_step") else ""
    return {
        "training": training,
        "hardware": name_hardware(measured.get("hardware", "")),
        "time": format_duration(measured["train_seconds"]) + part,
        "energy": "not recorded" if energy is None else f"{energy:,.3g} Wh ({measured['energy_source']})",
    }


def _optimizers(facts: CardFacts) -> str:
    parameters, tune = facts.parameters, facts.entry_parameters["finetune"]
    tuning = f"{tune['optimizer']} for fine-tuning ({SCHEDULES[tune['schedule']]})"
    if not facts.phases:
        return tuning
    phases = [SCHEDULES[parameters["pretrain"][phase]["schedule"]] for phase in facts.phases]
    decay = ", then ".join(dict.fromkeys(phases))
    return f"{parameters['pretrain']['optimizer']} for pre-training ({decay}), {tuning}"


def score_of(metrics: Mapping[str, object], name: str) -> float:
    """Return a figure of the metrics as a Python float with four decimals.

    Raises:
        PublishError: it is missing or not a finite number.
    """
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PublishError(
            f"{name}={value!r} of the metrics must be a finite number: run the stage evaluate again; nothing was "
            "published"
        )
    return round(float(value), 4)
