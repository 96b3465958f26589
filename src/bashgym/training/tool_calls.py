"""How a model's text becomes tool calls, for templates that TRL does not know by heart.

TRL reads tool calls only for chat templates equal to one of its own, character by character. Many more write them the
same way: ChatML turns with `<tool_call>{"name": ..., "arguments": ...}</tool_call>`. Those get TRL's parser for that form.
"""

from __future__ import annotations

from typing import Any

from trl.chat_template_utils import add_response_schema, qwen3_template, supports_tool_calling

from bashgym.core.errors import fail

_CALL = {"name": "probe", "arguments": {"command": "ls"}}
_TURN = "<|im_start|>assistant\n"


def read_tool_calls(tokenizer: Any, model_name: str) -> None:
    """Makes `tokenizer` parse tool calls. `template_failed` where it is not certain how the template writes them."""
    if supports_tool_calling(tokenizer):
        if getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None):
            return
        try:
            add_response_schema(tokenizer)
            return
        except ValueError:  # another template than TRL's own
            if _writes_hermes(tokenizer):
                tokenizer.response_template = qwen3_template
                return
    raise fail(
        "template_failed",
        f"environment_protocol is tools, and how the chat template of {model_name} writes tool calls is not known",
        hint="Use environment_protocol text, or a model whose template writes <tool_call>{json}</tool_call> in ChatML turns.",
        fields=["environment_protocol"],
    )


def _writes_hermes(tokenizer: Any) -> bool:
    """Renders a call and reads it back."""
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": _CALL}]},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    before, found, answer = text.partition(_TURN)
    if not found or "<tool_call>" not in answer:
        return False
    tokenizer.response_template = qwen3_template
    try:
        parsed = tokenizer.parse_response(answer, prefix=before + found)
    finally:
        tokenizer.response_template = None
    return [call["function"] for call in parsed.get("tool_calls", [])] == [_CALL]
