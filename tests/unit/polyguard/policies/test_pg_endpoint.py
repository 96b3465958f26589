"""A model behind an endpoint, against a real server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from bashgym.core.errors import BashGymError
from bashgym.inference.endpoint import EndpointSpec
from polyguard.evaluation.play import play, scenarios
from polyguard.policies.endpoint import EndpointPolicy

KEY = "sk-not-a-real-one"


class Model(BaseHTTPRequestHandler):
    """Answers with the first review that it reads in the prompt."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        lines = body["messages"][-1]["content"].splitlines()
        choice = next(line.split()[0] for line in lines if line.startswith("cand_") and "REVIEW" in line)
        text = json.dumps({"candidate_id": choice, "confidence": 0.3})
        reply = {
            "model": "m",
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        }
        status = 200 if self.headers["Authorization"] == f"Bearer {KEY}" else 401
        data = json.dumps(reply if status == 200 else {"error": {"message": f"bad key {KEY}"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Model.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_an_endpoint_plays_episodes_and_sees_only_the_rendered_observation(url: str) -> None:
    policy = EndpointPolicy(EndpointSpec(base_url=url, model="m", api_key=KEY))
    rows = play(policy, scenarios("test", 4))
    assert {row.action_types[0].endswith("REVIEW") for row in rows} == {True}
    assert rows[0].bets == [(0.3, False)]
    assert len(Model.asked) == 4
    assert {tuple(body["messages"][0]) for body in Model.asked} == {("role", "content")}
    assert KEY not in json.dumps(Model.asked)


def test_an_endpoint_that_refuses_ends_the_evaluation_and_names_no_key(url: str) -> None:
    policy = EndpointPolicy(EndpointSpec(base_url=url, model="m", api_key="sk-another"))
    with pytest.raises(BashGymError) as caught:
        play(policy, scenarios("test", 1))
    assert "sk-another" not in str(caught.value)
