"""What the model cards of all kinds of task have in common: front matter with a model-index, and a page for people.

The page is the template card.md.j2; a kind of task fills its blocks in a template of its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.downstream.gate.recipe_words import RECIPE, WITHOUT_FLOOR, recipe_in_words
from tasks.downstream.scoring.near_duplicates import FROM, WITHOUT
from tasks.pages.render import render_markdown
from tasks.params.downstream import OwnDataParams
from tasks.params.entries import Entry
from tasks.params.schema import PHASES
from tasks.plan.kinds import DownstreamTask
from tasks.stage.artifacts import job_name
from tasks.stage.errors import PublishError

WITHHELD = "(not published)"
"""Stands for a text of the parameters that is the user's own."""
PRETRAINING = ("", "one phase", "two phases")
"""In words, by the number of phases."""
SCHEDULES = {
    "linear": "linear decay",
    "cosine": "cosine decay",
    "square_root": "decay by the square root of what is left",
    "constant": "constant rate",
}


@dataclass(frozen=True)
class CardFacts:
    """What the card is written from; plain values, as the files of the run hold them."""

    entry: Entry
    name: str
    """Where the model is loaded from: a Hub repository, or "." for the folder, whose own name is the user's."""
    title: str
    """What people call the release."""
    license: str | None
    language: str | list[str] | None
    parameters: Mapping[str, Any]
    """What a release says of params.yaml."""
    metrics: Mapping[str, Any]
    """Content of the metrics file."""
    gate: Mapping[str, Any]
    """Content of the gate's file."""
    config: Mapping[str, Any]
    """config.json of the model."""
    provenance: Mapping[str, Any]
    data_name: str | None = None
    """How the user calls the examples."""
    examples: bool = False
    """Whether predictions and the evaluation's page are published, too."""
    base_model: str | None = None
    """Name of the base model; None: that of the repository it was taken from, or unknown."""

    @property
    def own(self) -> Mapping[str, Any]:
        """What a release says of the entry's own parameters."""
        own: Mapping[str, Any] = self.parameters["downstream"][self.entry.name]
        return own

    @property
    def phases(self) -> list[str]:
        """The phases of pre-training behind the release."""
        trained = self.provenance["training"]
        return [phase for phase in PHASES if f"pretrain-{phase}" in trained]


