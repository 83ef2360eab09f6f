"""The one reader of safetensors headers: sound files, damaged ones, and hostile ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.common.weights.safetensors_header import DTYPE_BITS, HeaderError, TensorEntry, read_header


def raw(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: Any = (2, 2), offsets: Any = (0, 16), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    return path


def test_tensors_come_in_the_order_of_their_data(tmp_path: Path) -> None:
    fields = {
        "__metadata__": {"format": "pt", "step": 3},
        "late": entry(offsets=[16, 32]),
        "none": entry([0], [16, 16]),
        "packed": entry([4], [0, 2], "F4"),
        "early": entry([7], [2, 16], "BF16"),
    }
    path = file(tmp_path, raw(fields, bytes(32)))
    header = read_header(path)
    start = path.stat().st_size - 32
    assert list(header.tensors) == ["packed", "early", "none", "late"]
    assert header.tensors["early"] == TensorEntry("early", "BF16", (7,), start + 2, start + 16)
    assert header.tensors["late"].size_bytes == 16
    assert header.metadata == {"format": "pt", "step": "3"}


@pytest.mark.parametrize("metadata", [None, {}])
def test_a_file_may_have_no_tensors_and_no_metadata(tmp_path: Path, metadata: object) -> None:
    header = read_header(file(tmp_path, raw({"__metadata__": metadata})))
    assert (header.tensors, header.metadata) == ({}, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "is a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "is no safetensors file"),
        (b"\x01", "is no safetensors file"),
        (raw(b"[1, 2]"), "is no safetensors file"),
        ((1 << 60).to_bytes(8, "little") + b"{", "is no safetensors file"),
        (raw({"w": entry()})[:30], "is cut: its header has"),
        (raw(b"{nonsense"), "its header is not JSON"),
        (raw(b'{"a":' * 50_000), "its header is not JSON"),
        (raw(b""), "its header is not JSON"),
        (raw({"__metadata__": [1]}), "its metadata is not a JSON object"),
        (raw({"w": entry()}, bytes(15)), "is cut: the tensor w ends at byte"),
        (raw({"w": entry(shape=[2, 3])}, bytes(16)), "which its shape and type do not make"),
        (raw({"w": entry(offsets=[16, 0])}, bytes(16)), "which its shape and type do not make"),
        (raw({"w": entry(shape=[-2, -2])}, bytes(16)), "a negative size"),
        (raw({"w": entry(shape=[True, 4])}, bytes(16)), "no whole number"),
        (raw({"w": entry(shape=[float("inf")])}, bytes(16)), "no whole number"),
        (raw({"w": entry(shape=[10**18] * 65)}, bytes(16)), "in an unknown way"),
        (raw({"w": entry(dtype="Q4")}, bytes(16)), "in an unknown way"),
        (raw({"w": entry(offsets=[0])}, bytes(16)), "in an unknown way"),
        (raw({"w": 3}), "in an unknown way"),
        (raw({"w": entry(), "x": entry(offsets=[8, 24])}, bytes(24)), "the tensor x overlaps"),
        (raw({"w\x1b[31m": entry(dtype="Q4")}, bytes(16)), r"describes the tensor w\\x1b\[31m in"),
    ],
)
def test_a_refusal_states_the_reason(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(HeaderError, match=words):
        read_header(file(tmp_path, content))


def test_a_fifo_and_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(HeaderError, match="is no regular file"):
            read_header(path)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_returned_lies_in_the_file(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(raw({"a": entry(), "b": entry([3], [16, 22], "F16"), "__metadata__": {"k": "v"}}, bytes(22)))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = file(tmp_path, bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        tensors = read_header(path).tensors
    except HeaderError as error:
        assert str(error).isprintable()
        return
    end = 8
    for tensor in tensors.values():
        elements = 1
        for size in tensor.shape:
            elements *= size
        assert end <= tensor.begin <= tensor.end <= path.stat().st_size
        assert tensor.size_bytes * 8 == elements * DTYPE_BITS[tensor.dtype]
        end = tensor.end
