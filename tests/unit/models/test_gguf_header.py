import struct

import pytest

from bashgym.core.errors import BashGymError
from bashgym.models.gguf_header import read_gguf


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(*, version=3, keys=None, tensors=1, data=64):
    keys = {"general.architecture": "qwen2"} if keys is None else keys
    body = b"GGUF" + struct.pack("<IQQ", version, tensors, len(keys))
    for name, value in keys.items():
        body += text(name) + (struct.pack("<I", 8) + text(value) if isinstance(value, str) else value)
    for i in range(tensors):
        body += text(f"t{i}") + struct.pack("<IQIQ", 1, 4, 0, 16 * i)
    return body + b"\0" * (-len(body) % 32) + b"\1" * data


def read(tmp_path, data):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return read_gguf(path)


def test_metadata_tensors_and_data_are_read(tmp_path):
    number = struct.pack("<II", 4, 7)
    names = struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bb")
    ids = struct.pack("<IIQ3I", 9, 4, 3, 1, 2, 3)
    header = read(tmp_path, gguf(keys={"a": "x", "n": number, "names": names, "ids": ids}, tensors=2))
    assert header.metadata == {"a": "x", "n": 7, "names": 2, "ids": [1, 2, 3]}
    assert header.tensors == {"t0": 0, "t1": 16} and header.data_bytes == 64


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGU",
        b"PK\3\4" + b"\0" * 40,
        gguf(version=1),
        gguf(data=0),
        gguf()[:40],
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**60),
        gguf(keys={"x": struct.pack("<I", 77)}),
        gguf(keys={"x": struct.pack("<IIQ", 9, 9, 1)}),
        gguf(keys={"x": struct.pack("<IIQ", 9, 4, 2**61)}),
        gguf(keys={"x": struct.pack("<I", 8) + struct.pack("<Q", 2) + b"\xff\xfe"}),
    ],
)
def test_anything_else_is_a_typed_refusal(tmp_path, data):
    with pytest.raises(BashGymError) as refused:
        read(tmp_path, data)
    assert refused.value.code == "export_failed"


def test_every_truncation_is_refused(tmp_path):
    whole = gguf(tensors=2, data=32)
    for length in range(len(whole) - 16):
        with pytest.raises(BashGymError):
            read(tmp_path, whole[:length])
