"""The rollout engine: a model on an endpoint against environments in the sandbox, many episodes at once.

Covers: an endpoint that fails is a missing observation, never a miss; limits of the environment end an episode with a named
reason; finished episodes are on disk and not played again. Commands block a thread each, so that as many run as there are cores.
Time limits count what commands take: how long an endpoint thinks is bounded by `request_timeout`, and is not the model's fault.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import append_line, atomic_write_json, read_object
from bashgym.data.replay_records import TurnLogprobs
from bashgym.envs.rollout import Episode, ExitCode, check_runnable
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.verdict import VerifierStatus
from bashgym.evals.rollout_protocol import TOOLS, Act, observe, opening, said, shown, understand
from bashgym.evals.wire import Attempt
from bashgym.inference.client import ChatClient, ChatReply, ChatRequest
from bashgym.inference.job import attempt_seed, drop_torn_tail
from bashgym.store.jsonl import read_jsonl

_OF_ONE_ATTEMPT = frozenset({"endpoint_unreachable", "endpoint_failed", "endpoint_invalid", "environment_invalid"})
"""Errors that make an attempt a missing observation; any other is the machine's, and ends the whole."""
MAX_UNPARSABLE = 3
"""Answers in a row that are no command, after which an episode is over."""


class RolloutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How episodes are played."""

    attempts_per_environment: int = 1
    max_tool_calls: int | None = None
    """Lowers the environment's own limit."""
    max_observation_chars: int = 6000
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 512
    use_tool_calling: bool = True
    capture_logprobs: bool = False
    top_logprobs: int = 0
    seed: int = 0
    stop_on_error: bool = False
    keep_workspace: bool = False
    workspace_root: str | None = None
    """Where kept workspaces go; episodes themselves run in the system's temporary folder."""
    max_concurrency: int = 64


class RolloutStep(msgspec.Struct, frozen=True):
    """One command of an episode, without what differs from run to run."""

    command: str
    exit_code: int
    stopped: str
    observation: str


class RolloutRecord(msgspec.Struct, kw_only=True):
    """One attempt, whole."""

    attempt: Attempt
    messages: list[dict[str, Any]]
    steps: list[RolloutStep]
    turns: list[TurnLogprobs]
    ended: str
    """submit, max_tool_calls, max_response_tokens, max_prompt_tokens, timeout, unparsable, or error."""
    verifier_detail: str = ""
    error: dict[str, Any] | None = None
    workspace: str | None = None


async def roll_out(
    client: ChatClient,
    environments: Sequence[EnvironmentSpec],
    config: RolloutConfig,
    *,
    on_done: Callable[[int, int], None] | None = None,
    journal: Path | None = None,
    digest: str = "",
) -> list[RolloutRecord]:
    """Every attempt at every environment, in order. With a `journal`, finished ones are kept there and not played again.

    Before anything is paid for: `environment_invalid` or `container_unavailable` for what cannot run here, and
    `endpoint_unreachable` if nobody answers. `file_exists` if the journal belongs to another request than `digest`.
    """
    for spec in environments:
        check_runnable(spec)
    jobs = [(spec, index) for spec in environments for index in range(config.attempts_per_environment)]
    done = _opened(journal, digest) if journal else {}
    if all((spec.id, index) in done for spec, index in jobs):
        return [done[spec.id, index] for spec, index in jobs]
    await client.probe()
    gate, stopping = asyncio.Semaphore(max(1, config.max_concurrency)), asyncio.Event()
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:

        async def one(spec: EnvironmentSpec, index: int) -> None:
            if (spec.id, index) in done:
                return
            async with gate:
                if stopping.is_set():
                    record = _lost(
                        spec, index, fail("interrupted", "an earlier attempt failed, and stop_on_error is set")
                    )
                else:
                    record = await _Player(client, config, pool).play(spec, index)
            if record.error and config.stop_on_error:
                stopping.set()
            done[spec.id, index] = record
            if journal and not record.error:
                append_line(journal, msgspec.json.encode(record))
            if on_done:
                on_done(len(done), len(jobs))

        await asyncio.gather(*(one(spec, index) for spec, index in jobs))
    return [done[spec.id, index] for spec, index in jobs]


def _opened(journal: Path, digest: str) -> dict[tuple[str, int], RolloutRecord]:
    """What an earlier run of the same request has finished."""
    beside = journal.with_name(f"{journal.name}.request.json")
    if beside.is_file():
        if read_object(beside).get("request_digest") != digest:
            raise fail("file_exists", f"{journal} holds the rollouts of another request", "Name another file.")
    else:
        journal.parent.mkdir(parents=True, exist_ok=True)
        if journal.exists():
            raise fail("file_exists", f"{journal} exists and is no journal of rollouts", "Name another file.")
        atomic_write_json(beside, {"request_digest": digest})
    drop_torn_tail(journal)
    rows = read_jsonl(journal)[0] if journal.is_file() else []
    records = msgspec.convert(rows, list[RolloutRecord])
    return {record.attempt.key: record for record in records}


def _lost(spec: EnvironmentSpec, index: int, error: BashGymError) -> RolloutRecord:
    attempt = Attempt(environment_id=spec.id, attempt_index=index, passed=None, metadata={"error": error.code})
    return RolloutRecord(attempt=attempt, messages=[], steps=[], turns=[], ended="error", error=error.detail())


