-- Who works here, what is due by the clock, and what is held back: the worker processes, the passes, the pauses.

-- One row for each start of a worker process, for people and for what they ask (which kinds does nobody take, who has
-- other settings). Nothing is recovered by it: the sweep reads the job rows alone. Unlogged: every process writes its
-- row again within seconds.
CREATE UNLOGGED TABLE :"schema".servers (
    holder              text        NOT NULL,
    host                text        NOT NULL,
    pid                 integer     NOT NULL,
    version             text        NOT NULL,
    role                text        NOT NULL,
    settings_digest     text        NOT NULL,
    kinds               jsonb       NOT NULL,  -- the kinds that it takes, each with its limit: {"thumbnail": 4}
    running             jsonb       NOT NULL,  -- how many of each run now: {"thumbnail": 2}
    passes              jsonb       NOT NULL,  -- all passes of its program's code: {"nightly": {"schedule": …}}
    draining            boolean     NOT NULL,
    started_at          timestamptz NOT NULL,
    seen_at             timestamptz NOT NULL,
    CONSTRAINT servers_pkey PRIMARY KEY (holder)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- One row for each pass. Its name is the kind of its runs, and `pass:` and the name is their open-scope key.
CREATE TABLE :"schema".passes (
    name                text        NOT NULL,
    schedule            text        NOT NULL,
    priority            integer     NOT NULL,
    due_at              timestamptz NOT NULL,  -- of the open run, or of the last one
    created_at          timestamptz NOT NULL,
    missing_since       timestamptz,           -- since when no live server's code has it
    removed_at          timestamptz,           -- since when it is gone; its raster is kept
    extra               boolean     NOT NULL,  -- a person asked for the open run; the one of due_at is still to come
    CONSTRAINT passes_pkey PRIMARY KEY (name)
);

-- What nobody may claim for now. `name` is a kind or a tenant; empty for all.
CREATE TABLE :"schema".pauses (
    scope               text        NOT NULL,
    name                text        NOT NULL,
    note                text,
    paused_by           text        NOT NULL,
    paused_at           timestamptz NOT NULL,
    until               timestamptz,
    CONSTRAINT pauses_pkey PRIMARY KEY (scope, name),
    CONSTRAINT pauses_scope CHECK (scope IN ('kind', 'tenant', 'all') AND (scope = 'all') = (name = ''))
);
