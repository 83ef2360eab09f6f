"""What a pool refuses before it waits for a GPU: workers that cannot be any, by the text of their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.common.errors import EXIT_USAGE, GpuschedError
from gpusched.pool.options import PoolOptions
from gpusched.pool.worker import Worker
from gpusched.pool.worker_name import find_worker, name_of

CALL = "    def __call__(self, item): return 1\n"


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "work.py").write_text(text)
    return f"{tmp_path}/work.py:Count"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"class Count:\n{CALL}", "class Count does not derive from gpusched.Worker\n  class Count(gpusched.Worker):"),
        (f"class Count(object):\n{CALL}", "does not derive"),
        ("import gpusched\nclass Count(gpusched.Worker): pass\n", "class Count has neither __call__ nor batch"),
        ("from gpusched import Worker as W\nclass Count(W):\n    def setup(self, d, s): pass\n", "neither"),
    ],
)
def test_a_class_that_is_no_worker_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(GpuschedError) as raised:
        find_worker(write(tmp_path, text))
    assert problem in str(raised.value)
    assert raised.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("text", "is_thread_safe"),
    [
        (f"import gpusched\nclass Count(gpusched.Worker):\n{CALL}", False),
        (f"from gpusched import Worker\nclass Count(Worker):\n{CALL}", False),
        (f"import gpusched\nclass Count(gpusched.Worker):\n    thread_safe = True\n{CALL}", True),
        (f"import gpusched\nclass Count(gpusched.Worker):\n    thread_safe: bool = False\n{CALL}", False),
        (f"import gpusched\nSAFE = True\nclass Count(gpusched.Worker):\n    thread_safe = SAFE\n{CALL}", None),
        (f"from mine import Worker\nclass Count(Worker):\n{CALL}", None),
        ("import gpusched, mine\nclass Count(mine.Mixin, gpusched.Worker): pass\n", None),
        ("import gpusched\nclass Count(gpusched.Worker):\n    batch = print\n", False),
        ("import mine\n@mine.worker\nclass Count: pass\n", None),
        ("import mine\nclass Count: pass\nCount = mine.worker(Count)\n", None),
        ("from mine import Count\n", None),
        ("def Count(item): return 1\n", False),
    ],
)
def test_what_a_file_says_of_threads(tmp_path: Path, text: str, is_thread_safe: bool | None) -> None:
    assert find_worker(write(tmp_path, text)).is_thread_safe is is_thread_safe


def test_threads_need_a_worker_that_is_made_for_them() -> None:
    PoolOptions(threads=2).check_threads(is_safe=True)
    PoolOptions(threads=1).check_threads(is_safe=False)
    with pytest.raises(GpuschedError, match=r"--threads 2: .*\n.*thread_safe = True"):
        PoolOptions(threads=2).check_threads(is_safe=False)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(GpuschedError, match=r"notes.txt: is no .py file"):
        find_worker(f"{tmp_path}/notes.txt:Slow")
    assert find_worker("package.module:Slow").text == "package.module:Slow"


def test_a_class_of_python_says_it_itself() -> None:
    assert name_of(Safe).is_thread_safe is True


class Safe(Worker):
    thread_safe = True
