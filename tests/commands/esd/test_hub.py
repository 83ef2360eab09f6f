"""Models by name: from a small hub on this machine, from its cache, and from directories."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch
from gpusched.commands.esd.command_line import main
from gpusched.commands.esd.find.hub import Hub as HubClient
from gpusched.commands.esd.find.open_model import open_model
from gpusched.commands.esd.read.tensors import ModelError
from safetensors.torch import load, save

from tests.support.hub_server import COMMIT, Hub, Repository, serve
from tests.support.paths import TESTS

pytestmark = [
    pytest.mark.slow,  # loading the libraries
    pytest.mark.filterwarnings("ignore::UserWarning:huggingface_hub"),
]
CASES = TESTS / "cases"
TOKEN = "hf_" + "S" * 34


def weights(**shapes: tuple[int, ...]) -> bytes:
    torch.manual_seed(0)
    data: bytes = save({name.replace("__", "."): torch.randn(shape) for name, shape in shapes.items()})
    return data


def config(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


BASE = Repository({"config.json": config(model_type="llama"), "model.safetensors": weights(a__q__weight=(8, 6))})
LORA = weights(base_model__model__a__q__lora_A__weight=(2, 6), base_model__model__a__q__lora_B__weight=(8, 2))
ADAPTER = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": "acme/base"}


def adapter(**fields: Any) -> Repository:
    return Repository({"adapter_config.json": config(**{**ADAPTER, **fields}), "adapter_model.safetensors": LORA})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serve({"acme/base": BASE, "lab/ad": adapter()}) as served:
        yield served


class Opened:
    """A model that stays open until `close`."""

    def __init__(self, hub: Hub, cache: Path, model: str, **settings: Any) -> None:
        kept = {name: settings.pop(name) for name in ("drop", "reserve_bytes") if name in settings}
        with ExitStack() as stack:
            client = stack.enter_context(closing(HubClient(cache_dir=str(cache), endpoint=hub.endpoint, **kept)))
            self.model = stack.enter_context(open_model(model, client, **settings))
            self._stack = stack.pop_all()
        self.source = self.model.source
        self.parts = list(self.model.commits.items())
        self.notes = [*self.model.notes, *self.source.notes]
        self.close = self._stack.close


def refusal(hub: Hub, cache: Path, model: str, **settings: Any) -> tuple[str, bool]:
    """Stage and reason, and whether another try is worth it."""
    with pytest.raises(ModelError) as error:
        Opened(hub, cache, model, **settings)
    assert TOKEN not in str(error.value)
    return str(error.value), error.value.transient


def test_an_adapter_and_its_base_are_fetched_once_and_merged(hub: Hub, tmp_path: Path) -> None:
    for _ in range(2):
        model = Opened(hub, tmp_path, "lab/ad", source_model="acme/base", relation="adapter")
        assert model.parts == [("acme/base", COMMIT), ("lab/ad", COMMIT)]
        assert model.source.read("a.q.weight").shape == (8, 6)
        assert model.source.config == {"model_type": "llama"}
        assert model.notes == ["adapter lab/ad merged into 1 tensor"]
        model.close()
    assert sorted(hub.fetched) == [
        "acme/base/config.json",
        "acme/base/model.safetensors",
        "lab/ad/adapter_config.json",
        "lab/ad/adapter_model.safetensors",
    ]
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_a_folder_of_a_repository(hub: Hub, tmp_path: Path) -> None:
    files = {"unet/diffusion_pytorch_model.safetensors": BASE.files["model.safetensors"], "model_index.json": b"{}"}
    other = {"unet/diffusion_pytorch_model.fp16.safetensors": b"x", "text_encoder/model.safetensors": b"x"}
    hub.repositories["acme/sd"] = Repository({**files, **other, "unet/config.json": config(kind="unet")})
    hub.repositories["lab/ads"] = Repository(
        {f"unet/{name}": data for name, data in adapter(base_model_name_or_path=None).files.items()}
    )
    for _ in range(2):
        model = Opened(hub, tmp_path, "lab/ads/unet", source_model="acme/sd/unet", relation="adapter")
        assert model.parts == [("acme/sd/unet", COMMIT), ("lab/ads/unet", COMMIT)]
        assert model.source.read("a.q.weight").shape == (8, 6) and model.source.config == {"kind": "unet"}
        model.close()
    assert sorted(hub.fetched) == [
        "acme/sd/unet/config.json",
        "acme/sd/unet/diffusion_pytorch_model.safetensors",
        "lab/ads/unet/adapter_config.json",
        "lab/ads/unet/adapter_model.safetensors",
    ]
    assert refusal(hub, tmp_path, "acme/sd")[0].startswith("resolve: acme/sd has no weights")
    assert refusal(hub, tmp_path, "acme/sd/vae")[0].startswith("resolve: acme/sd/vae has no weights")


def test_only_what_is_read_is_fetched_and_never_code(hub: Hub, tmp_path: Path) -> None:
    first, second = weights(one=(4, 4)), weights(two=(3, 4))
    shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    index = {"weight_map": {"one": "model-00001-of-00002.safetensors", "two": "model-00002-of-00002.safetensors"}}
    hub.repositories["acme/sharded"] = Repository(
        {
            "config.json": config(auto_map={"AutoModel": "modeling_evil.Evil"}),
            "modeling_evil.py": b"raise SystemExit('ran')",
            "model.safetensors.index.json": json.dumps(index).encode(),
            **shards,
            "pytorch_model.bin": b"x" * 1000,
            "consolidated.safetensors": first,
            "original/consolidated.00.pth": b"x" * 1000,
            "model.onnx": b"x",
        }
    )
    model = Opened(hub, tmp_path, "acme/sharded", revision="v1")
    assert [info.name for info in model.source.infos()] == ["one", "two"]
    model.close()
    assert {name.rpartition("/")[2] for name in hub.fetched} == {"config.json", "model.safetensors.index.json", *shards}


@pytest.mark.parametrize(
    ("fault", "reason", "transient"),
    [
        ("gated", "download: acme/x is gated: ask for access on its page, then log in", False),
        ("private", "download: acme/x: the hub refuses (401); log in if it is private", False),
        ("busy", "download: acme/x: the hub cannot be reached, or the transfer broke off (503)", True),
        ("missing", "download: acme/x is not on the hub, or is private: check its name", False),
    ],
)
def test_what_the_hub_refuses_is_said_in_words(
    hub: Hub, tmp_path: Path, fault: str, reason: str, transient: bool
) -> None:
    if fault != "missing":
        hub.repositories["acme/x"] = Repository(BASE.files, fault)
    said, again = refusal(hub, tmp_path, "acme/x")
    assert said.startswith(reason) and again is transient


def test_a_transfer_that_breaks_off_leaves_nothing_that_counts_as_whole(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the tries of the library
    hub.repositories["acme/x"] = Repository({"model.safetensors": weights(w=(400, 400))}, "cut")
    said, again = refusal(hub, tmp_path, "acme/x")
    assert said == "download: acme/x: the hub cannot be reached, or the transfer broke off"
    assert again
    hub.repositories["acme/x"].fault = ""
    Opened(hub, tmp_path, "acme/x").close()


def test_a_hub_that_is_down_is_worth_another_try_or_the_cache(hub: Hub, tmp_path: Path) -> None:
    Opened(hub, tmp_path, "acme/base").close()
    down = Hub("http://127.0.0.1:9", {})
    assert refusal(down, tmp_path, "acme/other") == (
        "download: acme/other: the hub cannot be reached, or the transfer broke off",
        True,
    )
    model = Opened(down, tmp_path, "acme/base")
    assert "its cached commit 0123456789ab is used" in model.notes[0]
    model.close()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"model.safetensors.index.json": config(weight_map={"w": "../../../x.safetensors"})}, "names ../../../x.safe"),
        ({"model.safetensors.index.json": config(weight_map={"w": "gone.safetensors"})}, "names gone.safetensors, whi"),
        ({"model.safetensors.index.json": b"[1]"}, "model.safetensors.index.json holds no JSON object"),
        ({"model.safetensors.index.json": b"[" * 100_000}, "model.safetensors.index.json is not JSON"),
        ({"x.onnx": b"x"}, "acme/x has no weights that can be read (safetensors, .bin or .gguf), only x.onnx"),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "is a Git LFS pointer"),
        ({"adapter_config.json": b"version https://git-lfs.github.com/spec/v1\n"}, "config.json is not JSON"),
        ({"model.safetensors": struct.pack("<Q", 1 << 60) + b"{}"}, "is no safetensors file, or is damaged"),
    ],
)
def test_hostile_and_broken_repositories_are_refused(
    hub: Hub, tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    hub.repositories["acme/x"] = Repository(files)
    said, again = refusal(hub, tmp_path, "acme/x")
    assert reason in said and not again
    assert {path.name for path in tmp_path.iterdir()} <= {"models--acme--x", ".locks", "CACHEDIR.TAG"}


@pytest.mark.parametrize(
    ("name", "revision", "reason"),
    [
        (
            "../../no-such/passwd",
            "",
            "resolve: '../../no-such/passwd' is no path on this machine and cannot be a name on the",
        ),
        ("/no/such/model", "", "cannot be a name on the hub"),
        ("a/b/c--d", "", "cannot be a name on the hub"),
        ("a\x1b[2J\nb", "", r"resolve: 'a\x1b[2J\nb' is no path"),
        ("a" * 500, "", "cannot be a name on the hub"),
        ("a\0b", "", "cannot be a name on the hub"),
        ("", "", "cannot be a name on the hub"),
        (f"https://u:{TOKEN}@hub/x", "", "resolve: 'https://u:***@hub/x' is no path"),
        ("acme/base", "../../x", "resolve: '../../x' cannot be a revision of acme/base"),
        ("acme/base", "nightly", "download: acme/base has no such revision"),
    ],
)
def test_names_are_taken_as_hostile(hub: Hub, tmp_path: Path, name: str, revision: str, reason: str) -> None:
    said, again = refusal(hub, tmp_path, name, revision=revision)
    assert reason in said and not again


def test_space_is_reserved_before_anything_is_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["acme/huge"] = Repository(BASE.files, sizes={"model.safetensors": 1 << 60})
    said, again = refusal(hub, tmp_path, "acme/huge")
    assert "acme/huge has 1099511627776 MiB to fetch, which would leave 0 MiB of the disk of" in said
    assert not again and "acme/huge/model.safetensors" not in hub.fetched
    said, _ = refusal(hub, tmp_path, "acme/base", reserve_bytes=1 << 60)
    assert said.endswith("1099511627776 MiB are to stay free (--disk-reserve)")
    Opened(hub, tmp_path, "acme/base", reserve_bytes=1).close()
    Opened(hub, tmp_path, "acme/base", reserve_bytes=1 << 60).close()  # nothing is fetched any more


def test_jobs_that_start_together_fetch_a_base_once(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["acme/big"] = Repository({"model.safetensors": weights(w=(1500, 1000))})

    def look(_: int) -> torch.Tensor:
        model = Opened(hub, tmp_path, "acme/big")
        try:
            return model.source.read("w")
        finally:
            model.close()

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(look, range(4))
    assert all(torch.equal(first, other) for other in others)
    assert hub.fetched == ["acme/big/model.safetensors"]


def files_of(cache: Path) -> set[str]:
    return {
        path.relative_to(cache).parts[0] + "/" + path.name
        for kind in ("snapshots", "blobs")
        for path in cache.glob(f"models--*/{kind}/**/*")
        if path.is_file()
    }


def test_only_what_was_fetched_here_is_dropped_again(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["lab/ad"].commit = "ad" * 20
    Opened(hub, tmp_path, "acme/base").close()
    before = files_of(tmp_path)
    model = Opened(hub, tmp_path, "lab/ad", drop=True)
    assert files_of(tmp_path) > before
    expected = model.source.read("a.q.weight")
    model.close()
    assert files_of(tmp_path) == before
    model = Opened(hub, tmp_path, "lab/ad", drop=True)
    assert torch.equal(model.source.read("a.q.weight"), expected)
    model.close()


def test_an_opened_model_survives_that_another_job_drops_it(hub: Hub, tmp_path: Path) -> None:
    first = Opened(hub, tmp_path, "acme/base", drop=True)
    second = Opened(hub, tmp_path, "acme/base", drop=True)
    second.close()
    assert files_of(tmp_path), "the second has fetched nothing, so it drops nothing"
    second = Opened(hub, tmp_path, "acme/base")
    first.close()
    assert not files_of(tmp_path)
    assert second.source.read("a.q.weight").shape == (8, 6)
    second.close()


def test_the_cache_alone_serves_offline(hub: Hub, tmp_path: Path) -> None:
    index = config(weight_map={"a.q.weight": "model-00001-of-00001.safetensors"})
    for name, files in {"base": BASE.files, "cut": {"model.safetensors.index.json": index}}.items():
        snapshot = tmp_path / f"models--acme--{name}" / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for file, data in files.items():
            (snapshot / file).write_bytes(data)
        (tmp_path / f"models--acme--{name}" / "refs").mkdir()
        (tmp_path / f"models--acme--{name}" / "refs" / "main").write_text(COMMIT)
    script = """
