"""Pools whose results leave as other formats, to a URL, and to Weights & Biases; and several pools of one file."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.box import Box, command_of, wait_for
from tests.support.pool import errors, pool, results, write_items, write_worker

pytest.importorskip("fsspec")
pytestmark = pytest.mark.slow
BODY = "def __call__(self, item):\n    return {'n': int(item), 'text': item}\n"
SLOW = "import time\ndef __call__(self, item):\n    time.sleep(0.02)\n    return int(item)\n"
CPU = ("--cpu-workers", "2")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2") as box:
        write_worker(box, BODY)
        yield box


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- formats ---------------------------------------------------------------------------------------


def test_parquet_has_the_order_of_the_items_also_inline(box: Box) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    write_items(box, 120)
    wanted = [{"item": str(n), "result": {"n": n, "text": str(n)}} for n in range(1, 121)]
    for every, sizes, more in (("50", [50, 50, 20], CPU), ("70", [70, 50], ("--inline", "--overwrite", *CPU))):
        ended = pool(box, "--sink", "parquet", "--checkpoint-every", every, *more).wait()
        assert ended.code == 0, ended.text
        assert pq.read_table(box.work / "out/results.parquet").to_pylist() == wanted
        parts = [box.work / "out/results" / name for name in names(box.work / "out/results")]
        assert [pq.read_table(path).num_rows for path in parts] == sizes
    assert names(box.work / "out") == ["items.db", "items.db.lock", "progress.jsonl", "results", "results.parquet"]


def test_results_are_exported_while_the_pool_works(box: Box) -> None:
    write_items(box, 300)
    write_worker(box, SLOW)
    assert "holds no results" in box.gpusched("pool", "export", "--output-dir", "out").err
    running = pool(box, *CPU)
    wait_for(lambda: box.gpusched("pool", "export", "--output-dir", "out").code == 0 and results(box))
    assert 0 < len(results(box)) < 300
    assert [row["result"] for row in results(box)] == sorted(row["result"] for row in results(box))
    assert running.wait().code == 0
    assert box.gpusched("pool", "export", "--output-dir", "out", "--sink", "pt").code == 0
    assert {"results.jsonl", "results.pt"} <= set(names(box.work / "out"))  # each stays


def test_files_must_be_there(box: Box) -> None:
    write_items(box, 6)
    body = """\
def __call__(self, item):
    name = f'{item}.png'
    if item != '3':
        open(f'{self.output_dir}/{name}', 'w').write(item)
    return name
"""
    write_worker(box, body)
    assert pool(box, "--sink", "files", "--upload", "file://" + str(box.work / "there"), *CPU).wait().code == 1
    assert [row["item"] for row in errors(box)] == ["3"]
    assert "no such file" in errors(box)[0]["error"]
    assert names(box.work / "there") == [*(f"{n}.png" for n in (1, 2, 4, 5, 6)), "part-00001.jsonl"]


def test_a_format_whose_library_is_missing_is_refused_at_once(box: Box) -> None:
    write_items(box, 2)
    (box.work / "hidden/sitecustomize.py").parent.mkdir()
    (box.work / "hidden/sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    words = ("pool", "work.py:Work", "--items", "items.txt", "--output-dir", "out")
    refused = box.spawn(*words, "--sink", "parquet", environment={"PYTHONPATH": str(box.work / "hidden")}).wait()
    assert refused.code == 3, refused.text
    assert "pyarrow" in refused.err
    wrong = box.gpusched(*words, "--upload", "s33://bucket")
    assert wrong.code == 2
    assert "did you mean s3" in wrong.err


# ---- upload ----------------------------------------------------------------------------------------


def test_parts_go_up_meanwhile_and_what_fails_hurts_no_item(box: Box) -> None:
    write_items(box, 200)
    write_worker(box, SLOW)
    there = box.work / "there"
    there.write_text("a file, where a directory should be")
    options = ("--upload", f"file://{there}/deep", "--checkpoint-every", "40", *CPU)
    ended = pool(box, *options).wait(90)
    assert ended.code == 1
    assert len(results(box)) == 200
    assert "0/5 parts" in ended.out
    assert "5 are left, the same command goes on: NotADirectoryError" in ended.out
    there.unlink()
    write_worker(box, "def __call__(self, item):\n    1 / 0\n")  # nothing is left to run
    ended = pool(box, *options).wait()
    assert ended.code == 0, ended.text
    assert "5/5 parts" in ended.out
    assert names(there / "deep") == [f"part-0000{n}.jsonl" for n in range(1, 6)]
    for path in (there / "deep").iterdir():
        assert path.read_bytes() == (box.work / "out/results" / path.name).read_bytes()


def test_python_hears_of_parts_that_are_left(box: Box) -> None:
    script = """\
