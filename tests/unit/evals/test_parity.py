"""Train/serve parity against real endpoints that tokenise as trained, with another template, or only count."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import threading

import pytest
from aiohttp import web

from bashgym.core.errors import BashGymError
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.data.tokens import TokenizerBundle
from bashgym.evals.parity import SCHEMA, check_parity
from bashgym.inference.client import EndpointSpec
from bashgym.models.catalog import ensure_tiny
from bashgym.store.run_dir import RunDir, RunState, RunStatus
from tests.unit.inference.double import completion

CALL = {"type": "function", "function": {"name": "bash", "arguments": {"command": "ls <a> & 'ü'"}}}
ROWS = [
    {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"{i} grüße 🙂"}]}
    for i in range(20)
] + [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "list"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "a b"},
            {"role": "assistant", "content": "done"},
        ],
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}],
    }
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return ensure_tiny(Settings.from_env({"BASHGYM_DIR": str(home)}, home))


@pytest.fixture
def dataset(tmp_path):
    return rows_file(tmp_path, ROWS)


def rows_file(folder, rows):
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def altered(model, tmp_path, change):
    folder = tmp_path / "altered"
    shutil.copytree(model, folder)
    path = folder / "chat_template.jinja"
    path.write_text(change(path.read_text()))
    return folder


@contextlib.contextmanager
def serving(folder, *, tokenizes=True, counts=True, status=None):
    """An endpoint with the tokenizer of `folder`, in a thread with a loop of its own."""
    bundle = TokenizerBundle.load(folder)

    def ids(body, generation_prompt):
        if "prompt" in body:
            return bundle.encode(body["prompt"], add_special_tokens=body.get("add_special_tokens", True))
        turns = []
        for turn in body["messages"]:
            turn = {key: value for key, value in turn.items() if value is not None}
            for call in turn.get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            turns.append(turn)
        return bundle.encode(bundle.render(turns, body.get("tools"), generation_prompt))

    async def tokenize(request):
        body = await request.json()
        if status and "messages" in body:
            return web.json_response({"error": {"message": "the template refuses"}}, status=status)
        found = ids(body, body.get("add_generation_prompt", True))
        return web.json_response({"tokens": found, "count": len(found), "max_model_len": 2048})

    async def chat(request):
        prompt = len(ids(await request.json(), True)) if counts else 0
        return web.json_response(completion("x", usage=(prompt, int(counts))))

    async def models(request):
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    if tokenizes:
        app.router.add_post("/tokenize", tokenize)
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), {}

    async def start():
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.update(runner=runner, port=site._server.sockets[0].getsockname()[1])
        ready.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(start()), loop.run_forever()))
    thread.start()
    try:
        assert ready.wait(5)
        yield f"http://127.0.0.1:{found['port']}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(found["runner"].cleanup(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


def check(model, dataset, base, **options):
    return check_parity(model, dataset, EndpointSpec(base_url=base), **options)


def test_the_same_template_gives_the_same_ids(model, dataset):
    with serving(model) as base:
        doc = check(model, dataset, base)
    assert doc["ok"] and doc["mode"] == "ids" and doc["schema_version"] == SCHEMA and doc["mismatches"] == []
    assert doc["n"] == 21 and doc["n_comparisons"] == 42 and "chat_template.jinja" in doc["tokenizer"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda text: text.replace("'<|im_end|>\\n' }}", "'<|im_end|>' }}"), "conversation"),
        (lambda text: text.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>' }}{% endif %}"), "prompt"),
        (lambda text: text.replace("Tools:", "Functions:"), "conversation"),
    ],
)
def test_another_template_is_found_and_the_place_is_shown(model, dataset, tmp_path, change, part):
    served = altered(model, tmp_path, change)
    if (served / "chat_template.jinja").read_text() == (model / "chat_template.jinja").read_text():
        pytest.fail("the change changed nothing")
    with serving(served) as base:
        doc = check(model, dataset, base)
    assert not doc["ok"] and doc["n_mismatches"]
    first = doc["mismatches"][0]
    assert first["part"] == part
    shown = {(t["at"], t["id"]) for t in first["train_tokens"]} ^ {(t["at"], t["id"]) for t in first["served_tokens"]}
    assert min(at for at, _ in shown) == first["first_difference"]


def test_without_the_route_the_counts_are_compared_and_the_report_says_so(model, dataset, tmp_path):
    with serving(model, tokenizes=False) as base:
        doc = check(model, dataset, base)
    assert doc["ok"] and doc["mode"] == "count_only" and doc["n_comparisons"] == 21
    served = altered(
        model, tmp_path, lambda text: text.replace("assistant\\n' }}{% endif %}", "assistant\\nOk: ' }}{% endif %}")
    )
    with serving(served, tokenizes=False) as base:
        doc = check(model, dataset, base)
    assert not doc["ok"] and doc["n_mismatches"] == 21 and len(doc["mismatches"]) == 20
    assert doc["mismatches"][0]["n_served"] > doc["mismatches"][0]["n_train"]


def test_what_was_not_compared_is_not_called_equal(model, dataset, tmp_path, monkeypatch):
    with serving(model, tokenizes=False, counts=False) as base, pytest.raises(BashGymError, match="does not count"):
        check(model, dataset, base)
    monkeypatch.setattr("bashgym.inference.client.BACKOFF_S", 0.01)
    with pytest.raises(BashGymError) as caught:
        check(model, dataset, "http://127.0.0.1:9/v1")
    assert caught.value.code == "endpoint_unreachable"
    (tmp_path / "empty.jsonl").write_text("")
    with serving(model) as base, pytest.raises(BashGymError) as caught:
        check(model, tmp_path / "empty.jsonl", base)
    assert caught.value.code == "dataset_empty"


def test_a_template_that_refuses_is_a_difference_and_an_outage_is_not(model, dataset, monkeypatch):
    monkeypatch.setattr("bashgym.inference.client.BACKOFF_S", 0.01)
    with serving(model, status=400) as base:
        doc = check(model, dataset, base)
    assert not doc["ok"] and "refuses" in doc["mismatches"][0]["refused"]
    with serving(model, status=500) as base, pytest.raises(BashGymError) as caught:
        check(model, dataset, base)
    assert caught.value.code == "endpoint_failed"


def test_plain_text_rows(model, tmp_path):
    rows = [{"prompt": f"add {i}: ", "completion": "x"} for i in range(3)]
    with serving(model) as base:
        doc = check(model, rows_file(tmp_path, rows), base, rows=2)
        assert doc["ok"] and doc["n"] == 2 == doc["n_comparisons"]
    with serving(model) as base:
        assert check(model, rows_file(tmp_path, [{"text": "hello there"}]), base)["ok"]


def test_a_run_brings_its_tokenizer_and_its_dataset(model, tmp_path):
    rows = [{"said": turns["messages"]} for turns in ROWS[:3]]
    request = {"dataset_path": str(rows_file(tmp_path, rows)), "dataset_format": "auto"}
    run = RunDir(tmp_path / "models" / "run_1")
    run.path.mkdir(parents=True)
    run.write_state(RunState(run_id="run_1", strategy="sft", status=RunStatus.COMPLETED))
    run.write_json("request.json", {**request, "column_mapping": {"messages": "said"}})
    run.write_json("manifest.json", {"model": {"path": str(model)}})
    env = child_env(BASHGYM_DIR=str(tmp_path), BASHGYM_MODELS_DIR=str(tmp_path / "models"))
    with serving(model) as base:
        words = [sys.executable, "-m", "bashgym", "eval", "parity", "--run", "run_1", "--endpoint", base, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    doc = json.loads(done.stdout)
    assert doc["run_id"] == "run_1" and doc["n"] == 3 and doc["ok"]


def test_the_command_exits_with_2_on_a_difference(model, dataset, tmp_path):
    def command(base, *more):
        words = ["eval", "parity", "--model", str(model), "--dataset", str(dataset), "--endpoint", base, *more]
        env = child_env(BASHGYM_DIR=str(tmp_path / "home"))
        return subprocess.run(
            [sys.executable, "-m", "bashgym", *words], capture_output=True, text=True, env=env, timeout=60
        )

    with serving(model) as base:
        done = command(base, "--json", "--rows", "4", "--output", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] == 4 and json.loads((tmp_path / "report.json").read_text())["ok"]
    served = altered(model, tmp_path, lambda text: text.replace("'<|im_end|>\\n' }}", "'<|im_end|>' }}"))
    with serving(served) as base:
        done = command(base)
    assert done.returncode == 2 and done.stdout.startswith("DIFFERENT") and "served" in done.stdout
