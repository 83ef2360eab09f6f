-- The truth of one queue. Times are epoch seconds (UTC), sizes bytes, commands the bytes of the file.

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
    origin              TEXT    NOT NULL DEFAULT 'list', -- the list of the queue; submit: added by itself, for good; exec: interactive
    environment_id      INTEGER REFERENCES environments (id), -- null: that of the dispatcher
    begin_at            REAL    NOT NULL DEFAULT 0, -- it starts no earlier
    cpus                INTEGER NOT NULL DEFAULT 0, -- 0: it does not say
    ram_bytes           INTEGER NOT NULL DEFAULT 0, -- 0: it does not say
    alone               INTEGER NOT NULL DEFAULT 0, -- starts only where no process of others is
    node                TEXT    NOT NULL DEFAULT '', -- of a cluster: on this one only
    node_tag            TEXT    NOT NULL DEFAULT '',
    over_nodes          TEXT    NOT NULL DEFAULT '', -- spread | pack
    first_started_at    REAL,
    ended_at            REAL,
    cancel_requested_at REAL,
    UNIQUE (identity, occurrence)
) STRICT;

-- The head of the queue, each shape of jobs apart, at the same cost for a hundred waiting jobs and for a million.
CREATE INDEX jobs_waiting ON jobs (shape, prio DESC, position) WHERE state = 'queued' AND blocked = 0;
CREATE INDEX jobs_in_order ON jobs (prio DESC, position) WHERE state = 'queued' AND blocked = 0;
CREATE INDEX jobs_running ON jobs (id) WHERE state = 'running';
CREATE INDEX jobs_cancelled ON jobs (cause) WHERE state = 'cancelled';
CREATE INDEX jobs_beginning ON jobs (begin_at) WHERE state = 'queued' AND begin_at > 0;
CREATE INDEX jobs_unlisted ON jobs (state) WHERE listed = 0;
CREATE INDEX jobs_backing_off ON jobs (not_before) WHERE state = 'queued' AND not_before > 0;

-- The environments of submissions, NAME=value with a NUL behind each; one row for each content.
CREATE TABLE environments (
    id      INTEGER PRIMARY KEY,
    digest  BLOB NOT NULL UNIQUE,
    content BLOB NOT NULL
) STRICT;
CREATE INDEX jobs_environment ON jobs (environment_id) WHERE environment_id IS NOT NULL;

-- Lines of the list whose finished jobs were cleaned away: they do not run again.
CREATE TABLE finished (
    identity   BLOB    NOT NULL,
    occurrence INTEGER NOT NULL,
    state      TEXT    NOT NULL, -- in which it had ended
    PRIMARY KEY (identity, occurrence)
) STRICT, WITHOUT ROWID;

