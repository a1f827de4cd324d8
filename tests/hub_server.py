"""A local server that speaks the Hub's protocol over real HTTP, strictly."""

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

MOMENT = "2026-01-01T00:00:00.000Z"
LFS_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".bin")
LFS_THRESHOLD = 10 * 2**20
GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


class HubError(Exception):
    """An answer that is not success: status, the Hub's error code header, and a message."""

    def __init__(self, status, message, code=None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def refuse(wrong, status, message, code=None):
    if wrong:
        raise HubError(status, message, code)


@dataclass(frozen=True)
class Blob:
    """One file of a commit; `oid` is git's hash of the bytes, or of the pointer that stands for a large file."""

    sha256: str
    size: int
    lfs: bool
    oid: str

    def about_lfs(self, hash_name):
        """What an answer says of a large file, which names its hash so; nothing of a small one."""
        size = len(pointer(self.sha256, self.size))
        return {"lfs": {hash_name: self.sha256, "size": self.size, "pointerSize": size}} if self.lfs else {}


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    title: str
    tree: dict[str, Blob]


@dataclass
class Repository:
    kind: str
    name: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, dict[str, str]] = field(default_factory=dict)
    """Number -> title, status and author of a pull request; its content is the branch refs/pr/NUMBER."""
    preuploaded: dict[str, str] = field(default_factory=dict)
    """path -> uploadMode of the last pre-upload: a commit must follow it."""

    def resolve(self, revision):
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        oid = self.branches.get(name) or self.tags.get(name) or name
        refuse(oid not in self.commits, 404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[oid]

    def history(self, branch="main"):
        """Commits of a branch or a pull request, or up to a commit, oldest first."""
        found, oid = [], self.branches.get(branch, branch if branch in self.commits else None)
        while oid is not None:
            found.append(self.commits[oid])
            oid = self.commits[oid].parent
        return found[::-1]


class HubStore:
    """Repositories by (kind, name); bytes by SHA-256 in `folder`. Use under `lock`."""

    def __init__(self, folder):
        self.folder = folder
        self.lock = threading.RLock()
        self.repositories = {}

    def create(self, kind, name, *, private=False):
        refuse((kind, name) in self.repositories, 409, "You already created this model repo")
        repository = Repository(kind, name, private)
        self.repositories[kind, name] = repository
        self.commit(repository, "main", {".gitattributes": self.small(GITATTRIBUTES)}, (), None, "initial commit")
        return repository

    def find(self, kind, name):
        return self.repositories[kind, name]

    @staticmethod
    def check_parent(repository, branch, parent):
        """The head of `branch`, which `parent` must name where it is given (else 412)."""
        head = repository.branches.get(branch)
        if parent is not None and (head is None or not head.startswith(parent)):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        return head

    def commit(self, repository, branch, added, deleted, parent, title):
        """One commit on `branch`; `parent`, where given, must be its head (else 412)."""
        head = self.check_parent(repository, branch, parent)
        tree = dict(repository.commits[head].tree) if head else {}
        for path in deleted:
            refuse(path not in tree, 404, f'A file with this name doesn\'t exist: "{path}"', "EntryNotFound")
            del tree[path]
        tree |= added
        lines = [head or "", title, str(len(repository.commits))]
        lines += [f"{path} {blob.sha256}" for path, blob in sorted(tree.items())]
        commit = Commit(hashlib.sha1("\n".join(lines).encode()).hexdigest(), head, title, tree)
        repository.commits[commit.oid] = commit
        repository.branches[branch] = commit.oid
        return commit

    def add_files(self, repository, files, title="add files"):
        with self.lock:
            return self.commit(repository, "main", {p: self.blob(p, d) for p, d in files.items()}, (), None, title)

    def blob(self, path, data):
        return self.large(self.keep(data), len(data)) if is_large(path, len(data)) else self.small(data)

    def small(self, data):
        return Blob(self.keep(data), len(data), False, git_blob(data))

    def large(self, sha256, size):
        return Blob(sha256, size, True, git_blob(pointer(sha256, size)))

    def keep(self, data):
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / digest).write_bytes(data)
        return digest

    def has(self, sha256, size):
        path = self.folder / sha256
        return path.is_file() and path.stat().st_size == size

    def read(self, sha256):
        return (self.folder / sha256).read_bytes()


