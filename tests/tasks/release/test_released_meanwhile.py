"""Publish replaces the release that the gate compared with, and no other: in a folder, on a Hub, and in review."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ipu_model.core.files import exclusive_lock, read_json, sha256_of, write_json
from tasks.downstream.inference.predict_released import predict_released
from tasks.params.entries import find_entry
from tasks.params.schema import load_params
from tasks.stage import artifacts
from tasks.stage.errors import GateRejected, PublishError
from tests.hub_server import HubServer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import NAME, commits, merge, open_requests, repository
from tests.tasks.release.released_checkout import fetch_here, publish_here, state
from tests.tasks.trained_checkout import write_gate, write_model

FOLDER = "published/podium-demo"


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> list[Path]:
    """Two runs with weights of their own that publish to one folder, and that no one judged yet."""
    found = []
    for seed in (0, 1):
        root = Path(shutil.copytree(trained, tmp_path / f"run{seed}"))
        shutil.rmtree(root / "models/squad")
        write_model(root, seed)
        state(root, {"publish": {"folder": f"../out/{FOLDER}"}})
        found.append(root)
    return found


@pytest.fixture
def on_hub(runs: list[Path], hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The same, and they publish to one repository."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    for root in runs:
        state(root, target="hub")
    return runs


@pytest.fixture
def in_review(on_hub: list[Path]) -> list[Path]:
    """The same, both judged; the first waits for review."""
    state(on_hub[0], target="hub", review=True)
    for root in on_hub:
        judge(root)
    return on_hub


def judge(root: Path, **how: Any) -> None:
    """Fetch what is out, score it, and let the gate compare with it."""
    params = load_params(root / artifacts.PARAMS)
    fetch_here(root, **how)
    predict_released(find_entry(params, "squad"), params.device, root)
    write_gate(root)
    assert read_json(root / "metrics/squad-gate.json")["accepted"]


def test_a_release_that_the_gate_did_not_compare_with_is_not_replaced(runs: list[Path], tmp_path: Path) -> None:
    first, second = runs
    judge(first)
    judge(second)
    tag = publish_here(second)["tag"]
    with pytest.raises(PublishError, match=f"{tag} in .*{FOLDER} was released meanwhile.* with no release"):
        publish_here(first)
    weights = tmp_path / "out" / FOLDER / "model.safetensors"
    assert sha256_of(weights) == sha256_of(second / "models/squad/model.safetensors")
    assert not (first / "reports/publish-squad.json").exists()
    assert {path.name for path in weights.parent.parent.iterdir()} == {"podium-demo", "podium-demo.releases"}
    judge(first)
    assert publish_here(first)["unchanged"] is False, "run again, it may"
    assert sha256_of(weights) == sha256_of(first / "models/squad/model.safetensors")
    with pytest.raises(PublishError, match="was released meanwhile"):
        publish_here(second)


def test_what_the_gate_did_not_see_is_compared_where_it_is_published(runs: list[Path], tmp_path: Path) -> None:
    """As by a worker, or by plain `dvc repro`: nothing was fetched."""
    first, second = runs
    for root in runs:
        change_parameters(root, {"downstream": {"squad": {"gate": {"above_baseline": False, "min_exact_match": None}}}})
        judge(root, these=[])
        assert "the gate could not see its target" in read_json(root / "metrics/squad-gate.json")["compared"]
    tag = publish_here(first)["tag"]
    folder = tmp_path / "out" / FOLDER
    assert "as its target has no other model." in (folder / "README.md").read_text()
    assert publish_here(first)["unchanged"] is True
    answer(second, q1="a river", q2="hills")
    with pytest.raises(
        GateRejected, match="(?s)the gate did not see .*F1 dropped significantly against the released model"
    ):
        publish_here(second)
    examples = second / artifacts.examples_file("squad", "dev")
    rows = pq.read_table(examples)
    pq.write_table(rows.set_column(0, "id", pa.array(["q1", "q3"])), examples)
    answer(second, q1="northern hills", q3="a lake")
    with pytest.raises(PublishError, match=f"^{tag} in .* does not state scores of these questions"):
        publish_here(second)
    pq.write_table(rows, examples)
    answer(second, q1="northern hills", q2="a lake")
    assert publish_here(second)["unchanged"] is False
    assert f"It was compared with {tag}, by the scores of that release." in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("released", "compared"),
    [
        ("none", "not compared with a released model, as downstream.squad.gate.released is none"),
        ("inputs/released", "not compared with a released model, as downstream.squad.gate.released has no scores"),
    ],
)
def test_a_gate_that_does_not_ask_for_what_was_published_replaces_what_is_there_and_says_so(
    runs: list[Path], tmp_path: Path, released: str, compared: str
) -> None:
    for root in runs:
        change_parameters(root, {"downstream": {"squad": {"gate": {"released": released}}}})
        write_gate(root)
        assert read_json(root / "metrics/squad-gate.json")["compared"] == compared
    assert [publish_here(root)["unchanged"] for root in runs] == [False, False]
    assert f"It was {compared}." in (tmp_path / "out" / FOLDER / "README.md").read_text()


def test_two_that_publish_at_the_same_moment_take_turns_and_the_second_is_refused(
    runs: list[Path], tmp_path: Path
) -> None:
    for root in runs:
        judge(root)
    answers: Any = multiprocessing.get_context("fork").SimpleQueue()

    def answer(root: Path) -> None:
        try:
            answers.put(publish_here(root)["tag"])
        except PublishError as error:
            answers.put(str(error))

    with exclusive_lock(tmp_path / "out/published/.podium-demo.lock"):  # both have judged, and wait for the folder
        processes = [multiprocessing.get_context("fork").Process(target=answer, args=(root,)) for root in runs]
        for process in processes:
            process.start()
        assert answers.empty()
    for process in processes:
        process.join()
    said = sorted((answers.get() for _ in runs), key=len)
    assert said[0].startswith("release-")
    assert said[1].startswith(f"{said[0]} in ")
    assert {path.name for path in (tmp_path / "out/published").iterdir()} == {"podium-demo", "podium-demo.releases"}


def test_on_a_hub_too(on_hub: list[Path], hub: HubServer) -> None:
    first, second = on_hub
    judge(first)
    judge(second)
    tag = publish_here(second)["tag"]
    with pytest.raises(PublishError, match=f"^{tag} of {NAME} was released meanwhile; .* with no release"):
        publish_here(first)
    assert len(commits(hub)) == 1
    assert list(repository(hub).tags) == [tag]
    judge(first)
    assert publish_here(first)["unchanged"] is False
    assert publish_here(first)["unchanged"] is True
    with pytest.raises(PublishError, match=f"of {NAME} was released meanwhile"):
        publish_here(second)


def answer(root: Path, **texts: str) -> None:
    """Other answers to the questions."""
    write_json(root / artifacts.predictions_file("squad"), texts)
    write_gate(root)


@pytest.mark.parametrize("tagged", [True, False])
def test_a_release_that_lands_between_the_look_and_the_commit_is_not_replaced(
    on_hub: list[Path], hub: HubServer, monkeypatch: pytest.MonkeyPatch, tagged: bool
) -> None:
    from tasks.release.hub import transaction

    first, second = on_hub
    judge(first)
    judge(second)
    real, sent = transaction.send, []

    def send(*words: Any, **options: Any) -> Any:
        sent.append(words)
        if len(sent) == 1:
            publish_here(second)
            if not tagged:
                repository(hub).tags.clear()
        return real(*words, **options)

    monkeypatch.setattr(transaction, "send", send)
    with pytest.raises(PublishError, match="was released meanwhile" if tagged else "which has no tag yet"):
        publish_here(first)
    assert len(commits(hub)) == 1
    monkeypatch.undo()


def test_review_proposes_and_tags_in_the_place_of_what_was_compared_with_alone(
    in_review: list[Path], hub: HubServer
) -> None:
    first, second = in_review
    assert publish_here(first)["pull_request"] == 1
    tag = publish_here(second)["tag"]
    with pytest.raises(PublishError, match=f"^{tag} of {NAME} was released meanwhile"):
        publish_here(first)
    assert open_requests(hub) == [1]


def test_a_pull_request_that_was_merged_over_a_release_is_not_tagged_before_it_was_compared_with_it(
    in_review: list[Path], hub: HubServer
) -> None:
    first, second = in_review
    tag = publish_here(second)["tag"]
    target = repository(hub)
    main = target.branches["main"]
    target.branches["main"] = target.history()[0].oid  # the request is made before that release
    tags = dict(target.tags)
    target.tags.clear()
    publish_here(first)
    proposed = target.resolve("refs/pr/1")
    target.branches["main"] = main
    target.tags |= tags
    merged = hub.store.commit(target, "main", dict(proposed.tree), (), None, f"{proposed.title} (#1)")
    target.branches["refs/pr/1"] = merged.oid
    merge(hub, 1)
    with pytest.raises(PublishError, match=f"^{tag} of {NAME} was released meanwhile"):
        publish_here(first)
    assert list(target.tags) == [tag]
