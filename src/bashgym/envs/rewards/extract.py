"""What counts as the code, and as the final answer, of a completion. Pure functions.

Code (`code_block`): the last closed fenced block whose language is Python or not given; without one, the whole text. An
answer that was cut inside its only block is therefore judged as it stands, fence and all, and does not parse.

Final answer (`final_answer`): what follows the last `####` on its line, or stands in the last `\\boxed{...}`, whichever
comes later. Without either: where the reference is a number the last number in the text, else its last line with content.
The reference itself goes through the markers only, so that "... #### 18" is 18 and "5 apples" stays a text.

Equality (`same_answer`): two numbers as decimals (thousands separators, a leading currency sign, a trailing percent sign
and full stop do not count: "$1,000." is 1000.0); otherwise both texts without outer white space, a final full stop, and
case. A digit string with a leading zero ("007") and an exponent ("1e3") are texts.
"""

from __future__ import annotations

import re
from decimal import Decimal

_FENCE = re.compile(r"^[ \t]*```[ \t]*([A-Za-z0-9_+-]*)[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_PYTHON = ("", "python", "py", "python3")
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|0|[1-9]\d*)(?:\.\d+)?"
_WHOLE_NUMBER = re.compile(rf"[$€£]?([-+]?)[$€£]?({_NUMBER})\s*%?\.?")
_NUMBER_IN_TEXT = re.compile(rf"(?<![\w.,])(?:(?<![)\]])[-+])?[$€£]?{_NUMBER}(?![\w])%?")
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_BOXED = "\\boxed{"
MAX_ANSWER = 1_000
"""Characters of an answer that are compared; a longer one equals nothing."""


def code_block(completion: str) -> str:
    """The code of a completion, by the rule above; it may be empty."""
    blocks = [match[2] for match in _FENCE.finditer(completion) if match[1].lower() in _PYTHON]
    return blocks[-1] if blocks else completion


def final_answer(completion: str, *, number: bool) -> str:
    """The final answer of a completion, by the rule above; empty if there is none."""
    text = completion.replace("\N{MINUS SIGN}", "-").strip()
    marked = _marked(text)
    if marked is not None:
        return marked
    if number:
        found = _NUMBER_IN_TEXT.findall(text)
        return found[-1] if found else ""
    return text.splitlines()[-1].strip() if text else ""


def same_answer(completion: str, reference: str) -> bool:
    """Whether the completion's final answer is the row's."""
    reference = reference.replace("\N{MINUS SIGN}", "-").strip()
    marked = _marked(reference)
    reference = reference if marked is None else marked
    wanted = as_number(reference)
    given = final_answer(completion, number=wanted is not None)
    if max(len(given), len(reference)) > MAX_ANSWER:
        return False
    if wanted is not None:
        return as_number(given) == wanted
    return bool(given) and _plain(given) == _plain(reference)


def as_number(text: str) -> Decimal | None:
    """The number that the whole text is, or None."""
    match = _WHOLE_NUMBER.fullmatch(text.strip()) if len(text) <= MAX_ANSWER else None
    return Decimal(match[1] + match[2].replace(",", "")) if match else None


def _marked(text: str) -> str | None:
    """What the last marker marks; None without a marker."""
    hashes = next(iter(reversed([*_HASHES.finditer(text)])), None)
    boxed = text.rfind(_BOXED)
    if boxed > (hashes.start() if hashes else -1):
        return _braced(text[boxed + len(_BOXED) :])
    return hashes[1].strip() if hashes else None


def _braced(text: str) -> str:
    """Up to the brace that closes; to the end if none does."""
    depth = 1
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if not depth:
            return text[:at].strip()
    return text.strip()


def _plain(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").casefold()
