-- What is kept of jobs beside their rows: the tries of those that did not simply succeed, the lines that handlers
-- logged, and how long the jobs of a kind stay. A job that succeeds at first and says nothing has no row in any.

-- One row for each run that ended in another way than in a first success. `ended_at` is when the lease ended for the
-- database: at the holder's own word or, of a lease that ran out, at its end. `stopped_at` is when its holder really
-- stopped, which it says when it learns that the lease was lost (null: before ended_at).
CREATE TABLE :"schema".tries (
    job_id              uuid        NOT NULL,
    epoch               bigint      NOT NULL,
    started_at          timestamptz NOT NULL,
    progress_at         timestamptz,
    ended_at            timestamptz NOT NULL,
    stopped_at          timestamptz,
    holder              text        NOT NULL,
    ended               text        NOT NULL,
    error               text,
    CONSTRAINT tries_pkey PRIMARY KEY (job_id, epoch),
    CONSTRAINT tries_ended CHECK (ended IN ('done', 'failed', 'cancelled', 'retry', 'stopped', 'killed', 'fenced',
                                            'lost', 'given_back', 'snoozed', 'yielded'))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- The few whose holder spoke up after its lease was lost: only they can have run beside another.
CREATE INDEX tries_stopped ON :"schema".tries (job_id) WHERE stopped_at IS NOT NULL;

CREATE TABLE :"schema".job_logs (
    job_id              uuid        NOT NULL,
    epoch               bigint      NOT NULL,
    number              integer     NOT NULL,
    logged_at           timestamptz NOT NULL,
    level               text        NOT NULL,
    event               text        NOT NULL,
    fields              jsonb,
    CONSTRAINT job_logs_pkey PRIMARY KEY (job_id, epoch, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- The kinds whose ended jobs stay for another time than the settings say; their workers write it, and all obey.
CREATE TABLE :"schema".retention (
    kind                text             NOT NULL,
    keep_s              double precision,
    keep_failed_s       double precision,
    CONSTRAINT retention_pkey PRIMARY KEY (kind)
);

-- How long a run that stopped at `stopped_at` ran beside later runs of its job by other holders, in seconds. Another
-- way to overlap there is none: a later epoch exists only once the database has taken the earlier lease for over, and
-- whoever ended its lease by its own word had stopped before.
CREATE FUNCTION :"schema".overlap_s(job_id uuid, epoch bigint, holder text, stopped_at timestamptz, at timestamptz)
    RETURNS double precision
    LANGUAGE sql STABLE PARALLEL SAFE AS $function$
    SELECT coalesce(sum(greatest(0, extract(epoch FROM
               least($4, later.stopped_at) - later.started_at)::double precision)), 0)
    FROM (
        SELECT t.started_at, coalesce(t.stopped_at, t.ended_at) AS stopped_at
        FROM :"schema".tries AS t
        WHERE t.job_id = $1 AND t.epoch > $2 AND t.holder <> $3
        UNION ALL
        -- The view, which whoever reads jobs may read.
        SELECT j.started_at, coalesce($5, now())
        FROM :"schema".jobs AS j
        WHERE j.id = $1 AND j.lease_epoch > $2 AND j.state || '' = 'leased' AND j.leased_by <> $3
    ) AS later
    WHERE $4 IS NOT NULL
$function$;
