"""A pool from its items to its results, as a user runs it: resumed, edited, failing, out of memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.pool.pool import WorkerPool
from tests.support.box import Box, wait_for
from tests.support.pool import errors, pool, results, write_items, write_worker

pytestmark = pytest.mark.slow
LOG = """\
def __call__(self, item):
    open('executed.txt', 'a').write(f'{item}\\n')
    return {'n': item}
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2") as box:
        write_worker(box, LOG)
        yield box


def executed(box: Box) -> list[str]:
    return box.read("executed.txt").split()


# ---- results and resume ----------------------------------------------------------------------------


def test_results_have_the_order_of_the_items_and_nothing_runs_twice(box: Box) -> None:
    write_items(box, 250)
    ended = pool(box, "--checkpoint-every", "100").wait()
    assert ended.code == 0, ended.text
    assert [row["item"] for row in results(box)] == [str(n) for n in range(1, 251)]
    assert "250 of 250 have a result" in ended.out
    parts = sorted((box.work / "out/results").iterdir())
    assert [len(part.read_text().splitlines()) for part in parts] == [100, 100, 50]
    assert sorted(line for part in parts for line in part.read_text().splitlines()) == sorted(
        box.read("out/results.jsonl").splitlines()
    )
    ended = pool(box).wait()
    assert ended.code == 0
    assert "rate  " not in ended.out  # nothing was done
    assert sorted(executed(box), key=int) == [str(n) for n in range(1, 251)]
    box.wait_until_empty()


def test_an_edited_list_runs_what_is_new_and_drops_what_is_gone(box: Box) -> None:
    (box.work / "items.txt").write_text("a\nb\nb\nc\n")
    assert pool(box).wait().code == 0
    (box.work / "items.txt").write_text("new\nc\nb\na\nb\nb\n")
    ended = pool(box).wait()
    assert ended.code == 0, ended.text
    assert [row["item"] for row in results(box)] == ["new", "c", "b", "a", "b", "b"]
    assert Counter(executed(box)) == {"a": 1, "b": 3, "c": 1, "new": 1}


def test_other_settings_are_refused_and_tunable_ones_are_not(box: Box) -> None:
    write_items(box, 4)
    write_worker(box, LOG, tunable={"depth": [1, 2]})
    assert pool(box, "--set", "model=a", "--set", "depth=1").wait().code == 0
    refused = pool(box, "--set", "model=b").wait()
    assert refused.code == 2
    assert "other settings" in refused.err
    assert "--overwrite" in refused.err
    assert pool(box, "--set", "model=a", "--set", "depth=2").wait().code == 0
    assert len(executed(box)) == 4
    assert pool(box, "--set", "model=b", "--overwrite").wait().code == 0
    assert len(executed(box)) == 8


