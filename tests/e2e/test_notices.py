"""People are told of events by real commands and by a stand-in for Apprise; nobody sees a URL, and no job waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpusched.config.settings import Settings
from gpusched.host.queue import notices
from gpusched.host.queue.notices import Notices
from gpusched.host.queue.queue_dirs import QueueDir
from tests.support.box import UNTIL_GO, Box, wait_for

pytestmark = pytest.mark.slow
URL = "slack://s3cretTOKEN/channel"
TELL = 'echo "$GPUSCHED_EVENT,$GPUSCHED_JOB_ID,$GPUSCHED_QUEUE,$GPUSCHED_MESSAGE" >> told'
APPRISE = """
import json, os, sys, time

class Apprise:
    def add(self, urls):
        self.urls = urls
        return True

    def notify(self, body, title):
        if "bad" in self.urls:
            raise ValueError(f"{self.urls} is not reached")
        if "slow" in self.urls:
            time.sleep(600)
        told = {"urls": self.urls, "body": body, "title": title, "words": sys.argv, "input": sys.stdin.read()}
        with open(os.environ["TOLD"], "a") as file:
            print(json.dumps(told), file=file)
        return True
"""


HIDDEN = """
import importlib.util

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "apprise" else find(name, *more)
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    library = tmp_path / "library"
    library.mkdir()
    (library / "apprise.py").write_text(APPRISE)
    with Box(tmp_path, "2", {"PYTHONPATH": str(library), "TOLD": str(tmp_path / "messages")}) as box:
        yield box


def told(box: Box) -> list[list[str]]:
    path = box.work / "told"
    return [line.split(",", 3) for line in path.read_text().splitlines()] if path.exists() else []


def messages(box: Box) -> list[dict[str, str]]:
    path = box.root / "messages"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def log(box: Box) -> str:
    return (box.queue() / "dispatcher.log").read_text()


def test_commands_are_run_at_a_failure_and_at_the_end(box: Box) -> None:
    queue, commands = str(box.queue()), ("--on-fail", TELL, "--on-end", TELL)
    box.write("true", "echo 'Error: boom'; exit 3", name="list.txt")
    assert box.gpusched("run", "list.txt", *commands).code == 1
    assert [line[:3] for line in sorted(told(box))] == [["failed", "2", queue], ["finished", "", queue]]
    messages = {event: text for event, _, _, text in told(box)}
    assert messages["failed"].startswith("job 2 failed: exit 3, after ") and messages["failed"].endswith("Error: boom")
    assert messages["finished"] == "all jobs have ended: 1 succeeded, 1 failed"


def test_failures_within_a_minute_are_one(box: Box) -> None:
    box.write("exit 1", "sleep 0.5; exit 2", "sleep 0.5", name="list.txt")
    assert box.gpusched("run", "list.txt", "--on-fail", TELL).code == 1
    assert [line[:2] for line in told(box)] == [["failed", "1"]]


def test_nothing_is_finished_while_jobs_wait(box: Box) -> None:
    box.write("exit 1", "true", name="list.txt")
    ended = box.gpusched("run", "list.txt", "--on-end", TELL, "--max-fails", "1", "--max-gpus", "1")
    assert ended.code == 1
    assert [line[3] for line in told(box)] == ["stopping (1 job failed (--max-fails 1)): 1 queued, 1 failed"]
    running = box.start("run", box.write("sleep 60", name="other.txt"), "--on-end", TELL)
    running.wait_until_said("job 1 on GPU")
    assert box.gpusched("stop", "-q", "other", "--now").code == 0
    running.wait()
    assert len(told(box)) == 1


def test_a_message_is_sent_once_an_event(box: Box) -> None:
    lines = [f"[gpus=0] python3 lost.py {n}" for n in range(4)]
    (box.work / "lost.py").write_text("raise SystemExit('Error: boom')")
    ended = box.gpusched("run", box.write(*lines), "--cpu-jobs", "1", GPUSCHED_NOTIFY=URL)
    assert ended.code == 1
    texts = sorted(each["body"] for each in messages(box))
    assert [text.partition(",")[0] for text in texts] == [
        "3 jobs of python3 lost.py in a row failed within a minute of their start (exit 1",
        "all jobs have ended: 1 held",
        "job 1 failed: exit 1",
    ]
    first = messages(box)[0]
    assert first["urls"] == URL and first["title"].startswith("gpusched: list on ") and first["input"] == ""
    assert len(first["words"]) == 1 and "s3cret" not in str(first["words"])


