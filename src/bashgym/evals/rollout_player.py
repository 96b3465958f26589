"""Plays one attempt: the conversation with the model, its commands in the sandbox, the verdict, and what is kept of it all.

What the model and its endpoint send is foreign: bounded, and never able to end more than its own attempt. Time limits count what
commands take; how long an endpoint thinks is bounded by `request_timeout`, and is not the model's fault.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bashgym.core.errors import BashGymError, fail
from bashgym.data.replay_records import TurnLogprobs
from bashgym.envs.rollout import Episode, EpisodeResult, ExitCode
from bashgym.envs.sandbox import Limits
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.verdict import VerifierStatus
from bashgym.evals.rollout_protocol import TOOLS, Act, Action, observe, opening, said, shown, understand
from bashgym.evals.wire import Attempt
from bashgym.inference.client import ChatClient, ChatReply, ChatRequest
from bashgym.inference.job import attempt_seed

T = TypeVar("T")
_OF_ONE_ATTEMPT = frozenset({"endpoint_unreachable", "endpoint_failed", "endpoint_invalid", "environment_invalid"})
"""Errors that make an attempt a missing observation; any other is the machine's, and ends the whole."""
MAX_UNPARSABLE = 3
"""Answers in a row that are no command, after which an episode is over."""
MAX_ANSWER_CHARS = 1 << 20
"""A longer answer ignores every `max_tokens` there is."""
MAX_TOKENS = 1 << 31
"""More is no count."""
KEPT = "rollout-workspaces"
"""Where kept workspaces go if nothing else is asked for, in the current folder."""
MAX_KEPT_DEPTH = 200
"""Deeper folders are not copied: Python's copy recurses."""
CHARS_A_TOKEN = 4
"""For endpoints that count no tokens."""
_OVERFLOW = re.compile(r"context[ _](length|window|size)|maximum context|exceeds the (model|context)", re.IGNORECASE)
"""How endpoints say that a conversation has outgrown the model."""


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
    """submit, unparsable, timeout, error, or the limit: max_steps, max_tool_calls, max_response_tokens, max_prompt_tokens,
    context_length (the endpoint's)."""
    verifier_detail: str = ""
    error: dict[str, Any] | None = None
    workspace: str | None = None


def lost(spec: EnvironmentSpec, index: int, error: BashGymError) -> RolloutRecord:
    """An attempt that was not observed."""
    attempt = Attempt(environment_id=spec.id, attempt_index=index, passed=None, metadata={"error": error.code})
    return RolloutRecord(attempt=attempt, messages=[], steps=[], turns=[], ended="error", error=error.detail())


def limits_of(spec: EnvironmentSpec) -> Limits:
    """What one command may use: the time that the environment gives it."""
    wall_s = spec.rollout.bash_timeout_sec
    return Limits(wall_s=wall_s, cpu_s=math.ceil(wall_s))