def test_items_have_keys_and_sizes(box: Box) -> None:
    rows = [{"id": n, "size": n % 5, "text": "x"} for n in range(10)]
    (box.work / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_worker(
        box, "def __call__(self, item):\n    open('executed.txt', 'a').write(f'{item[\"size\"]}\\n')\n    return 1\n"
    )
    options = ("pool", "work.py:Work", "--items", "items.jsonl", "--output-dir", "out", "--key", "id")
    assert box.gpusched(*options, "--size-key", "size", "--max-gpus", "1", "--min-items-per-gpu", "0").code == 0
    assert executed(box) == sorted(executed(box), reverse=True)
    rows[3]["text"] = "edited"
    (box.work / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert box.gpusched(*options).code == 0
    assert len(executed(box)) == 10  # its key is the same
    (box.work / "items.jsonl").write_text('{"id": 1}\n{"id": 1}\n')
    assert "another item has" in box.gpusched(*options).err


FIRST_ONLY = """\
def setup(self, device, settings):
    try:
        __import__('os').mkdir('first')
    except FileExistsError:
        __import__('time').sleep(60)
def __call__(self, item):
    __import__('time').sleep(0.1)
    return item
"""


def test_a_worker_that_still_loads_at_the_end_is_told_of_as_no_failure(box: Box) -> None:
    write_worker(box, FIRST_ONLY)
    write_items(box, 20)
    ended = pool(box, "--min-items-per-gpu", "0").wait()
    assert ended.code == 0, ended.text
    assert "\n         1 worker was still loading at the last item: cancelled, no failure\n" in ended.out


# ---- errors ----------------------------------------------------------------------------------------

FAILS = """\
class Odd(Exception):
    def __init__(self, a, b):
        self.lock = __import__("threading").Lock()
        super().__init__(a)
    def __reduce__(self):
        raise TypeError("not this one")
def __call__(self, item):
    open('executed.txt', 'a').write(f'{item}\\n')
    if item == '3':
        raise self.Odd('bad item', 1)
    if item == '5':
        raise SystemExit(3)
    if item == '6':
        return object()
    return item
"""


def test_an_error_is_text_and_hangs_nothing(box: Box) -> None:
    write_items(box, 8)
    write_worker(box, FAILS)
    ended = pool(box).wait()
    assert ended.code == 1
    found = {row["item"]: row for row in errors(box)}
    assert found.keys() == {"3", "5", "6"}
    assert found["3"]["error"] == "Odd: bad item"
    assert "in __call__" in found["3"]["traceback"]
    assert found["3"]["tries"] == 2
    assert "SystemExit" in found["5"]["error"]
    assert "JSON" in found["6"]["error"]
    assert [row["item"] for row in results(box)] == ["1", "2", "4", "7", "8"]
    assert "next     the same command with --retry-errors tries them again" in ended.out.splitlines()
    assert "error    1 of 3: Odd: bad item\n" in ended.out
    write_worker(box, LOG)
    assert pool(box).wait().code == 1  # errors are outcomes
    ended = pool(box, "--retry-errors").wait()
    assert ended.code == 0
    assert "next  " not in ended.out
    assert len(results(box)) == 8
    assert not errors(box)


def test_too_many_errors_stop_the_pool(box: Box) -> None:
    write_items(box, 500)
    write_worker(box, "def __call__(self, item):\n    raise ValueError(item)\n")
    ended = pool(box, "--max-errors", "2%", "--item-retries", "0").wait()
    assert ended.code == 1
    assert "--max-errors" in ended.text
    assert 10 < len(errors(box)) < 500
    assert "left" in ended.text


def test_a_worker_that_cannot_load_ends_the_pool_and_says_why(box: Box) -> None:
    write_items(box, 20)
    write_worker(box, "def __call__(self, item):\n    return 1\n", setup="raise ValueError('no such model')")
    ended = pool(box).wait()
    assert ended.code == 1
    assert "ValueError: no such model" in ended.out
    assert len(results(box)) == 0
    (box.work / "work.py").write_text("import nothing_here\nclass Work(nothing_here.Worker): pass\n")
    assert "nothing_here" in pool(box, "--overwrite").wait().out


def test_a_mended_worker_goes_on_if_there_is_no_outcome_yet(box: Box) -> None:
    write_items(box, 20)
    write_worker(box, LOG, setup="raise ValueError('no such model')")
    assert pool(box, "--set", "model=smal").wait().code == 1
    write_worker(box, LOG)
    ended = pool(box, "--set", "model=small").wait()
    assert ended.code == 0, ended.text
    assert len(results(box)) == 20
    (box.work / "items.txt").write_text("another\n")
    assert pool(box, "--set", "model=large").wait().code == 2  # the results of items that are gone count too


def test_a_name_that_is_not_there_is_refused_at_once(box: Box) -> None:
    write_items(box, 3)
    ended = pool(box, worker="work.py:Wark").wait()
    assert (ended.code, "did you mean 'Work'?" in ended.err) == (2, True)


def test_an_item_that_runs_too_long_ends_its_worker_alone(box: Box) -> None:
    write_items(box, 12)
    body = "import time\ndef __call__(self, item):\n    time.sleep(60 if item == '4' else 0.01)\n    return 1\n"
    write_worker(box, body)
    ended = pool(box, "--item-timeout", "0.5s").wait()
    assert ended.code == 1
    (row,) = errors(box)
    assert (row["item"], row["tries"]) == ("4", 2)
    assert "--item-timeout" in row["error"]
    assert len(results(box)) == 11


# ---- memory ----------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_halved_and_that_is_remembered(box: Box) -> None:
    write_items(box, 64)
    body = """\
def batch(self, items):
    open('batches.txt', 'a').write(f'{len(items)}\\n')
    if len(items) > 4:
        raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')
    return [int(item) + 1 for item in items]
"""
    write_worker(box, body)
    ended = pool(box, "--batch-size", "16", "--max-gpus", "1").wait()
    assert ended.code == 0, ended.text
    assert [row["result"] for row in results(box)] == list(range(2, 66))
    sizes = list(map(int, box.read("batches.txt").split()))
    assert sizes[:4] == [16, 16, 8, 4]  # again alone, then half, then half of that
    assert max(sizes[5:]) <= 4
    assert json.loads(box.read("out/progress.jsonl").splitlines()[-1])["out_of_memory"] == 1


def test_an_item_that_never_fits_is_set_aside(box: Box) -> None:
    write_items(box, 20)
    write_worker(box, "def __call__(self, item):\n    if item == '9':\n        raise MemoryError()\n    return 1\n")
    assert pool(box).wait().code == 1
    assert [(row["item"], row["kind"]) for row in errors(box)] == [("9", "oom")]
    assert len(results(box)) == 19


def test_a_sticky_error_ends_the_worker_and_blames_its_item(box: Box) -> None:
    write_items(box, 20)
    body = """\
def __call__(self, item):
    if item == '9':
        raise RuntimeError('CUDA error: device-side assert triggered')
    return 1
"""
    write_worker(box, body, setup="open('loads.txt', 'a').write('x')")
    assert pool(box).wait().code == 1
    assert [(row["item"], row["kind"]) for row in errors(box)] == [("9", "died")]
    assert "device-side assert" in errors(box)[0]["error"]
    assert len(results(box)) == 19


# ---- kinds of workers ------------------------------------------------------------------------------


def test_a_function_is_a_worker_and_so_is_a_program(box: Box) -> None:
    write_items(box, 9)
    (box.work / "work.py").write_text("def triple(item):\n    return int(item) * 3\n")
    assert pool(box, worker="work.py:triple").wait().code == 0
    assert [row["result"] for row in results(box)] == [3 * n for n in range(1, 10)]
    (box.work / "answer.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    print(json.dumps([json.loads(line)]), flush=True)\n"
    )
    command = f"{sys.executable} answer.py"
    assert pool(box, "--command", command, "--overwrite", "--cpu-workers", "2", worker="").wait().code == 0
    assert [row["result"] for row in results(box)] == [[str(n)] for n in range(1, 10)]


def test_threads_share_one_worker_only_if_it_says_so(box: Box) -> None:
    write_items(box, 40)
    body = "import threading, time\ndef __call__(self, item):\n    time.sleep(0.02)\n    return threading.get_ident()\n"
    write_worker(box, body, setup="open('loads.txt', 'a').write('x')")
    refused = pool(box, "--threads", "4", "--max-gpus", "1").wait()
    assert refused.code == 2
    assert "thread_safe" in refused.err
    assert not (box.work / "loads.txt").exists()
    (box.work / "loads.txt").unlink(missing_ok=True)
    write_worker(box, body, setup="open('loads.txt', 'a').write('x')", thread_safe=True)
    assert pool(box, "--threads", "4", "--max-gpus", "1").wait().code == 0
    assert len({row["result"] for row in results(box)}) == 4
    assert box.read("loads.txt") == "x"


def test_workers_on_the_cpu_see_no_gpu(box: Box) -> None:
    write_items(box, 40)
    body = "import os, time\ndef __call__(self, item):\n    time.sleep(0.05)\n    return [self.device, os.getpid()]\n"
    write_worker(box, body)
    assert pool(box, "--cpu-workers", "3").wait().code == 0
    found = [row["result"] for row in results(box)]
    assert {device for device, _ in found} == {"cpu"}
    assert len({pid for _, pid in found}) == 3
    assert not box.claimed()


def test_dicts_of_lists_are_joined_in_the_order_of_the_items(box: Box) -> None:
    write_items(box, 30)
    write_worker(box, "def batch(self, items):\n    return {'A': items, 'B': [len(items)]}\n")
    assert pool(box, "--collect", "dict-of-lists", "--batch-size", "4").wait().code == 0
    joined = json.loads(box.read("out/results.json"))
    assert sorted(joined["A"], key=int) == [str(n) for n in range(1, 31)]
    assert sum(joined["B"]) == 30


# ---- one process, and Python -----------------------------------------------------------------------


def test_few_items_on_one_gpu_run_here_with_the_same_outputs(box: Box) -> None:
    write_items(box, 3)
    body = "def __call__(self, item):\n    return self.device\n"
    write_worker(box, body)
    running = pool(box, "--max-gpus", "1")
    ended = running.wait()
    assert ended.code == 0, ended.text
    assert [row["item"] for row in results(box)] == ["1", "2", "3"]
    assert results(box)[0]["result"] == "cuda:0"
    assert "3 of 3 have a result" in ended.out
    assert not [row for row in box.jobs("out") if row.job.name == "coordinator"]


def test_a_worker_that_cannot_load_here_is_an_error_with_its_reason(box: Box) -> None:
    write_items(box, 2)
    write_worker(box, LOG, setup="raise ValueError('no such model')")
    ended = pool(box, "--max-gpus", "1").wait()
    assert ended.code == 1
    assert "the worker cannot load: ValueError: no such model" in ended.err
    assert "in setup" in ended.err


def test_python_gets_the_results_in_order(box: Box) -> None:
    (box.work / "mine.py").write_text("def square(item):\n    return item * item\n")
    script = """\
import gpusched
from mine import square
if __name__ == "__main__":
    pool = gpusched.WorkerPool(square, range(12), output_dir="out", cpu_workers=2)
    print(pool.run())
    try:
        gpusched.WorkerPool(lambda item: item, [1], output_dir="out")
    except Exception as error:
        print(error)
"""
    (box.work / "main.py").write_text(script)
    ended = box.spawn(program=[sys.executable, "main.py"], environment={"PYTHONPATH": str(box.work)}).wait()
    assert str([n * n for n in range(12)]) in ended.out, ended.text
    assert "move it to a file" in ended.out


PROGRAM = """\
import sys, types
import gpusched

def square(item):
    if item == 3:
        raise ValueError("no threes")
    return item * item

{before}
print(gpusched.WorkerPool(square, range({count}), output_dir="out", max_gpus=1).run())
"""


@pytest.mark.parametrize(("count", "before"), [(12, ""), (2, ""), (12, "if __name__ == '__main__':  #")])
def test_a_program_that_starts_a_pool_where_its_worker_is_imported_is_told(box: Box, count: int, before: str) -> None:
    text = PROGRAM.format(count=count, before=before).replace("#\nprint", "print")
    (box.work / "main.py").write_text(text)
    ended = box.spawn(program=[sys.executable, "main.py"], environment={"PYTHONPATH": str(box.work)}).wait()
    if before:
        assert "1 of 12 items have no result" in ended.text
        assert "1 of them, as errors.jsonl says: ValueError: no threes" in ended.text
    else:
        assert 'put the call below: if __name__ == "__main__":' in ended.text
    assert ended.code == 1


def test_few_items_of_a_program_that_uses_cuda_itself_get_fresh_processes(box: Box) -> None:
    cuda = "    sys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))\n"
    guard = f"if __name__ == '__main__':\n{cuda}    #"
    (box.work / "main.py").write_text(PROGRAM.format(count=2, before=guard).replace("#\nprint", "print"))
    ended = box.spawn(program=[sys.executable, "main.py"], environment={"PYTHONPATH": str(box.work)}).wait()
    assert "[0, 1]" in ended.out, ended.text
    assert [row for row in box.jobs("out") if row.job.name == "coordinator"]


def test_what_is_no_number_stays_that(box: Box) -> None:
    write_items(box, 8)
    write_worker(box, "def __call__(self, item):\n    return {'x': [float('nan'), None, float('-inf'), 'é']}\n")
    assert pool(box).wait().code == 0
    assert box.read("out/results.jsonl").splitlines()[0] == ('{"item":"1","result":{"x":[NaN,null,-Infinity,"é"]}}')


def test_too_many_errors_stop_a_pool_in_this_process(box: Box) -> None:
    write_items(box, 50)
    write_worker(box, "def __call__(self, item):\n    raise ValueError(item)\n")
    ended = pool(box, "--inline", "--max-errors", "3").wait()
    assert ended.code == 1
    assert "stopped  more than 3 items ended in an error (--max-errors)" in ended.out
    assert len(errors(box)) == 4


@pytest.mark.parametrize("inline", [(), ("--inline",)])
def test_a_batch_that_raises_is_said(box: Box, inline: tuple[str, ...]) -> None:
    write_items(box, 40)
    write_worker(box, "def batch(self, items):\n    assert len(items) == 1, 'one at a time'\n    return items\n")
    ended = pool(box, "--batch-size", "4", *inline).wait()
    assert ended.code == 0, ended.text
    assert "batches  10 raised, their items were tried one by one: AssertionError: one at a time" in ended.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cpu_worker": 2}, r"cpu_worker: is no option of a pool, and no setting\n  did you mean cpu_workers?"),
        ({"batch_size": "two"}, "--batch-size two: must be a whole number"),
        ({"max_errors": "many"}, "--max-errors many: must be a number of items"),
    ],
)
def test_options_of_python_that_cannot_be_are_named(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(GpuschedError, match=says):
        WorkerPool(f"{__file__}:errors", [1], output_dir=str(tmp_path / "out"), **options)


def test_a_class_that_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    source = "import gpusched\nclass Caption(gpusched.Worker): pass\nfrom gpusched.pool.worker_name import name_of\n"
    ended = subprocess.run([sys.executable, "-c", source + "name_of(Caption)"], capture_output=True, text=True)
    assert "Caption is defined in a notebook, or typed" in ended.stderr
    assert "move it to a file" in ended.stderr


def test_a_dry_run_starts_nothing(box: Box) -> None:
    write_items(box, 7)
    ended = pool(box, "--dry-run").wait()
    assert ended.code == 0, ended.text
    assert "7 items for" in ended.out
    assert sorted(path.name for path in box.work.iterdir()) == ["items.txt", "work.py"]


def test_jobs_that_failed_are_no_items(box: Box) -> None:
    write_items(box, 7)
    ended = pool(box, "--retry-failed").wait()
    assert (ended.code, "--retry-errors" in ended.err) == (2, True)


def test_workers_that_share_a_gpu_state_their_memory(box: Box) -> None:
    write_items(box, 7)
    assert "--mem" in pool(box, "--workers-per-gpu", "2").wait().err


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--inline",)])
def test_memory_that_no_gpu_has_is_refused(box: Box, options: tuple[str, ...]) -> None:
    write_items(box, 7)
    ended = pool(box, "--mem", "900G", *options).wait()
    assert ended.code == 2, ended.text
    assert "a worker wants 921600 MiB on a GPU, and a GPU here can give" in ended.err


def test_the_path_of_a_queue_may_be_longer_than_that_of_a_socket(box: Box) -> None:
    write_items(box, 9)
    assert pool(box, "--log-dir", "q" * 150).wait().code == 0
    assert len(results(box)) == 9


def test_a_yaml_file_describes_a_pool(box: Box) -> None:
    write_items(box, 10)
    text = "worker: work.py:Work  # mine\nitems: items.txt\noutput_dir: out\nother: [1, 2]\n"
    (box.work / "p.yaml").write_text(
        text + "optimization:\n  use_adaptive_workers: false\n  save_checkpoint_every: 4\n"
    )
    assert box.gpusched("pool", "--config", "p.yaml").code == 0
    assert len(results(box)) == 10
    (box.work / "p.yaml").write_text(text + "optimization:\n  batch_sise: 3\n")
    ended = box.gpusched("pool", "--config", "p.yaml")
    assert "did you mean 'batch_size'?" in ended.err


def test_what_is_stopped_leaves_nothing_and_blames_no_item(box: Box) -> None:
    write_items(box, 200)
    write_worker(box, "import time\n" + LOG.replace("return", "time.sleep(0.05)\n    return"))
    running = pool(box)
    wait_for(lambda: len(executed(box)) > 10, "some items")
    assert box.gpusched("stop", "--now", "-q", "out").code == 0
    running.wait()
    box.wait_until_empty()
    assert pool(box).wait().code == 0
    assert len(results(box)) == 200
    assert max(Counter(executed(box)).values()) <= 2


def test_two_interrupts_end_all_and_say_what_is_there(box: Box) -> None:
    """Workers that are added while the dispatcher leaves are no submission that another one is started for."""
    write_items(box, 200)
    write_worker(box, "import time\n" + LOG.replace("return", "time.sleep(0.05)\n    return"))
    running = pool(box)
    wait_for(lambda: len(executed(box)) > 10, "some items")
    running.signal(signal.SIGINT)
    wait_for(lambda: "once more" in running.said(), "the first answer")
    time.sleep(1.0)
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130
    assert " of 200 have a result" in ended.out and "are left: the same command goes on" in ended.out
    box.wait_until_empty()
    assert pool(box).wait().code == 0
    assert len(results(box)) == 200


@pytest.mark.parametrize("options", [("--cpu-workers", "2"), ("--cpu-workers", "1", "--inline")])
def test_a_second_start_in_another_directory_changes_nothing(box: Box, options: tuple[str, ...]) -> None:
    write_items(box, 60)
    held = "while len(open('executed.txt').read().split()) > 9 and not os.path.exists('go'):\n        time.sleep(0.05)"
    write_worker(box, "import os, time\n" + LOG.replace("return", f"{held}\n    return"))
    running = pool(box, *options)
    wait_for(lambda: len(executed(box)) > 5, "some items")
    elsewhere = box.work / "elsewhere"
    elsewhere.mkdir()
    words = ["pool", "../work.py:Work", "--items", "../items.txt", "--output-dir", "../out", "--batch-size", "2"]
    second = box.spawn(*words, *options, cwd=elsewhere).wait(20)
    assert second.code == 75, second.text
    assert "another command works on this pool" in second.err
    assert "Error" not in second.text
    assert not list(elsewhere.iterdir())
    (box.work / "go").touch()
    assert running.wait().code == 0
    assert Counter(executed(box)) == {str(n): 1 for n in range(1, 61)}
    after = box.spawn(*words, *options, cwd=elsewhere).wait()
    assert (after.code, "60 of 60 items have a result" in after.err) == (0, True), after.text


def test_after_one_interrupt_the_pool_goes_on_to_its_end(box: Box) -> None:
    write_items(box, 60)
    write_worker(box, "import time\n" + LOG.replace("return", "time.sleep(0.05)\n    return"))
    running = pool(box)
    wait_for(lambda: len(executed(box)) > 5, "some items")
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert "go on to the end, those of a pool: to its last item, unless `gpusched stop --now`" in ended.text
    assert "60 of 60 have a result" in ended.out, ended.text
    assert len(results(box)) == 60


def test_a_list_without_items_is_refused(box: Box) -> None:
    write_items(box, 0)
    ended = pool(box).wait()
    assert ended.code == 2
    assert "there are no items" in ended.err
