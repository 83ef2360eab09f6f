"""Words that stand for jobs, read without a queue."""

from __future__ import annotations

import pytest

from gpusched.core.jobs.addresses import JobAddress, QueuedWord, parse_address, split_queues, split_words


@pytest.mark.parametrize(
    ("word", "span", "condition"),
    [
        ("3", (3, 3), None),
        ("5-9", (5, 9), None),
        ("5..9", (5, 9), None),
        ("9-5", (9, 5), None),
        ("tag=T", None, ("tag", "T")),
        ("state=failed", None, ("state", "failed")),
        ("tag=", None, ("tag", "")),
        ("lr=0.1", None, None),
        ("seed1", None, None),
        ("5-", None, None),
        ("5...9", None, None),
        ("9" * 19, None, None),
    ],
)
def test_a_word_is_an_id_a_range_a_filter_or_a_name(
    word: str, span: tuple[int, int] | None, condition: tuple[str, str] | None
) -> None:
    assert parse_address(word) == JobAddress(word, span, condition)


def test_commas_separate() -> None:
    assert split_words(["7,8", "3,", "8"]) == ["7", "8", "3"]


def test_a_queue_holds_for_the_rest_of_its_word() -> None:
    assert list(split_queues(["night/3,4", "5", "/a/b/7", "x/"])) == [
        QueuedWord("night/3", "night", "3"),
        QueuedWord("4", "night", "4"),
        QueuedWord("5", "", "5"),
        QueuedWord("/a/b/7", "/a/b", "7"),
        QueuedWord("x/", "", ""),
    ]
