"""The reason of a failure, as the end of its log states it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusched.core.jobs.failure import REASON_LENGTH, find_reason, without_repetition
from gpusched.core.model import Outcome, OutcomeKind

EXIT_1 = Outcome(OutcomeKind.EXITED, exit_code=1)
ENDS = "its log ends with: "

PLAIN = """\
epoch 1, loss 0.5
Traceback (most recent call last):
  File "/home/ann/train.py", line 3, in <module>
    step(batch)
    ~~~~^^^^^^^
  File "/home/ann/train.py", line 9, in step
    raise ValueError("loss is nan")
ValueError: loss is nan
"""
CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 2, in <module>
    {}["a"]
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 4, in <module>
    raise SettingsMissing("no a in the settings")
project.settings.SettingsMissing: no a in the settings
wandb: Run history:
wandb: error: 0.3
wandb: Synced 5 files
"""
CUDA = """\
Traceback (most recent call last):
  File "t.py", line 8, in <module>
    torch.cuda.synchronize()
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

"""
TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/ann/ddp.py", line 12, in <module>
[rank1]:     raise IndexError("list index out of range")
[rank1]: IndexError: list index out of range
W1129 03:00:00.0 4077 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4079 closing signal SIGTERM
E1129 03:00:00.1 4077 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
ddp.py FAILED
"""
IGNORED = """\
OSError: [Errno 28] No space left on device
Exception ignored in: <function Pool.__del__ at 0x7f>
Traceback (most recent call last):
  File "/usr/lib/python3.12/pool.py", line 271, in __del__
    self._change_notifier.put(None)
AttributeError: 'NoneType' object has no attribute 'put'
"""
RAY = """\
(worker pid=81) Traceback (most recent call last):
(worker pid=81)   File "w.py", line 1, in run
(worker pid=81) queue.Empty
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "g.py", line 1, in <module>
  |     raise ExceptionGroup("two", errors)
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: the first
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (PLAIN, "ValueError: loss is nan"),
        (PLAIN.replace("\n", "\r\n"), "ValueError: loss is nan"),
        (CHAINED, "project.settings.SettingsMissing: no a in the settings"),
        (CUDA, "RuntimeError: CUDA error: device-side assert triggered"),
        (TORCHRUN, "IndexError: list index out of range"),
        (IGNORED, "OSError: [Errno 28] No space left on device"),
        (RAY, "queue.Empty"),
        (GROUP, "ValueError: the first"),
        ("  File \"s.py\", line 1\n    print(\n         ^\nSyntaxError: '(' was never closed\n", None),
        (
            "python: can't open file '/home/ann/trian.py': [Errno 2] No such file or directory\n",
            "python: can't open file '/home/ann/trian.py': [Errno 2] No such file or directory",
        ),
        ("/usr/bin/python3: No module named trian\n", "/usr/bin/python3: No module named trian"),
        ("/bin/bash: line 1: trian: command not found\n", "trian: command not found"),
        ("bash: -c: line 1: ./run.sh: Permission denied\n", "./run.sh: Permission denied"),
        ("bash: line 1:  4711 Segmentation fault      (core dumped) ./a.out\n", None),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --lrr 1\n", None),
        ('train.cu(12): error: identifier "x" is undefined\n', None),
        ("thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds\n", None),
        ("error[E0425]: cannot find value `x` in this scope\n", None),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no device\n",
            "what(): no device",
        ),
        ("2026-01-02 10:00:00 | ERROR    | train:main:3 - the data set is empty\n", None),
        ("[ERROR] 2026-01-02 the data set is empty\n", None),
        ("fatal: not a git repository\n", None),
        ("make: *** [Makefile:2: all] Error 2\n", None),
        ("a.c:1:1: error: expected identifier\nmake: *** [a.o] Error 1\n", "a.c:1:1: error: expected identifier"),
        ("srun: error: Unable to allocate resources\n", None),
        ("\x1b[31mError: Cannot find module 'x'\x1b[0m\n", "Error: Cannot find module 'x'"),
        ("10%|# |\r20%|## |\rRuntimeError: stopped at 20%", "RuntimeError: stopped at 20%"),
        ("AssertionError\n", None),
        ("t: t.c:4: main: Assertion `x > 0' failed.\n", None),
        ("HTTPError: 401 for https://ann:s3cretword@host/x\n", "HTTPError: 401 for https://ann:***@host/x"),
        # what only looks like one
        ("epoch 3, error: 0.25\nval error: nan\nmean error: -1e-3\nstop\n", f"{ENDS}stop"),
        ("WARNING: error: the cache is cold\nUserWarning: Error: is not one\nstop\n", f"{ENDS}stop"),
        ("INFO: error: none\n0 errors\nerror rate 0.3\n", f"{ENDS}error rate 0.3"),
        # no form of an error: the last line
        ("epoch 1\ndata/shard.bin missing\n", f"{ENDS}data/shard.bin missing"),
        ("config seed3.yaml not found\n\n======\nwandb: Synced 5 files\n", f"{ENDS}config seed3.yaml not found"),
        ("[rank0]: --password=hunter2hunter2 is refused\n", f"{ENDS}--password=*** is refused"),
        ("epoch 2, loss 0.5\n", f"{ENDS}epoch 2, loss 0.5"),
        ("10%|# | 1/9 [00:01<00:09, 1.0it/s]\r20%|## |\r", f"{ENDS}10%|# | 1/9 [00:01<00:09, 1.0it/s]"),
        ("\n \n---\n2\n", ""),
        ("", ""),
    ],
)
def test_the_reason_is_the_last_error_of_the_log(log: str, reason: str | None) -> None:
    if reason is None:
        reason = " ".join(log.splitlines()[-1].split())
        reason = reason if "panicked" not in log else log.splitlines()[0]
        reason = reason.removeprefix("bash: line 1: 4711 ")
    assert find_reason(EXIT_1, log) == reason


