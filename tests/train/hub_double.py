"""A local Hub that speaks the wire format of huggingface.co for what a model push needs, in memory.

It exists so that the official client can be the other side: whoami, repo info, create, README check, preupload, the
Git LFS batch API with uploads and verification, and NDJSON commits. It is strict where the real one is.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_doubleSecretToken0123456789"


class Hub:
    """What the double knows. Tests read it, and set `faults` {(method, path pattern): status}."""

    def __init__(self):
        self.url = ""
        self.role = "write"
        self.repos = {}
        self.blobs = {}
        self.faults = {}
        self.requests = []

    def add_repo(self, repo_id, private):
        self.repos[repo_id] = {"private": private, "files": {}, "commits": []}


@contextmanager
def serve():
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self):
        self._route("GET")

    def do_POST(self):
        self._route("POST")

    def do_PUT(self):
        self._route("PUT")

    def log_message(self, *args):
        pass

    def _route(self, method):
        path, _, query = self.path.partition("?")
        body = self._body()
        self.hub.requests.append((method, self.path, {key.lower() for key in self.headers}, body))
        for (verb, pattern), status in self.hub.faults.items():
            if verb == method and re.fullmatch(pattern, path):
                return self._answer(status, {"error": f"the double says {status}"})
        if method == "PUT" and (match := re.fullmatch(r"/storage/(\w{64})", path)):
            return self._store(match[1], body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid credentials in Authorization header"})
        for verb, pattern, act in _ROUTES:
            match = re.fullmatch(pattern, path)
            if verb == method and match:
                return act(self, body, *match.groups())
        return self._answer(404, {"error": f"no {method} {path}?{query}"})

    def _body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status, doc, headers=None):
        data = json.dumps(doc).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", "X-Request-Id": "double", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def whoami(self, body):
        auth = {"type": "access_token", "accessToken": {"displayName": "double", "role": self.hub.role}}
        self._answer(200, {"type": "user", "id": "1", "name": "tester", "orgs": [{"name": "team"}], "auth": auth})

    def info(self, body, repo_id):
        repo = self.hub.repos.get(repo_id)
        if repo is None:
            return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        sha = repo["commits"][-1] if repo["commits"] else "0" * 40
        files = [{"rfilename": name} for name in sorted(repo["files"])]
        return self._answer(
            200, {"_id": "1", "id": repo_id, "sha": sha, "private": repo["private"], "siblings": files, "tags": []}
        )

    def create(self, body):
        asked = json.loads(body)
        repo_id = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        url = f"{self.hub.url}/{repo_id}"
        if repo_id in self.hub.repos:
            return self._answer(409, {"error": "You already created this model repo", "url": url})
        # As the real one: public unless private is said.
        self.hub.add_repo(repo_id, asked.get("visibility") == "private" or asked.get("private") is True)
        return self._answer(200, {"url": url, "name": repo_id, "id": "1"})

    def check_card(self, body):
        content = json.loads(body)["content"]
        good = content.startswith("---\n") and re.search(r"^license: [\w.+-]+$", content.split("---")[1], re.MULTILINE)
        errors = [] if good else [{"message": "no metadata"}]
        self._answer(200 if good else 400, {"errors": errors, "warnings": []})

    def preupload(self, body, repo_id, revision):
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".gguf")) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._answer(200, {"files": files})

    def batch(self, body, repo_id):
        asked = json.loads(body)
        assert asked["operation"] == "upload" and "basic" in asked["transfers"]
        assert asked["hash_algo"] == "sha256"
        objects = []
        for item in asked["objects"]:
            entry = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub.blobs:
                entry["actions"] = {
                    "upload": {"href": f"{self.hub.url}/storage/{item['oid']}"},
                    "verify": {"href": f"{self.hub.url}/verify"},
                }
            objects.append(entry)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _store(self, oid, body):
        if hashlib.sha256(body).hexdigest() != oid:
            return self._answer(400, {"error": "the bytes have another sha256"})
        self.hub.blobs[oid] = body
        return self._answer(200, {})

    def verify(self, body):
        asked = json.loads(body)
        there = len(self.hub.blobs.get(asked["oid"], b"")) == asked["size"]
        self._answer(200 if there else 404, {})

    def commit(self, body, repo_id, revision):
        lines = [json.loads(line) for line in body.splitlines()]
        repo = self.hub.repos[repo_id]
        assert lines[0]["key"] == "header" and lines[0]["value"]["summary"]
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                repo["files"][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                assert value["algo"] == "sha256"
                repo["files"][value["path"]] = self.hub.blobs[value["oid"]]
        oid = hashlib.sha1(body).hexdigest()
        repo["commits"].append(oid)
        url = f"{self.hub.url}/{repo_id}/commit/{oid}"
        self._answer(200, {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES = [
    ("GET", "/api/whoami-v2", _Handler.whoami),
    ("GET", f"/api/models/{_NAME}", _Handler.info),
    ("GET", f"/api/models/{_NAME}/revision/main", _Handler.info),
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.check_card),
    ("POST", f"/api/models/{_NAME}/preupload/(main)", _Handler.preupload),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("POST", "/verify", _Handler.verify),
    ("POST", f"/api/models/{_NAME}/commit/(main)", _Handler.commit),
]
