#!/usr/bin/env python3
"""Counts SIGINT/SIGTERM/SIGHUP for ~6 s, writes {"INT":n,"TERM":n,"HUP":n} to argv[1]."""
import json, os, signal, sys, time
n = {"INT": 0, "TERM": 0, "HUP": 0}
def h(s: int, f: object) -> None:
    n[signal.Signals(s).name[3:]] += 1
for s in ("INT", "TERM", "HUP"):
    if s == "HUP" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        continue
    signal.signal(getattr(signal, "SIG" + s), h)
t = time.time()
while time.time() - t < 6:
    time.sleep(0.05)
    with open(sys.argv[1] + ".new", "w") as file:
        json.dump(n, file)
    os.replace(file.name, sys.argv[1])  # whole whenever KILL comes
