"""Shapes from safetensors headers, and the GPU memory that follows from them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.common.weights import hub_headers, tensor_headers
from gpusched.common.weights.tensor_headers import Shapes, TensorShape
from gpusched.core.model import MIB
from gpusched.esd.gpu_memory import CONTEXT_BYTES, GpuNeed, gpu_need, matrix_sides
from tests.support import tiny_models
from tests.support.box import CASES


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in tensor_headers.read_local(str(path)).tensors}


def test_a_directory_with_one_file_and_one_with_many(tmp_path: Path) -> None:
    found = shapes(tiny_models.model(tmp_path / "one", 1))
    assert found["model.layers.1.mlp.down_proj.weight"] == (48, 96)
    tiny_models.save(tmp_path / "one/a-1.safetensors", {"a": ((2, 3), [0.0] * 6)})
    tiny_models.save(tmp_path / "one/a-2.safetensors", {"b": ((4,), [0.0] * 4)})
    index = {"weight_map": {"a": "a-1.safetensors", "b": "a-2.safetensors"}}
    (tmp_path / "one/model.safetensors.index.json").write_text(json.dumps(index))
    assert shapes(tmp_path / "one") == {"a": (2, 3), "b": (4,)}


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    found = tensor_headers.read_local(str(tiny_models.adapter(tmp_path / "lora", "acme/base", 1)))
    assert (found.base, found.tensors) == ("acme/base", ())


@pytest.mark.parametrize(
    ("name", "said"),
    [("empty", "is empty"), ("lfs", "Git LFS pointer"), ("no-such", "no tensors")],
)
def test_case_51_what_has_no_header_says_why(name: str, said: str) -> None:
    found = tensor_headers.read_local(f"{CASES}/esd-51/51-repos/{name}")
    assert said in found.why_not and not found.tensors


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 30) + b'{"a":{"shape":[-1],"dtype":1}}',
        struct.pack("<Q", 80_000) + b"[" * 80_000,
    ],
)
def test_a_hostile_file_is_only_not_known(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    found = tensor_headers.read_local(str(tmp_path))
    assert not found.tensors and found.why_not


def test_an_index_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../secret"}}))
    assert "secret cannot be read" in tensor_headers.read_local(str(tmp_path)).why_not


@pytest.mark.slow
def test_the_cache_of_the_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    commit = "0123456789abcdef" * 2 + "01234567"
    repository = tmp_path / "models--acme--tiny"
    tiny_models.model(repository / "snapshots" / commit, 1)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = [("acme/tiny", ""), ("acme/tiny", commit), ("acme/tiny", "v2"), ("acme/other", "")]
    adapter = str(tiny_models.adapter(tmp_path / "lora", "acme/tiny", 1))
    loop = str(tiny_models.adapter(tmp_path / "loop", str(tmp_path / "loop"), 1))
    found = hub_headers.ask([*models, (adapter, ""), (loop, "")])
    assert (
        found["acme/tiny", ""]
        == found["acme/tiny", commit]
        == found[adapter, ""]
        == tensor_headers.read_local(str(repository / "snapshots" / commit))
    )
    assert found[loop, ""].why_not == "it is an adapter"
    for model in models[2:]:
        assert found[model] == Shapes(why_not="it is not here, and HF_HUB_OFFLINE is set")


def test_the_hub_is_not_asked_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in hub_headers.ask([("acme/tiny", "")])["acme/tiny", ""].why_not


# ---- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((4096, 11008), (11008, 4096)),
        ((64, 32, 3, 3), (64, 32)),
        ((8, 1024, 4096), (4096, 1024)),  # experts
        ((512, 256, 5), (512, 256)),  # a 1-D convolution
        ((7,), (0, 0)),
        ((), (0, 0)),
        ((0, 5), (0, 0)),
    ],
)
def test_the_matrices_of_a_tensor(shape: tuple[int, ...], sides: tuple[int, int]) -> None:
    assert matrix_sides(shape) == sides


def needed(*tensors: TensorShape, solver: str = "auto", parallel: bool = True, layers: str = "") -> GpuNeed:
    found = gpu_need(tensors, solver=solver, parallel=parallel, layers=layers)
    assert found is not None
    return found


def test_what_one_layer_takes_is_the_sum_of_its_parts() -> None:
    n, rows = 4096, 11008
    up = TensorShape("up", (rows, n), "BF16")
    parts = 2 * rows * n + 3 * 8 * n * n + 2 * 8 * 512 * n
    assert needed(up) == (CONTEXT_BYTES + parts, up)
    assert needed(up, solver="svd").bytes == CONTEXT_BYTES + 2 * rows * n + 3 * 8 * rows * n
    assert needed(up, solver="fast").bytes < needed(up).bytes
    # a second one beside it adds at most what the analysis lets in
    both = needed(up, TensorShape("gate", (rows, n), "BF16")).bytes
    assert CONTEXT_BYTES + parts < both < CONTEXT_BYTES + 2 * parts
    assert needed(up, up, parallel=False).bytes == CONTEXT_BYTES + parts
    assert needed(up, TensorShape("x.small", (64, 64)), layers="small").bytes < 700 * MIB


def test_nothing_to_analyse_has_no_need() -> None:
    assert gpu_need([]) is None
    assert gpu_need([TensorShape("norm", (4096,)), TensorShape("packed", (4096, 4096), "I32")]) is None
    head = TensorShape("lm_head", (32000, 4096), "BF16")
    assert gpu_need([head, TensorShape("q_proj.qweight", (512, 4096), "I32")]) is None  # the head is not the model
    assert gpu_need([head, TensorShape("position_ids", (1, 512), "I32"), TensorShape("mask", (512, 512), "BOOL")])


def test_8_bits_are_read_as_32_with_their_scales() -> None:
    narrow, wide = (gpu_need([TensorShape("q", (4096, 4096), dtype)]) for dtype in ("F8_E4M3", "F32"))
    assert narrow and wide and narrow.bytes == wide.bytes


SIDES = st.integers(1, 20_000)


@given(SIDES, SIDES, SIDES, SIDES)
def test_a_larger_layer_never_needs_less(a: int, b: int, more: int, other: int) -> None:
    beside = TensorShape("v", (other, other))
    small = needed(TensorShape("w", (a, b)), beside, parallel=False).bytes
    assert needed(TensorShape("w", (a + more, b + more)), beside, parallel=False).bytes >= small


STUB = """
import time
from types import SimpleNamespace as Name

