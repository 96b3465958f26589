"""How a model is told of its task and how its answers become commands: as tool calls, or as plain JSON objects."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bashgym.envs.rollout import Step, clip
from bashgym.envs.spec import EnvironmentSpec
from bashgym.inference.client import ChatReply

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
"""What reasoning models say first, where the endpoint does not take it out."""
_FENCED = re.compile(r"^```[a-z]*[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
END_WORDS = frozenset({"submit", "bashgym_submit", "done", "final"})
_SYSTEM = (
    "You work in a bash shell on Linux, in the folder /work. Each command runs by itself: files stay, variables and the current "
    "folder do not. When the task is done, submit."
)
_JSON_RULES = (
    ' Answer with one JSON object and nothing else: {"command": "..."} runs a command, '
    '{"command": "submit"} ends the task.'
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "run_command",
            "description": "Run one bash command in the task's folder and see what it prints.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The command."}},
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "End the task and have it judged.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


class Act(StrEnum):
    """What an answer asks for."""

    COMMAND = "command"
    SUBMIT = "submit"
    UNPARSABLE = "unparsable"


@dataclass(frozen=True)
class Action:
    """One answer, understood."""

    act: Act
    command: str = ""
    reason: str = ""


def opening(spec: EnvironmentSpec, tools: bool) -> list[dict[str, Any]]:
    """The messages before the first answer."""
    return [
        {"role": "system", "content": _SYSTEM + ("" if tools else _JSON_RULES)},
        {"role": "user", "content": spec.instruction},
    ]


def understand(reply: ChatReply) -> Action:
    """The first tool call of an answer, else its JSON object, else a word that ends the episode."""
    if reply.tool_calls:
        call = reply.tool_calls[0]
        if call.name in END_WORDS:
            return Action(Act.SUBMIT)
        if call.name != "run_command":
            return Action(Act.UNPARSABLE, reason=f"there is no tool called {call.name[:60]!r}")
        return _command(_object(call.arguments), 'the arguments of run_command are not {"command": "..."}')
    text = _THOUGHT.sub("", reply.text, count=1).strip()
    if text.casefold().strip("`.\"' ") in END_WORDS:
        return Action(Act.SUBMIT)
    return _command(_object(_unfenced(text)), 'the answer is not one JSON object {"command": "..."}')


def _command(value: dict[str, Any] | None, reason: str) -> Action:
    command = (value or {}).get("command")
    if not isinstance(command, str) or not command.strip():
        return Action(Act.UNPARSABLE, reason=reason)
    if any("\ud800" <= c <= "\udfff" for c in command):
        return Action(Act.UNPARSABLE, reason="the command holds half a character, which no UTF-8 can")
    return Action(Act.SUBMIT) if command.strip() in END_WORDS else Action(Act.COMMAND, command)


def _unfenced(text: str) -> str:
    """The content of the only fenced block, whatever is said around it; else the text itself."""
    if text.startswith("```") and text.endswith("```"):
        return text.partition("\n")[2].removesuffix("```")
    blocks = _FENCED.findall(text)
    return blocks[0] if len(blocks) == 1 else text


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def said(reply: ChatReply) -> dict[str, Any]:
    """The answer as a message of the conversation. Of several tool calls only the first is kept: only it is answered."""
    if not reply.tool_calls:
        return {"role": "assistant", "content": reply.text}
    call = reply.tool_calls[0]
    function = {"name": call.name, "arguments": call.arguments}
    return {
        "role": "assistant",
        "content": reply.text,
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }


def shown(reply: ChatReply, observation: str) -> dict[str, Any]:
    """What the model sees of its command, as the answer to its tool call or as a user's turn."""
    if reply.tool_calls:
        return {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": observation}
    return {"role": "user", "content": observation}


def observe(step: Step, limit: int) -> str:
    """stdout, stderr and a status that is not 0, cut in the middle to `limit` characters."""
    ended = f" ({step.stopped})" if step.stopped != "none" else ""
    parts = [step.stdout.rstrip("\n"), step.stderr.rstrip("\n")]
    parts += [f"[exit status {step.exit_code}{ended}]"] if step.exit_code else []
    return clip("\n".join(filter(None, parts)), limit) or "[no output]"
