"""A gate over several seeds: it judges the recipe, says which model this is, and takes no reason against it away."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ipu_model.core.files import read_json, sha256_of, write_json, write_text
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.recipe import SeedModel, check_recipe, recipe_record, score_recipe, seed_file_name
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.gate.verdict_text import format_recipe
from tasks.downstream.squad.params import SquadGateParams
from tasks.params.entries import find_entry
from tasks.params.schema import load_params, parameter_values
from tasks.release.publish import publish
from tasks.stage import artifacts
from tasks.stage.errors import InputError, PublishError
from tests.tasks.downstream.entries import change_parameters, part_of, task_with
from tests.tasks.trained_checkout import make_glue_checkout, write_gate

ENTRY = "glue-sst2"
SEEDS = Path("inputs/seeds")
OWN = 42
"""The seed of the model in the checkout, which has 18 of 20 right."""
VERDICT = artifacts.metrics_file(ENTRY, "gate")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkout whose gate is told of two other seeds, with 17 and 19 of 20 right."""
    root = make_glue_checkout(tmp_path_factory.mktemp("made") / "checkout")
    change_parameters(root, {"downstream": {ENTRY: {"gate": {"seeds": str(SEEDS), "min_score": 80.0}}}})
    change_recipe(root)
    write_seed(root, 44, wrong=1)
    write_gate(root, name=ENTRY)
    return root


@pytest.fixture
def root(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "checkout"))


def scores_of(root, wrong):
    task = part_of(find_entry(load_params(root / artifacts.PARAMS), ENTRY), "scores")
    answers = [number % 2 if number < 20 - wrong else 1 - number % 2 for number in range(20)]
    _, examples = task.read_all(root)
    return json.loads(scores_json(task, examples, {"dev": answers}))


def write_seed(root, number, wrong=3, **changed):
    write_json(root / SEEDS / seed_file_name(number), {**scores_of(root, wrong), **changed})


def decide(root, **limits):
    """The verdict, and its reasons, which are none if it is accepted."""
    change_parameters(root, {"downstream": {ENTRY: {"gate": limits}}})
    decision = gate(parameter_values(load_params(root / artifacts.PARAMS)), ENTRY, root)
    assert decision["accepted"] is (not decision["reasons"])
    return read_json(root / VERDICT), decision["reasons"]


def test_the_verdict_states_every_seed_the_mean_the_deviation_the_interval_and_which_model_this_is(root):
    verdict, reasons = decide(root)
    assert not reasons
    seeds = [(seed["seed"], seed["this_model"], seed["accuracy"]) for seed in verdict["seeds"]]
    assert seeds == [(42, True, 90.0), (43, False, 85.0), (44, False, 95.0)]
    accuracy = verdict["recipe"][0]
    assert (accuracy["metric"], accuracy["mean"], accuracy["deviation"]) == ("accuracy", 90.0, 5.0)
    assert accuracy["low"] < 85
    assert accuracy["high"] == 100, "no score is above that"
    assert {f"seeds/seed-{seed}.json" for seed in (43, 44)} <= set(verdict["judged"])
    write_seed(root, OWN, wrong=0)
    verdict, reasons = decide(root, seeds=None)
    assert not reasons
    assert not {"seeds", "recipe", "chosen_by"} & set(verdict)
    assert [name for name in verdict["judged"] if "seed" in name] == []
    assert [check["name"] for check in verdict["checks"] if "recipe" in check["name"]] == []
    assert format_recipe(verdict, published=True) is None


@pytest.mark.parametrize(
    ("wrong", "floor", "reason"),
    [
        (0, 90.0, None),
        (12, 80.0, r"Score of the recipe is 75\.00 .*42: 90\.00, 43: 40\.00, 44: 95\.00\).* of 80"),
        (0, 91.0, r"Score is 90\.00"),  # however good its recipe is
        # The model itself is above a constant answer: 90 against 50. Of three between 25 and 95 no more is known.
        (15, None, "Score of the recipe is no better .*over 3 seeds at confidence 0.95. .*a gain must"),
    ],
)
def test_the_model_and_its_recipe_have_the_same_floors(root, wrong, floor, reason):
    write_seed(root, 43, wrong)
    _, reasons = decide(root, min_score=floor)
    assert bool(reasons) is (reason is not None)
    assert re.match(reason or "", (reasons or [""])[0])


def held_out(figure, value):
    return {} if value is None else {"held_out": {"judged_by": figure, figure: value}}


@pytest.mark.parametrize(
    ("figure", "own", "others", "chosen", "reason"),
    [
        ("accuracy", 0.8, (0.8, 0.75), "accuracy", None),  # one as good is not better
        ("accuracy", 0.8, (0.8, 0.81), "accuracy", r"seed 42, accuracy 80\.00 %.* seed 44 has 81\.00 %"),
        ("loss", 0.5, (0.4, 0.6), "loss", r"seed 42, loss 0\.5000 .* seed 43 has 0\.4000"),
        ("accuracy", 0.1, (0.9, None), None, None),  # what is not known of all chooses nothing
    ],
)
def test_the_model_must_be_the_best_of_its_recipe_on_held_out_examples(root, figure, own, others, chosen, reason):
    path = root / artifacts.metrics_file(ENTRY, "finetune")
    write_json(path, {**read_json(path), **held_out(figure, own)})
    for number, wrong, value in zip((43, 44), (3, 1), others, strict=True):
        write_seed(root, number, wrong, **held_out(figure, value))
    verdict, reasons = decide(root)
    assert [re.search(reason or "", text) is not None for text in reasons] == [True] * (reason is not None)
    assert verdict["chosen_by"] == chosen
    assert verdict["seeds"][1].get("held_out") == {figure: others[0]}
    assert (format_recipe(verdict, published=False) or "").endswith("best held-out") is (chosen is not None)