from gpusched.commands.esd.find.hub import Hub
from gpusched.commands.esd.find.open_model import open_model
with open_model("acme/base", Hub()) as model:
    print(*model.commits.values(), *[info.name for info in model.source.infos()])
for name, revision in (("acme/other", ""), ("acme/base", "v9"), ("acme/cut", "")):
    try:
        with open_model(name, Hub(), revision=revision):
            pass
    except Exception as error:
        print(error)
"""
    environ = dict(os.environ, HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.splitlines() == [
        f"{COMMIT} a.q.weight",
        "download: acme/other is not in the cache, and HF_HUB_OFFLINE forbids to fetch it",
        "download: acme/base is not in the cache, and HF_HUB_OFFLINE forbids to fetch it",
        "download: model.safetensors.index.json names model-00001-of-00001.safetensors, which is missing in its "
        "directory",
    ]


def test_case_51_broken_and_closed_repositories(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "esd-51")
    hub.repositories["acme/gated-model"] = Repository(BASE.files, "gated")
    for name in ("51-repos/good", "51-repos/nan"):
        model = Opened(hub, tmp_path, name)
        assert model.parts == [(name, "")]
        assert model.source.read("w").shape == (4, 4)
        model.close()
    reasons = {
        "acme/gated-model": "download: acme/gated-model is gated",
        "51-repos/cut": "load: model.safetensors is cut",
        "acme/no-such-repo": "download: acme/no-such-repo is not on the hub, or is private",
        "51-repos/lfs": "load: model.safetensors is a Git LFS pointer",
        "51-repos/empty": "load: model.safetensors is empty",
    }
    for name, reason in reasons.items():
        said, again = refusal(hub, tmp_path, name)
        assert said.startswith(reason) and not again


def test_paths_come_before_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    for name, files in {"acme/base": BASE.files, "ad": adapter().files}.items():
        (here / name).mkdir(parents=True)
        for file, data in files.items():
            (here / name / file).write_bytes(data)
    monkeypatch.chdir(here)
    for name in ("ad", "./ad", str(here / "ad"), "ad/adapter_model.safetensors"):
        model = Opened(hub, tmp_path / "cache", name)
        assert [name for name, _ in model.parts] == ["acme/base", name]
        model.close()
    model = Opened(hub, tmp_path / "cache", "acme/base/model.safetensors", revision="v7")
    assert model.notes == ["acme/base/model.safetensors is a path: its revision v7 is ignored"]
    model.close()
    assert hub.fetched == []


def pickled(path: Path, state: object) -> bytes:
    torch.save(state, path)
    return path.read_bytes()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


def test_adapters_in_the_old_format_are_merged_and_never_run(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config(**ADAPTER)
    old = pickled(tmp_path / "ad.bin", load(LORA))
    hub.repositories["lab/old"] = Repository({"adapter_config.json": settings, "adapter_model.bin": old})
    evil = pickled(tmp_path / "evil.bin", {"a.q.lora_A.weight": torch.ones(2, 6), "x": Evil()})
    hub.repositories["lab/evil"] = Repository({"adapter_config.json": settings, "adapter_model.bin": evil})
    both = {**adapter().files, "adapter_model.bin": evil}
    hub.repositories["lab/both"] = Repository(both)
    plain = Opened(hub, tmp_path, "lab/ad")
    wanted = plain.source.read("a.q.weight")
    plain.close()
    for name in ("lab/old", "lab/both"):
        model = Opened(hub, tmp_path, name, relation="lora")
        assert torch.equal(model.source.read("a.q.weight"), wanted)
        model.close()
    said, _ = refusal(hub, tmp_path, "lab/evil")
    assert "adapter_model.bin holds more than weights" in said and "is not run" in said
    assert not (tmp_path / "evil").exists()


def test_an_adapter_on_an_adapter_is_merged_link_by_link(hub: Hub, tmp_path: Path) -> None:
    on_it = config(**{**ADAPTER, "base_model_name_or_path": "lab/ad"})
    hub.repositories["lab/on-ad"] = Repository({"adapter_config.json": on_it, "adapter_model.safetensors": LORA})
    model = Opened(hub, tmp_path, "lab/on-ad", source_model="lab/ad", relation="adapter")
    assert [name for name, _ in model.parts] == ["acme/base", "lab/ad", "lab/on-ad"]
    low_rank = load(LORA)
    a, b = (low_rank[f"base_model.model.a.q.lora_{half}.weight"] for half in "AB")
    base = load(BASE.files["model.safetensors"])["a.q.weight"]
    assert torch.equal(model.source.read("a.q.weight"), (base + (b @ a) * 4) + (b @ a) * 4)
    model.close()


def test_what_cannot_be_merged_is_refused_early_and_leaves_no_open_file(hub: Hub, tmp_path: Path) -> None:
    quantised = config(quantization_config={"quant_method": "aqlm"})
    hub.repositories["acme/base"] = Repository({**BASE.files, "config.json": quantised})
    said, again = refusal(hub, tmp_path, "lab/ad")
    assert not again and said == (
        "merge: adapter lab/ad: its base is quantised (aqlm); name the full-precision base in source_model"
    )
    hub.repositories["lab/odd"] = adapter(use_qalora=True)
    assert "unknown field `use_qalora`" in refusal(hub, tmp_path, "lab/odd")[0]
    assert {name.rpartition("/")[2] for name in hub.fetched} == {"config.json", "adapter_config.json"}
    hub.repositories["lab/misfit"] = Repository(
        {
            **adapter().files,
            "adapter_model.safetensors": weights(b__q__lora_A__weight=(2, 6), b__q__lora_B__weight=(8, 2)),
        }
    )
    hub.repositories["acme/base"] = Repository(BASE.files, commit="f" * 40)
    assert (
        refusal(hub, tmp_path, "lab/misfit")[0] == "merge: adapter lab/misfit: b.q.weight matches no tensor of the base"
    )
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [link for link in links if link.startswith(str(tmp_path))]


def test_the_stage_tells_what_was_merged_and_records_what_failed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    here = {"base_model_name_or_path": "base"}
    odd = adapter(**here, lora_bias=True)
    for name, files in {"base": BASE.files, "ad": adapter(**here).files, "odd": odd.files}.items():
        (tmp_path / name).mkdir()
        for file, data in files.items():
            (tmp_path / name / file).write_bytes(data)
    words = ["--source-model", "base", "--relation", "adapter", "--output-dir", "out", "--disk-reserve", "1M"]
    assert main(["--model", "ad", *words]) == 0
    assert "adapter ad merged into 1 tensor" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "records" / "ad.json").read_text())
    assert (record["model"], record["adapters"], record["success"]) == ("base", ["ad"], True)
    assert main(["--model", "odd", *words]) == 1
    assert "unknown field `lora_bias`; merge it with the software" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "records" / "odd.json").read_text())["success"] is False
    assert not (tmp_path / "out" / "per_model_csv" / "odd.csv").exists()
