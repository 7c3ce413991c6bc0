-- Runners: devices and how they are paired, the facts of runner jobs beside the jobs table, sessions, and what is kept
-- for whoever asks later.
--
-- A runner job is a row of open_jobs and ended_jobs like any other: its kind is the job type, its tenant the
-- organisation, its place the target, its payload the spec. What only runner jobs have stands beside it in runner_jobs.
-- A job of a worker pays nothing for any of this.

-- What a gateway's claim walks.
CREATE INDEX open_jobs_runner_next ON :"schema".open_jobs (place, priority DESC, created_at, id)
    WHERE state = 'queued' AND place <> 'worker';
-- What is counted for the share of each organisation.
CREATE INDEX open_jobs_runner_held ON :"schema".open_jobs (place, tenant) WHERE state = 'leased' AND place <> 'worker';

-- One paired desktop runner. While a key is rotated the one before is good for a while.
CREATE TABLE :"schema".runner_devices (
    device_id           text        NOT NULL,
    org_id              text        NOT NULL,
    name                text        NOT NULL,
    public_key          bytea       NOT NULL,
    previous_key        bytea,
    previous_until      timestamptz,
    capabilities        jsonb,
    created_at          timestamptz NOT NULL,
    seen_at             timestamptz,
    revoked_at          timestamptz,
    CONSTRAINT runner_devices_pkey PRIMARY KEY (device_id),
    CONSTRAINT runner_devices_key CHECK (octet_length(public_key) = 32)
);
CREATE INDEX runner_devices_org ON :"schema".runner_devices (org_id, device_id);

-- One-time codes. The first half of a code finds its row, the second is kept as a hash; a wrong second half costs one
-- of the few attempts that the row has.
CREATE TABLE :"schema".pairing_codes (
    selector            text        NOT NULL,
    code_hash           bytea       NOT NULL,
    org_id              text        NOT NULL,
    name                text        NOT NULL,
    attempts            integer     NOT NULL DEFAULT 0,
    created_at          timestamptz NOT NULL,
    expires_at          timestamptz NOT NULL,
    used_at             timestamptz,
    device_id           text,
    CONSTRAINT pairing_codes_pkey PRIMARY KEY (selector)
);

-- The pool's secrets, as hashes. Each is long and random, so a plain SHA-256 cannot be searched.
CREATE TABLE :"schema".pool_credentials (
    credential_hash     bytea       NOT NULL,
    created_at          timestamptz NOT NULL,
    expires_at          timestamptz,           -- set when the next one was made: both are good until then
    CONSTRAINT pool_credentials_pkey PRIMARY KEY (credential_hash)
);

-- The nonces of the last minutes, on every replica and after a restart: a hello is good once.
CREATE TABLE :"schema".runner_nonces (
    device_id           text        NOT NULL,
    nonce               text        NOT NULL,
    seen_at             timestamptz NOT NULL,
    CONSTRAINT runner_nonces_pkey PRIMARY KEY (device_id, nonce)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX runner_nonces_seen ON :"schema".runner_nonces USING brin (seen_at);

-- What a runner job has beside its row in the jobs table. It goes when the job's retention is over.
CREATE TABLE :"schema".runner_jobs (
    job_id              uuid        NOT NULL,
    idempotency_key     text        NOT NULL,
    execution_id        text        NOT NULL,
    execution_job       uuid,                  -- the queue job that is the execution, and the epoch of its try: when
    execution_epoch     bigint,                -- that is over, this job is cancelled
    runtime_digest      text,
    fontset_version     text,
    fontset_key         numeric[],
    output_bytes_max    bigint      NOT NULL,
    timeout_s           integer     NOT NULL,
    idle_s              integer     NOT NULL,
    one_shot            boolean     NOT NULL,
    runner_id           text,                  -- who has or had it last
    gateway_instance    text,
    session_id          uuid,
    accepted_at         timestamptz,           -- since it is Running; null while it is Assigned
    deadline_at         timestamptz,
    cancel_reason       text,
    failure_class       text,                  -- as the platform derives it
    failure_code        text,
    failure_retryable   boolean,
    claimed_class       text,                  -- as the runner claimed it; nothing rests on it
    staging_next        bigint      NOT NULL DEFAULT 0,  -- runner-staging/{jobId}/{n}: no n is ever given twice
    usage_recorded      boolean     NOT NULL DEFAULT false,
    created_at          timestamptz NOT NULL,
    CONSTRAINT runner_jobs_pkey PRIMARY KEY (job_id),
    CONSTRAINT runner_jobs_key UNIQUE (idempotency_key)
) WITH (fillfactor = 80);
-- Jobs whose usage is not recorded yet: those that run, and those that have just ended.
CREATE INDEX runner_jobs_unrecorded ON :"schema".runner_jobs (job_id) WHERE NOT usage_recorded;
CREATE INDEX runner_jobs_execution ON :"schema".runner_jobs (execution_id);

-- Who declined a job, so that it is not offered to the same runner again at once.
CREATE TABLE :"schema".runner_rejections (
    job_id              uuid        NOT NULL,
    runner_id           text        NOT NULL,
    until               timestamptz NOT NULL,
    CONSTRAINT runner_rejections_pkey PRIMARY KEY (job_id, runner_id)
);

-- Sessions: which replica an op goes to. At most one is open for an execution.
CREATE TABLE :"schema".runner_sessions (
    session_id          uuid        NOT NULL,
    job_id              uuid        NOT NULL,
    lease_epoch         bigint      NOT NULL,
    execution_id        text        NOT NULL,
    runner_id           text        NOT NULL,
    gateway_instance    text        NOT NULL,
    opened_at           timestamptz NOT NULL,
    closed_at           timestamptz,
    closed_reason       text,
    CONSTRAINT runner_sessions_pkey PRIMARY KEY (session_id)
);
CREATE UNIQUE INDEX runner_sessions_open ON :"schema".runner_sessions (execution_id) WHERE closed_at IS NULL;
CREATE INDEX runner_sessions_job ON :"schema".runner_sessions (job_id);

-- Gateway replicas: where a request is forwarded to. Unlogged: each writes its row again within seconds.
CREATE UNLOGGED TABLE :"schema".gateways (
    instance            text        NOT NULL,
    address             text        NOT NULL,
    seen_at             timestamptz NOT NULL,
    CONSTRAINT gateways_pkey PRIMARY KEY (instance)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- What happened to an organisation's devices and jobs; org_id is null for the pool.
CREATE TABLE :"schema".runner_audit (
    id                  bigint      GENERATED ALWAYS AS IDENTITY,
    at                  timestamptz NOT NULL,
    org_id              text,
    event               text        NOT NULL,
    runner_id           text,
    job_id              uuid,
    detail              text,
    CONSTRAINT runner_audit_pkey PRIMARY KEY (id)
);
CREATE INDEX runner_audit_org ON :"schema".runner_audit (org_id, id);

-- One record for each job that used something, priced from its spec by the platform.
CREATE TABLE :"schema".usage_records (
    job_id              uuid        NOT NULL,
    org_id              text        NOT NULL,
    target              text        NOT NULL,
    job_type            text        NOT NULL,
    units               jsonb       NOT NULL,
    credits             numeric     NOT NULL,
    outcome             text        NOT NULL,
    failure_class       text,
    recorded_at         timestamptz NOT NULL,
    CONSTRAINT usage_records_pkey PRIMARY KEY (job_id)
);
CREATE INDEX usage_records_org ON :"schema".usage_records (org_id, recorded_at);