def change_scores(change):
    def spoil(root):
        scores = scores_of(root, 3)["scores"]
        write_seed(root, 43, scores={**scores, "dev": change(scores["dev"])})

    return spoil


def same_weights(root):
    write_seed(root, 43, weights_sha256=sha256_of(root / artifacts.model_folder(ENTRY) / "model.safetensors"))


def change_recipe(root, **changed):
    finetune = load_params(root / artifacts.PARAMS).downstream[ENTRY].finetune.model_dump(mode="json")
    write_seed(root, 43, finetune={**finetune, **changed})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: write_seed(root, OWN, wrong=2), r"seed-42\.json has seed 42"),
        (same_weights, "seeds 42 and 43 are"),
        (change_scores(lambda dev: dict(sorted(dev.items())[1:])), r"seed-43\.json lacks .* 1 of 20 dev"),
        (change_scores(lambda dev: {key: [*row, 0.5] for key, row in dev.items()}), r"required is a SHA-256 with"),
        (lambda root: write_text(root / SEEDS / "seed-43.json", '{"scores": '), r"seed-43\.json has no scores"),
        (lambda root: write_text(root / SEEDS / "scores.json", "{}"), r"scores\.json.* seed-43\.json"),
        (lambda root: write_seed(root, 43, seed=44), r"seed-43\.json records seed 44"),
        (lambda root: write_seed(root, 43, held_out={"judged_by": "f1"}), "invalid held-out"),
        (lambda root: change_recipe(root, learning_rate=1e-5), "recipe: learning_rate 1e-05"),
        (lambda root: [path.unlink() for path in (root / SEEDS).iterdir()], r"contains no file like seed-43\.json"),
        (lambda root: shutil.rmtree(root / SEEDS), r"gate\.seeds='.*' does not exist"),
    ],
)
def test_what_is_no_other_seed_is_refused_by_its_file(root, spoil, message):
    (root / VERDICT).unlink()
    spoil(root)
    with pytest.raises(InputError, match=message):
        decide(root)
    assert not (root / VERDICT).exists()


def published(root):
    return publish(parameter_values(load_params(root / artifacts.PARAMS)), ENTRY, root)


def test_the_card_says_what_the_recipe_scored_and_which_seed_was_published(root):
    folder = root / published(root)["folder"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert re.search(r"recipe over 3 seeds: accuracy 90\.00 \([^)]*\), .*; published: seed 42\.", card)
    assert "| 42 (this model) | unknown | 90.00 | 90.00 |\n| 43 | unknown | 85.00 | 85.00 |\n" in card
    recorded = read_json(folder / "provenance.json")["parameters"]["downstream"][ENTRY]["gate"]
    assert str(SEEDS) not in recorded.values(), "the name of the folder is the user's"


def change_mean(root):
    verdict = read_json(root / VERDICT)
    verdict["recipe"][0]["mean"] = 99.0
    write_json(root / VERDICT, verdict)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write_seed(root, 43, wrong=2),
        lambda root: write_seed(root, 45, wrong=2),
        lambda root: (root / SEEDS / seed_file_name(44)).unlink(),
        change_mean,
    ],
    ids=["other scores", "another seed", "one less", "another mean"],
)
def test_what_was_changed_after_the_verdict_is_not_published(root, change):
    change(root)
    with pytest.raises(PublishError, match="seeds/seed-4|differs from the checks of the evidence: recipe"):
        published(root)
    assert not (root / "published").exists()


def answered(right):
    """Outcomes of questions: exact match and F1 alike."""
    return {"dev": np.stack([right, right], axis=1)}


@pytest.mark.parametrize(("wrong", "accepted"), [((30, 31, 32), False), ((11, 31, 60), True)])
def test_a_recipe_that_fell_against_the_released_model_is_rejected_and_seeds_that_differ_say_less(wrong, accepted):
    limits = SquadGateParams(min_f1=None, max_f1_drop=0.0, max_exact_match_drop=0.0)
    task, released = task_with("squad", "scores", gate=limits), answered([1.0] * 90 + [0.0] * 10)
    models = [SeedModel(seed, answered([1.0] * (100 - seed) + [0.0] * seed), None, None) for seed in wrong]
    recipe = score_recipe(task, models, models[0], released, [])
    failed = [check.reason for check in check_recipe(task, recipe) if not check.ok]
    assert (not failed) is accepted, failed
    assert all(re.match("(Exact match|F1) of the recipe .*over 3 seeds on 100 questions", text) for text in failed)


def test_only_scores_that_are_numbers_and_answers_that_both_gave_are_compared():
    task = task_with("squad", "scores", gate=SquadGateParams(min_f1=0.0))

    def scored(ours, theirs):
        models = [SeedModel(seed, answered(ours), None, None) for seed in (1, 2)]
        recipe = score_recipe(task, models, models[0], answered(theirs), [])
        json.dumps(recipe_record(task, recipe), allow_nan=False)
        return recipe.evidence.released, {check.name: check for check in check_recipe(task, recipe)}

    released, _ = scored([1.0, 1.0, 0.0, 0.0], [1.0, 0.0, np.nan, np.nan])
    assert (released.common, released.differences["f1"].mean) == (2, 50.0)
    released, checks = scored([np.nan, 1.0], [np.nan] * 2)
    assert released is None
    assert [name for name in checks if "released" in name] == []
    assert (checks["recipe_f1"].ok, checks["recipe_f1"].found) == (False, "nan")