import gpusched
from gpusched.common.errors import GpuschedError
from work import Work
try:
    gpusched.WorkerPool(Work, [1, 2], output_dir="out", inline=True, cpu_workers="1", upload="/proc/nowhere").run()
except GpuschedError as error:
    print(error)
"""
    (box.work / "main.py").write_text(script)
    ended = box.spawn(program=[sys.executable, "main.py"], environment={"PYTHONPATH": str(box.work)}).wait()
    assert "1 parts of the results are not uploaded" in ended.out, ended.text
    assert "the last error: FileNotFoundError" in ended.out


def stages(box: Box) -> list[int]:
    return [pid for pid in box.processes() if "-m gpusched.commands.publish" in command_of(pid)]


def test_a_stage_and_a_coordinator_that_are_killed_are_replaced(box: Box) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    write_items(box, 600)
    write_worker(box, SLOW)
    running = pool(box, "--upload", "there", "--sink", "parquet", "--checkpoint-every", "20", *CPU)
    (first,) = wait_for(lambda: stages(box), "the stage")
    wait_for(lambda: (box.work / "there").exists() and names(box.work / "there"), "a part")
    os.kill(first, signal.SIGKILL)
    coordinators = [pid for pid in box.processes() if "-m gpusched.pool.coordinator" in command_of(pid)]
    (second,) = wait_for(lambda: [pid for pid in stages(box) if pid != first], "another stage")
    for pid in coordinators:
        if not command_of(pid).startswith("sh "):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: second not in stages(box), "the end of the stage without a coordinator")
    assert running.wait().code == 0, running.said()
    assert names(box.work / "there") == [f"part-{n:05}.parquet" for n in range(1, 31)]
    assert pq.read_table(box.work / "out/results.parquet")["result"].to_pylist() == list(range(1, 601))
    assert not stages(box)


def test_an_upload_to_s3(box: Box) -> None:
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    import boto3

    server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-ada",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        environment = {**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="secret-of-ada",
        )
        client.create_bucket(Bucket="captions")
        write_items(box, 100)
        ended = pool(box, "--upload", "s3://captions/run", "--checkpoint-every", "30", *CPU, **environment).wait(120)
        assert ended.code == 0, ended.text
        assert "4/4 parts" in ended.out
        keys_there = [row["Key"] for row in client.list_objects_v2(Bucket="captions")["Contents"]]
        assert keys_there == [f"run/part-0000{n}.jsonl" for n in range(1, 5)]
        for key in keys_there:
            body = client.get_object(Bucket="captions", Key=key)["Body"].read()
            assert body == (box.work / "out/results" / os.path.basename(key)).read_bytes()
    finally:
        server.stop()


def test_an_upload_that_hangs_can_be_stopped_and_the_results_exported(box: Box) -> None:
    pytest.importorskip("s3fs")
    write_items(box, 20)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        keys = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-ada",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        running = pool(box, "--upload", "s3://captions/run", *CPU, AWS_ENDPOINT_URL=url, **keys)
        wait_for(lambda: "upload 0/1 parts" in box.gpusched("status").out, "the upload in status")
        assert "20/20 items" in box.gpusched("status").out
        assert box.gpusched("stop", "--now", "-q", "out").code == 0
        running.wait()
        wait_for(lambda: not box.processes(), "the end of all processes")
    assert box.gpusched("pool", "export", "--output-dir", "out").code == 0
    assert len(results(box)) == 20


# ---- progress --------------------------------------------------------------------------------------


def test_progress_is_shown_by_status_and_kept_as_json_lines(box: Box) -> None:
    write_items(box, 400)
    write_worker(box, SLOW.replace("0.02", "0.06").replace("return int(item)", "return 1 / (int(item) - 5)"))
    running = pool(
        box, "--upload", "there", "--checkpoint-every", "20", "--item-retries", "0", "--max-workers-per-gpu", "1"
    )
    wait_for(lambda: "left (" in box.gpusched("status", "-v").out, "an estimate in status")
    shown = box.gpusched("status", "-v").out
    assert "2 workers on 2 GPUs" in shown
    assert shown.count(" items/s") == 2  # of each worker, in its row
    assert "parts, " in shown
    assert running.wait().code == 1
    numbers = lines(box.work / "out/progress.jsonl")
    assert (numbers[-1]["done"], numbers[-1]["total"], numbers[-1]["errors"]) == (400, 400, 1)
    assert numbers[-1]["upload"]["uploaded"] == 20
    assert numbers[-1]["items_per_s"] > 5


def test_wandb_gets_the_numbers(box: Box) -> None:
    pytest.importorskip("wandb")
    write_items(box, 60)
    write_worker(box, SLOW)
    ended = pool(box, "--wandb", "captions", *CPU, WANDB_MODE="offline", WANDB_SILENT="true").wait(120)
    assert ended.code == 0, ended.text
    (run,) = (box.work / "out/wandb").glob("offline-run-*/*.wandb")
    data = run.read_bytes()
    done = [int(number) for number in re.findall(rb"done[^a-z]{1,6}?(\d+)", data)]
    assert max(done) == 60, done
    assert b"items_per_s" in data


# ---- several pools ---------------------------------------------------------------------------------

POOLS = """\
optimization:
  item_retries: 0
  wandb: {enabled: false, project: captions}
