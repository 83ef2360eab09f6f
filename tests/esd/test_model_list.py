"""Tables of models: columns by name, each model once, and what is wrong said with its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.common.errors import GpuschedError
from gpusched.esd.jobs import group_by_base
from gpusched.esd.model_list import ModelRow, parse, single
from tests.support.box import CASES


def rows(text: str) -> list[ModelRow]:
    return list(parse(text.encode(), "atlas.csv").rows)


def test_case_47_the_real_table() -> None:
    found = parse((CASES / "esd-47/47-atlas.csv").read_bytes(), "47-atlas.csv")
    assert [(row.name, row.source, row.relation, row.is_adapter) for row in found.rows] == [
        ("acme/tiny", "", "base", False),  # its own source
        ("lab1/tiny-lora", "acme/tiny", "adapter", True),
        ("lab2/tiny_ft", "acme/tiny", "finetune", False),
        ("lab3/tiny-q4", "acme/tiny", "quantized", False),
        ("lab4/thing", "acme/tiny", "unknown", False),
        ("acme/other", "", "base", False),
    ]
    assert not found.notes


def test_case_47_other_names_in_another_order() -> None:
    found = parse((CASES / "esd-47/47-atlas-alt.csv").read_bytes(), "47-atlas-alt.csv").rows
    assert [(row.name, row.base) for row in found] == [("acme/tiny", "acme/tiny"), ("lab1/tiny-lora", "acme/tiny")]


def test_case_51_a_model_that_is_listed_twice_is_analysed_once() -> None:
    found = parse((CASES / "esd-51/51-mixed.csv").read_bytes(), "51-mixed.csv")
    assert len(found.rows) == 7
    assert found.notes == ("51-repos/good is in line 2 and in line 9: it is analysed once",)


def test_case_49_the_same_adapter_with_another_base_is_a_row_of_its_own() -> None:
    found = parse((CASES / "esd-49/49-adapters.csv").read_bytes(), "49-adapters.csv")
    assert not [row.fault for row in found.rows if row.fault]
    names = {row.line: (row.name, row.source) for row in found.rows if row.model == "lab/ad-localpath"}
    assert names == {3: ("lab/ad-localpath", "acme/base"), 4: ("lab/ad-localpath+adapter", "")}
    assert "the results of line 4 are called lab/ad-localpath+adapter" in " ".join(found.notes)
    assert next(row for row in found.rows if row.name == "lab/ad-loop").source == "lab/ad-loop"  # the stage refuses it


def test_one_adapter_on_several_bases_is_analysed_once_on_each() -> None:
    lines = ("a/ad,b/one,lora", "a/ad,b/two,lora", "a/ad,b/two,lora", "a/ad,b/one,lora", "a/ad,,base")
    found = parse("\n".join(("full_name,source_model,base_model_relation", *lines)).encode(), "x.csv")
    assert [(row.name, row.base) for row in found.rows] == [
        ("a/ad", "b/one"),
        ("a/ad+b/two", "b/two"),
        ("a/ad+base", "a/ad"),
    ]
    assert [note for note in found.notes if "once" in note] == [
        "a/ad is in line 3 and in line 4: it is analysed once",
        "a/ad is in line 2 and in line 5: it is analysed once",
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("comma", [",", ";", "\t"])
def test_marks_newlines_and_separators(newline: str, mark: str, comma: str) -> None:
    lines = ["", "Revision,full_name,junk", "v2, acme/a ,x", "", ",acme/b,y"]
    found = rows(mark + newline.join(line.replace(",", comma) for line in lines))
    assert [(row.name, row.revision, row.line) for row in found] == [("acme/a", "v2", 3), ("acme/b", "", 5)]


def test_the_error_for_a_table_without_names_shows_its_header() -> None:
    with pytest.raises(GpuschedError) as caught:
        rows("model,source_model\nacme/a,\n")
    assert "no column full_name or model_id; the columns are: model, source_model" in str(caught.value)
    assert "full_name (or model_id)" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("full_name\n", "has no models"),
        ('full_name\n"acme/a\n', "line 2 is no CSV: unexpected end"),
        ("full_name,revision\nacme/a\n", "line 2 has 1 field, and the header has 2"),
        ("\xff\xfefull_name", "no column"),
    ],
)
def test_what_is_no_list(text: str, said: str) -> None:
    with pytest.raises(GpuschedError, match=said):
        rows(text)


def test_a_field_may_be_very_long_and_a_row_without_a_name_is_told() -> None:
    found = parse(f'full_name,module_names\nacme/a,"{"x" * 200_000}"\n,y\n'.encode(), "atlas.csv")
    assert [row.name for row in found.rows] == ["acme/a"]
    assert found.notes == ("line 3 has no full_name and is left out",)


def test_what_a_spreadsheet_adds_is_no_model() -> None:
    found = parse("\ufeffsep=;\r\nfull_name;note\r\nacme/a;x\r\nfull_name;note\r\n;\r\n".encode(), "atlas.csv")
    assert [row.name for row in found.rows] == ["acme/a"]
    assert found.notes == (
        "line 4 repeats the names of the columns and is left out",
        "line 5 has no full_name and is left out",
    )
    with pytest.raises(GpuschedError, match=r"atlas.csv: this is UTF-16.*iconv"):
        parse("full_name\nacme/a\n".encode("utf-16"), "atlas.csv")


def test_two_revisions_of_a_model_have_results_of_their_own() -> None:
    found = rows("full_name,revision\nacme/a,\nacme/a,v1\nacme/a,v1\nacme/b,v9\n")
    assert [row.name for row in found] == ["acme/a", "acme/a@v1", "acme/b"]


def test_no_two_models_have_one_name() -> None:
    found = rows("full_name,revision\nacme/a,\nacme/a,v1\nacme/a@v1,\n")
    assert [row.name for row in found] == ["acme/a", "acme/a@v1", "acme/a@v1+base"]


@pytest.mark.parametrize(
    ("cells", "model", "source", "fault"),
    [
        ("https://huggingface.co/acme/tiny,,base", "", "", "is an address, not a name: write acme/tiny"),
        ("hf.co/acme/tiny/tree/main,,base", "", "", "is an address, not a name: write acme/tiny"),
        ("lab/x,https://huggingface.co/acme/tiny,adapter", "", "", "write acme/tiny"),
        ("acme/tiny@v2,,base", "", "", "write acme/tiny, and revision v2"),
        ("repo//a,,base", "repo/a", "", ""),
        ('lab/x,"[""acme/tiny""]",adapter', "lab/x", "acme/tiny", ""),
        ("lab/x,['acme/tiny'],adapter", "lab/x", "acme/tiny", ""),
        ("lab/x,\"['acme/tiny', 'acme/other']\",adapter", "", "", "names 2 models, and an adapter has one base"),
        ('lab/x,"acme/tiny, acme/other",merge', "lab/x", "acme/tiny, acme/other", ""),
    ],
)
def test_names_as_they_are_pasted(cells: str, model: str, source: str, fault: str) -> None:
    (row,) = rows(f"full_name,source_model,base_model_relation\n{cells}\n")
    assert fault in row.fault if fault else (row.model, row.source, row.fault) == (model, source, "")


@pytest.mark.parametrize("text", ['"broken,,base', '"x" y,,base'])
def test_a_damaged_field_is_named_with_its_line(text: str) -> None:
    with pytest.raises(GpuschedError, match="line 3 is no CSV"):
        rows(f"full_name,source_model,base_model_relation\nacme/a,,base\n{text}\nacme/b,,base\nacme/c,,base\n")


@pytest.mark.parametrize(
    "text",
    [
        "full_name\n=HYPERLINK(1)\n",
        "full_name,x\n" + "a," * 500 + "\n",
        "full_name\n" + "\u202eacme/a\n",
        "full_name\n../../etc/passwd\n-rf\n\x7f\n",
        "full_name,full_name\na,b\n",
    ],
)
def test_hostile_tables_end_as_rows_or_as_words(text: str) -> None:
    try:
        found = rows(text)
    except GpuschedError as error:
        assert str(error)
    else:
        assert all(row.fault or (row.stem and "/" not in row.stem) for row in found)


def test_a_slash_behind_a_directory_makes_no_other_model() -> None:
    found = parse(b"full_name,source_model,base_model_relation\nm/a/,,\nm/a,,\nm/l,m/a/,adapter\n/,,\n", "atlas.csv")
    assert [(row.name, row.base) for row in found.rows] == [("m/a", "m/a"), ("m/l", "m/a"), ("/", "/")]
    assert single("m/a//").rows[0].name == "m/a"


@pytest.mark.parametrize("name", ["-x", "a\x1b[2Jb", "a" * 400])
def test_what_can_be_no_name_is_one_failed_row(name: str) -> None:
    found = rows(f"full_name\nacme/a\n{name}\nacme/b\n")
    assert [bool(row.fault) for row in found] == [False, True, False]
    assert "\x1b" not in found[1].fault
    with pytest.raises(GpuschedError, match="--single-model"):
        single(name)


NAMES = st.sampled_from(["acme/a", "acme/b", "lab/c", "lab/d", "lab/e"])


@given(st.lists(st.tuples(NAMES, st.sampled_from(["", "acme/a", "acme/b"])), min_size=1))
def test_groups_keep_all_rows_and_bring_those_of_a_base_together(pairs: list[tuple[str, str]]) -> None:
    listed = [
        ModelRow(model, source, "adapter" if source else "base", line=n) for n, (model, source) in enumerate(pairs)
    ]
    order = group_by_base(listed)
    assert sorted(row.line for row in order) == sorted(row.line for row in listed)
    bases = [row.source or row.model for row in order]
    assert all(bases[n] == bases[n - 1] or bases[n] not in bases[:n] for n in range(1, len(bases)))
    for base in set(bases):
        group = [row.model == base for row in order if (row.source or row.model) == base]
        assert group == sorted(group, reverse=True)


def test_a_base_goes_first_in_its_group() -> None:
    listed = rows(
        "full_name,source_model,base_model_relation\nlab/x,acme/a,lora\nacme/b,,\nacme/a,,base\nlab/y,acme/a,peft\n"
    )
    assert [row.name for row in group_by_base(listed)] == ["acme/a", "lab/x", "lab/y", "acme/b"]