class Player:
    """Plays one attempt. What blocks runs in `pool`."""

    def __init__(self, client: ChatClient, config: RolloutConfig, pool: ThreadPoolExecutor) -> None:
        self._client, self._config, self._pool = client, config, pool
        self._messages: list[dict[str, Any]] = []
        self._turns: list[TurnLogprobs] = []
        self._steps: list[RolloutStep] = []
        self._tokens = _Tokens()

    async def play(self, spec: EnvironmentSpec, index: int) -> RolloutRecord:
        """The attempt's record; with `error` and without a verdict if it could not be observed."""
        self._messages = opening(spec, self._config.use_tool_calling)
        make = partial(Episode, spec, limits=limits_of(spec), max_commands=self._config.max_tool_calls)
        try:
            episode: Episode = await self._blocking(make)
            try:
                ended = await self._converse(spec, index, episode)
                return await self._judged(spec, index, episode, ended)
            finally:
                await self._blocking(episode.close)
        except BashGymError as error:
            if error.code not in _OF_ONE_ATTEMPT:
                raise
            record = lost(spec, index, error)
            record.messages = self._messages
            record.steps = [*self._steps, RolloutStep("", ExitCode.MODEL_ERROR, "refused", error.message)]
            return record

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _converse(self, spec: EnvironmentSpec, index: int, episode: Episode) -> str:
        """Why the conversation ended."""
        unparsable = 0
        for turn in range(spec.rollout.max_steps):
            left = spec.rollout.max_response_tokens - self._tokens.action
            if left <= 0:
                return "max_response_tokens"
            reply = await self._ask(spec, index, turn=turn, budget=left)
            if reply is None:
                return "context_length"
            self._tokens.add(reply, self._messages)
            if turn == 0 and self._tokens.prompt > spec.rollout.max_prompt_tokens:
                return "max_prompt_tokens"
            self._note(reply)
            action = understand(reply)
            unparsable = unparsable + 1 if action.act is Act.UNPARSABLE else 0
            ended = await self._act(action, reply, episode)
            if ended or unparsable >= MAX_UNPARSABLE:
                return ended or "unparsable"
        return "max_steps"

    async def _act(self, action: Action, reply: ChatReply, episode: Episode) -> str:
        """Runs the command and shows what came of it. Not empty: why the episode is over."""
        if action.act is Act.SUBMIT:
            return "submit"
        if action.act is Act.UNPARSABLE:
            self._steps.append(RolloutStep("", ExitCode.UNPARSABLE, "refused", action.reason))
            self._messages.append(shown(reply, f"[exit status {ExitCode.UNPARSABLE}: {action.reason}]"))
            return ""
        step = await self._blocking(partial(episode.run, action.command))
        if step is None:
            return "timeout"
        observation = observe(step, self._config.max_observation_chars)
        self._steps.append(RolloutStep(action.command, step.exit_code, str(step.stopped), observation))
        self._messages.append(shown(reply, observation))
        return "max_tool_calls" if len(episode.steps) > episode.allowed else ""

    async def _ask(self, spec: EnvironmentSpec, index: int, *, turn: int, budget: int) -> ChatReply | None:
        """The next answer; None if the conversation has outgrown what the endpoint takes."""
        config = self._config
        request = ChatRequest(
            messages=self._messages,
            tools=TOOLS if config.use_tool_calling else None,
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=min(config.max_tokens, budget),
            seed=attempt_seed(config.seed, f"{spec.id}\0{turn}", index) >> 32,
            logprobs=config.capture_logprobs,
            top_logprobs=config.top_logprobs if config.capture_logprobs else 0,
        )
        try:
            reply = await self._client.chat(request)
        except BashGymError as error:
            # The model's own doing, and so no missing observation: it talked until nothing more fits.
            if turn and error.code == "endpoint_failed" and _OVERFLOW.search(error.message):
                return None
            raise
        if (size := _size(reply)) > MAX_ANSWER_CHARS:
            raise fail("endpoint_failed", f"an answer of {size} characters, for at most {request.max_tokens} tokens")
        if max(reply.prompt_tokens, reply.completion_tokens) > MAX_TOKENS:
            raise fail("endpoint_failed", f"an answer of {reply.completion_tokens} tokens to {reply.prompt_tokens}")
        return reply

    def _note(self, reply: ChatReply) -> None:
        """Adds the answer to the conversation and keeps what was sampled."""
        self._messages.append(said(reply))
        if reply.logprobs:
            ids = [token.token_id for token in reply.logprobs]
            self._turns.append(
                TurnLogprobs(
                    turn=len(self._messages) - 1,
                    tokens=[token.token for token in reply.logprobs],
                    logprobs=[token.logprob for token in reply.logprobs],
                    token_ids=None if None in ids else [i for i in ids if i is not None],
                    prompt_tokens=reply.prompt_tokens or None,
                )
            )

    async def _judged(self, spec: EnvironmentSpec, index: int, episode: Episode, ended: str) -> RolloutRecord:
        commands = [step for step in self._steps if step.command]
        result = _without_verdict(ended, bool(commands))
        if result is None:
            result = await self._blocking(episode.judge)
        kept = await self._blocking(lambda: self._keep(episode, spec, index)) if self._config.keep_workspace else None
        status = result.verifier_status
        counted = {"token_counts": "estimated"} if self._tokens.estimated else {}
        attempt = Attempt(
            environment_id=spec.id,
            attempt_index=index,
            # A verifier that gave no verdict says nothing about the model.
            passed=None if status is VerifierStatus.REWARD_ERROR else status is VerifierStatus.PASSED,
            reward=result.reward,
            reward_components=result.reward_components,
            verifier_status=str(status),
            timeout=status is VerifierStatus.TIMEOUT,
            tool_calls=len(commands),
            tokens=self._tokens.whole,
            action_tokens=self._tokens.action,
            observation_tokens=self._tokens.observation,
            metadata={"ended": ended, **counted},
        )
        return RolloutRecord(
            attempt=attempt,
            messages=self._messages,
            steps=self._steps,
            turns=self._turns,
            ended=ended,
            verifier_detail=result.detail[:500],
            workspace=kept,
        )

    def _keep(self, episode: Episode, spec: EnvironmentSpec, index: int) -> str:
        return keep_workspace(episode, Path(self._config.workspace_root or KEPT), f"{spec.id}-{index}")


