"""Find the cause of an attempt's end, by its exit status and the end of its log: memory, the GPU, or the program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpusched.core.model import Outcome, OutcomeKind

# The last match in the log decides. Within one place the first alternative wins, so that a C++ `bad_alloc`
# that a GPU allocator throws is the GPU's.
_CAUSES = re.compile(
    r"""
    (?P<gpu_oom>
        (?:CUDA|HIP|MPS[ ]backend)[ ]out[ ]of[ ]memory
      | (?:CUDA|HIP)[ ](?:driver[ ])?error:?[ ](?:\d+:[ ])?out[ ]of[ ]memory
      | memory[ ]mapping[ ]failed:[ ]out[ ]of[ ]memory
      | torch(?:\.cuda)?\.OutOfMemoryError
      | CU[A-Z]+_(?:STATUS_)?ALLOC(?:ATION)?_FAILED
      | CUDA_ERROR_OUT_OF_MEMORY | cudaErrorMemoryAllocation | hipErrorOutOfMemory | NVRTC_ERROR_OUT_OF_MEMORY
      | cuda[ ](?:runtime[ ]error|failure)[^\n]{0,20}out[ ]of[ ]memory
      | cudaMalloc\w*[ ]failed:?[ ]out[ ]of[ ]memory
      | (?:RESOURCE[_ ]EXHAUSTED|ResourceExhaustedError):(?![^\n]*device:CPU)
        [^\n]{0,300}?(?:out[ ]of[ ]memory|(?:failed|attempting)[ ]to[ ](?:allocate|reserve)|OOM[ ]when[ ]allocating)
      | OOM[ ]when[ ]allocating[^\n]{0,300}?(?:device:GPU|GPU_\d+_bfc)
      | Allocator[ ]\(GPU_\d+_bfc\)[ ]ran[ ]out[ ]of[ ]memory(?![^\n]*not[ ]a[ ]failure)
      | cupy[\w.]*\.OutOfMemoryError | (?:rmm::|std::bad_alloc:[ ])out_of_memory
      | No[ ]available[ ]memory[ ]for[ ]the[ ]cache[ ]blocks
      | Free[ ]memory[ ]on[ ]device[^\n]{0,80}is[ ]less[ ]than[ ]desired[ ]GPU[ ]memory
    )
  | (?P<gpu_busy>
        CUDA-capable[ ]device(?:s[ ]are|\(s\)[ ]is/are)[ ]busy[ ]or[ ]unavailable
      | CUDA_ERROR_DEVICE_UNAVAILABLE | cudaErrorDevicesUnavailable | cudaErrorDeviceAlreadyInUse
      | exclusive-thread[ ]device[ ]already[ ]in[ ]use
    )
  | (?P<gpu_lost>
        GPU[ ]is[ ]lost | fallen[ ]off[ ]the[ ]bus | NVML_ERROR_GPU_IS_LOST | NVMLError_GpuIsLost
      | Xid[ ]\([^)\n]*\):[ ](?:48|63|64|79|94|95)\b
      | uncorrectable[ ](?:ECC|NVLink)[ ]error
      | CUDA_ERROR_ECC_UNCORRECTABLE | cudaErrorECCUncorrectable | (?:CUDA_ERROR_|cudaError)Nvlink_?Uncorrectable
      | no[ ]CUDA-capable[ ]device[ ]is[ ]detected | CUDA_ERROR_NO_DEVICE | cudaErrorNoDevice
      | No[ ]CUDA[ ]GPUs[ ]are[ ]available
    )
  | (?P<host_oom>
        DefaultCPUAllocator:[ ](?:can't[ ]allocate|not[ ]enough)[ ]memory
      | \bMemoryError\b | \b_ArrayMemoryError\b | std::bad_alloc | Cannot[ ]allocate[ ]memory
      | oom[-_]kill | Out[ ]of[ ]memory:[ ]Kill(?:ed)?[ ]process | Killed[ ]process[ ]\d+
      | OOM[ ]when[ ]allocating[^\n]{0,300}?device:CPU
      | ResourceExhaustedError:[^\n]{0,300}?device:CPU[^\n]{0,100}?failed[ ]to[ ]allocate
      | ray\.exceptions\.OutOfMemoryError | workers[ ]are[ ]out[ ]of[ ]shared[ ]memory
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)
# A library that finds no memory for its start says only that it does not start.
_SUSPICIONS = re.compile(
    r"""
        CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_NOT_INITIALIZED
      | (?:could[ ]not|failed[ ]to)[ ]create[ ](?:cublas|cudnn|cusolver|cusparse)(?:DN)?[ ]handle
      | DNN[ ]library[ ]initialization[ ]failed | without[ ]BLAS[ ]support
      | (?:error|failed|fatal)\b[^\n]{0,80}\bout[ ]of[ ]memory\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TRACEBACK = re.compile(
    r"""
    ^([^\n]{0,40})Traceback[ ]\(most[ ]recent[ ]call[ ]last\):\n
    (?:\1[ \t][^\n]*\n)+             # the calls
    \1\w[\w.]*(?::[^\n]*)?           # the exception, whose message may have lines of its own
    (?:\n(?:\1?[ \t]|CUDA[ ]kernel[ ]errors|For[ ]debugging|Compile[ ]with)[^\n]*)*
    \s*\Z
    """,
    re.VERBOSE | re.MULTILINE,
)
_ADVICE = re.compile(r"\b(?:hint|note|tip)\b\W|\bif (?:you|it|this)\b", re.IGNORECASE)


def classify(exit_code: int | None, signal: int | None, log_tail: str, *, devices: int = 1) -> str:
    """Return the cause of an attempt's end: gpu_oom, host_oom, gpu_busy, gpu_lost, suspected_oom, or "" for any other.

    An attempt that ended with 0 has no cause, whatever its log says. SIGKILL alone proves nothing, since anyone
    may send it. A job without devices has no GPU cause.
    """
    if not exit_code and not signal:
        return ""
    causes = [match.lastgroup or "" for match in _statements(_CAUSES, log_tail)]
    if causes:
        return "" if causes[-1].startswith("gpu_") and not devices else causes[-1]
    return "suspected_oom" if devices and any(_statements(_SUSPICIONS, log_tail)) else ""


def _statements(pattern: re.Pattern[str], log_tail: str) -> Iterator[re.Match[str]]:
    """Yield the matches in a log that are no advice."""
    for match in pattern.finditer(log_tail):
        line_start = log_tail.rfind("\n", 0, match.start()) + 1
        if not _ADVICE.search(log_tail, line_start, match.start()):
            yield match


def ends_in_traceback(log_tail: str) -> bool:
    """Return True if the last thing in a log is an exception of Python with its traceback."""
    return _TRACEBACK.search(log_tail, max(0, log_tail.rfind("\n", 0, log_tail.rfind("Traceback (most")))) is not None


_CAUSE_WORDS = {
    "gpu_oom": "out of GPU memory",
    "crowded_oom": "out of GPU memory beside other jobs",
    "suspected_oom": "suspected: out of GPU memory",
    "host_oom": "out of host memory",
    "gpu_busy": "the GPU was busy",
    "gpu_lost": "the GPU was lost",
    "misplaced": "it was on a GPU that is not its own",
    "fenced": "its node had lost the head",
    "removed": "removed from the list",
    "unkillable": "it survived SIGKILL",
    "bad_command": "it could not be started",
    "setup_failed": "its set-up failed",
    "idle": "no process on its GPUs (--idle-timeout)",
}
_EXIT_WORDS = {
    126: "cannot be executed (126)",
    127: "not found (127)",
    141: "exit 141 (broken pipe: a command in the pipe ended early; pipefail is on)",
}
# By number, as Linux counts on x86 and Arm.
_SIGNALS = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)
_KIND_WORDS = {
    OutcomeKind.TIMED_OUT: "time limit",
    OutcomeKind.CANCELLED: "cancelled",
    OutcomeKind.INTERRUPTED: "interrupted",
    OutcomeKind.LOST: "lost without an exit code",
    OutcomeKind.NOT_STARTED: "not started",
}


def exit_code_of(outcome: Outcome) -> int:
    """Return the exit code that a shell would show for an attempt: 128 + n for signal n; 0 for a success only."""
    if outcome.signal is not None:
        return 128 + outcome.signal
    return outcome.exit_code or (0 if outcome.ok else 1)


def describe(outcome: Outcome) -> str:
    """Return an outcome in words for people."""
    words = _KIND_WORDS.get(outcome.kind, "")
    if outcome.kind is OutcomeKind.EXITED:
        words = _describe_exit(outcome.exit_code)
    elif outcome.cause == "idle":
        words = "stopped"
    elif outcome.kind is OutcomeKind.SIGNALLED:
        words = f"killed by {_signal_name(outcome.signal)}"
    more = [_CAUSE_WORDS.get(outcome.cause, outcome.cause.replace("_", " ")), outcome.note]
    return ", ".join([words, *(text for text in more if text)])


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "exit code unknown"
    if code in _EXIT_WORDS:
        return _EXIT_WORDS[code]
    if 128 < code <= 128 + 64:
        return f"exit {code} (a command in it was killed by {_signal_name(code - 128)})"
    return f"exit {code}"


def _signal_name(number: int | None) -> str:
    if number is None:
        return "a signal"
    return "SIG" + _SIGNALS[number - 1] if 0 < number <= len(_SIGNALS) else f"signal {number}"
