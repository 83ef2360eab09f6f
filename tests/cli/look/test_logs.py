"""`gpusched logs`: bytes as they came, the last lines, and a log that is followed."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gpusched.cli import main as front
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.host.store.attempt_table import AttemptEnd
from tests.support.sample import EXIT_3, NOW, OK, Sample9

DIRTY = b"one\n\xff\x1b[31mtwo\r\nthree"


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], DIRTY),
        (["-n", "1"], b"three"),
        (["-n", "2"], b"\xff\x1b[31mtwo\r\nthree"),
        (["-n", "9"], DIRTY),
        (["-n", "0"], b""),
        (["--attempt", "1"], b"first\n"),
        (["--attempt", "1", "-n", "1"], b"first\n"),
        (["-f"], DIRTY),  # it has ended: there is nothing to wait for
    ],
)
def test_logs_are_printed_byte_for_byte(
    options: list[str], printed: bytes, sample: Sample9, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    sample.log(2, 1, b"first\n")
    sample.log(2, 2, DIRTY)
    assert front.run(["logs", "2", *options]) == 0
    assert capsysbinary.readouterr().out == printed


def test_the_last_lines_of_a_long_log(sample: Sample9, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = [b"%06d" % n + b"x" * 90 for n in range(3000)]
    sample.log(2, 2, b"\n".join(lines) + b"\n")
    assert front.run(["logs", "2", "-n", "1500"]) == 0
    assert capsysbinary.readouterr().out.splitlines() == lines[-1500:]


@pytest.mark.slow
def test_logs_are_followed_through_the_attempts(
    dispatched: Sample9, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Job 5 starts, writes, fails, is tried again and succeeds, while it is followed."""
    path = dispatched.place.database

    def live() -> None:

        mine = Sample9.__new__(Sample9)
        mine.home, mine.place, mine.store = dispatched.home, dispatched.place, Store(path)
        log = mine.log(5, 1, b"begins\n")
        mine.start(5, 3599)
        log.write_bytes(b"begins\nfails\n")
        job = replace(job_table.get(mine.store, 5), retries=1, tries=0, losses=0)
        from gpusched.core.jobs.lifecycle import judge

        verdict = judge(EXIT_3, job, cancel_asked=False)
        attempt_table.close(mine.store, 5, job.attempts, AttemptEnd(EXIT_3, NOW), verdict, now=NOW)
        mine.log(5, 2, b"again\n")
        mine.attempt(5, OK, 3599, 3600)
        mine.close()

    writer = threading.Timer(0.1, live)
    writer.start()
    assert front.run(["logs", "5", "-f"]) == 0
    writer.join()
    out, err = capsysbinary.readouterr()
    assert out == b"begins\nfails\nagain\n"
    assert b"job 5 has not started yet" in err and b"attempt 2 of job 5" in err
