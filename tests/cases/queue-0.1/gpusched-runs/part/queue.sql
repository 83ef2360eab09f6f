PRAGMA user_version = 3;
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value ANY
) STRICT, WITHOUT ROWID;
CREATE TABLE jobs (
    id                  INTEGER PRIMARY KEY,
    command             BLOB    NOT NULL,
    identity            BLOB    NOT NULL,
    occurrence          INTEGER NOT NULL CHECK (occurrence >= 1),
    line                INTEGER NOT NULL,
    position            INTEGER NOT NULL,
    cwd                 BLOB    NOT NULL,
    gpus                INTEGER NOT NULL CHECK (gpus >= 0),
    time_limit_s        REAL,
    retries             INTEGER NOT NULL DEFAULT 0,
    state               TEXT    NOT NULL CHECK (state IN ('queued', 'held', 'running', 'succeeded', 'failed', 'cancelled')),
    cause               TEXT    NOT NULL DEFAULT '',
    tries               INTEGER NOT NULL DEFAULT 0,
    losses              INTEGER NOT NULL DEFAULT 0,
    attempts            INTEGER NOT NULL DEFAULT 0,
    not_before          REAL    NOT NULL DEFAULT 0,
    avoid               TEXT    NOT NULL DEFAULT '',
    above_bytes         INTEGER NOT NULL DEFAULT 0,
    mem_bytes           INTEGER NOT NULL DEFAULT 0, -- the budget on each device now
    stated_mem_bytes    INTEGER NOT NULL DEFAULT 0,
    prio                INTEGER NOT NULL DEFAULT 0,
    name                TEXT    NOT NULL DEFAULT '',
    tags                TEXT    NOT NULL DEFAULT '', -- comma-separated
    gpu_model           TEXT    NOT NULL DEFAULT '',
    env                 TEXT    NOT NULL DEFAULT '[]', -- JSON, pairs of strings
    git                 TEXT    NOT NULL DEFAULT '',
    items               INTEGER NOT NULL DEFAULT 0, -- that it does; 0: it does not say
    listed              INTEGER NOT NULL DEFAULT 1, -- 0: it has ended, and its line is gone
    blocked             INTEGER NOT NULL DEFAULT 0, -- by a job that it depends on
    shape               TEXT    NOT NULL, -- jobs of one shape fit the same devices
    submitted_at        REAL    NOT NULL,
    first_started_at    REAL,
    ended_at            REAL,
    cancel_requested_at REAL,
    UNIQUE (identity, occurrence)
) STRICT;
CREATE TABLE sets (
    id        INTEGER PRIMARY KEY,
    name      BLOB    NOT NULL UNIQUE, -- a hash of its members
    total     INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    cancelled INTEGER NOT NULL
) STRICT;
CREATE TABLE members (
    set_id      INTEGER NOT NULL REFERENCES sets (id) ON DELETE CASCADE,
    upstream_id INTEGER NOT NULL REFERENCES jobs (id),
    PRIMARY KEY (set_id, upstream_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE dependencies (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    grp    INTEGER NOT NULL,
    kind   TEXT    NOT NULL CHECK (kind IN ('after', 'after-any', 'after-failed', 'after-ended')),
    set_id INTEGER NOT NULL REFERENCES sets (id),
    PRIMARY KEY (job_id, grp)
) STRICT, WITHOUT ROWID;
CREATE TABLE counts (
    state TEXT PRIMARY KEY,
    n     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE item_counts (
    tags  TEXT    NOT NULL,
    state TEXT    NOT NULL,
    jobs  INTEGER NOT NULL,
    items INTEGER NOT NULL,
    PRIMARY KEY (tags, state)
) STRICT, WITHOUT ROWID;
CREATE TABLE attempts (
    job_id            INTEGER NOT NULL REFERENCES jobs (id),
    number            INTEGER NOT NULL CHECK (number >= 1),
    started_at        REAL    NOT NULL,
    ended_at          REAL,
    outcome           TEXT CHECK (outcome IN ('exited', 'signalled', 'timed_out', 'cancelled', 'interrupted', 'lost', 'not_started')),
    exit_code         INTEGER,
    signal            INTEGER,
    cause             TEXT    NOT NULL DEFAULT '',
    note              TEXT    NOT NULL DEFAULT '',
    log               TEXT    NOT NULL,
    error_log         TEXT    NOT NULL DEFAULT '',
    devices           TEXT    NOT NULL DEFAULT '[]',
    samples           INTEGER NOT NULL DEFAULT 0,
    peak_memory_bytes INTEGER,
    mean_memory_bytes REAL,
    mean_utilisation  REAL,
    energy_j          REAL,
    peak_device_bytes INTEGER,
    by_device         INTEGER NOT NULL DEFAULT 0, -- memory by the device's change, not by processes
    max_rss_bytes     INTEGER,
    cpu_s             REAL,
    progress          TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (job_id, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) STRICT, WITHOUT ROWID;
CREATE TABLE requests (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL CHECK (kind IN ('submitted', 'changed', 'stop', 'stop_now')),
    created_at REAL NOT NULL,
    acked_at   REAL
) STRICT;
CREATE TABLE dispatches (
    id           INTEGER PRIMARY KEY,
    started_at   REAL NOT NULL,
    last_seen_at REAL NOT NULL
) STRICT;
INSERT INTO meta VALUES ('dirs', '{"leave_out": ["@ROOT@/work/gpusched-runs/part", "@ROOT@/work/gpusched-runs/part"], "copied": null}');
INSERT INTO meta VALUES ('on_dep_fail', 'hold');
INSERT INTO meta VALUES ('settings', '{"max_gpus": 1, "gpu_list": null, "gpu_mem_threshold": 500, "max_checks": 1, "poll_interval": 0.05, "free_when": "memory", "gpus_per_job": 1, "cpu_jobs": 2, "time_limit": null, "retries": 0, "grace": 10.0, "log_dir": "@ROOT@/work/gpusched-runs/part", "visible_devices": "auto", "setup": null, "shell": "bash", "leftovers": "wait", "split_streams": true, "allow_unreadable_memory": false, "strip_gpu_env": false, "simulate": "2xT4", "claims_dir": "@ROOT@/claims", "state_dir": null, "max_jobs_per_gpu": 4, "gpu_strategy": "fill-first", "max_bypass": 600.0, "tag_max_gpus": null, "max_fails": null, "on_dep_fail": "hold", "idle_timeout": null, "idle_action": "report", "snapshot": false, "settle_timeout": 30.0, "log_level": "INFO"}');
INSERT INTO meta VALUES ('source', CAST('shard -- ./part.sh ''{start}'' ''{end}'' ''part_{suffix}.jsonl''' AS BLOB));
INSERT INTO meta VALUES ('split', '0019260e4d61d9508be33eed2ad65329');
INSERT INTO meta VALUES ('typed', '["part-868efa12", ["shard", "--total", "40", "--num-shards", "4", "--suffix", "shard", "--merge", "part_{suffix}.jsonl", "--merge-output", "all.jsonl", "--", "./part.sh", "{start}", "{end}", "part_{suffix}.jsonl"]]');
INSERT INTO jobs VALUES (1, CAST('./part.sh 0 10 part_shard_00000.jsonl' AS BLOB), X'91ca685ccc9bc22840f40882cb0110c4', 1, 1, 0, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'succeeded', '', 1, 0, 1, 0.0, '', 0, 0, 0, 0, 'shard_00000', 'shards', '', '[]', '', 10, 1, 0, '1|0|0||', 1695874257.01106, 1695874257.020593, 1695874257.043129, NULL);
INSERT INTO jobs VALUES (2, CAST('./part.sh 10 20 part_shard_00001.jsonl' AS BLOB), X'350ac95d3243058397719222e5c0d0ba', 1, 2, 1, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'failed', '', 1, 0, 1, 0.0, '', 0, 0, 0, 0, 'shard_00001', 'shards', '', '[]', '', 10, 1, 0, '1|0|0||', 1695874257.01106, 1695874257.043463, 1695874257.047899, NULL);
INSERT INTO jobs VALUES (3, CAST('./part.sh 20 30 part_shard_00002.jsonl' AS BLOB), X'831b63276cbbab79ffb5a231d2791406', 1, 3, 2, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'running', '', 0, 0, 1, 0.0, '', 0, 0, 0, 0, 'shard_00002', 'shards', '', '[]', '', 10, 1, 0, '1|0|0||', 1695874257.01106, 1695874257.050148, NULL, NULL);
INSERT INTO jobs VALUES (4, CAST('./part.sh 30 40 part_shard_00003.jsonl' AS BLOB), X'74640fb02b5e4d48dd382b724df07a74', 1, 4, 3, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'queued', '', 0, 0, 0, 0.0, '', 0, 0, 0, 0, 'shard_00003', 'shards', '', '[]', '', 10, 1, 0, '1|0|0||', 1695874257.01106, NULL, NULL, NULL);
INSERT INTO jobs VALUES (5, CAST('@PYTHON@ -m gpusched.commands.merge --plan @ROOT@/work/gpusched-runs/part/shard_plan.json --output @ROOT@/work/all.jsonl' AS BLOB), X'f6759efda41bb5262cdc8a6fe0ce5eed', 1, 5, 4, CAST('@ROOT@/work' AS BLOB), 0, NULL, 0, 'held', 'dependency', 0, 0, 0, 0.0, '', 0, 0, 0, 0, 'merge', '', '', '[["PYTHONSAFEPATH", "1"], ["GPUSCHED_MERGE", "1832dffa4486727c"]]', '', 0, 1, 1, '0', 1695874257.01106, NULL, NULL, NULL);
INSERT INTO sets VALUES (1, X'edd85eb22a970e39d7c5a47d5949bd6e', 4, 1, 1, 0);
INSERT INTO members VALUES (1, 1);
INSERT INTO members VALUES (1, 2);
INSERT INTO members VALUES (1, 3);
INSERT INTO members VALUES (1, 4);
INSERT INTO dependencies VALUES (5, 0, 'after', 1);
INSERT INTO counts VALUES ('cancelled', 0);
INSERT INTO counts VALUES ('failed', 1);
INSERT INTO counts VALUES ('held', 1);
INSERT INTO counts VALUES ('queued', 1);
INSERT INTO counts VALUES ('running', 1);
INSERT INTO counts VALUES ('succeeded', 1);
INSERT INTO item_counts VALUES ('shards', 'failed', 1, 10);
INSERT INTO item_counts VALUES ('shards', 'queued', 1, 10);
INSERT INTO item_counts VALUES ('shards', 'running', 1, 10);
INSERT INTO item_counts VALUES ('shards', 'succeeded', 1, 10);
INSERT INTO attempts VALUES (1, 1, 1695874257.020593, 1695874257.043129, 'exited', 0, NULL, '', '', 'logs/0001.1-part.sh-0-10-part_shard_00000.jsonl.out.log', 'logs/0001.1-part.sh-0-10-part_shard_00000.jsonl.err.log', '[["GPU-2ce7fa76-51a0-1a2e-19a5-c51b9ee7b7cd", 0, "Tesla T4", 16106127360]]', 0, NULL, NULL, NULL, NULL, NULL, 0, 10833920, 0.004, '');
INSERT INTO attempts VALUES (2, 1, 1695874257.043463, 1695874257.047899, 'exited', 3, NULL, '', '', 'logs/0002.1-part.sh-10-20-part_shard_00001.jsonl.out.log', 'logs/0002.1-part.sh-10-20-part_shard_00001.jsonl.err.log', '[["GPU-2ce7fa76-51a0-1a2e-19a5-c51b9ee7b7cd", 0, "Tesla T4", 16106127360]]', 0, NULL, NULL, NULL, NULL, NULL, 0, 10833920, 0.002, '');
INSERT INTO attempts VALUES (3, 1, 1695874257.050148, NULL, NULL, NULL, NULL, '', '', 'logs/0003.1-part.sh-20-30-part_shard_00002.jsonl.out.log', 'logs/0003.1-part.sh-20-30-part_shard_00002.jsonl.err.log', '[["GPU-2ce7fa76-51a0-1a2e-19a5-c51b9ee7b7cd", 0, "Tesla T4", 16106127360]]', 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, '');
INSERT INTO requests VALUES (1, 'submitted', 1695874257.015709, 1695874257.017233);
INSERT INTO dispatches VALUES (1, 1695874257.016667, 1695874257.017233);
CREATE INDEX jobs_waiting ON jobs (shape, prio DESC, position) WHERE state = 'queued' AND blocked = 0;
CREATE INDEX jobs_in_order ON jobs (prio DESC, position) WHERE state = 'queued' AND blocked = 0;
CREATE INDEX jobs_running ON jobs (id) WHERE state = 'running';
CREATE INDEX jobs_cancelled ON jobs (cause) WHERE state = 'cancelled';
CREATE INDEX jobs_backing_off ON jobs (not_before) WHERE state = 'queued' AND not_before > 0;
CREATE INDEX members_upstream ON members (upstream_id, set_id);
CREATE INDEX dependencies_set ON dependencies (set_id, kind, job_id);
CREATE TRIGGER count_new AFTER INSERT ON jobs BEGIN
    UPDATE counts SET n = n + 1 WHERE state = NEW.state;
END;
CREATE TRIGGER count_moved AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state BEGIN
    UPDATE counts SET n = n - 1 WHERE state = OLD.state;
    UPDATE counts SET n = n + 1 WHERE state = NEW.state;
END;
CREATE TRIGGER items_new AFTER INSERT ON jobs WHEN NEW.items > 0 BEGIN
    INSERT INTO item_counts VALUES (NEW.tags, NEW.state, 1, NEW.items)
        ON CONFLICT DO UPDATE SET jobs = jobs + 1, items = items + excluded.items;
END;
CREATE TRIGGER items_moved AFTER UPDATE OF state, items, tags ON jobs
WHEN (OLD.items > 0 OR NEW.items > 0)
    AND (OLD.state <> NEW.state OR OLD.items <> NEW.items OR OLD.tags <> NEW.tags) BEGIN
    UPDATE item_counts SET jobs = jobs - 1, items = items - OLD.items
        WHERE OLD.items > 0 AND tags = OLD.tags AND state = OLD.state;
    INSERT INTO item_counts SELECT NEW.tags, NEW.state, 1, NEW.items WHERE NEW.items > 0
        ON CONFLICT DO UPDATE SET jobs = jobs + 1, items = items + excluded.items;
END;
CREATE UNIQUE INDEX attempts_open ON attempts (job_id) WHERE ended_at IS NULL;
CREATE INDEX requests_open ON requests (id) WHERE acked_at IS NULL;
COMMIT;
