"""A box with a queue whose names and logs are hostile, and its page as a user starts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.box import SIMJOB, Box, wait_for
from tests.support.web_page import WebPage

EVIL = "<img src=x onerror=alert(1)>"
LIST = (
    f"echo '</pre><script>alert(2)</script>'; exit 3 # {EVIL}",
    "[gpus=0] true",
    f"[mem=20G tag=a] {SIMJOB} --mem 9000 --hold 600 --util 30",
    f'[gpus=0 name=counts] for n in $(seq 3000); do echo "step $n {EVIL}"; sleep 0.2; done',
    *(f"[gpus=2 tag=late] {SIMJOB} --mem 30000 --hold 600 # {n}" for n in range(3)),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebPage]:
    with Box(tmp_path_factory.mktemp("web"), "2") as box:
        path = f"gpusched-runs/{EVIL}"
        box.start("run", box.write(*LIST), "--log-dir", path)
        wait_for(lambda: box.states(EVIL)[:4] == ["failed", "succeeded", "running", "running"])
        yield WebPage(box, "-q", path)
