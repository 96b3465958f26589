"""`bashgym serve-model` as its users see it: the official client and ours against a served tiny model."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.runtime import child_env
from bashgym.core.settings import Settings
from bashgym.evals.parity import check_parity
from bashgym.inference.client import ChatClient, ChatRequest, EndpointSpec
from bashgym.inference.job import JobModel
from bashgym.models.catalog import ensure_tiny
from tests.train.conftest import TINY

pytestmark = pytest.mark.train

ASK = [{"role": "user", "content": "make a folder named bido"}]
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "run",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}

CALL = {"name": "bash", "arguments": {"command": "mkdir bido"}}


@contextlib.contextmanager
def serving(home, *arguments, model=TINY, **variables):
    """The base URL of a served model; the process ends with the block."""
    command = [sys.executable, "-m", "bashgym", "serve-model", model, "--port", "0", "--threads", "1", "--json"]
    env = child_env(BASHGYM_DIR=str(home), BASHGYM_TRAINING_PYTHON=sys.executable, OMP_NUM_THREADS="1", **variables)
    child = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        line = child.stdout.readline()
        assert line, child.stderr.read().decode()
        yield json.loads(line)["url"], child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()


@pytest.fixture(scope="module")
def base(model_home):
    with serving(model_home) as (url, _):
        yield url


@pytest.fixture(scope="module")
def official(base):
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def loaded(model_home):
    import torch

    from bashgym.inference.scoring import load

    torch.set_num_threads(1)
    folder = ensure_tiny(Settings.from_env({"BASHGYM_DIR": str(model_home)}, model_home))
    return load(JobModel(str(folder)))


def plain_logprobs(loaded, prompt, answer):
    """Log probabilities of `answer` after `prompt` by one forward pass of the model."""
    import torch

    model, _ = loaded
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0].float()
    rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    return [float(row[token]) for row, token in zip(rows, answer, strict=True)]


def chat(official, **options):
    return official.chat.completions.create(
        model=TINY, messages=ASK, **{"max_tokens": 12, "temperature": 1.0, **options}
    )


def tokens_of(choice):
    return [entry.token_id for entry in choice.logprobs.content]


def test_models_and_health(base, official):
    assert [model.id for model in official.models.list()] == [TINY]
    with urllib.request.urlopen(base.removesuffix("/v1") + "/health") as answer:
        assert json.load(answer)["status"] == "ok"


def test_logprobs_are_those_of_a_plain_forward_pass(official, loaded):
    made = chat(official, seed=3, logprobs=True, top_logprobs=4, n=2)
    prompt = loaded[1](loaded[1].apply_chat_template(ASK, tokenize=False, add_generation_prompt=True))["input_ids"]
    assert made.usage.prompt_tokens == len(prompt)
    assert made.usage.completion_tokens == sum(len(tokens_of(choice)) for choice in made.choices)
    for choice in made.choices:
        ids = tokens_of(choice)
        told = [entry.logprob for entry in choice.logprobs.content]
        assert told == pytest.approx(plain_logprobs(loaded, prompt, ids), abs=1e-4)
        assert sum(told) == pytest.approx(sum(plain_logprobs(loaded, prompt, ids)), abs=1e-3)
        assert loaded[1].decode(ids, skip_special_tokens=True) == choice.message.content
        for entry in choice.logprobs.content:
            best = [top.logprob for top in entry.top_logprobs]
            assert len(best) == 4 and best == sorted(best, reverse=True) and best[0] >= entry.logprob - 1e-6
    assert made.choices[0].message.content != made.choices[1].message.content


def test_the_same_seed_gives_the_same_text_alone_and_in_company(base, official):
    alone = [chat(official, seed=seed).choices[0].message.content for seed in range(6)]
    assert len(set(alone)) > 1 and chat(official, seed=0).choices[0].message.content == alone[0]

    async def together():
        async with openai.AsyncOpenAI(base_url=base, api_key="none") as client:
            asked = [
                client.chat.completions.create(model=TINY, messages=ASK, max_tokens=12, temperature=1.0, seed=s % 6)
                for s in range(24)
            ]
            return [made.choices[0].message.content for made in await asyncio.gather(*asked)]

    assert asyncio.run(together()) == alone * 4
    greedy = {chat(official, temperature=0).choices[0].message.content for _ in range(2)}
    assert len(greedy) == 1
    assert len({chat(official).choices[0].message.content for _ in range(3)}) > 1


def test_budgets_and_stop_texts(official):
    whole = chat(official, seed=5, max_tokens=24).choices[0]
    short = chat(official, seed=5, max_tokens=3).choices[0]
    assert short.finish_reason == "length" and whole.message.content.startswith(short.message.content)
    stop = whole.message.content[6:9]
    cut = chat(official, seed=5, max_tokens=24, stop=[stop, "zzzz"]).choices[0]
    assert cut.finish_reason == "stop" and cut.message.content == whole.message.content.split(stop)[0]
    by_new_name = official.chat.completions.create(model=TINY, messages=ASK, max_completion_tokens=2, logprobs=True)
    assert len(tokens_of(by_new_name.choices[0])) <= 2


def test_a_stream_says_what_the_whole_answer_says(official):
    options = {"seed": 8, "n": 2, "logprobs": True, "max_tokens": 20}
    whole = chat(official, **options)
    texts, reasons, tokens, counts = ["", ""], [None, None], [[], []], None
    for chunk in chat(official, stream=True, stream_options={"include_usage": True}, **options):
        assert chunk.object == "chat.completion.chunk" and chunk.model == TINY
        counts = chunk.usage or counts
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            if choice.logprobs:
                tokens[choice.index] += tokens_of(choice)
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert tokens == [tokens_of(choice) for choice in whole.choices]
    assert counts == whole.usage
    stop = whole.choices[0].message.content[4:7]
    pieces = [c.choices[0].delta.content or "" for c in chat(official, stream=True, seed=8, max_tokens=20, stop=stop)]
    assert "".join(pieces) == whole.choices[0].message.content.split(stop)[0]


def test_tools_change_the_prompt_and_their_results_are_taken(official, loaded):
    plain, tooled = chat(official), chat(official, tools=[BASH])
    assert tooled.usage.prompt_tokens > plain.usage.prompt_tokens
    assert chat(official, tools=[BASH], tool_choice="none").usage.prompt_tokens == plain.usage.prompt_tokens
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    turns = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    turns.append({"role": "tool", "tool_call_id": "c1", "content": "a b"})
    made = official.chat.completions.create(model=TINY, messages=turns, tools=[BASH], max_tokens=1)
    # Templates get arguments as an object, as training rows have them, not as the JSON text of the wire.
    turns[1] = {
        "role": "assistant",
        "tool_calls": [{**call, "function": {"name": "bash", "arguments": {"command": "ls"}}}],
    }
    text = loaded[1].apply_chat_template(turns, tools=[BASH], tokenize=False, add_generation_prompt=True)
    assert made.usage.prompt_tokens == len(loaded[1](text)["input_ids"])


@pytest.fixture(scope="module")
def taught(tmp_path_factory, loaded):
    """A model that has learnt one tool call by heart."""
    import torch

    from bashgym.training.load import load_model

    tokenizer = loaded[1]
    turns = [*ASK, {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL}]}]
    prompt = tokenizer.apply_chat_template(ASK, tools=[BASH], tokenize=False, add_generation_prompt=True)
    text = tokenizer.apply_chat_template(turns, tools=[BASH], tokenize=False).rstrip("\n")
    ids, start = torch.tensor([tokenizer(text)["input_ids"]]), len(tokenizer(prompt)["input_ids"])
    model = load_model(Path(tokenizer.name_or_path), dtype=torch.float32, device="cpu")
    labels = torch.where(torch.arange(ids.shape[1]) >= start, ids, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(100):
        loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.1
    folder = tmp_path_factory.mktemp("taught")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_tool_calls_are_read_where_tools_were_given(model_home, taught):
    with (
        serving(model_home, "--name", TINY, model=str(taught)) as (url, _),
        openai.OpenAI(base_url=url, api_key="x") as official,
    ):
        options = {"temperature": 0, "max_tokens": 60, "tools": [BASH]}
        made = chat(official, logprobs=True, **options).choices[0]
        assert made.finish_reason == "tool_calls" and made.message.content is None
        call = made.message.tool_calls[0]
        assert call.function.name == "bash" and json.loads(call.function.arguments) == CALL["arguments"] and call.id
        assert len(made.logprobs.content) > 10
        calls = []
        for chunk in chat(official, stream=True, **options):
            calls += chunk.choices[0].delta.tool_calls or []
            reason = chunk.choices[0].finish_reason
        assert reason == "tool_calls" and [(c.index, c.function.arguments) for c in calls] == [
            (0, call.function.arguments)
        ]

        async def ours():
            async with ChatClient(EndpointSpec(base_url=url)) as client:
                return await client.chat(ChatRequest(messages=ASK, tools=[BASH], max_tokens=60))

        reply = asyncio.run(ours())
        assert reply.finish_reason == "tool_calls" and json.loads(reply.tool_calls[0].arguments) == CALL["arguments"]


def test_plain_completions_score_their_prompt(official, loaded):
    text = "list the files in bido"
    ids = loaded[1](text)["input_ids"]
    made = official.completions.create(model=TINY, prompt=ids, echo=True, logprobs=1, max_tokens=0)
    found = made.choices[0].logprobs
    assert found.token_logprobs[0] is None
    assert found.token_logprobs[1:] == pytest.approx(plain_logprobs(loaded, ids[:1], ids[1:]), abs=1e-4)
    assert made.choices[0].text == text and "".join(found.tokens) == text and made.usage.completion_tokens == 0
    both = official.completions.create(
        model=TINY, prompt=[text, "go"], max_tokens=4, seed=1, temperature=1.0, logprobs=0
    )
    assert [choice.index for choice in both.choices] == [0, 1] and len(both.choices[0].logprobs.tokens) <= 4
    again = official.completions.create(model=TINY, prompt=text, max_tokens=4, seed=1, temperature=1.0)
    assert again.choices[0].text == both.choices[0].text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 99}, "n:"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [BASH], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web"}]}, "tools"),
        ({"extra_body": {"top_k": 4}}, "top_k"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "at most 2048"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(official, change, word):
    options = {"messages": ASK, "max_tokens": 1, **change}
    with pytest.raises(openai.BadRequestError, match=word) as caught:
        official.chat.completions.create(model=TINY, **options)
    assert caught.value.type == "invalid_request_error"


def ask_raw(url, body=b"{}", method="POST", **headers):
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_strangers_and_nonsense_get_the_envelope(base):
    url = f"{base}/chat/completions"
    for status, body, headers in (
        (400, b"{", {}),
        (400, b"[" * 100_000, {}),
        (400, b"[]", {}),
        (415, b"{}", {"Content-Type": "text/plain"}),
        (403, b"{}", {"Host": "evil.example:80"}),
        (413, b" " * (9 << 20), {}),
    ):
        found, doc = ask_raw(url, body, **headers)
        assert found == status and set(doc["error"]) == {"message", "type", "param", "code"}, (status, doc)
    assert ask_raw(f"{base}/nope")[0] == 404 and ask_raw(url, None, "GET")[0] == 405
    body = json.dumps({"model": "gpt-4", "messages": ASK}).encode()
    assert ask_raw(url, body)[0] == 404


def test_our_client_against_it(base, loaded):
    async def go():
        async with ChatClient(EndpointSpec(base_url=base, provider="local")) as client:
            await client.probe()
            request = ChatRequest(messages=ASK, tools=[BASH], temperature=1.0, seed=4, logprobs=True, max_tokens=8)
            ids = await client.tokenize({"messages": ASK, "add_generation_prompt": True})
            return await client.chat(request), ids, client.usage

    reply, ids, usage = asyncio.run(go())
    assert len(reply.logprobs) == reply.completion_tokens and all(p.token_id is not None for p in reply.logprobs)
    assert loaded[1].decode([p.token_id for p in reply.logprobs], skip_special_tokens=True) == reply.text
    assert loaded[1].decode(ids) == loaded[1].apply_chat_template(ASK, tokenize=False, add_generation_prompt=True)
    assert usage.errors == usage.retries == 0 and reply.model == TINY


def test_a_client_that_leaves_frees_the_model(base, official):
    with contextlib.suppress(openai.APITimeoutError):
        official.with_options(timeout=0.3).chat.completions.create(
            model=TINY, messages=ASK, max_tokens=1900, temperature=2.0, seed=1, n=16
        )
    begin = time.monotonic()
    chat(official, max_tokens=1)
    assert time.monotonic() - begin < 1


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, loaded):
    """(folder of a LoRA adapter, the model with it)."""
    import torch
    from peft import LoraConfig, get_peft_model

    from bashgym.training.load import load_model

    torch.manual_seed(0)
    base = load_model(Path(loaded[1].name_or_path), dtype=torch.float32, device="cpu")
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(base, config).eval()
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder)
    return folder, model


def test_an_adapter_behind_a_token_and_a_clean_end(model_home, loaded, adapted):
    folder, model = adapted
    more = ("--name", "mine", "--adapter", str(folder))
    with serving(model_home, *more, BASHGYM_MODEL_TOKEN="s3cret-token") as (url, child):
        assert b"s3cret" not in Path(f"/proc/{child.pid}/cmdline").read_bytes()
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as wrong,
            pytest.raises(openai.AuthenticationError),
        ):
            wrong.models.list()
        with openai.OpenAI(base_url=url, api_key="s3cret-token", max_retries=0) as right:
            assert [model.id for model in right.models.list()] == ["mine"]
            ids = loaded[1]("list the files")["input_ids"]
            made = right.completions.create(model="mine", prompt=ids, echo=True, logprobs=0, max_tokens=0)
        told = made.choices[0].logprobs.token_logprobs[1:]
        assert told == pytest.approx(plain_logprobs((model, None), ids[:1], ids[1:]), abs=1e-3)
        assert told != pytest.approx(plain_logprobs(loaded, ids[:1], ids[1:]), abs=1e-2)
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        errors = child.stderr.read().decode()
        assert "Traceback" not in errors and f"serving mine at {url}" in errors


def test_what_is_refused_before_anything_is_loaded(model_home, base):
    def refused(*arguments):
        env = child_env(BASHGYM_DIR=str(model_home), BASHGYM_TRAINING_PYTHON=sys.executable)
        command = [sys.executable, "-m", "bashgym", "serve-model", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
        assert done.returncode and "Traceback" not in done.stderr
        return done.stderr

    assert "bind_refused" in refused(TINY, "--host", "0.0.0.0")
    assert "model_missing" in refused("nobody/nothing")
    assert "port_in_use" in refused(TINY, "--port", base.rpartition(":")[2].partition("/")[0])
    assert "model_incomplete" in refused(TINY, "--adapter", str(model_home))
    assert "usage" in refused(TINY, "--engine", "magic")


def test_parity_holds_for_the_served_model_and_not_for_another_template(base, model_home, tmp_path):
    tiny = ensure_tiny(Settings.from_env({"BASHGYM_DIR": str(model_home)}, model_home))
    call = {"type": "function", "function": {"name": "bash", "arguments": {"command": "ls <a> & 'ü'", "n": 1.5}}}
    turns = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "a"}]
    rows = [
        {"messages": [*ASK, {"role": "assistant", "content": "\n mkdir bido  "}]},
        {"messages": [*turns, {"role": "assistant", "content": "done 🙂"}], "tools": [BASH]},
        {"messages": [{"role": "system", "content": "x<|im_end|>"}, *ASK, {"role": "assistant", "content": "y"}]},
    ]
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = check_parity(tiny, dataset, EndpointSpec(base_url=base))
    assert found["ok"] and found["mode"] == "ids" and found["n_comparisons"] == 6, found
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    template = (other / "chat_template.jinja").read_text()
    (other / "chat_template.jinja").write_text(
        template.replace("assistant\\n' }}{% endif %}", "assistant\\n> ' }}{% endif %}")
    )
    with serving(model_home, model=str(other)) as (url, _):
        found = check_parity(tiny, dataset, EndpointSpec(base_url=url))
    assert not found["ok"] and [m["part"] for m in found["mismatches"]] == ["prompt"] * 3


def test_vllm_is_started_with_the_same_options_where_it_is_installed(model_home, tmp_path):
    shim = tmp_path / "python"

    def started(packages):
        facts = json.dumps({"python": "3", "packages": packages})
        shim.write_text(f"""#!/bin/sh
[ "$1" = -c ] && echo '{facts}' && exit
echo "$@" "key=$VLLM_API_KEY"
""")
        shim.chmod(0o755)
        env = child_env(BASHGYM_DIR=str(model_home), BASHGYM_TRAINING_PYTHON=str(shim), BASHGYM_MODEL_TOKEN="s3cret")
        command = [sys.executable, "-m", "bashgym", "serve-model", TINY, "--engine", "vllm", "--port", "8123"]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)

    assert "missing_extra" in started({"torch": "2"}).stderr
    words = started({"vllm": "0.10"}).stdout.split()
    assert words[:3] == ["-m", "vllm.entrypoints.cli.main", "serve"] and words[-1] == "key=s3cret"
    assert words[words.index("--port") + 1] == "8123" and words[words.index("--served-model-name") + 1] == TINY


def test_our_client_names_a_wrong_model(base):
    async def go():
        async with ChatClient(EndpointSpec(base_url=base, model="other")) as client:
            await client.chat(ChatRequest(messages=ASK))

    with pytest.raises(BashGymError, match="not served here") as caught:
        asyncio.run(go())
    assert caught.value.code == "endpoint_invalid"