def is_large(path, size):
    return size > 0 and (path.endswith(LFS_SUFFIXES) or size > LFS_THRESHOLD)


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def pointer(sha256, size):
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
API = rf"/api/(?P<kind>model|dataset)s/{NAME}"
REVISION = r"(?P<revision>refs/[\w.-]+/[\w.-]+|[^/]+)"
GIT = rf"/(?P<kind>datasets/)?{NAME}"

Handler = Callable[..., "Response"]
ROUTES = []


def serves(area, method, pattern, right=None, query=""):
    """Register a route: `right` is read, write, user (any valid token) or None; `query` the parameters it knows."""

    def register(handler):
        ROUTES.append((area, method, re.compile(pattern), right, frozenset(query.split()), handler))
        return handler

    return register


def route(hub, area, request):
    method = "GET" if request.method == "HEAD" else request.method
    for place, verb, pattern, right, query, handler in ROUTES:
        found = pattern.fullmatch(request.path)
        if place != area or verb != method or not found:
            continue
        unknown = set(request.query) - query
        refuse(unknown, 400, f"unknown query parameters {sorted(unknown)}")
        pieces = found.groupdict()
        if "kind" in pieces:
            pieces["kind"] = (pieces["kind"] or "models/").rstrip("/").removesuffix("s")
        request.user = authenticate(hub, request)
        if right in ("read", "write"):
            pieces["repository"] = allowed(hub, request, pieces.pop("kind"), pieces.pop("name"), right)
        elif right == "user" and request.user is None:
            raise HubError(401, "Invalid username or password.")
        return handler(hub, request, **pieces)
    hub.failures.append(f"unknown route on {area}: {request.method} {request.path}")
    raise HubError(404, "no such route")


def authenticate(hub, request):
    header = request.headers.get("Authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    refuse(scheme != "Bearer" or token not in hub.users, 401, "Invalid credentials in Authorization header")
    return hub.users[token]


def allowed(hub, request, kind, name, right):
    """The repository, if the user may `right` it. What may not be seen is answered as not there."""
    user = request.user
    owner = user is not None and user["name"] == name.split("/")[0]
    repository = hub.store.repositories.get((kind, name))
    if repository is None or (repository.private and not owner):
        raise HubError(404 if user else 401, "Repository not found", "RepoNotFound")
    refuse(right == "write" and user is None, 401, "Invalid username or password.")
    if right == "write" and not (owner and user["role"] == "write"):
        raise HubError(403, "Forbidden: you must use a write token to upload to a repository.")
    return repository


def fields(values, required, optional=None):
    """`values` if it is an object of exactly these fields and types."""
    known = required | (optional or {})
    if not isinstance(values, dict) or set(values) - set(known) or set(required) - set(values):
        raise HubError(400, f"expected the fields {sorted(known)}, found {values!r}")
    for name, value in values.items():
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            raise HubError(400, f"{name} must be {known[name].__name__}, found {value!r}")
    return values


@dataclass
class Request:
    """One request as the routes see it: decoded path pieces, query, headers, body."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: Any
    body: bytes
    user: dict[str, str] | None = None

    def json(self):
        if not self.headers.get("Content-Type", "").startswith(("application/json", "application/vnd.git-lfs+json")):
            raise HubError(400, f"Content-Type {self.headers.get('Content-Type')} is not JSON")
        try:
            return json.loads(self.body)
        except ValueError:
            raise HubError(400, "the body is not JSON") from None


@dataclass
class Response:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Fault:
    """What goes wrong with the next `times` requests that match."""

    method: str
    pattern: str
    times: int = 1
    after: int = 0
    """Matching requests that are let through first."""
    status: int | None = None
    """Answer with this status instead of handling the request."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": "injected fault"}'
    drop: str | None = None
    """before: close the connection unhandled; after: handle, then close without an answer."""
    hook: Callable = lambda: None


