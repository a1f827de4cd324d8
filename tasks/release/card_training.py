"""What a model card is written from, and what it says of training: the weights it began with, every training since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.pages.markup import markdown_code, markdown_text

SCHEDULES = {
    "linear": "linear decay", "cosine": "cosine decay", "square_root": "decay by the square root of what is left",
    "constant": "constant rate",
}  # fmt: skip


@dataclass(frozen=True)
class CardFacts:
    """What the card is written from; plain values, as the files of the run hold them."""

    name: str
    """Where the model is loaded from: a Hub repository, or "." for the folder that holds the card."""
    license: str
    language: str
    parameters: Mapping[str, Any]
    """What a release says of params.yaml."""
    metrics: Mapping[str, Any]
    """metrics/squad.json."""
    gate: Mapping[str, Any]
    """metrics/gate.json."""
    config: Mapping[str, Any]
    """config.json of the model."""
    provenance: Mapping[str, Any]
    data_name: str | None = None
    """How the user calls the questions."""
    examples: bool = False
    """Whether predictions and the evaluation's page are published, too."""


def trained_how(facts: CardFacts) -> str:
    """From which weights and by which trainings, in words."""
    base, own = base_name(facts), facts.parameters["pretrain"]["enabled"]
    if base is None and own:
        return "pre-trained in two phases and fine-tuned"
    if base is None:
        return "fine-tuned from random weights, without pre-training,"
    return f"started from {base}, {'pre-trained further in two phases and ' if own else ''}fine-tuned"


def base_name(facts: CardFacts) -> str | None:
    """The model that training started from; None: untrained weights."""
    base = facts.provenance["base_model"] or {"source": "none"}
    if base["source"] == "none":
        return None
    if base["source"] == "hub":
        return f"{markdown_code(base['repository'])} (commit {markdown_text(base['commit'])})"
    return f"a given model, {markdown_code(base['folder'])}"


def hub_base(facts: CardFacts) -> str | None:
    """The Hub's name of the model that training started from, where it is one of the Hub."""
    base = facts.provenance["base_model"] or {}
    return base.get("repository")


def training_section(facts: CardFacts, section: str, what: str, rows_section: str, rows: str) -> str:
    """All trainings behind the release as a table.

    Args:
        section: of params.yaml that says how the model was fine-tuned.
        what: this fine-tuning, in words.
        rows_section: of params.yaml that says how long its rows are.
        rows: name of these rows in the provenance.
    """
    parameters = facts.parameters
    lines = ["| stage | updates | sequences per update | peak learning rate | data |", "|---|---|---|---|---|"]
    if parameters["pretrain"]["enabled"]:
        for phase in ("phase1", "phase2"):
            values = parameters["pretrain"][phase]
            length = parameters["pretrain_rows"][phase]["row_length"]
            lines.append(
                f"| {phase}: masked tokens and next sentence, rows of {length} tokens | {values['steps']:,} | "
                f"{_batch_and_data(facts, values, f'pretrain-{phase}', phase)} |"
            )
    tune, training = parameters[section], _fine_tuning(facts)
    steps = facts.provenance["training"].get(training, {}).get("steps")
    updates = f"{tune['epochs']:g} epochs" + ("" if steps is None else f", {steps:,}")
    lines.append(
        f"| {what}, rows of {parameters[rows_section]['row_length']} tokens | {updates} | "
        f"{_batch_and_data(facts, tune, training, rows)} |"
    )
    optimizers = f"{tune['optimizer']} for fine-tuning ({SCHEDULES[tune['schedule']]})"
    if parameters["pretrain"]["enabled"]:
        phases = [SCHEDULES[parameters["pretrain"][phase]["schedule"]] for phase in ("phase1", "phase2")]
        decay = ", then ".join(dict.fromkeys(phases))
        optimizers = f"{parameters['pretrain']['optimizer']} for pre-training ({decay}), {optimizers}"
    return "## Training\n\n" + "\n".join(lines) + f"\n\nOptimizer: {optimizers}, after a linear warm-up."


def _fine_tuning(facts: CardFacts) -> str:
    """Name of the fine-tuning among the trainings of the provenance."""
    return next((name for name in facts.provenance["training"] if name.endswith("finetune")), "finetune")


def _batch_and_data(facts: CardFacts, values: Mapping[str, Any], training: str, rows: str) -> str:
    """The cells after the updates; runtime and final loss where the training recorded them."""
    counts = facts.provenance["data"]["rows"].get(rows, {})
    data = "not recorded"
    if "sequences" in counts and "real_tokens" in counts:
        data = f"{counts['sequences']:,} sequences, {counts['real_tokens']:,} tokens"
    done = facts.provenance["training"].get(training, {})
    if done.get("final_loss") is not None:
        data += f"; final loss {done['final_loss']:.4f}"
    if "runtime" in done and "precision" in done:
        data += f" ({markdown_text(done['runtime'])}, {markdown_text(done['precision'])})"
    return f"{values['global_batch_size']} | {values['learning_rate']:g} | {data}"
