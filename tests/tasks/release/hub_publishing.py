"""What the tests of publishing to a Hub share: a small release, and the requests of a publish by name."""

from tasks.release.hub.calls import Patience
from tasks.release.hub.transaction import HubRelease, release_on_hub
from tasks.release.release import Release, release_file
from tests.hub_server import Commit, HubServer, Repository

TOKEN = "hf_PlantedTokenThatMustNotLeak0123456789"
NAME = "user/demo"
CALLS = {
    "whoami": ("GET", r"^/api/whoami-v2$"),
    "head": ("GET", r"^/api/models/user/demo$"),
    "create": ("POST", r"^/api/repos/create$"),
    "card": ("POST", r"^/api/validate-yaml$"),
    "pre-upload": ("POST", r"/preupload/"),
    "batch": ("POST", r"/objects/batch$"),
    "upload": ("PUT", r"^/upload/"),
    "upload-verify": ("POST", r"/lfs-verify/"),
    "commit": ("POST", r"/commit/"),
    "verify": ("GET", r"/revision/[0-9a-f]{40}$"),
    "tag": ("POST", r"/tag/"),
    "tag-verify": ("GET", r"/revision/release-"),
}
"""Every request of a first publish, in order; the head is read before and after the creation."""


def small_release(text: str = "one") -> Release:
    """A card, a small file and a large one; enough for every request."""
    card = "---\nlicense: apache-2.0\n---\n\n# demo\n"
    files = {"README.md": card, "evaluation/metrics.json": text, "model.safetensors": f"weights {text}"}
    return Release({name: release_file(content.encode()) for name, content in files.items()})


def publish_small(text: str = "one", waits: list[float] | None = None, *, review: bool = False) -> HubRelease:
    waits = [] if waits is None else waits
    patience = Patience(sleep=waits.append)
    return release_on_hub(small_release(text), NAME, private=True, review=review, patience=patience)


def repository(hub: HubServer) -> Repository:
    return hub.store.find("model", NAME)


def commits(hub: HubServer) -> list[Commit]:
    """Commits on main after the Hub's own first one."""
    return repository(hub).history()[1:] if ("model", NAME) in hub.store.repositories else []


def content(hub: HubServer, commit: Commit) -> dict[str, bytes]:
    return {path: hub.store.read(blob.sha256) for path, blob in commit.tree.items() if path != ".gitattributes"}


def open_requests(hub: HubServer) -> list[int]:
    return sorted(number for number, pull in repository(hub).pulls.items() if pull["status"] == "open")


def merge(hub: HubServer, number: int) -> None:
    repository(hub).branches["main"] = repository(hub).branches[f"refs/pr/{number}"]
    repository(hub).pulls[number]["status"] = "merged"
