"""The long table over all models: rows of their tables, columns of the list, and what is read again."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from gpusched.esd.layers_table import LAYERS, write_layers
from gpusched.esd.model_list import parse
from gpusched.esd.records import ModelResult
from tests.esd.test_jobs import Lab, leave

pq = pytest.importorskip("pyarrow.parquet")

LIST = b"model_id,downloads,likes,created,longname\nacme/a,12,,2024-01-02,x\nacme/b,7,0.5,,y\nacme/c,1,1,,z\n"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "per_model_csv").mkdir()
    return tmp_path


def result(output: Path, name: str, table: str, flag: str = "", text: bytes = LIST) -> ModelResult:
    stem = name.replace("/", "--")
    (output / f"per_model_csv/{stem}.csv").write_text(table)
    rows = {row.model: row for row in parse(text, "atlas.csv").rows}
    record = {"csv": {"sha256": hashlib.sha256(table.encode()).hexdigest()}}
    return ModelResult(name, True, record, row=rows.get(name), flag=flag)


def rows(output: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(output / LAYERS).to_pylist()
    return found


A = "longname,block,alpha,is_adapter,note\n0,,3.5,False,\n1,1,nan,False,007\n"
B = "longname,block,alpha,is_adapter,note,delta_norm\nb,2,4,True,cpu,0.5\n"


def test_rows_and_columns(output: Path) -> None:
    other = ModelResult("acme/c", False, stage="load", reason="cut")
    write_layers(str(output), [result(output, "acme/a", A), result(output, "acme/b", B, "partial"), other])
    first, second, third = rows(output)
    assert first == {
        **{"longname": "0", "block": None, "alpha": 3.5, "is_adapter": False, "note": "", "delta_norm": None},
        **{"model": "acme/a", "flag": "", "model_id": "acme/a", "downloads": 12, "likes": None},
        **{"created": "2024-01-02"},
    }  # the list's own longname stands back
    assert second["note"] == "007" and (second["alpha"] is None or math.isnan(second["alpha"]))
    assert (third["model"], third["flag"], third["downloads"], third["likes"]) == ("acme/b", "partial", 7, 0.5)
    assert third["alpha"] == 4.0 and third["delta_norm"] == 0.5 and third["created"] is None


def test_only_new_tables_are_read(output: Path) -> None:
    results = [result(output, "acme/a", A), result(output, "acme/b", B)]
    write_layers(str(output), results)
    before = rows(output)
    (output / "per_model_csv/acme--a.csv").write_text("damaged")  # its record still has the hash of the earlier one
    changed = result(output, "acme/b", B.replace("0.5", "0.75"))
    write_layers(str(output), [results[0], changed, result(output, "acme/c", B)])
    after = rows(output)
    assert after[:2] == before[:2] and [row["model"] for row in after[2:]] == ["acme/b", "acme/c"]
    assert after[2]["delta_norm"] == 0.75 and len(after) == 4
    more = LIST.replace(b"likes", b"stars").replace(b",12,", b",many,")
    write_layers(str(output), [result(output, "acme/a", A, text=more), result(output, "acme/b", B, text=more)])
    last = rows(output)
    assert [row["downloads"] for row in last] == ["many", "many", "7"] and "likes" not in last[0]
    assert len(last) == 3 and last[2]["stars"] == 0.5


@pytest.mark.parametrize("damage", [b"", b"PAR1 no table", json.dumps({}).encode()])
def test_a_damaged_table_is_made_anew(output: Path, damage: bytes) -> None:
    (output / LAYERS).write_bytes(damage)
    write_layers(str(output), [result(output, "acme/a", A)])
    assert len(rows(output)) == 2


def test_a_table_that_cannot_be_read_costs_its_own_rows_only(output: Path) -> None:
    broken = result(output, "acme/b", "")
    write_layers(str(output), [broken])
    assert not (output / LAYERS).exists()
    write_layers(str(output), [result(output, "acme/a", A), broken])
    write_layers(str(output), [result(output, "acme/a", A), broken])
    assert [row["model"] for row in rows(output)] == ["acme/a", "acme/a"]


def test_a_run_writes_it_and_says_why_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, "acme/a,,base", "acme/b,,base")
    leave(lab.output, "acme/a")
    lab.experiment().run()
    assert [(row["model"], row["alpha"]) for row in rows(lab.output)] == [("acme/a", 3.0), ("acme/b", 3.0)]
    leave(lab.output, "acme/b", table="longname,alpha\nb,much\n")
    lab.experiment().run()
    assert any("do not go together" in message for message in lab.backend.messages)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    lab.experiment().run()
    assert any("pyarrow" in message and "install" in message for message in lab.backend.messages)
