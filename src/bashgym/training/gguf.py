"""GGUF export with llama.cpp's own converter, in a process of its own. No torch here.

Owns: finding the tools, running them with a time limit, checking what they wrote, and the Modelfile that carries the
training template and stop tokens to Ollama. Does not own: when a run exports (`runs.delivery`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_text, fsync_dir
from bashgym.data.tokens import TokenizerBundle
from bashgym.models.gguf_header import GgufHeader, read_gguf

CONVERTER, QUANTIZER = "convert_hf_to_gguf.py", "llama-quantize"
DIRECT = ("f32", "f16", "bf16", "q8_0")
"""What the converter writes by itself; every other type is made by the quantizer."""
TIME_LIMIT_S = 4 * 3600
MEND = "Point BASHGYM_LLAMA_CPP at a llama.cpp checkout (with llama-quantize built), or set auto_export_gguf to false."


@dataclass(frozen=True)
class Tools:
    """Where llama.cpp's programs are; None where they are not."""

    converter: Path | None
    quantizer: Path | None


def find_tools(llama_cpp: str) -> Tools:
    """Looks in the llama.cpp folder (setting `llama_cpp`), then on PATH."""
    root = Path(llama_cpp).expanduser() if llama_cpp else None
    return Tools(_find(CONVERTER, root, ("",)), _find(QUANTIZER, root, ("", "build/bin", "bin")))


def _find(name: str, root: Path | None, places: Sequence[str]) -> Path | None:
    for place in places if root else ():
        if root and (root / place / name).is_file():
            return root / place / name
    found = shutil.which(name)
    return Path(found) if found else None


def export(model: Path, target: Path, *, name: str, quantization: str, tools: Tools, python: str) -> dict[str, Any]:
    """Writes `<target>/<name>-<type>.gguf` and a Modelfile; {file, type, sha256, size_bytes, tensors, warnings}.

    `export_unavailable` without the converter; `export_failed` when a tool fails or what it wrote is not sound. `target`
    appears only when all of it is right. What the tools say goes to stderr.
    """
    if tools.converter is None:
        raise fail("export_unavailable", f"there is no {CONVERTER} (llama.cpp) here", hint=MEND)
    wanted, warnings = quantization.lower(), []
    if wanted not in DIRECT and tools.quantizer is None:
        warnings.append(f"{wanted} needs {QUANTIZER}, which is not here: written as f16")
        wanted = "f16"
    made = Path(tempfile.mkdtemp(prefix=".gguf-", dir=target.parent))
    try:
        file = made / f"{name}-{wanted}.gguf"
        plain = file if wanted in DIRECT else made / f"{name}-f16.gguf"
        outtype = wanted if wanted in DIRECT else "f16"
        _call([python, str(tools.converter), str(model), "--outfile", str(plain), "--outtype", outtype])
        if plain is not file:
            _call([str(tools.quantizer), str(plain), str(file), wanted.upper()])
            plain.unlink()
        bundle = TokenizerBundle.load(model)
        header = read_gguf(file)
        warnings += check(header, bundle)
        text, reason = modelfile(bundle, file.name)
        if reason:
            warnings.append(f"the Modelfile has no TEMPLATE: {reason}")
        atomic_write_text(made / "Modelfile", text)
        facts = {"file": f"{target.name}/{file.name}", "type": wanted, "sha256": digest_file(file)}
        size, tensors = file.stat().st_size, len(header.tensors)
        made.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(made, target)
        fsync_dir(target.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return {**facts, "size_bytes": size, "tensors": tensors, "warnings": warnings}


def _call(command: list[str]) -> None:
    print("$ " + " ".join(command), file=sys.stderr, flush=True)
    # The tools need no secret: none is passed on.
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "TOKEN" not in key}
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIME_LIMIT_S, env=env,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise fail("export_failed", f"{Path(command[-1]).name}: no end after {TIME_LIMIT_S} s") from error
    except OSError as error:
        raise fail("export_failed", f"{command[0]} cannot be run: {error.strerror}") from error
    print(done.stdout + done.stderr, file=sys.stderr, flush=True)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()
        tool = next(Path(part).name for part in command if Path(part).name in (CONVERTER, QUANTIZER))
        raise fail("export_failed", f"{tool} ended with status {done.returncode}: {lines[-1][:300]}")