def test_apprise_itself_delivers_a_message(tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    received: list[dict[str, str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *values: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server, Box(tmp_path, "1") as box:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ended = box.gpusched("run", box.write("exit 7"), "--notify", f"json://127.0.0.1:{server.server_port}/path")
        server.shutdown()
    assert ended.code == 1 and "warning" not in ended.text
    said = sorted(each["message"].partition(", after")[0] for each in received)
    assert said == ["all jobs have ended: 1 failed", "job 1 failed: exit 7"]
    assert all(each["title"].startswith("gpusched: list on ") for each in received)


def test_a_lost_gpu_is_told_of(box: Box) -> None:
    running = box.start("run", box.write(UNTIL_GO), "--notify", URL)
    running.wait_until_said("job 1 on GPU 0")
    box.set_gpu(1, fail="lost")
    wait_for(lambda: messages(box), "the message")
    assert messages(box)[0]["body"].startswith("GPU 1 (") and "is set aside: lost" in messages(box)[0]["body"]
    (box.work / "go").touch()
    assert running.wait().code == 0


@pytest.mark.parametrize("command", ["exit 7", "sleep 600", "kill -9 $$"])
def test_no_job_waits_for_a_command_that_fails_or_hangs(command: str, box: Box) -> None:
    began = time.monotonic()
    ended = box.gpusched("run", box.write("exit 1", "true", "sleep 0.5"), "--on-fail", command)
    assert ended.code == 1 and box.states() == ["failed", "succeeded", "succeeded"]
    assert time.monotonic() - began < 20
    assert ended.text.count("warning: --on-fail has failed") == (command != "sleep 600")


def test_a_message_that_fails_is_one_warning_without_its_url(box: Box) -> None:
    ended = box.gpusched("run", box.write("true"), GPUSCHED_NOTIFY="slack://bad/s3cretTOKEN?key=s3cretKEY")
    assert ended.code == 0 and ended.text.count("warning: --notify has failed: exit 1") == 1
    assert "--notify: the message was not sent: ValueError: " in log(box)
    assert "s3cret" not in log(box) + ended.text


def test_a_url_is_shown_nowhere(box: Box) -> None:
    running = box.start("run", box.write(UNTIL_GO, "exit 1"), "--gpus-per-job", "2")
    running.wait_until_said("job 1 on GPU")
    said = [box.gpusched(*words.split()) for words in (f"set notify={URL}", "set", "set --json", f"set notfy={URL}")]
    running.wait_until_said("gpusched set gave other options: notify none -> slack://***")
    said += [box.gpusched(*words.split(), GPUSCHED_NOTIFY=URL) for words in ("config", "config --json")]
    said += [box.gpusched("config", GPUSCHED_NOTIFY="s3cret"), box.gpusched("status", "--json")]
    said += [box.gpusched("stop"), box.gpusched("status"), box.gpusched("explain")]
    (box.work / "go").touch()
    said += [running.wait(), box.gpusched("status"), box.gpusched("explain")]
    assert "s3cret" not in "".join(ended.text for ended in said) + log(box)
    assert '"notify": "slack://***"' in said[2].out
    assert box.run("exit 1", GPUSCHED_NOTIFY=URL).code == 1


def test_the_hint_to_go_on_masks_a_url(box: Box) -> None:
    running = box.start("run", box.write(UNTIL_GO, "true"), "--notify", URL, "--max-gpus", "1")
    running.wait_until_said("job 1 on GPU")
    box.gpusched("stop")
    (box.work / "go").touch()
    assert running.wait().code == 130
    said = box.gpusched("status").text + box.gpusched("explain").text
    assert "--notify 'slack://***'" in said and "s3cret" not in said
    assert box.run("true", GPUSCHED_NOTIFY="slack://***").code == 2  # what was shown is no URL


def test_without_the_library_a_start_is_refused(box: Box) -> None:
    (box.root / "library/sitecustomize.py").write_text(HIDDEN)  # it may be installed here
    for words in (f"run {box.write('true')}", "start", "start --detach"):
        ended = box.gpusched(*words.split(), "--notify", URL)
        assert ended.code == 3 and "--notify needs libraries that are not installed here: apprise" in ended.err
        assert "install apprise" in ended.err and "s3cret" not in ended.text
    assert not box.queue().exists()
    assert box.run("true").code == 0
    assert box.gpusched("set", f"notify={URL}", "-q", "list").code == 3


def test_a_dispatcher_in_the_background_tells_each_time_that_it_is_idle(box: Box) -> None:
    box.environment |= {"XDG_STATE_HOME": str(box.home)}
    words = ["start", "--detach", "--notify", URL, "--on-end", f"cd {box.work}; {TELL}"]
    assert box.gpusched(*words).code == 0
    assert not any(b"s3cret" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in box.processes())
    time.sleep(0.5)  # idle from the start on: nothing has ended
    assert not told(box)
    for number in (1, 2):
        assert box.gpusched("submit", "--gpus", "0", "--", "true").out == f"{number}\n"
        assert box.gpusched("wait", "-q", "default").code == 0
    wait_for(lambda: told(box) and messages(box), "the notices")
    assert [line[0] for line in told(box)] == ["finished"]  # the second one is due in a minute
    assert [each["body"] for each in messages(box)] == ["all jobs have ended: 1 succeeded"]
    box.gpusched("stop", "-q", "default", "--now")


# ---- the processes, in this one ----


def test_a_process_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "LIMIT_S", 1)
    several = Notices(QueueDir(str(tmp_path), str(tmp_path)))
    several.add("failed", "text", 3)
    ways = Settings(on_fail=f"sleep 600 & echo $! > {tmp_path}/pid; sleep 600")
    assert several.send(ways, (b"bash", b"-c"), 0.0) == []
    assert several.reap(20.0) == [
        f"--on-fail has failed: stopped after 1 s; {tmp_path}/dispatcher.log has what it said"
    ]
    pid = (tmp_path / "pid").read_text().strip()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    assert several.reap() == []


def test_the_newest_event_of_a_minute_is_told_when_it_is_over(tmp_path: Path) -> None:
    several = Notices(QueueDir(str(tmp_path), str(tmp_path)))
    ways = Settings(on_end=f"echo $GPUSCHED_MESSAGE >> {tmp_path}/told")
    for now_s, text in {0.0: "first", 10.0: "second", 20.0: "third", 60.0: ""}.items():
        if text:
            several.add("finished", text)
        assert several.send(ways, (b"bash", b"-c"), now_s) + several.reap(20.0) == []
    assert (tmp_path / "told").read_text() == "first\nthird\n"


def test_what_cannot_be_started_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    several = Notices(QueueDir(str(tmp_path), str(tmp_path)))
    several.add("held", "text")
    ways = Settings(notify=URL)
    assert several.send(ways, (b"bash", b"-c"), 0.0) == ["--notify cannot be started: No such file or directory"]
