"""Names of releases, in a folder and on a Hub over HTTP: promoted, rolled back, interrupted, given twice at a time."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ipu_model.core.files import sha256_of
from tasks.release.hub.name_tags import HubReleases
from tasks.release.hub.newest import newest_releases
from tasks.release.hub.transaction import release_on_hub
from tasks.release.names import FolderReleases, NamedReleases, find_named
from tasks.release.release import PROVENANCE, ComparedRelease, Release, folder_hashes, release_file, write_folder
from tasks.stage.errors import ParamsError, PublishError
from tests.hub_server import HubServer
from tests.places import ROOT
from tests.podium_here import call_podium
from tests.tasks.release.hub_publishing import NAME, commits, publish_small, repository, small_release

DAY = datetime(2026, 1, 1, 12).timestamp()
"""On which all releases of a target were published, as the Hub says it."""


class Target(NamedTuple):
    publish: Callable[[str], str]
    """Makes a release of a text; its tag."""
    open: Callable[[], NamedReleases]


@pytest.fixture(params=["folder", "hub"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "hub":
        request.getfixturevalue("hub")
        return Target(on_hub, lambda: HubReleases(NAME))

    def publish(text: str) -> str:
        release = in_folder(text)
        write_folder(release, tmp_path / "demo")
        os.utime(tmp_path / "demo/provenance.json", (DAY, DAY))
        return release.tag

    return Target(publish, lambda: FolderReleases(tmp_path / "demo"))


def on_hub(text: str) -> str:
    return str(publish_small(text).tag)


def in_folder(text: str) -> Release:
    return Release({**small_release(text).files, "provenance.json": release_file(b'{"podium": {}}')})


def test_a_name_moves_forth_and_back_and_its_history_stays(target: Target) -> None:
    one = target.publish("one")
    assert target.open().promote(None) == (one, None)
    two = target.publish("two")
    assert target.open().promote(None) == (two, one)
    assert target.open().promote(two) == (two, two)  # nothing to do: no record
    assert target.open().rollback() == (one, two)
    assert target.open().history("champion") == [one, two, one]
    assert target.open().rollback() == (two, one)
    three = target.publish("three")
    assert target.open().promote(three) == (three, two)
    assert target.open().rollback() == (two, three)
    assert target.open().promote(one, "second-best") == (one, None)
    listed = {release.tag: release for release in target.open().describe()}
    assert list(listed)[0] == three
    names = {three: [], two: ["champion"], one: ["second-best"]}
    assert {tag: release.names for tag, release in listed.items()} == names
    assert {release.published for release in listed.values()} == {"2026-01-01"}


def test_what_was_published_before_can_be_had_back_without_a_promotion(target: Target) -> None:
    one = target.publish("one")
    with pytest.raises(PublishError, match=f"no release before {one}"):
        target.open().rollback()
    with pytest.raises(ParamsError, match=f"release-1.*{one}"):
        target.open().promote("release-1")
    two = target.publish("two")
    with pytest.raises(ParamsError, match="champoin; did you mean champion"):
        target.open().rollback("champoin")
    assert target.open().rollback() == (one, two)
    assert target.open().history("champion") == [one]


def promote_in_process(folder: Path, tag: str) -> None:
    with contextlib.suppress(PublishError):
        FolderReleases(folder).promote(tag)


def test_promotions_of_several_processes_end_with_name_and_record_equal(tmp_path: Path) -> None:
    releases, folder = [in_folder(text) for text in "abcde"], tmp_path / "demo"
    context = multiprocessing.get_context("fork")
    for release in releases:
        write_folder(release, folder)
    for _ in range(8):
        started = [context.Process(target=promote_in_process, args=(folder, release.tag)) for release in releases]
        for process in started:
            process.start()
        for process in started:
            process.join()
        names = FolderReleases(folder).names()
        assert names["champion"] == find_named(names)


def test_names_of_releases_and_records_are_refused(target: Target) -> None:
    target.publish("one")
    for name in ("main", "release-000000000000", "champion-0001", "Champion", "../x", ""):
        with pytest.raises(ParamsError, match="lower-case letters"):
            target.open().promote(None, name)


def test_of_two_promotions_at_the_same_time_the_second_is_refused(target: Target) -> None:
    target.open().promote(target.publish("one"))
    names, two = target.open().names(), target.publish("two")
    target.open().promote(two)
    three, late = target.publish("three"), target.open()
    late.names = lambda: names  # type: ignore[method-assign]  # it read them before the other promotion
    with pytest.raises(PublishError, match="given to another release meanwhile"):
        late.promote(three)
    assert target.open().history("champion")[-1] == two


def test_a_promotion_that_a_newer_one_overtook_says_so(hub: HubServer) -> None:
    """Both created their records; the older one replaces the name last, and does not know the other's release yet."""
    one, two, newer = on_hub("one"), on_hub("two"), list[str]()
    HubReleases(NAME).promote(one)
    late, replace = HubReleases(NAME), HubReleases.replace

    def overtaken(name: str, release: str) -> None:
        newer.append(on_hub("three"))
        HubReleases(NAME).promote(newer[-1])
        replace(late, name, release)

    late.replace = overtaken  # type: ignore[method-assign]
    with pytest.raises(PublishError, match="was given to release-[0-9a-f]+ meanwhile") as raised:
        late.promote(two)
    assert newer[-1] in str(raised.value)
    assert HubReleases(NAME).names()["champion"] == repository(hub).tags[newer[-1]]