pools:
  numbers:
    worker: work.py:Work
    items: items.txt
    output_dir: numbers
  wrong:
    worker: wrong.py:fail
    items: items.txt
    output_dir: wrong
    optimization: {save_checkpoint_every: 2}
"""


def test_a_file_describes_several_pools(box: Box) -> None:
    write_items(box, 5)
    (box.work / "wrong.py").write_text("def fail(item):\n    return 1 // (int(item) - 3)\n")
    (box.work / "p.yaml").write_text(POOLS)
    ended = box.gpusched("pool", "--config", "p.yaml", *CPU, "--json")
    assert ended.code == 1
    document = json.loads(ended.out)
    assert {name: each["exit_code"] for name, each in document["pools"].items()} == {"numbers": 0, "wrong": 1}
    assert lines(box.work / "wrong/errors.jsonl")[0]["tries"] == 1
    assert names(box.work / "wrong/results") == ["part-00001.jsonl", "part-00002.jsonl"]
    ended = box.gpusched("pool", "--config", "p.yaml", "--script", "numbers")
    assert ended.code == 0
    assert "wrong" not in ended.out
    ended = box.gpusched("pool", "--config", "p.yaml", "--script", "nubmers")
    assert (ended.code, "numbers, wrong" in ended.err) == (2, True)
    (box.work / "p.yaml").write_text(POOLS.replace("item_retries", "item_retrys"))
    assert "p.yaml: pools: numbers: optimization: item_retrys" in box.gpusched("pool", "--config", "p.yaml").err
    assert box.gpusched("pool", "--script", "numbers").code == 2
