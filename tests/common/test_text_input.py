"""Text and tables that people hand in: encodings by name, `sep=`, comments, repeated headers, wide rows, long cells."""

from __future__ import annotations

import codecs

import pytest

from gpusched.common.text_input import check_text, encoding_problem, read_rows, read_table


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "# 한국어\n모델\n", "x" * 9000 + "\n"])
def test_utf_16_is_named_with_or_without_its_mark(text: str) -> None:
    for encoding, name in (("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-16", "UTF-16")):
        problem = encoding_problem(text.encode(encoding))
        assert problem.startswith("UTF-16, not UTF-8") and f"iconv -f {name} -t UTF-8" in problem
        with pytest.raises(ValueError, match="this is UTF-16"):
            check_text(text.encode(encoding))
    assert not encoding_problem(text.encode())
    assert check_text(text.encode("utf-8-sig")) == len(codecs.BOM_UTF8)


def test_cr_alone_and_nul() -> None:
    assert "end in \\r alone" in encoding_problem(b"a,b\r1,2\r")
    assert not encoding_problem(b"a\r\nb\rc\n") and not encoding_problem(b"a\r") and not encoding_problem(b"")
    with pytest.raises(ValueError, match="line 2 has a NUL byte"):
        check_text(b"a\nb\0\nc\n")
    assert not encoding_problem(b"a\0")  # one NUL is no encoding


def cells(text: str, notes: list[str] | None = None) -> list[list[str]]:
    return [row.cells for row in read_table(text.encode(), [] if notes is None else notes)]


@pytest.mark.parametrize("first", ["sep=,", "SEP=,", '"sep=,"', "sep=;", "sep=\t", "# made by hand\n\nsep=|", "#"])
def test_the_separator_that_a_spreadsheet_names_is_no_row(first: str) -> None:
    mark = first[-1] if "sep" in first.lower() and not first.endswith('"') else ","
    text = "\ufeff" + first + "\r\n" + "id,a b\r\n1,'x'\r\n".replace(",", mark)
    assert cells(text) == [["id", "a b"], ["1", "'x'"]]


def test_names_that_come_again_and_comments_are_left_out_with_a_note() -> None:
    notes: list[str] = []
    text = "#id,t\n# no, this, is one\n1,a\n#id,t\n2,# b\n# c,d\n"
    assert cells("# head\n" + text, notes) == [["#id", "t"], ["1", "a"], ["2", "# b"], ["# c", "d"]]
    assert notes == ["line 3 is a comment and is left out", "line 5 repeats the names of the columns and is left out"]


def test_a_row_of_another_width_is_named_by_its_line() -> None:
    for row, count in (("1", "1 field"), ("1,2,3", "3 fields")):
        with pytest.raises(ValueError, match=f"line 5 has {count}, and the header has 2"):
            cells(f'a,b\n"x\ny",z\n\n{row}\n')
    left_out: list[tuple[int, str]] = []
    rows = read_rows(["a,b\n", "1\n", "2,b\n"], [], leave_out=lambda *row: left_out.append(row))
    assert [row.cells for row in rows] == [["a", "b"], ["2", "b"]]
    assert left_out == [(2, "has 1 field, and the header has 2")]
    assert cells("a,b\n1,2,,\n,\n") == [["a", "b"], ["1", "2", "", ""], ["", ""]]


def test_a_blank_cell_of_the_only_column_is_a_row_and_a_blank_line_beside_others_is_none() -> None:
    assert cells('a\n""\n\n \n"\r"\nx\n') == [["a"], [""], [" "], ["\r"], ["x"]]
    assert cells('a,b\n \n""\n1,2\n\t\n') == [["a", "b"], ["1", "2"]]
    assert [row.cells for row in read_rows(["0\n", "1\n", "0\n"], [], has_names=False)] == [["0"], ["1"], ["0"]]


def test_a_cell_may_be_a_whole_document_and_hold_what_ends_lines_elsewhere() -> None:
    text = "x" * 200_000 + "\u2028\x85\x0b"
    assert cells(f"a,b\n1,{text}\n")[1] == ["1", text]


def test_rows_know_where_they_begin_and_end() -> None:
    text = 'sep=;\r\na;b\r\n1;"x\ny"\r\n\r\n2;z'
    rows = list(read_rows(text.splitlines(keepends=True), []))
    assert [text[row.start : row.end] for row in rows] == ["a;b\r\n", '1;"x\ny"\r\n', "2;z"]
    assert [row.line for row in rows] == [2, 3, 6]