def test_a_tag_made_by_hand_and_a_kept_release_that_changed_are_refused(hub: HubServer, tmp_path: Path) -> None:
    one, tags = publish_small("one"), repository(hub).tags
    tags["stable"] = str(one.commit)
    with pytest.raises(PublishError, match="tag stable "):
        HubReleases(NAME).promote(None, "stable")
    tags[str(one.tag)] = str(publish_small("two").commit)
    with pytest.raises(PublishError, match=f"{one.tag} of {NAME} was changed after it was published"):
        HubReleases(NAME).promote(str(one.tag))
    names = FolderReleases(tmp_path / "demo")
    for text in ("one", "two"):
        write_folder(in_folder(text), names.folder)
        names.promote(None)
    (names.kept / in_folder("one").tag / "evaluation/metrics.json").write_text("better")
    with pytest.raises(PublishError, match="was changed"):
        names.rollback()


@pytest.mark.parametrize("request_", ["DELETE", "POST"])
def test_a_promotion_that_died_between_its_requests_counts_and_is_mended(hub: HubServer, request_: str) -> None:
    one, two = publish_small("one"), publish_small("two")
    HubReleases(NAME).promote(one.tag)
    hub.fault(request_, "/tag/", times=99, after=request_ == "POST", status=401)
    with pytest.raises(PublishError, match="the same command mends it"):
        HubReleases(NAME).promote(two.tag)
    hub.faults.clear()
    tags = repository(hub).tags
    assert tags.get("champion") == (one.commit if request_ == "DELETE" else None)
    assert tags["champion-0002"] == two.commit
    assert HubReleases(NAME).history("champion")[-1] == two.tag  # readers go by the record
    assert newest_releases(NAME, "publish.repository", 1)[0].commit == two.commit
    assert HubReleases(NAME).promote(two.tag) == (two.tag, two.tag)
    assert tags["champion"] == two.commit
    assert {*tags} == {"champion", "champion-0001", "champion-0002", str(one.tag), str(two.tag)}


def test_an_unsigned_release_does_not_replace_a_signed_one(hub: HubServer, tmp_path: Path) -> None:
    signed = Release({**in_folder("one").files, "model.sig": release_file(b"signature")})
    write_folder(signed, tmp_path / "demo")
    release_on_hub(signed, NAME, private=True)
    before = folder_hashes(tmp_path / "demo"), commits(hub)
    for publish_unsigned in (lambda: write_folder(in_folder("two"), tmp_path / "demo"), lambda: publish_small("two")):
        with pytest.raises(PublishError, match="signed release, .*publish.signing=key"):
            publish_unsigned()
    assert (folder_hashes(tmp_path / "demo"), commits(hub)) == before


def test_gates_compare_with_the_champion_and_publish_refuses_another(hub: HubServer) -> None:
    one, two = publish_small("one"), publish_small("two")
    assert [newest.tag for newest in newest_releases(NAME, "key", 2)] == [two.tag, one.tag]
    HubReleases(NAME).promote(one.tag)
    assert [newest.tag for newest in newest_releases(NAME, "key", 2)] == [one.tag, two.tag]
    compared = ComparedRelease(two.tag, two.commit, "0" * 64)
    with pytest.raises(PublishError, match=f"champion of {NAME} was released meanwhile"):
        release_on_hub(small_release("three"), NAME, private=True, compared=compared)
    compared = ComparedRelease(one.tag, one.commit, "0" * 64)
    assert release_on_hub(small_release("three"), NAME, private=True, compared=compared).tag


def test_a_folder_compares_with_its_champion(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    write_folder(in_folder("one"), folder)
    names = FolderReleases(folder)
    assert (names.named_release(), names.find_other_champion()) == (None, None)
    names.promote(None)
    assert names.find_other_champion() is None
    write_folder(in_folder("two"), folder)
    champion = names.named_release()
    assert champion == tmp_path / "demo.releases" / in_folder("one").tag
    weights, other = (small_release(text).files["model.safetensors"].sha256 for text in ("one", "two"))
    assert sha256_of(champion / "model.safetensors") == weights
    with pytest.raises(PublishError, match="was released meanwhile"):
        write_folder(in_folder("three"), folder, ComparedRelease("release-1", None, other), champion)
    assert write_folder(in_folder("three"), folder, ComparedRelease("release-0", None, weights), champion)
    (folder / PROVENANCE).write_text("{}")
    (champion / PROVENANCE).write_text('{"other": 1}')
    assert names.find_other_champion() == champion.name


def test_the_commands_of_the_documents(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def podium(words: str = "", name: str = f" {NAME}") -> Any:
        done = call_podium("--project", str(ROOT), *f"releases {words}{name}".split())
        return done.stdout + done.stderr

    one, two = on_hub("one"), on_hub("two")
    unknown = podium(f"promote {NAME} release-0123456789ab --as fallback", "")
    assert "has no release release-0123456789ab" in unknown
    podium(f"promote {NAME} {one}", "")
    promoted = podium("promote")
    assert promoted.startswith(f"champion of {NAME} is {two} (before: {one})\n")
    assert f"podium predict {NAME}@champion --text TEXT" in promoted
    assert podium("rollback").startswith(f"champion of {NAME} is {one} (before: {two})\n")
    assert podium() == f"{two}  2026-01-01    unsigned\n{one}  2026-01-01    unsigned  champion\n"
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN" in podium("promote")
