"""What an attempt's end was, and how it is said."""

from __future__ import annotations

import json
import signal

import pytest

from gpusched.core.jobs.outcome import classify, describe, ends_in_traceback
from gpusched.core.model import Outcome, OutcomeKind
from tests.support.paths import TESTS

CASES = TESTS / "cases" / "files"
TABLE = [json.loads(line) for line in (CASES / "40-oom-a.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["log_tail"][:40])
def test_the_table_of_texts(row: dict[str, str | int]) -> None:
    cause = classify(int(row["exit"]), None, str(row["log_tail"]))
    expected = str(row["expect"]).split()[0]
    assert cause == ("" if expected in ("ok", "error") else expected)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 B",
            "gpu_oom",
        ),
        ("RESOURCE_EXHAUSTED: Failed to allocate request for 8.00GiB (8589934592B) on device ordinal 0", "gpu_oom"),
        ("OOM when allocating tensor with shape[8] on /job:localhost/device:GPU:0 by allocator GPU_0_bfc", "gpu_oom"),
        ("OOM when allocating tensor with shape[8] on /job:localhost/device:CPU:0 by allocator cpu", "host_oom"),
        ("failed to allocate 15.78G (1 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu_oom"),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8 bytes", "gpu_oom"),
        ("cudaErrorMemoryAllocation: out of memory", "gpu_oom"),
        ("MemoryError: std::bad_alloc: out_of_memory: CUDA error at: rmm/x.hpp:70", "gpu_oom"),
        ("RuntimeError: cuda runtime error (2) : out of memory at /x", "gpu_oom"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "gpu_oom"),
        ("ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 2 'out of memory'", "gpu_oom"),
        ("ggml_cuda: cudaMalloc failed: out of memory", "gpu_oom"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "gpu_oom"),
        ("HIP out of memory. Tried to allocate 2.00 GiB", "gpu_oom"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host_oom"),
        ("MemoryError", "host_oom"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 GiB for an array", "host_oom"),
        ("OSError: [Errno 12] Cannot allocate memory", "host_oom"),
        ("slurmstepd: error: Detected 1 oom_kill event", "host_oom"),
        ("Out of memory: Killed process 812 (python3) total-vm:1kB", "host_oom"),
        ("ray.exceptions.OutOfMemoryError: Task was killed", "host_oom"),
        ("It is possible that dataloader's workers are out of shared memory", "host_oom"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu_busy"),
        ("cudaErrorDevicesUnavailable", "gpu_busy"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_lost"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "gpu_lost"),
        ("no CUDA-capable device is detected", "gpu_lost"),
        ("RuntimeError: No CUDA GPUs are available", "gpu_lost"),
        ("Unable to determine the device handle: GPU is lost.", "gpu_lost"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python3", ""),
        ("CUDA error: unspecified launch failure", ""),
        ("CUDA error: invalid device ordinal", ""),
        ("triton: out of resource: shared memory", ""),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.", "gpu_oom"),
        ("RESOURCE_EXHAUSTED: Attempting to allocate 12.40G. That was not possible.", "gpu_oom"),
        ("Resource exhausted: Out of memory while trying to allocate 5520758552 bytes.", "gpu_oom"),
        ("ResourceExhaustedError: failed to allocate memory [Op:AddV2]", "gpu_oom"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[256,832,7,7]", "gpu_oom"),
        ("ResourceExhaustedError: {{function_node x/device:CPU:0}} failed to allocate memory [Op:Mul]", "host_oom"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[8] on /device:CPU:0 by allocator", "host_oom"),
        ("RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)", ""),
        ("RuntimeError: CUDA driver error: out of memory", "gpu_oom"),
        ("RuntimeError: CUDA driver error: memory mapping failed: out of memory", "gpu_oom"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 18.01 GB, max allowed: 18.13 GB).", "gpu_oom"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "suspected_oom"),
        ("cuda_dnn.cc:535] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR", "suspected_oom"),
        ("XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look above", "suspected_oom"),
        ("RuntimeError: failed to set up the pool: out of memory", "suspected_oom"),
        ("training never runs out of memory here", ""),
        ("bash: line 1: 812 Killed  python3 train.py", ""),
        ("", ""),
    ],
)
def test_other_texts(text: str, cause: str) -> None:
    assert classify(1, None, f"Traceback\n{text}\n") == cause


def test_the_last_text_decides() -> None:
    oom, busy = "CUDA out of memory", "all CUDA-capable devices are busy or unavailable"
    assert classify(1, None, f"{busy}\nretry\n{oom}\n") == "gpu_oom"
    assert classify(1, None, f"{oom}\nretry\n{busy}\nbye") == "gpu_busy"


def test_advice_is_no_cause() -> None:
    assert classify(1, None, "hint: lower the batch if you see 'CUDA out of memory'\nKeyError: 1") == ""
    assert classify(1, None, "CUDA out of memory. If reserved memory is large, try …") == "gpu_oom"


def test_a_suspicion_gives_way_to_a_cause() -> None:
    suspicion = "CUBLAS_STATUS_NOT_INITIALIZED"
    assert classify(1, None, f"MemoryError\n{suspicion}\n") == "host_oom"
    assert classify(1, None, f"hint: {suspicion} may come from an old driver") == ""
    assert classify(1, None, suspicion, devices=0) == ""
    assert describe(Outcome(OutcomeKind.EXITED, 1, cause="suspected_oom")) == "exit 1, suspected: out of GPU memory"


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    1/0\n    ~^~\n'


@pytest.mark.parametrize(
    ("log", "ends"),
    [
        (f"epoch 1\n{TRACEBACK}ZeroDivisionError: division by zero\n", True),
        (f"{TRACEBACK}KeyboardInterrupt", True),
        (f"{TRACEBACK}a.b.Error: x\n\nDuring the handling of it:\n\n{TRACEBACK}ValueError: y\n\n", True),
        (f"{TRACEBACK}RuntimeError: Error(s) in loading:\n\tMissing key(s)\n", True),
        (f"{TRACEBACK}RuntimeError: CUDA error\nCUDA kernel errors might be late\nFor debugging pass X\n", True),
        ("[rank0]: " + f"{TRACEBACK}ValueError: y\n".replace("\n", "\n[rank0]: ", 4), True),
        (f"{TRACEBACK}ValueError: y\nretried: all is well\n", False),
        ("Traceback (most recent call last) is a text\n", False),
        (TRACEBACK, False),
        ("", False),
    ],
)
def test_a_traceback_at_the_end_is_seen(log: str, ends: bool) -> None:
    assert ends_in_traceback(log) is ends


def test_an_end_with_zero_has_no_cause() -> None:
    assert classify(0, None, "CUDA out of memory") == ""
    assert classify(None, None, "CUDA out of memory") == ""


def test_sigkill_alone_proves_nothing() -> None:
    assert classify(None, 9, "epoch 3") == ""
    assert classify(137, None, "epoch 3") == ""
    assert classify(None, 9, "oom-kill: constraint=CONSTRAINT_MEMCG") == "host_oom"
    assert classify(137, None, "Killed process 12") == "host_oom"


def test_without_devices_the_gpu_is_not_to_blame() -> None:
    assert classify(1, None, "No CUDA GPUs are available", devices=0) == ""
    assert classify(1, None, "MemoryError", devices=0) == "host_oom"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(OutcomeKind.EXITED, 0), "exit 0"),
        (Outcome(OutcomeKind.EXITED, 3), "exit 3"),
        (Outcome(OutcomeKind.EXITED, 126), "cannot be executed (126)"),
        (Outcome(OutcomeKind.EXITED, 127), "not found (127)"),
        (
            Outcome(OutcomeKind.EXITED, 141),
            "exit 141 (broken pipe: a command in the pipe ended early; pipefail is on)",
        ),
        (Outcome(OutcomeKind.EXITED, 137), "exit 137 (a command in it was killed by SIGKILL)"),
        (Outcome(OutcomeKind.EXITED, 255), "exit 255"),
        (Outcome(OutcomeKind.SIGNALLED, None, 9), "killed by SIGKILL"),
        (Outcome(OutcomeKind.SIGNALLED, None, 64), "killed by signal 64"),
        (Outcome(OutcomeKind.EXITED, 1, None, "gpu_oom"), "exit 1, out of GPU memory"),
        (Outcome(OutcomeKind.EXITED, 1, None, "", "background"), "exit 1, background"),
        (Outcome(OutcomeKind.TIMED_OUT), "time limit"),
        (Outcome(OutcomeKind.CANCELLED, None, 15), "cancelled"),
        (Outcome(OutcomeKind.CANCELLED, cause="removed"), "cancelled, removed from the list"),
        (Outcome(OutcomeKind.INTERRUPTED), "interrupted"),
        (Outcome(OutcomeKind.LOST), "lost without an exit code"),
        (Outcome(OutcomeKind.NOT_STARTED, note="no such directory"), "not started, no such directory"),
    ],
)
def test_outcomes_in_words(outcome: Outcome, words: str) -> None:
    assert describe(outcome) == words


def test_signal_names_are_those_of_the_system() -> None:
    for number in signal.Signals:
        if number < 32:
            name = number.name.replace("SIGPOLL", "SIGIO").replace("SIGCLD", "SIGCHLD").replace("SIGIOT", "SIGABRT")
            assert describe(Outcome(OutcomeKind.SIGNALLED, None, int(number))) == f"killed by {name}"
