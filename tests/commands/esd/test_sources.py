"""Where tensors come from: files that are whole, files that are not, pickles, state dicts and modules."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from gpusched.commands.esd.read.sources import ModuleSource, StateSource, open_local
from gpusched.commands.esd.read.tensors import ModelError, TensorSource
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

WHOLE = {"b.weight": torch.arange(12.0).reshape(3, 4), "a.weight": torch.ones(2, 2, dtype=torch.bfloat16)}


def raw(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: Any = (2, 2), offsets: Any = (0, 16), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def directory(place: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place


def tensors(source: TensorSource) -> dict[str, torch.Tensor]:
    found = {info.name: source.read(info.name) for info in source.infos()}
    for info in source.infos():
        assert tuple(found[info.name].shape) == info.shape
        assert str(found[info.name].dtype) == f"torch.{info.dtype}"
    source.close()
    return found


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_safetensors_come_as_they_were_saved(tmp_path: Path) -> None:
    dtypes = (torch.float64, torch.float16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.uint8)
    whole = {**WHOLE, **{str(dtype): torch.zeros(2, 3).to(dtype) for dtype in dtypes}, "scalar": torch.tensor(2.5)}
    save_file(whole, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"vocab_size": 7}')
    source = open_local(tmp_path)
    assert source.config["vocab_size"] == 7
    found = tensors(source)
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name].double(), whole[name].double()) for name in whole)


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    save_file({"a.weight": WHOLE["a.weight"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b.weight": WHOLE["b.weight"], "extra": torch.ones(1)}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    source = open_local(tmp_path)
    assert [info.name for info in source.infos()] == ["a.weight", "b.weight"]
    assert "extra" in source.notes[0] and "not in the index" in source.notes[0]
    assert same(tensors(source), WHOLE)


def test_an_expert_is_read_alone(tmp_path: Path) -> None:
    stack = torch.arange(24.0).reshape(2, 3, 4)
    save_file({"experts": stack}, tmp_path / "model.safetensors")
    source: Any = open_local(tmp_path)
    assert torch.equal(source.read("experts", slice(1, 3)), stack[1:3])
    source.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "no safetensors file"),
        (raw({"w": entry()}, b"\0" * 15), "is cut: the tensor w ends at byte"),
        (raw({"w": entry()})[:30], "is cut: its header"),
        (raw(b"{nonsense"), "not JSON"),
        (raw({"w": entry(shape=[2, 3])}, b"\0" * 16), "which its shape and type do not make"),
        (raw({"w": entry(offsets=[16, 0])}, b"\0" * 16), "which its shape and type do not make"),
        (raw({"w": entry(shape=[-2, -2])}, b"\0" * 16), "negative size"),
        (raw({"w": entry(shape=[True, 4])}, b"\0" * 16), "no whole number"),
        (raw({"w": entry(dtype="Q4")}, b"\0" * 16), "in an unknown way"),
        (raw({"w": 3}), "in an unknown way"),
        (raw({"w": entry(), "x": entry(offsets=[8, 24])}, b"\0" * 24), "overlap"),
        (raw({"w\x1b[31m": entry(dtype="Q4")}, b"\0" * 16), r"describes the tensor w\\x1b\[31m in"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, words: str) -> None:
    place = directory(tmp_path, {"model.safetensors": content})
    with pytest.raises(ModelError, match=words) as told:
        open_local(place)
    assert told.value.stage == "load"


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_gives_tensors_or_a_reason(tmp_path: Path, data: st.DataObject) -> None:
    save_file(WHOLE, tmp_path / "sound.safetensors")
    content = bytearray((tmp_path / "sound.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "model.safetensors").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        tensors(open_local(tmp_path / "model.safetensors"))
    except ModelError as error:
        assert error.reason.isprintable()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(WHOLE, path)
    source = open_local(path)
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(ModelError, match="changed while it was read"):
        source.read("b.weight")
    source.close()


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "only nothing"),
        ({"README.md": b"hi"}, r"no weights that can be read .*, only README.md"),
        ({"adapter_model.safetensors": raw({})}, "no weights that can be read"),
        ({INDEX: b"{}"}, "is no index"),
        ({INDEX: b'{"weight_map": {}}'}, "is no index"),
        ({INDEX: b'{"weight_map": {"a": "x.safetensors"}}'}, "names x.safetensors, which is missing"),
        ({INDEX: b'{"weight_map": {"a": "../x.safetensors"}}'}, "missing in its directory"),
        ({INDEX: b'{"weight_map": {"a": "x.safetensors"}}', "x.safetensors": raw({})}, "which lacks it"),
        ({f"model-0000{n}-of-00003.safetensors": raw({}) for n in (1, 2)}, "2 files of weights .*, and no index"),
        ({"config.json": b"[]", "model.safetensors": raw({})}, "no JSON object"),
        ({"pytorch_model.bin": b""}, "cut or damaged"),
        ({"pytorch_model.bin": b"version https://git-lfs.github.com/spec/v1"}, "Git LFS pointer"),
        ({"pytorch_model.bin": b"PK\x03\x04 cut"}, "cut or damaged"),
        ({"pytorch_model.bin": b"nonsense"}, "cut or damaged|more than weights"),
    ],
)
def test_what_is_wrong_with_a_directory_is_said(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_local(directory(tmp_path, files))


def test_other_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"ONNX")
    with pytest.raises(ModelError, match=r"weights in \.onnx cannot be read"):
        open_local(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        open_local(tmp_path / "nowhere")


@pytest.mark.parametrize("old_format", [False, True])
def test_pickles_are_read_with_their_ties_once(tmp_path: Path, old_format: bool) -> None:
    shared = torch.randn(300, 50)
    state = {**WHOLE, "embed.weight": shared, "head.weight": shared, "step": 3}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=not old_format)
    source = open_local(tmp_path)
    assert any("head.weight is tied to embed.weight" in note for note in source.notes)
    assert torch.equal(source.read("embed.weight", slice(7, 9)), shared[7:9])
    first = source.read("embed.weight")
    assert torch.equal(first, shared) and torch.equal(source.read("embed.weight"), shared)
    assert same(tensors(source), {**WHOLE, "embed.weight": shared})


def test_a_checkpoint_that_holds_more_is_looked_into(tmp_path: Path) -> None:
    torch.save({"state_dict": WHOLE, "epoch": 3}, tmp_path / "model.pt")
    source = open_local(tmp_path / "model.pt")
    assert same(tensors(source), WHOLE)
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(ModelError, match="no tensors by name"):
        open_local(tmp_path / "none.pt")


class Trap:
    """What a pickle must not be let do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trapped",)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Trap()}, tmp_path / "zip.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Trap(), protocol=2))
    for name in ("zip.pt", "plain.pt"):
        with pytest.raises(ModelError, match=r"more than weights|cut or damaged"):
            open_local(tmp_path / name)
    assert not (tmp_path / "trapped").exists()


def test_a_module_knows_its_embeddings_and_ties() -> None:
    module = torch.nn.Module()
    module.words = torch.nn.Embedding(10, 4)
    module.body = torch.nn.Linear(4, 4)
    module.head = torch.nn.Linear(4, 10, bias=False)
    module.head.weight = module.words.weight
    source = ModuleSource(module)
    assert [info.name for info in source.infos()] == ["words.weight", "body.weight", "body.bias"]
    assert source.embeddings == {"words.weight"}
    assert not source.read("body.weight").requires_grad


@pytest.mark.parametrize("tensor", [torch.empty(2, 2, device="meta"), torch.eye(2).to_sparse()])
def test_tensors_without_plain_data_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ModelError, match="only dense tensors"):
        StateSource({"w": tensor})