class _Tokens:
    """Tokens of one conversation, as the endpoint counts them, else estimated."""

    def __init__(self) -> None:
        self.prompt = 0
        """Of the first prompt."""
        self.action = 0
        """Generated, over all answers."""
        self.estimated = False
        self._last = (0, 0)

    def add(self, reply: ChatReply, messages: list[dict[str, Any]]) -> None:
        """Counts one answer to `messages`."""
        asked, answered = reply.prompt_tokens, reply.completion_tokens or len(reply.logprobs or ())
        if not asked:
            asked, self.estimated = _estimate(sum(len(str(message)) for message in messages)), True
        if not answered and _size(reply):
            answered, self.estimated = _estimate(_size(reply)), True
        self.prompt = self.prompt or asked
        self.action += answered
        self._last = (asked, answered)

    @property
    def whole(self) -> int:
        """The conversation up to the last answer."""
        return sum(self._last)

    @property
    def observation(self) -> int:
        """What the model read since the first prompt and had not written, the template's own tokens included."""
        asked, answered = self._last
        return max(0, asked - self.prompt - (self.action - answered))


def _estimate(chars: int) -> int:
    return -(-chars // CHARS_A_TOKEN)


def _size(reply: ChatReply) -> int:
    return len(reply.text) + sum(len(call.arguments) + len(call.name) for call in reply.tool_calls)


def _without_verdict(ended: str, acted: bool) -> EpisodeResult | None:
    """The result where nothing is there to be judged."""
    if ended == "max_prompt_tokens":
        status, detail = VerifierStatus.BLOCKED, "the prompt is longer than max_prompt_tokens"
    elif ended == "unparsable" and not acted:
        status, detail = VerifierStatus.FORMAT_ERROR, "no answer held a command"
    else:
        return None
    return EpisodeResult("", False, 0.0, status, (), 0.0, {}, detail)


def keep_workspace(episode: Episode, root: Path, name: str) -> str:
    """Copies what the episode left to `root/name`, and gives that path. What cannot be copied is left out: it is the model's."""
    place = root.expanduser().absolute() / name
    place.parent.mkdir(parents=True, exist_ok=True)
    while place.exists():
        place = place.with_name(f"{place.name}.again")  # what is there is somebody's
    cut: list[str] = []

    def left_out(folder: str, names: list[str]) -> list[str]:
        if len(Path(folder).relative_to(episode.work).parts) < MAX_KEPT_DEPTH:
            return _special(folder, names)
        cut.extend(["folders too deep to be copied"] if names else [])
        return names

    try:
        shutil.copytree(episode.work, place, symlinks=True, ignore=left_out)
    except OSError as error:
        place.mkdir(exist_ok=True)
        cut.append(f"{type(error).__name__}: {error}"[:2000])
    if cut:
        (place / ".bashgym-incomplete").write_bytes("\n".join(dict.fromkeys(cut)).encode("utf-8", "replace"))
    return str(place)


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes, sockets and devices, which a copy would wait for."""
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name in names if not any(kind(os.lstat(os.path.join(folder, name)).st_mode) for kind in kept)]