class GatedRepoError(Exception): ...
class Other(Exception): ...

constants = Name(HF_HUB_OFFLINE=False)
errors = Name(
    GatedRepoError=GatedRepoError, RevisionNotFoundError=Other, RepositoryNotFoundError=Other,
    NotASafetensorsRepoError=Other,
)

def snapshot_download(*_, **__):
    raise FileNotFoundError("not in the cache")

def get_safetensors_metadata(model, revision=None):
    if model == "acme/gated":
        raise GatedRepoError("https://token@host/")
    if model == "acme/slow":
        time.sleep(60)
    tensors = {"w": Name(shape=[3, 4], dtype="BF16"), "r": Name(shape=[1], dtype=str(revision))}
    return Name(files_metadata={"a": Name(tensors=tensors)})
"""


@pytest.mark.slow
def test_the_hub_is_asked_in_a_child_that_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "huggingface_hub.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    names = [("acme/gated", ""), ("acme/fast", "v1"), ("acme/fast", ""), ("acme/slow", "")]
    found = hub_headers.ask(names, deadline_s=5.0)
    assert found["acme/fast", "v1"].tensors == (TensorShape("w", (3, 4), "BF16"), TensorShape("r", (1,), "v1"))
    assert found["acme/fast", ""].tensors[1].dtype == "None"
    assert found["acme/gated", ""].why_not == "it is gated"
    assert found["acme/slow", ""].why_not == "the hub did not answer in 5 s"
