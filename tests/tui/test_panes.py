"""The lines of the panes: trends, columns, and what there is room for."""

from __future__ import annotations

from gpusched.tui.panes import JobColumns, trend
from gpusched.views.job_lines import JobLine


def test_a_trend_shows_the_largest_value_of_each_cell_and_blanks_where_nothing_is_known() -> None:
    assert trend([(0, 0.0), (1, 1.0), (55, 0.5)], 0, 100, 10) == "██   ▅▅   "
    assert trend([(200, 1.0), (-50, 1.0)], 0, 100, 10) == " " * 10
    assert trend([(5, None), (100, 1.0)], 0, 100, 4) == "   █"
    assert trend([(5, 7.5)], 5, 5, 3) != "   "  # no time at all


JOB = JobLine(
    12, "3", "running", "0,1", "2", "10:00:00", "", "0:42", "50/100", "7", "train,big", "python train.py", 0.5
)


def test_columns_fill_the_width_and_no_more() -> None:
    for width in (60, 80, 120, 300):
        columns = JobColumns(width, 10_000)
        head, row = columns.head("time", is_reversed=True), columns.row(JOB, is_marked=True)
        assert head.cell_len == row.cell_len <= width
        assert "TIME▲" in head.plain and "*12" in row.plain and "50%" in row.plain
    assert " ".join(row.plain.split()) == "*12 running 0,1 0:42 50% 2 10:00:00 7 train,big python train.py 50/100"


def test_each_title_sorts_by_its_column() -> None:
    columns = JobColumns(120, 10)
    head = columns.head("", is_reversed=False).plain
    orders = {title: columns.order_at(head.index(title)) for title in ("JOB", "STATE", "TIME", "STARTED", "PRIO")}
    assert orders == {"JOB": "id", "STATE": "state", "TIME": "time", "STARTED": "started", "PRIO": "prio"}
    assert columns.order_at(head.index("GPU")) == columns.order_at(500) == ""


def test_wide_letters_are_counted_as_two_cells() -> None:
    columns = JobColumns(60, 10)
    wide = JobLine(*(1, "", "queued", "", "", "", "", "", "理由", "", "", "訓練" * 40))
    assert columns.row(wide).cell_len == columns.row(JOB).cell_len