class _Player:
    """Plays one attempt."""

    def __init__(self, client: ChatClient, config: RolloutConfig, pool: ThreadPoolExecutor) -> None:
        self._client, self._config, self._pool = client, config, pool
        self._turns: list[TurnLogprobs] = []
        self._steps: list[RolloutStep] = []
        self._prompt_tokens = self._action_tokens = 0

    async def play(self, spec: EnvironmentSpec, index: int) -> RolloutRecord:
        messages = opening(spec, self._config.use_tool_calling)
        try:
            episode = await self._blocking(partial(Episode, spec, max_commands=self._config.max_tool_calls))
            try:
                ended = await self._turns_of(spec, index, episode, messages)
                return await self._judged(spec, index, episode, messages, ended)
            finally:
                await self._blocking(episode.close)
        except BashGymError as error:
            if error.code not in _OF_ONE_ATTEMPT:
                raise
            lost = _lost(spec, index, error)
            lost.messages, lost.steps = messages, self._steps
            return lost

    async def _blocking(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _turns_of(
        self, spec: EnvironmentSpec, index: int, episode: Episode, messages: list[dict[str, Any]]
    ) -> str:
        """Why the conversation ended."""
        turn, unparsable = 0, 0
        while True:
            left = spec.rollout.max_response_tokens - self._action_tokens
            if left <= 0:
                return "max_response_tokens"
            reply = await self._ask(spec, index, messages, turn=turn, budget=left)
            if turn == 0 and reply.prompt_tokens > spec.rollout.max_prompt_tokens:
                return "max_prompt_tokens"
            self._note(reply, messages)
            action = understand(reply)
            if action.act is Act.SUBMIT:
                return "submit"
            turn, unparsable = turn + 1, unparsable + 1 if action.act is Act.UNPARSABLE else 0
            if action.act is Act.UNPARSABLE:
                self._steps.append(RolloutStep("", ExitCode.UNPARSABLE, "refused", action.reason))
                if unparsable >= MAX_UNPARSABLE:
                    return "unparsable"
                messages.append(shown(reply, f"[exit status {ExitCode.UNPARSABLE}: {action.reason}]"))
                continue
            step = await self._blocking(partial(episode.run, action.command))
            if step is None:
                return "timeout"
            observation = observe(step, self._config.max_observation_chars)
            self._steps.append(RolloutStep(action.command, step.exit_code, str(step.stopped), observation))
            messages.append(shown(reply, observation))
            if len(episode.steps) > episode.allowed or turn >= spec.rollout.max_steps:
                return "max_tool_calls"

    async def _ask(
        self, spec: EnvironmentSpec, index: int, messages: list[dict[str, Any]], *, turn: int, budget: int
    ) -> ChatReply:
        config = self._config
        return await self._client.chat(
            ChatRequest(
                messages=messages,
                tools=TOOLS if config.use_tool_calling else None,
                temperature=config.temperature,
                top_p=config.top_p,
                max_tokens=min(config.max_tokens, budget),
                seed=attempt_seed(config.seed, f"{spec.id}\0{turn}", index) >> 32,
                logprobs=config.capture_logprobs,
                top_logprobs=config.top_logprobs if config.capture_logprobs else 0,
            )
        )

    def _note(self, reply: ChatReply, messages: list[dict[str, Any]]) -> None:
        """Adds the answer to the conversation and keeps what was sampled."""
        messages.append(said(reply))
        self._prompt_tokens = reply.prompt_tokens
        self._action_tokens += reply.completion_tokens
        if reply.logprobs:
            ids = [token.token_id for token in reply.logprobs]
            self._turns.append(
                TurnLogprobs(
                    turn=len(messages) - 1,
                    tokens=[token.token for token in reply.logprobs],
                    logprobs=[token.logprob for token in reply.logprobs],
                    token_ids=None if None in ids else [i for i in ids if i is not None],
                    prompt_tokens=reply.prompt_tokens or None,
                )
            )

    async def _judged(
        self, spec: EnvironmentSpec, index: int, episode: Episode, messages: list[dict[str, Any]], ended: str
    ) -> RolloutRecord:
        commands = [step for step in self._steps if step.command]
        reward, parts = 0.0, dict[str, float]()
        if ended == "max_prompt_tokens":
            status, detail = VerifierStatus.BLOCKED, "the prompt is longer than max_prompt_tokens"
        elif not commands and ended == "unparsable":
            status, detail = VerifierStatus.FORMAT_ERROR, "no answer held a command"
        else:
            result = await self._blocking(episode.judge)
            status, reward, parts = result.verifier_status, result.reward, result.reward_components
            detail = result.detail
        kept = await self._blocking(lambda: self._keep(episode, spec, index)) if self._config.keep_workspace else None
        shown_chars = sum(len(step.observation) for step in commands)
        attempt = Attempt(
            environment_id=spec.id,
            attempt_index=index,
            # A verifier that gave no verdict says nothing about the model.
            passed=None if status is VerifierStatus.REWARD_ERROR else status is VerifierStatus.PASSED,
            reward=reward,
            reward_components=parts,
            verifier_status=str(status),
            timeout=status is VerifierStatus.TIMEOUT,
            tool_calls=len(commands),
            tokens=self._prompt_tokens + self._action_tokens,
            action_tokens=self._action_tokens,
            observation_tokens=shown_chars // 4,
            metadata={"ended": ended},
        )
        return RolloutRecord(
            attempt=attempt,
            messages=messages,
            steps=self._steps,
            turns=self._turns,
            ended=ended,
            verifier_detail=detail[:500],
            workspace=kept,
        )

    def _keep(self, episode: Episode, spec: EnvironmentSpec, index: int) -> str:
        root = Path(self._config.workspace_root or "rollout-workspaces").absolute()
        place = root / f"{spec.id.replace(':', '-')}-{index}"
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(episode.work, place, symlinks=True, ignore=_special)
        return str(place)


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes, sockets and devices, which a copy would wait for."""
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name in names if not any(kind(os.lstat(os.path.join(folder, name)).st_mode) for kind in kept)]