-- Jobs that others wait for together, and how they stand. Jobs that wait for the same ones share a set, so that a
-- thousand jobs behind a thousand cost two thousand rows, and one that ends is counted once.
CREATE TABLE sets (
    id        INTEGER PRIMARY KEY,
    name      BLOB    NOT NULL UNIQUE, -- a hash of its members
    total     INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    unneeded  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE members (
    set_id      INTEGER NOT NULL REFERENCES sets (id) ON DELETE CASCADE,
    upstream_id INTEGER NOT NULL REFERENCES jobs (id),
    PRIMARY KEY (set_id, upstream_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_upstream ON members (upstream_id, set_id);

-- What a job waits for, in the order in which it says so.
CREATE TABLE dependencies (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    grp    INTEGER NOT NULL,
    kind   TEXT    NOT NULL CHECK (kind IN ('after', 'after-any', 'after-failed', 'after-ended')),
    set_id INTEGER NOT NULL REFERENCES sets (id),
    PRIMARY KEY (job_id, grp)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependencies_set ON dependencies (set_id, kind, job_id);

CREATE TABLE counts (
    state TEXT PRIMARY KEY,
    n     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO counts VALUES ('queued', 0), ('held', 0), ('running', 0), ('succeeded', 0), ('failed', 0), ('cancelled', 0);
CREATE TRIGGER count_new AFTER INSERT ON jobs BEGIN
    UPDATE counts SET n = n + 1 WHERE state = NEW.state;
END;
CREATE TRIGGER count_moved AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state BEGIN
    UPDATE counts SET n = n - 1 WHERE state = OLD.state;
    UPDATE counts SET n = n + 1 WHERE state = NEW.state;
END;
-- The number of a job that was cleaned away is never given to another one.
CREATE TRIGGER count_gone AFTER DELETE ON jobs BEGIN
    UPDATE counts SET n = n - 1 WHERE state = OLD.state;
    INSERT INTO meta VALUES ('last_id', OLD.id) ON CONFLICT DO UPDATE SET value = max(value, excluded.value);
END;

-- Items of the jobs that say how many they do, those of the same tags together, by state. For other jobs no trigger runs.
CREATE TABLE item_counts (
    tags  TEXT    NOT NULL,
    state TEXT    NOT NULL,
    jobs  INTEGER NOT NULL,
    items INTEGER NOT NULL,
    PRIMARY KEY (tags, state)
) STRICT, WITHOUT ROWID;
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
CREATE TRIGGER items_gone AFTER DELETE ON jobs WHEN OLD.items > 0 BEGIN
    UPDATE item_counts SET jobs = jobs - 1, items = items - OLD.items WHERE tags = OLD.tags AND state = OLD.state;
END;

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
    by_report         INTEGER NOT NULL DEFAULT 0, -- memory by the job's own report
    max_rss_bytes     INTEGER,
    cpu_s             REAL,
    progress          TEXT    NOT NULL DEFAULT '',
    foreign_use       TEXT    NOT NULL DEFAULT '', -- JSON, a core.model.ForeignUse; empty: not known
    idle_samples      INTEGER NOT NULL DEFAULT 0, -- of `samples`, those at which it did nothing on its devices
    PRIMARY KEY (job_id, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX attempts_open ON attempts (job_id) WHERE ended_at IS NULL;

-- Of the head of a cluster: which node has an attempt. The attempt is open as long as the lease.
CREATE TABLE leases (
    job_id        INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    token         TEXT    NOT NULL UNIQUE, -- random; every report about the attempt names it
    node          TEXT    NOT NULL,
    holder        TEXT    NOT NULL, -- queue_id of the node's own queue
    lease_s       REAL    NOT NULL, -- its length when it was granted
    is_started    INTEGER NOT NULL DEFAULT 0, -- else it waits there
    log_bytes     INTEGER NOT NULL DEFAULT 0, -- size of the log on the node
    log_wanted_at REAL, -- somebody here reads the log
    PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;

-- Of a node of a cluster: the jobs that its queue has under a lease.
CREATE TABLE leased (
    token   TEXT    PRIMARY KEY,
    job_id  INTEGER NOT NULL UNIQUE, -- here
    is_done INTEGER NOT NULL DEFAULT 0 -- the head knows its end, or wants to hear no more of it
) STRICT, WITHOUT ROWID;
CREATE INDEX leased_open ON leased (job_id) WHERE is_done = 0;

-- What other gpusched commands ask of the dispatcher; it answers by acked_at.
CREATE TABLE requests (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL, -- a core.model.RequestKind
    created_at REAL NOT NULL,
    acked_at   REAL
) STRICT;
CREATE INDEX requests_open ON requests (id) WHERE acked_at IS NULL;

-- Each time a dispatcher worked on the queue.
CREATE TABLE dispatches (
    id           INTEGER PRIMARY KEY,
    started_at   REAL NOT NULL,
    last_seen_at REAL NOT NULL,
    version      TEXT NOT NULL DEFAULT '' -- of the dispatcher; empty: 0.1
) STRICT;
