"""Which base and which adapters a row of a list comes to: cases 47 and 49, and the traps around them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gpusched.commands.esd.find.resolve import ModelFiles, Ref, Resolution, resolve
from gpusched.commands.esd.read.tensors import ModelError
from gpusched.commands.esd.read.weight_files import model_weights

from tests.support.paths import TESTS

CASES = TESTS / "cases"


class Hub:
    """A hub that is a map, as in 49-hub.json; what is asked of it is kept."""

    def __init__(self, repositories: Mapping[str, Mapping[str, Any]]) -> None:
        self.repositories = repositories
        self.asked: list[str] = []
        self.down = ""

    def look(self, ref: Ref) -> ModelFiles:
        self.asked.append(ref.name)
        held = self.repositories.get(ref.name)
        if ref.name == self.down:
            raise ModelError("download", "the hub is down", transient=True)
        if held is None:
            raise ModelError("download", f"{ref.name} is not there")
        files = dict.fromkeys(held["files"], 100)
        return ModelFiles(ref.name, files, held.get("adapter_config"), held.get("local", False))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def outcome(row: Mapping[str, str], hub: Hub) -> Resolution | str:
    try:
        found: Resolution = resolve(
            row.get("full_name") or row["model_id"],
            hub.look,
            source=row["source_model"],
            relation=row["base_model_relation"],
        )
        return found
    except ModelError as error:
        assert not error.transient
        return f"{error.stage}: {error.reason}"


def test_case_47_only_adapters_are_merged() -> None:
    whole = {"files": ["config.json", "model.safetensors"]}
    hub = Hub(
        {
            "acme/tiny": whole,
            "lab1/tiny-lora": {
                "files": ["adapter_config.json", "adapter_model.safetensors"],
                "adapter_config": {"base_model_name_or_path": "acme/tiny"},
            },
            "lab2/tiny_ft": whole,
            "lab3/tiny-q4": whole,
            "lab4/thing": whole,
            "acme/other": whole,
        }
    )
    plain = {name: Resolution(Ref(name)) for name in hub.repositories}
    lora = {"lab1/tiny-lora": Resolution(Ref("acme/tiny"), (Ref("lab1/tiny-lora"),))}
    listed = rows(CASES / "esd-47" / "47-atlas.csv")
    assert {row["full_name"]: outcome(row, hub) for row in listed} == plain | lora
    listed = rows(CASES / "esd-47" / "47-atlas-alt.csv")
    assert {row["model_id"]: outcome(row, hub) for row in listed} == {"acme/tiny": plain["acme/tiny"], **lora}


def test_case_49_whose_base_it_is() -> None:
    hub = Hub(json.loads((CASES / "esd-49" / "49-hub.json").read_text()))
    listed = rows(CASES / "esd-49" / "49-adapters.csv")
    base = Ref("acme/base")
    assert [outcome(row, hub) for row in listed] == [
        Resolution(base, (Ref("lab/ad-good"),)),
        Resolution(base, (Ref("lab/ad-localpath"),)),
        "resolve: base unresolved: the config of lab/ad-localpath names /home/someone/models/base, a path on another "
        "machine; name the base in source_model",
        Resolution(
            Ref("lab/merged-called-adapter"),
            notes=("lab/merged-called-adapter is listed as adapter but is a whole model: loaded as it is",),
        ),
        Resolution(Ref("acme/base", hub_only=True), (Ref("lab/adapter-called-finetune"),)),
        Resolution(Ref("acme/base", hub_only=True), (Ref("lab/ad-good"), Ref("lab/ad-on-ad"))),
        "resolve: the bases of lab/ad-loop form a loop: lab/ad-loop on lab/ad-loop",
        Resolution(
            base,
            (Ref("lab/ad-mismatch"),),
            (
                "warning: the list says that lab/ad-mismatch is on acme/base, its config says acme/other-base; merged "
                "into acme/base, as the list says",
            ),
        ),
    ]


def test_a_path_that_is_not_here_is_asked_for_once() -> None:
    hub = Hub(json.loads((CASES / "esd-49" / "49-hub.json").read_text()))
    with pytest.raises(ModelError, match="base unresolved"):
        resolve("lab/ad-localpath", hub.look, relation="adapter")
    assert hub.asked == ["lab/ad-localpath"]


def test_a_hub_that_is_down_leaves_open_whether_the_config_disagrees() -> None:
    hub = Hub({"a": adapter_on("b"), "c": WHOLE})
    hub.down = "b"
    with pytest.raises(ModelError) as error:
        resolve("a", hub.look, source="c", relation="adapter")
    assert error.value.transient


def adapter_on(base: object, *more: str, **fields: Any) -> dict[str, Any]:
    files = ["adapter_config.json", "adapter_model.safetensors", *more]
    return {"files": files, "adapter_config": {"base_model_name_or_path": base, **fields}}


WHOLE = {"files": ["config.json", "model.safetensors"]}


@pytest.mark.parametrize(
    ("hub", "row", "reason"),
    [
        ({"a": adapter_on("b"), "b": adapter_on("a")}, {}, "the bases of a form a loop: a on b on a"),
        ({"a": adapter_on(None)}, {}, "base unresolved: the config of a names none"),
        ({"a": adapter_on(["x"])}, {}, "base unresolved: the config of a names none"),
        ({"a": adapter_on("../../etc")}, {}, "names ../../etc, a path on another machine"),
        ({"a": adapter_on("C:\\models\\b")}, {}, "a path on another machine"),
        ({"a": adapter_on("~/b")}, {}, "a path on another machine"),
        ({"a": adapter_on("/no/such") | {"local": True}}, {}, "names /no/such, a path on another machine"),
        ({"a": adapter_on("b"), "b": {"files": ["README.md"]}}, {}, "base of a: b has no weights that can be read"),
        (
            {"a": {"files": ["x.onnx", "tf_model.h5"]}},
            {},
            "a has no weights that can be read (safetensors, .bin or .gguf), on",
        ),
        ({"a": {"files": []}}, {}, "only nothing"),
        (
            {"a": {"files": ["adapter_config.json"], "adapter_config": {}}, "b": WHOLE},
            {"source": "b"},
            "a has no adapt",
        ),
        (
            {"a": adapter_on("b"), "b": adapter_on("other"), "c": WHOLE, "other": WHOLE},
            {"source": "c"},
            "the base of a is disputed: the list says c, its config the adapter b; leave source_model empty",
        ),
    ],
)
def test_what_is_no_model_or_has_no_known_base_is_refused(
    hub: Mapping[str, Any], row: Mapping[str, str], reason: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        resolve("a", Hub(hub).look, source=row.get("source", ""), relation="LoRA")
    assert refusal.value.stage == "resolve"
    assert reason in refusal.value.reason


@pytest.mark.parametrize(
    ("hub", "row", "wanted"),
    [
        # a revision that the config names is of the base that it names
        ({"a": adapter_on("b", revision="v1"), "b": WHOLE}, {}, Resolution(Ref("b", "v1", True), (Ref("a"),))),
        ({"a": adapter_on("b", revision="v1"), "b": WHOLE}, {"source": "b"}, Resolution(Ref("b", "v1"), (Ref("a"),))),
        # a chain
        (
            {"a": adapter_on("b"), "b": adapter_on("c"), "c": WHOLE},
            {},
            Resolution(Ref("c", hub_only=True), (Ref("b", hub_only=True), Ref("a"))),
        ),
        # its own base, where the list knows better
        (
            {"a": adapter_on("a"), "b": WHOLE},
            {"source": "b"},
            Resolution(
                Ref("b"),
                (Ref("a"),),
                ("warning: the list says that a is on b, its config says a; merged into b, as the list says",),
            ),
        ),
        # checkpoints of the trainer beside an adapter are no model
        (
            {"a": adapter_on("b", "training_args.bin", "optimizer.pt", "other.safetensors"), "b": WHOLE},
            {"relation": ""},
            Resolution(Ref("b", hub_only=True), (Ref("a"),)),
        ),
        # both: the label decides
        ({"a": adapter_on("b", "model.safetensors"), "b": WHOLE}, {"relation": "finetune"}, Resolution(Ref("a"))),
        (
            {"a": adapter_on("b", "model.safetensors"), "b": WHOLE},
            {},
            Resolution(Ref("b", hub_only=True), (Ref("a"),)),
        ),
        # under another label, the list's source helps out only where the config has none
        (
            {"a": adapter_on("/x/y"), "b": WHOLE},
            {"relation": "finetune", "source": "b"},
            Resolution(Ref("b"), (Ref("a"),)),
        ),
    ],
)
def test_what_is_loaded(hub: Mapping[str, Any], row: Mapping[str, str], wanted: Resolution) -> None:
    found = resolve("a", Hub(hub).look, source=row.get("source", ""), relation=row.get("relation", "peft"))
    assert found == wanted


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (["model.safetensors.index.json", "model-00001-of-00002.safetensors", "pytorch_model.bin"], ["index"]),
        (["pytorch_model.bin", "model.safetensors", "modeling_x.py"], ["model.safetensors"]),
        (["pytorch_model.bin.index.json", "model.h5"], ["pytorch_model.bin.index.json"]),
        (["b.safetensors", "a.safetensors", "adapter_model.safetensors"], ["a.safetensors", "b.safetensors"]),
        (["weights.pt", "training_args.bin", "optimizer.pt"], ["weights.pt"]),
        (["adapter_model.bin", "scheduler.pt", "README.md"], []),
    ],
)
def test_of_several_formats_one_is_loaded(files: list[str], wanted: list[str]) -> None:
    wanted = ["model.safetensors.index.json"] if wanted == ["index"] else wanted
    assert model_weights(files) == wanted
