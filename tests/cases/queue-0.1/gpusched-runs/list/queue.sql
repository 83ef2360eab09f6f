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
INSERT INTO meta VALUES ('dirs', '{"leave_out": ["@ROOT@/work/gpusched-runs/list", "@ROOT@/work/gpusched-runs/list"], "copied": null}');
INSERT INTO meta VALUES ('on_dep_fail', 'cancel');
INSERT INTO meta VALUES ('settings', '{"max_gpus": 1, "gpu_list": null, "gpu_mem_threshold": 500, "max_checks": 1, "poll_interval": 0.05, "free_when": "memory", "gpus_per_job": 1, "cpu_jobs": 2, "time_limit": null, "retries": 0, "grace": 10.0, "log_dir": null, "visible_devices": "auto", "setup": null, "shell": "bash", "leftovers": "wait", "split_streams": false, "allow_unreadable_memory": false, "strip_gpu_env": false, "simulate": "2xT4", "claims_dir": "@ROOT@/claims", "state_dir": null, "max_jobs_per_gpu": 4, "gpu_strategy": "fill-first", "max_bypass": 600.0, "tag_max_gpus": null, "max_fails": null, "on_dep_fail": "cancel", "idle_timeout": null, "idle_action": "report", "snapshot": false, "settle_timeout": 30.0, "log_level": "INFO"}');
INSERT INTO meta VALUES ('source', CAST('@ROOT@/work/list.txt' AS BLOB));
INSERT INTO jobs VALUES (1, CAST('echo done >> ledger.txt # succeeded' AS BLOB), X'5f0484cea1f38b8d495a3262c3c3fe07', 1, 2, 0, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'succeeded', '', 1, 0, 1, 0.0, '', 0, 0, 0, 0, '', '', '', '[]', '', 0, 1, 0, '1|0|0||', 1695874254.008296, 1695874254.019605, 1695874254.05224, NULL);
INSERT INTO jobs VALUES (2, CAST('echo bad >> ledger.txt; test -e mended # failed, after two attempts' AS BLOB), X'70da12276142c89feb95cd7bdf1c267b', 1, 3, 1, CAST('@ROOT@/work' AS BLOB), 0, NULL, 1, 'failed', '', 2, 0, 2, 0.0, '', 0, 0, 0, 0, 'bad', '', '', '[]', '', 0, 1, 0, '0', 1695874254.008296, 1695874254.013362, 1695874255.048429, NULL);
INSERT INTO jobs VALUES (3, CAST('echo long >> ledger.txt; test -e ready || sleep 600 # running' AS BLOB), X'85e74cbcf1de745a64200bf639fe0054', 1, 4, 2, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'running', '', 0, 0, 1, 0.0, '', 0, 0, 0, 0, 'long', '', '', '[]', '', 0, 1, 0, '1|0|0||', 1695874254.008296, 1695874254.052611, NULL, NULL);
INSERT INTO jobs VALUES (4, CAST('echo wide >> ledger.txt # queued' AS BLOB), X'376a3f56d34f4ee7923212b73b6b7f33', 1, 5, 3, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'queued', '', 0, 0, 0, 0.0, '', 0, 12884901888, 12884901888, 0, '', 'later', '', '[]', '', 0, 1, 0, '1|12884901888|0||', 1695874254.008296, NULL, NULL, NULL);
INSERT INTO jobs VALUES (5, CAST('echo behind >> ledger.txt # cancelled, because of "bad"' AS BLOB), X'bf2e09948cff9b0c65abc7510928a360', 1, 6, 4, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'cancelled', 'dependency', 0, 0, 0, 0.0, '', 0, 0, 0, 0, '', '', '', '[]', '', 0, 1, 1, '1|0|0||', 1695874254.008296, NULL, 1695874255.049463, NULL);
INSERT INTO jobs VALUES (6, CAST('echo after >> ledger.txt # queued, and waits for "long"' AS BLOB), X'613a313fde95e6b38a238b5a039c1f49', 1, 7, 5, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'queued', '', 0, 0, 0, 0.0, '', 0, 0, 0, 0, '', '', '', '[]', '', 0, 1, 1, '1|0|0||', 1695874254.008296, NULL, NULL, NULL);
INSERT INTO jobs VALUES (7, CAST('echo held >> ledger.txt # held' AS BLOB), X'ae51ca5ea488877aca9489d369d6e96b', 1, 8, 6, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'held', '', 0, 0, 0, 0.0, '', 0, 0, 0, 0, '', 'later', '', '[]', '', 0, 1, 0, '1|0|0||', 1695874254.008296, NULL, NULL, NULL);
INSERT INTO jobs VALUES (8, CAST('echo unwanted >> ledger.txt # cancelled by a person' AS BLOB), X'ced1bf135cd1b0d6bd7552fbbfd05d7a', 1, 9, 7, CAST('@ROOT@/work' AS BLOB), 1, NULL, 0, 'cancelled', '', 0, 0, 0, 0.0, '', 0, 0, 0, 0, 'unwanted', '', '', '[]', '', 0, 1, 0, '1|0|0||', 1695874254.008296, NULL, 1695874254.366826, 1695874254.366826);
INSERT INTO sets VALUES (1, X'18b0b6bc0e447e78253e2814c47e99a2', 1, 0, 1, 0);
INSERT INTO sets VALUES (2, X'33e1d4ea19c19cc8a6bb8926d887ca60', 1, 0, 0, 0);
INSERT INTO members VALUES (1, 2);
INSERT INTO members VALUES (2, 3);
INSERT INTO dependencies VALUES (5, 0, 'after', 1);
INSERT INTO dependencies VALUES (6, 0, 'after', 2);
INSERT INTO counts VALUES ('cancelled', 2);
INSERT INTO counts VALUES ('failed', 1);
INSERT INTO counts VALUES ('held', 1);
INSERT INTO counts VALUES ('queued', 2);
INSERT INTO counts VALUES ('running', 1);
INSERT INTO counts VALUES ('succeeded', 1);
INSERT INTO attempts VALUES (1, 1, 1695874254.019605, 1695874254.05224, 'exited', 0, NULL, '', '', 'logs/0001.1-echo-done-ledger.txt-succeeded.log', '', '[["GPU-2ce7fa76-51a0-1a2e-19a5-c51b9ee7b7cd", 0, "Tesla T4", 16106127360]]', 0, NULL, NULL, NULL, NULL, NULL, 0, 10899456, 0.001, '');
INSERT INTO attempts VALUES (2, 1, 1695874254.013362, 1695874254.0428, 'exited', 1, NULL, '', '', 'logs/0002.1-echo-bad-ledger.txt-test-e-mended-failed-after-two-attempts.log', '', '[]', 0, NULL, NULL, NULL, NULL, NULL, 0, 10899456, 0.002, '');
INSERT INTO attempts VALUES (2, 2, 1695874255.044219, 1695874255.048429, 'exited', 1, NULL, '', '', 'logs/0002.2-echo-bad-ledger.txt-test-e-mended-failed-after-two-attempts.log', '', '[]', 0, NULL, NULL, NULL, NULL, NULL, 0, 10899456, 0.001, '');
INSERT INTO attempts VALUES (3, 1, 1695874254.052611, NULL, NULL, NULL, NULL, '', '', 'logs/0003.1-echo-long-ledger.txt-test-e-ready-sleep-600-running.log', '', '[["GPU-2ce7fa76-51a0-1a2e-19a5-c51b9ee7b7cd", 0, "Tesla T4", 16106127360]]', 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, '');
INSERT INTO requests VALUES (1, 'submitted', 1695874254.010834, 1695874254.013362);
INSERT INTO dispatches VALUES (1, 1695874254.01185, 1695874254.013362);
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
