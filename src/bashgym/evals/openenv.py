"""A model against an OpenEnv server: the environment, its steps and its reward live behind somebody else's endpoint.

The model sees each observation as JSON and answers with one JSON object, the action. What the server says is quoted data.
An endpoint or server that fails makes the attempt a missing observation, never a miss.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.envs.rollout import clip
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals.passk import passk_report
from bashgym.evals.wire import Attempt
from bashgym.inference.client import ChatClient, ChatRequest
from bashgym.inference.job import attempt_seed

SCHEMA = "bashgym.openenv_rollouts.v1"
_OBSERVATION_CHARS = 6000


class OpenEnvConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a server is played."""

    tasks: int = 8
    """Distinct episodes, told apart by the seed that `reset` gets."""
    attempts: int = 1
    max_steps: int = 32
    seed: int = 0
    success_threshold: float = 1.0
    """Sum of rewards from which an attempt counts as passed."""
    temperature: float = 0.0
    max_tokens: int = 512
    concurrency: int = 8
    timeout_s: float = 60.0


async def evaluate(client: ChatClient, url: str, config: OpenEnvConfig) -> dict[str, Any]:
    """Plays every task and reports pass@k over them. `missing_extra`, `endpoint_unreachable`, `invalid_field`."""
    _check(config)
    schema = await _action_schema(url, config.timeout_s)
    await client.probe()
    gate = asyncio.Semaphore(config.concurrency)

    async def one(task: int, index: int) -> tuple[Attempt, list[dict[str, Any]]]:
        async with gate:
            return await _episode(client, url, schema, config, task=task, index=index)

    played = await asyncio.gather(*(one(t, i) for t in range(config.tasks) for i in range(config.attempts)))
    environments = [
        EnvironmentSpec(id=f"openenv_{config.seed + t}", instruction=f"task {t} of {url}", domain=f"task_{t}")
        for t in range(config.tasks)
    ]
    attempts = [attempt for attempt, _ in played]
    k_values = [k for k in (1, 4, 8) if k <= config.attempts]
    return {
        "schema_version": SCHEMA,
        "server": url,
        "config": msgspec.to_builtins(config),
        "report": passk_report(environments, attempts, k_values),
        "attempts": msgspec.to_builtins(attempts),
        "transcripts": [messages for _, messages in played],
    }


def _check(config: OpenEnvConfig) -> None:
    bounds = {"tasks": 10_000, "attempts": 64, "max_steps": 1000, "concurrency": 256, "max_tokens": 65_536}
    for name, most in bounds.items():
        if not 1 <= getattr(config, name) <= most:
            raise fail("invalid_field", f"{name} must lie in 1 to {most}", fields=[name])
    if config.attempts > 1 and config.temperature == 0:
        raise fail("invalid_field", "greedy attempts are all alike: give a temperature", fields=["temperature"])


async def _action_schema(url: str, timeout_s: float) -> dict[str, Any]:
    """What the server takes as an action, from its /schema."""
    import aiohttp

    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url.rstrip('/')}/schema") as answer,
        ):
            value = json.loads((await answer.content.read(1 << 20)).decode())["action"]
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise fail(
            "endpoint_unreachable",
            f"{url} does not answer as an OpenEnv server: {type(error).__name__}",
            fields=["url"],
        ) from error
    return value if isinstance(value, dict) else {}


async def _episode(
    client: ChatClient, url: str, schema: dict[str, Any], config: OpenEnvConfig, *, task: int, index: int
) -> tuple[Attempt, list[dict[str, Any]]]:
    from openenv.core.generic_client import GenericEnvClient

    messages: list[dict[str, Any]] = [{"role": "system", "content": _rules(schema)}]
    attempt = Attempt(environment_id=f"openenv_{config.seed + task}", attempt_index=index, passed=None)
    try:
        async with GenericEnvClient(base_url=url, message_timeout_s=config.timeout_s) as server:
            state = await server.reset(seed=config.seed + task)
            total, steps = await _play(client, server, state, messages, config=config, attempt=attempt)
    except BashGymError as error:
        attempt.metadata = {"error": error.code, "message": error.message[:300]}
    except Exception as error:  # noqa: BLE001  the server is somebody else's: whatever it does, nothing was observed
        attempt.metadata = {"error": "endpoint_failed", "message": f"{type(error).__name__}: {str(error)[:300]}"}
    else:
        attempt.passed, attempt.reward, attempt.tool_calls = total >= config.success_threshold, total, steps
        attempt.verifier_status = "passed" if attempt.passed else "failed"
    return attempt, messages


async def _play(
    client: ChatClient,
    server: Any,
    state: Any,
    messages: list[dict[str, Any]],
    *,
    config: OpenEnvConfig,
    attempt: Attempt,
) -> tuple[float, int]:
    """(sum of rewards, steps). Ends when the server says done, the steps are used up, or the answer is no action."""
    total, step = 0.0, 0
    while not state.done and step < config.max_steps:
        shown = clip(json.dumps(state.observation, ensure_ascii=False, default=str), _OBSERVATION_CHARS)
        messages.append({"role": "user", "content": shown})
        seed = attempt_seed(config.seed, attempt.environment_id, attempt.attempt_index) + step
        reply = await client.chat(
            ChatRequest(messages=messages, temperature=config.temperature, max_tokens=config.max_tokens, seed=seed)
        )
        messages.append({"role": "assistant", "content": reply.text})
        attempt.tokens += reply.completion_tokens
        action = _action(reply.text)
        if action is None:
            break
        state = await server.step(action)
        step += 1
        if state.reward is not None:
            if not math.isfinite(state.reward):
                raise fail("endpoint_failed", f"the server gave the reward {state.reward}")
            total += float(state.reward)
    return total, step


def _rules(schema: dict[str, Any]) -> str:
    fields = {
        name: part.get("description") or part.get("type", "")
        for name, part in (schema.get("properties") or {}).items()
        if name != "metadata" and isinstance(part, dict)
    }
    return (
        "You act in an environment. Each message shows an observation as JSON. Answer with one JSON object and nothing "
        f"else: the next action, with these fields: {json.dumps(fields, ensure_ascii=False)}"
    )


def _action(text: str) -> dict[str, Any] | None:
    """The JSON object in an answer: alone, or inside one fence."""
    body = text.strip()
    if body.startswith("```"):
        body = body.split("\n", 1)[-1].rsplit("```", 1)[0]
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