class HubServer:
    """`with HubServer(folder) as hub:` serves on 127.0.0.1, free ports; `hub.endpoint` is its URL."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.store = HubStore(folder)
        self.users = {}
        self.requests = []
        """(method, path, status) in order of arrival; status 0 = the connection was dropped."""
        self.tokens = []
        """(path, Authorization header) of the same requests."""
        self.failures = []
        self.faults = []
        self.granted = {}
        """Signature of an upload URL -> (SHA-256, size) it is good for."""
        self.unverified = set()
        """SHA-256 of uploads no one confirmed yet: they do not count as there."""
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(area)) for area in ("hub", "storage")]
        self.endpoint, self.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def add_user(self, token, name="user", role="write"):
        self.users[token] = {"name": name, "role": role}
        return token

    def fault(self, method, pattern, **how):
        self.faults.append(Fault(method, pattern, **how))
        return self.faults[-1]

    def sent(self, method, pattern):
        return [code for verb, path, code in self.requests if verb == method and re.search(pattern, path)]

    def __enter__(self):
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def answer(self, area, request):
        """The response, or None to drop the connection."""
        fault = self._next_fault(request) or Fault("", "")
        if fault.status is not None:
            return Response(fault.status, fault.body, {"Content-Type": "application/json", **fault.headers})
        if fault.drop == "before":
            return None
        fault.hook()
        try:
            with self.store.lock:
                response = route(self, area, request)
        except HubError as error:
            if error.status == 400:
                self.failures.append(f"{request.method} {request.path}: {error.message}")
            headers = {"X-Error-Message": error.message} | ({"X-Error-Code": error.code} if error.code else {})
            response = json_response({"error": error.message}, error.status, headers)
        return None if fault.drop == "after" else response

    def _next_fault(self, request):
        with self.store.lock:
            for fault in self.faults:
                if fault.times and fault.method == request.method and re.search(fault.pattern, request.path):
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def _handler(hub, area):  # noqa: N805 (self is the handler's)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet: two would wait 40 ms for each other
            disable_nagle_algorithm = True

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except (ConnectionError, TimeoutError):  # the client went away
                    self.close_connection = True

            def _serve(self):
                url = urlsplit(self.path)
                path, query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
                request = Request(self.command, path, query, self.headers, self._read_body())
                index = len(hub.requests)
                hub.requests.append((self.command, path, 0))
                hub.tokens.append((path, self.headers.get("Authorization")))
                response = hub.answer(area, request)
                if response is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                hub.requests[index] = (self.command, path, response.status)
                self.send_response(response.status)
                for name, value in {"Content-Length": str(len(response.body)), **response.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(response.body)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

            def _read_body(self):
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                data = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data

            def log_message(self, *_):
                pass

        return Handler


def json_response(values, status=200, headers=None):
    body = json.dumps(values).encode()
    return Response(status, body, {"Content-Type": "application/json; charset=utf-8", **(headers or {})})


@contextmanager
def running_hub(folder):
    with HubServer(folder) as hub:
        yield hub
        assert hub.failures == [], hub.failures


@serves("hub", "GET", "/api/whoami-v2", "user")
def whoami(hub, request):
    auth = {"type": "access_token", "accessToken": {"displayName": "token", "role": request.user["role"]}}
    return json_response({"type": "user", "name": request.user["name"], "orgs": [], "auth": auth})


@serves("hub", "GET", API, "read", "blobs securityStatus expand")
@serves("hub", "GET", f"{API}/revision/{REVISION}", "read", "blobs securityStatus expand")
def repository_info(hub, request, repository, revision="main"):
    commit = repository.resolve(revision)
    blobs = request.query.get("blobs", ["false"])[0].lower() in ("true", "1")
    files = [
        {"rfilename": path} | ({"size": blob.size, "blobId": blob.oid, **blob.about_lfs("sha256")} if blobs else {})
        for path, blob in sorted(commit.tree.items())
    ]
    about = {"_id": "0" * 24, "id": repository.name, "author": repository.name.split("/")[0], "gated": False}
    return json_response({**about, "sha": commit.oid, "private": repository.private, "siblings": files})


@serves("hub", "GET", f"{API}/tree/{REVISION}(?:/(?P<folder>.+))?", "read", "recursive expand limit cursor")
def tree(hub, request, repository, revision, folder):
    commit = repository.resolve(revision)
    deep = request.query.get("recursive", ["false"])[0].lower() in ("true", "1")
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    entries = {}
    for path, blob in sorted(commit.tree.items()):
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if deep else min(2, len(parts))):
            name = prefix + "/".join(parts[:depth])
            oid = hashlib.sha1(name.encode()).hexdigest()
            entries[name] = {"type": "directory", "path": name, "oid": oid, "size": 0}
        if deep or len(parts) == 1:
            about = {"type": "file", "path": path, "oid": blob.oid, "size": blob.size}
            entries[path] = {**about, **blob.about_lfs("oid")}
    refuse(folder and not entries, 404, f"{folder} does not exist", "EntryNotFound")
    return json_response(list(entries.values()))


@serves("hub", "GET", f"{API}/refs", "read", "include_prs")
def refs(hub, request, repository):
    found = {"converts": []}
    for name, kind, of_kind in (("branches", "heads", repository.branches), ("tags", "tags", repository.tags)):
        found[name] = [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": oid} for n, oid in of_kind.items()]
    return json_response(found)


@serves("hub", "GET", f"{API}/commits/{REVISION}", "read", "p limit")
def commits(hub, request, repository, revision):
    """Pages of two, the newest first: a client that reads only the first finds too little."""
    found = [
        {"id": commit.oid, "title": commit.title, "message": "", "date": MOMENT, "authors": [{"user": "user"}]}
        for commit in reversed(repository.history(revision))
    ]
    page = int(request.query.get("p", ["0"])[0])
    response = json_response(found[2 * page : 2 * page + 2])
    if found[2 * page + 2 :]:
        response.headers["Link"] = f'<{hub.endpoint}{request.path}?p={page + 1}>; rel="next"'
    return response


@serves("hub", "GET", f"{API}/discussions", "read", "type status author p")
def discussions(hub, request, repository):
    """Pages of two: a client that reads only the first finds too little."""
    refuse(request.query.get("type", ["pull_request"]) != ["pull_request"], 400, "only pull requests are served")
    wanted = request.query.get("status", ["all"])[0]
    about = {"createdAt": MOMENT, "isPullRequest": True, "repo": {"name": repository.name, "type": repository.kind}}
    listed = [
        {"num": number, **about, **pull, "author": {"name": pull["author"]}}
        for number, pull in sorted(repository.pulls.items(), reverse=True)
        if wanted in ("all", pull["status"])
    ]
    start = 2 * int(request.query.get("p", ["0"])[0])
    return json_response({"discussions": listed[start : start + 2], "count": len(listed), "start": start})


@serves("hub", "GET", f"{GIT}/resolve/{REVISION}/(?P<path>.+)", "read", "download")
def resolve(hub, request, repository, revision, path):
    found = repository.resolve(revision)
    blob = found.tree.get(path)
    headers = {"X-Repo-Commit": found.oid}
    refuse(blob is None, 404, "Entry not found", "EntryNotFound")
    if not blob.lfs:
        headers["ETag"] = f'"{blob.oid}"'
        return ranged(hub.store.read(blob.sha256), request, headers)
    linked = {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)}
    location = f"{hub.storage}/objects/{blob.sha256}"
    return Response(302, b"", {**headers, **linked, "ETag": f'"{blob.oid}"', "Location": location})


@serves("storage", "GET", "/objects/(?P<oid>[0-9a-f]{64})")
def stored_object(hub, request, oid):
    refuse(request.headers.get("Authorization") is not None, 400, "the storage host was sent a token")
    return ranged(hub.store.read(oid), request, {"ETag": f'"{oid}"'})


def ranged(data, request, headers):
    """The whole file, or the one range that was asked for (RFC 9110, section 14)."""
    headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not found:
        return Response(200, data, headers)
    first, last = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
    if first > last:
        return Response(416, b"", {"Content-Range": f"bytes */{len(data)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(206, data[first : last + 1], headers)


@serves("hub", "POST", "/api/repos/create", "user")
def create_repository(hub, request):
    values = request.json()
    values = {key: value for key, value in values.items() if value is not None}
    fields(values, {"name": str}, {"organization": str, "visibility": str, "type": str})
    owner = values.get("organization", request.user["name"])
    if values.get("visibility", "public") not in ("public", "private"):
        raise HubError(400, f"visibility {values.get('visibility')!r} is not known")
    if owner != request.user["name"] or request.user["role"] != "write":
        raise HubError(403, f"You don't have the rights to create a model under the namespace {owner!r}.")
    name = f"{owner}/{values['name']}"
    kind = values.get("type", "model")
    url = f"{hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
    if (kind, name) in hub.store.repositories:
        return json_response({"error": "You already created this model repo", "url": url}, 409)
    hub.store.create(kind, name, private=values.get("visibility") == "private")
    return json_response({"url": url, "name": name, "id": secrets.token_hex(12)})


@serves("hub", "POST", "/api/validate-yaml")
def validate_yaml(hub, request):
    values = fields(request.json(), {"content": str, "repoType": str})
    found = re.match(r"---\n(.*?)\n---\n", values["content"], re.DOTALL)
    try:
        metadata = yaml.safe_load(found.group(1)) if found else None
    except yaml.YAMLError as error:
        return json_response({"errors": [{"message": str(error)}], "warnings": []}, 400)
    errors = [] if isinstance(metadata, dict) else [{"message": "no metadata"}]
    licence = (metadata or {}).get("license")
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", str(licence)):
        errors.append({"message": f'"license" must be one of [apache-2.0, mit, ...], not {licence!r}'})
    return json_response({"errors": errors, "warnings": []}, 400 if errors else 200)


@serves("hub", "DELETE", f"{API}/tag/{REVISION}", "write")
def delete_tag(hub, request, repository, revision):
    refuse(repository.tags.pop(revision, None) is None, 404, f"Tag doesn't exist: {revision}", "RevisionNotFound")
    return json_response({})


@serves("hub", "POST", f"{API}/tag/{REVISION}", "write")
def create_tag(hub, request, repository, revision):
    values = fields(request.json(), {"tag": str}, {"message": str})
    refuse(not re.fullmatch(r"[\w][\w.-]*", values["tag"]), 400, f"{values['tag']!r} is not a name of a tag")
    commit = repository.resolve(revision)
    refuse(values["tag"] in repository.tags, 409, f"Tag reference exists already: {values['tag']}")
    repository.tags[values["tag"]] = commit.oid
    return json_response({})


@serves("hub", "POST", f"{API}/preupload/{REVISION}", "write", "create_pr")
def preupload(hub, request, repository, revision):
    values = fields(request.json(), {"files": list}, {"gitAttributes": str, "gitIgnore": str})
    head = repository.resolve(revision)
    refuse(not 0 < len(values["files"]) <= 256, 400, f"{len(values['files'])} files; 1 to 256 a call")
    listed = []
    for file in values["files"]:
        fields(file, {"path": str, "sample": str, "size": int})
        safe_path(file["path"])
        if len(base64.b64decode(file["sample"], validate=True)) != min(512, file["size"]):
            raise HubError(400, f"the sample of {file['path']} must be its first 512 bytes")
        mode = "lfs" if is_large(file["path"], file["size"]) else "regular"
        repository.preuploaded[file["path"]] = mode
        entry = {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
        known = head.tree.get(file["path"])
        if known is not None:
            entry["oid"] = known.sha256 if known.lfs else known.oid
        listed.append(entry)
    return json_response({"files": listed})


def safe_path(path):
    if path.startswith("/") or any(part in ("", ".", "..", ".git") for part in path.split("/")):
        raise HubError(400, f"invalid path {path!r}")
    return path


@serves("hub", "POST", rf"{GIT}\.git/info/lfs/objects/batch", "write")
def lfs_batch(hub, request, repository):
    if request.headers.get("Accept") != "application/vnd.git-lfs+json":
        raise HubError(400, f"Accept {request.headers.get('Accept')} must be application/vnd.git-lfs+json")
    values = fields(
        request.json(), {"operation": str, "transfers": list, "objects": list, "hash_algo": str}, {"ref": dict}
    )
    if values["operation"] != "upload" or values["hash_algo"] != "sha256" or "basic" not in values["transfers"]:
        raise HubError(400, f"operation {values['operation']}, transfers {values['transfers']} are not served")
    objects = []
    for wanted in values["objects"]:
        fields(wanted, {"oid": str, "size": int})
        refuse(not re.fullmatch("[0-9a-f]{64}", wanted["oid"]), 400, f"oid {wanted['oid']} is no SHA-256")
        entry = dict(wanted)
        if wanted["oid"] in hub.unverified or not hub.store.has(wanted["oid"], wanted["size"]):
            signature = secrets.token_hex(8)
            hub.granted[signature] = (wanted["oid"], wanted["size"])
            entry["actions"] = {
                "upload": {"href": f"{hub.storage}/upload/{wanted['oid']}?signature={signature}"},
                "verify": {"href": f"{hub.endpoint}/api/lfs-verify/{repository.kind}s/{repository.name}"},
            }
        objects.append(entry)
    return json_response({"transfer": "basic", "objects": objects})


@serves("storage", "PUT", "/upload/(?P<oid>[0-9a-f]{64})", None, "signature")
def lfs_put(hub, request, oid):
    refuse(request.headers.get("Authorization") is not None, 400, "the storage host was sent a token")
    granted = hub.granted.get(request.query["signature"][0])
    if granted != (oid, len(request.body)) or hashlib.sha256(request.body).hexdigest() != oid:
        raise HubError(400, f"upload of {len(request.body)} bytes is not what was granted: {granted}")
    if not hub.store.has(oid, len(request.body)):  # another publisher may have sent and verified it
        hub.unverified.add(oid)
    hub.store.keep(request.body)
    return json_response({}, headers={"ETag": f'"{oid}"'})


@serves("hub", "POST", rf"/api/lfs-verify/(?P<kind>model|dataset)s/{NAME}", "write")
def lfs_verify(hub, request, repository):
    values = fields(request.json(), {"oid": str, "size": int})
    if not hub.store.has(values["oid"], values["size"]):
        raise HubError(400, f"{values['oid']} of {values['size']} bytes was not uploaded")
    hub.unverified.discard(values["oid"])
    return json_response({"message": "OK"})


@serves("hub", "POST", f"{API}/commit/{REVISION}", "write", "create_pr hot_reload")
def commit(hub, request, repository, revision):
    if request.headers.get("Content-Type") != "application/x-ndjson":
        raise HubError(400, f"Content-Type {request.headers.get('Content-Type')} must be application/x-ndjson")
    lines = [fields(json.loads(line), {"key": str, "value": dict}) for line in request.body.splitlines()]
    if not lines or [line["key"] for line in lines].count("header") != 1 or lines[0]["key"] != "header":
        raise HubError(400, "the first line, and no other, must be the header")
    header = fields(lines[0]["value"], {"summary": str, "description": str}, {"parentCommit": str})
    asked_for_review = request.query.get("create_pr") == ["1"]
    if not asked_for_review:
        hub.store.check_parent(repository, revision, header.get("parentCommit"))
    added = {}
    deleted = []
    for line in lines[1:]:
        if line["key"] == "deletedFile":
            deleted.append(fields(line["value"], {"path": str})["path"])
            continue
        path, blob = added_file(hub, repository, line)
        refuse(path in added, 400, f"{path} stands twice in one commit")
        added[path] = blob
    refuse(not header["summary"] or not (added or deleted), 400, "a commit needs a summary and a change")
    if asked_for_review:
        revision = open_request(request, repository, header)
    done = hub.store.commit(repository, revision, added, tuple(deleted), header.get("parentCommit"), header["summary"])
    if not asked_for_review:  # several may propose at the same time
        repository.preuploaded.clear()
    found = {"success": True, "commitOid": done.oid, "commitUrl": f"{hub.endpoint}/{repository.name}/commit/{done.oid}"}
    if asked_for_review:
        number = revision.rpartition("/")[2]
        found["pullRequestUrl"] = f"{hub.endpoint}/{repository.name}/discussions/{number}"
    return json_response(found)


def open_request(request, repository, header):
    """A new pull request on the parent the header names, or on main; its ref."""
    base = repository.resolve(header.get("parentCommit", "main"))
    number = max(repository.pulls, default=0) + 1
    repository.pulls[number] = {"title": header["summary"], "status": "open", "author": request.user["name"]}
    repository.branches[f"refs/pr/{number}"] = base.oid
    return f"refs/pr/{number}"


@serves("hub", "POST", rf"{API}/discussions/(?P<number>\d+)/status", "write")
def change_status(hub, request, repository, number):
    values = fields(request.json(), {"status": str}, {"comment": str})
    pull = repository.pulls.get(int(number))
    if pull is None or values["status"] not in ("open", "closed") or pull["status"] == "merged":
        raise HubError(400, f"discussion {number} cannot become {values['status']}")
    pull["status"] = values["status"]
    event = {"id": "1", "type": "status-change", "createdAt": MOMENT, "author": {"name": pull["author"]}}
    return json_response({"newStatus": {**event, "data": {"status": values["status"]}}})


def added_file(hub, repository, line):
    """One added file of a commit, as the pre-upload asked for it."""
    value, mode = line["value"], repository.preuploaded.get(line["value"].get("path", ""))
    if line["key"] == "file":
        fields(value, {"path": str, "content": str, "encoding": str})
        if value["encoding"] != "base64" or mode != "regular":
            raise HubError(400, f"{value['path']}: encoding {value['encoding']}, pre-upload said {mode}")
        return safe_path(value["path"]), hub.store.small(base64.b64decode(value["content"], validate=True))
    refuse(line["key"] != "lfsFile", 400, f"{line['key']} is not an operation")
    fields(value, {"path": str, "algo": str, "oid": str, "size": int})
    there = hub.store.has(value["oid"], value["size"]) and value["oid"] not in hub.unverified
    if value["algo"] != "sha256" or mode != "lfs" or not there:
        raise HubError(400, f"{value['path']}: pre-upload said {mode}, or its content was never uploaded and verified")
    return safe_path(value["path"]), hub.store.large(value["oid"], value["size"])