@pytest.mark.parametrize(
    "outcome",
    [
        replace(EXIT_1, exit_code=0),
        replace(EXIT_1, exit_code=137),
        replace(EXIT_1, cause="host_oom"),
        Outcome(OutcomeKind.SIGNALLED, signal=6),
    ],
)
def test_the_last_line_is_a_reason_only_where_nothing_else_is_known(outcome: Outcome) -> None:
    assert find_reason(outcome, "data/shard.bin missing\n") == ""


def test_a_long_reason_is_cut_and_made_fit_to_show() -> None:
    shown = find_reason(EXIT_1, f"ValueError: \x07 \x9b {'x' * 500}\n")
    assert len(shown) == REASON_LENGTH and shown.isprintable()


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeKind.EXITED, exit_code=0),
        Outcome(OutcomeKind.SIGNALLED, signal=9),
        Outcome(OutcomeKind.CANCELLED, signal=15),
        Outcome(OutcomeKind.TIMED_OUT, signal=15),
        Outcome(OutcomeKind.LOST),
    ],
)
def test_what_ended_a_job_from_outside_is_not_in_its_log(outcome: Outcome) -> None:
    assert find_reason(outcome, PLAIN) == ""
    assert find_reason(Outcome(OutcomeKind.SIGNALLED, signal=6), PLAIN) == "ValueError: loss is nan"


def test_the_line_of_a_log_is_not_shown_beside_a_cause_that_says_the_same() -> None:
    oom = Outcome(OutcomeKind.EXITED, exit_code=1, cause="gpu_oom", note="torch.OutOfMemoryError: CUDA out of memory.")
    assert without_repetition(oom).note == ""
    for other in (replace(oom, note="would need 9 MiB more"), replace(EXIT_1, note="MemoryError"), EXIT_1):
        assert without_repetition(other) == other