class CardTask(DownstreamTask):
    """What a release says of the model of an entry."""

    @abstractmethod
    def card(self, facts: CardFacts) -> str:
        """README.md, see `write_card`.

        Raises:
            PublishError: a score is missing, or is no finite number.
        """

    def settings(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What answering needs beside weights and tokenizer: podium.json of the release, which has none for nothing."""
        return {}

    def released_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics without the user's own words."""
        return dict(metrics)


def write_card(
    module: str,
    template: str,
    facts: CardFacts,
    tuning: str,
    front_matter: Mapping[str, Any],
    scores: Mapping[str, str],
    **values: Any,
) -> str:
    """README.md of a release: deterministic, English, needs no network.

    Args:
        module: its `__file__`; the template lies beside it.
        template: extends card.md.j2.
        facts: what is known of the release.
        tuning: the last training in words.
        front_matter: see `hub_metadata`.
        scores: name of each metric in the metrics file -> what people call it.
        values: what only this template shows.

    Raises:
        PublishError: a score is missing, or is no finite number.
    """
    parameters, provenance = facts.parameters, facts.provenance
    return render_markdown(
        module,
        template,
        front_matter=front_matter,
        title=facts.title,
        name=facts.name,
        config=facts.config,
        base={"source": "none", **(provenance["base_model"] or {}), "name": _base_name(facts)},
        pretraining=PRETRAINING[len(facts.phases)],
        scores=[row for name, words in scores.items() for row in _rows(facts.metrics, name, words)],
        near=_near_duplicates(facts.metrics),
        trainings=_trainings(facts, tuning),
        optimizers=_optimizers(facts),
        row_length=facts.own["rows"]["row_length"],
        gate={**dict.fromkeys(("reasons", "checks", *RECIPE), ()), WITHOUT_FLOOR: None, "accepted": False}
        | dict(facts.gate),
        recipe=recipe_in_words(facts.gate, published=True),
        tokenizer=parameters["tokenizer"],
        withheld=WITHHELD,
        examples=facts.examples,
        git={**provenance["git"], "others": _other_revisions(provenance)},
        provenance=provenance,
        verdicts=_verdicts(provenance["data"]["verdicts"]),
        **values,
    )


def _other_revisions(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the code of the stages that ran with another revision than the fine-tuning."""
    found = provenance.get("stages_git") or {}
    return {name: one for name, one in found.items() if one and one["revision"] != provenance["git"]["revision"]}


def _rows(metrics: Mapping[str, Any], name: str, words: str) -> list[tuple[str, float, str]]:
    """What people call a metric, percent and 95% interval: of all examples, and without near-duplicates."""
    found = [_row(metrics, name, words)]
    near = _near_duplicates(metrics)
    if near and near["examples"] and name in near["without"]:
        found.append(_row(near["without"], name, f"{words}, without near-duplicates"))
    return found


def _row(metrics: Mapping[str, Any], name: str, words: str) -> tuple[str, float, str]:
    return words, round(finite(metrics.get(name), f"{name} of the metrics"), 4), interval_of(metrics, name)


def _near_duplicates(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the evaluation found of near-duplicates; None where it looked for none."""
    if not (parts := metrics.get(WITHOUT)):
        return None
    sources = parts[:-1] or parts  # the last one is all of them together
    return {
        "sources": [(one["in"], one["examples"]) for one in sources],
        "examples": parts[-1]["examples"],
        "of": parts[-1]["of"],
        "left": parts[-1]["of"] - parts[-1]["examples"],
        "threshold": metrics[FROM],
        "without": parts[-1],
    }


def hub_metadata(
    facts: CardFacts, task: str, tags: Sequence[str], dataset: tuple[str, str], results: Sequence[Mapping[str, Any]]
) -> Any:
    """YAML metadata of the Hub as plain values.

    Args:
        facts: what is known of the release.
        task: the Hub's name of the kind of task.
        tags: beside "bert" and "podium".
        dataset: name and identifier, as `evaluated_on` gives them.
        results: other fields of `huggingface_hub.EvalResult`, whose split is dev by default; values are python floats,
            as a numpy scalar would end as a binary blob in the YAML, a NaN as `.nan`.
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
        library_name="transformers",
        pipeline_tag=task,
        tags=["bert", "podium", *tags],
        model_name=facts.title,
        eval_results=[EvalResult(**{**shared, **result}) for result in results],
    )
    return data.to_dict()


def _base_name(facts: CardFacts) -> str | None:
    return facts.base_model or (facts.provenance["base_model"] or {}).get("repository")


def interval_of(metrics: Mapping[str, Any], name: str) -> str:
    """The 95% interval of a metric, in words.

    Raises:
        PublishError: a bound is no finite number.
    """
    if metrics.get(f"{name}_low") is None or metrics.get(f"{name}_high") is None:
        return "not measured"
    low, high = (finite(metrics[f"{name}_{end}"], f"{name}_{end}") for end in ("low", "high"))
    return f"{low:.2f} to {high:.2f}"


def percentage(metrics: Mapping[str, Any], name: str) -> float:
    """A percentage of the metrics, rounded to four decimals.

    Raises:
        PublishError: it is not there, not finite, or outside 0 to 100.
    """
    if name not in metrics:
        raise PublishError(f"the metrics have no {name}: run the stage evaluate again; nothing was published")
    value = finite(metrics[name], f"{name} of the metrics")
    if not 0 <= value <= 100:
        raise PublishError(f"{name}={value} of the metrics must be a percentage between 0 and 100")
    return round(value, 4)


def evaluated_on(facts: CardFacts, examples: str) -> tuple[str, str]:
    """Readable name and identifier of the files or the data set that scores were measured on.

    Args:
        facts: what is known of the release.
        examples: what they hold, such as questions.
    """
    data, own = facts.own["data"], f"own {examples}"
    given = facts.entry.params.data
    if isinstance(given, OwnDataParams) and given.dev_is_apart:
        whole = facts.data_name or (data["dataset"] if data["source"] == "hub" else own)
        name = own if whole == WITHHELD else whole
        return f"{given.dev_fraction:g} of {name}, set apart from training with seed {given.seed}", own.replace(
            " ", "-"
        )
    if facts.data_name:
        return facts.data_name, own.replace(" ", "-")
    if data["source"] == "hub" and data["dataset"] != WITHHELD:
        return str(data["dataset"]), str(data["dataset"])
    known = data["source"] == "files" and data["dev_path"] != WITHHELD
    return f"{own} ({data['dev_path']})" if known else own, own.replace(" ", "-")


def _trainings(facts: CardFacts, tuning: str) -> list[dict[str, str]]:
    """A line for each training behind the release."""
    parameters, lines = facts.parameters, []
    for phase in facts.phases:
        values, length = parameters["pretrain"][phase], parameters["pretrain_rows"][phase]["row_length"]
        stage = f"{phase}: masked tokens and next sentence, rows of {length} tokens"
        lines.append(_training(facts, stage, f"{values['steps']:,}", values, f"pretrain-{phase}", phase))
    training = job_name(facts.entry.name, "finetune")
    values, steps = facts.own["finetune"], facts.provenance["training"].get(training, {}).get("steps")
    updates = f"{values['epochs']:g} epochs" + ("" if steps is None else f", {steps:,}")
    stage = f"{tuning}, rows of {facts.own['rows']['row_length']} tokens"
    return [*lines, _training(facts, stage, updates, values, training, f"{facts.entry.name}-train")]


def _training(
    facts: CardFacts, stage: str, updates: str, values: Mapping[str, Any], training: str, rows: str
) -> dict[str, str]:
    """Cells of the table; runtime and final loss where the training recorded them."""
    counts = facts.provenance["data"]["rows"].get(rows, {})
    data = "not recorded"
    if "sequences" in counts and "real_tokens" in counts:
        data = f"{counts['sequences']:,} sequences, {counts['real_tokens']:,} tokens"
    done = facts.provenance["training"].get(training, {})
    if done.get("final_loss") is not None:
        data += f"; final loss {done['final_loss']:.4f}"
    if "runtime" in done and "precision" in done:
        data += f" ({done['runtime']}, {done['precision']})"
    batch, rate = str(values["global_batch_size"]), f"{values['learning_rate']:g}"
    return {"stage": stage, "updates": updates, "batch": batch, "rate": rate, "data": data}


def _optimizers(facts: CardFacts) -> str:
    parameters, tune = facts.parameters, facts.own["finetune"]
    tuning = f"{tune['optimizer']} for fine-tuning ({SCHEDULES[tune['schedule']]})"
    if not facts.phases:
        return tuning
    phases = [SCHEDULES[parameters["pretrain"][phase]["schedule"]] for phase in facts.phases]
    decay = ", then ".join(dict.fromkeys(phases))
    return f"{parameters['pretrain']['optimizer']} for pre-training ({decay}), {tuning}"


def _verdicts(found: Mapping[str, Mapping[str, Any]]) -> str:
    failed = [name for name, verdict in found.items() if verdict["valid"] is not True]
    if not found:
        return "not recorded"
    said = f"{len(found) - len(failed)} of {len(found)} data sets valid"
    return f"{said} (not valid: {', '.join(failed)})" if failed else said


def finite(value: Any, name: str) -> float:
    """`value` as a python float.

    Raises:
        PublishError: it is no number, or not a finite one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PublishError(f"{name}={value!r} must be a finite number: run the evaluation again; nothing was published")
    return float(value)
