"""`gpusched logs`: bytes as they came, the last lines, and a log that is followed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from gpusched.cli import main as front
from gpusched.core.jobs.lifecycle import judge
from gpusched.core.model import Outcome, OutcomeKind
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.host.store.attempt_table import AttemptEnd
from tests.support.sample import EXIT_3, NOW, OK, Sample9

KILLED = Outcome(OutcomeKind.SIGNALLED, signal=9)
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
    assert front.run(["logs", "2", *options]) == (3 if "-f" in options else 0)  # its own exit code
    assert capsysbinary.readouterr().out == printed


def test_the_last_lines_of_a_long_log(sample: Sample9, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = [b"%06d" % n + b"x" * 90 for n in range(3000)]
    sample.log(2, 2, b"\n".join(lines) + b"\n")
    assert front.run(["logs", "2", "-n", "1500"]) == 0
    assert capsysbinary.readouterr().out.splitlines() == lines[-1500:]


def test_a_log_is_followed_to_the_end_of_its_attempt(
    dispatched: Sample9, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log = dispatched.log(3, 1, b"begins\n")

    def live() -> None:
        with Store(dispatched.place.database) as store, log.open("ab") as file:
            file.write(b"fails\n")
            file.flush()
            verdict = judge(EXIT_3, job_table.get(store, 3), cancel_asked=False)
            attempt_table.close(store, 3, 1, AttemptEnd(EXIT_3, NOW), verdict, now=NOW)

    writer = threading.Timer(0.1, live)
    writer.start()
    assert front.run(["logs", "3", "-f", "--attempt", "1"]) == 3
    writer.join()
    assert capsysbinary.readouterr().out == b"begins\nfails\n"


def test_a_job_that_has_written_nothing_is_said(sample: Sample9, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["logs", "5"]) == 2
    assert "job 5 is queued and has written nothing yet\n  `gpusched explain 5 -q " in capsys.readouterr().err


def test_a_job_that_waits_is_waited_for_and_its_log_may_come_late(
    dispatched: Sample9, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def live() -> None:
        with Store(dispatched.place.database) as store:
            attempt_table.start(store, 5, NOW, "logs/0005.1-python.log", "", ())
            time.sleep(0.3)  # booked, and no log yet
            dispatched.log(5, 1, b"late\n")
            verdict = judge(KILLED, replace(job_table.get(store, 5), retries=0), cancel_asked=False)
            attempt_table.close(store, 5, 1, AttemptEnd(KILLED, NOW), verdict, now=NOW)

    writer = threading.Timer(1.3, live)
    writer.start()
    assert front.run(["logs", "5", "-f"]) == 128 + 9
    writer.join()
    out, err = capsysbinary.readouterr()
    assert out == b"late\n"
    assert b"job 5 is queued: waits for " in err
    assert b"job 5 ended: killed by SIGKILL\n" in err


def test_the_next_attempt_is_followed_too(dispatched: Sample9, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    dispatched.log(7, 1, b"first\n")  # it has failed, and waits to be tried again
    dispatched.log(7, 2, b"second\n")
    writer = threading.Timer(0.3, lambda: _attempt_by_others(dispatched, 7))
    writer.start()
    assert front.run(["logs", "7", "-f"]) == 0
    writer.join()
    assert capsysbinary.readouterr().out == b"first\nsecond\n"


def _attempt_by_others(sample: Sample9, job_id: int) -> None:
    """Have another connection book and end an attempt that succeeds."""
    with Store(sample.place.database) as store:
        number = attempt_table.start(store, job_id, NOW, f"logs/{job_id:04d}.2-python.log", "", ())
        assert number == 2
        verdict = judge(OK, job_table.get(store, job_id), cancel_asked=False)
        attempt_table.close(store, job_id, number, AttemptEnd(OK, NOW), verdict, now=NOW)


def test_a_job_that_ended_without_a_start_is_no_log(sample: Sample9, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["logs", "8", "-f"]) == 2
    assert "job 8 is cancelled and has written nothing yet" in capsys.readouterr().err