def check(header: GgufHeader, bundle: TokenizerBundle) -> list[str]:
    """What was lost on the way, in words. `export_failed` where the file cannot be used at all."""
    meta, found = header.metadata, []
    if not header.tensors or not header.data_bytes:
        raise fail("export_failed", "the GGUF holds no tensors")
    architecture = meta.get("general.architecture")
    if not architecture:
        raise fail("export_failed", "the GGUF names no architecture")
    if bundle.chat_template and meta.get("tokenizer.chat_template") != bundle.chat_template:
        lost = "another" if meta.get("tokenizer.chat_template") else "no"
        found.append(
            f"the GGUF has {lost} chat template: use the TEMPLATE of the Modelfile, or answers will be gibberish"
        )
    eos = meta.get("tokenizer.ggml.eos_token_id")
    if bundle.eos_id is not None and eos != bundle.eos_id:
        said = f"{bundle.eos_token} ({bundle.eos_id})"
        found.append(
            f"the GGUF ends with token {eos}, the model with {said}: set stop {bundle.eos_token}, or it never ends"
        )
    rows = meta.get("tokenizer.ggml.tokens")
    if isinstance(rows, int) and bundle.model_vocab_size and rows != bundle.model_vocab_size:
        found.append(f"the GGUF has {rows} tokens, the model's embedding {bundle.model_vocab_size} rows")
    return found


def modelfile(bundle: TokenizerBundle, file: str) -> tuple[str, str]:
    """(An Ollama Modelfile with the training template as TEMPLATE and its stop tokens, why there is no TEMPLATE or empty)."""
    stops = sorted(text for i in bundle.stop_ids if (text := bundle.tokenizer.id_to_token(i)))
    lines = [f"FROM ./{file}"]
    template, reason = "", "the model has no chat template"
    if bundle.chat_template:
        template, reason = _go_template(bundle)
    if template:
        lines.append(f'TEMPLATE """{template}"""')
    return "\n".join([*lines, *(f'PARAMETER stop "{stop}"' for stop in stops)]) + "\n", reason


def _go_template(bundle: TokenizerBundle) -> tuple[str, str]:
    """The template as Ollama writes one, read off what the chat template renders; (empty, why) if it is not turn by turn."""
    s, u, a, v = "\ue001", "\ue002", "\ue003", "\ue004"  # private-use characters: no template has them
    try:
        asked = bundle.render([_turn("user", u)])
        answered = bundle.render([_turn("user", u), _turn("assistant", a)])
        again = bundle.render([_turn("user", u), _turn("assistant", a), _turn("user", v)])
        system = bundle.render([_turn("system", s), _turn("user", u)])
        begun = bundle.render([_turn("user", u)], add_generation_prompt=True)
    except BashGymError as error:
        return "", error.message
    user = again.removeprefix(answered).replace(v, u)
    grows = answered.startswith(asked) and again.startswith(answered) and begun.startswith(asked)
    if not grows or not asked.endswith(user) or not system.endswith(user) or '"""' in begun + system:
        return "", "the chat template does not build a conversation turn by turn"
    parts = {
        "system": system.removesuffix(user).replace(s, "{{ .Content }}"),
        "user": user.replace(u, "{{ .Content }}"),
        "assistant": answered.removeprefix(asked).replace(a, "{{ .Content }}"),
    }
    if any("{{ .Content }}" not in part for part in parts.values()):
        return "", "the chat template leaves a turn's text out"
    default = asked.removesuffix(user)
    body = "{{ else }}".join(f'{{{{ if eq .Role "{role}" }}}}{text}' for role, text in parts.items())
    # Go closes each `if` by itself.
    turns = body.replace("{{ else }}{{ if", "{{ else if") + "{{ end }}"
    opening = f"{{{{ if not .System }}}}{default}{{{{ end }}}}" if default else ""
    return f"{opening}{{{{ range .Messages }}}}{turns}{{{{ end }}}}{begun.removeprefix(asked)}", ""


def _turn(role: str, content: str) -> Mapping[str, Any]:
    return {"role": role, "content": content}
