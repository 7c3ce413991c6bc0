-- What waits, in groups of equal needs: the look that makes up for lost notifications. What waits for a disabled
-- organisation is not asked for.
-- Parameters: $1 how many groups at most integer.
-- Rows: target, org_id, job_type, runtime_digest, fontset_version, output_bytes_max, jobs.
-- Locks: none.
-- Index: open_jobs_runner_next, runner_jobs_pkey, disabled_organisations_pkey.
SELECT o.place AS target, o.tenant AS org_id, o.kind AS job_type, r.runtime_digest, r.fontset_version,
       r.output_bytes_max, count(*) AS jobs
FROM :"schema".open_jobs AS o JOIN :"schema".runner_jobs AS r ON r.job_id = o.id
WHERE o.state = 'queued' AND o.place <> 'worker'
  AND NOT EXISTS (SELECT FROM :"schema".disabled_organisations AS d WHERE d.org_id = o.tenant)
GROUP BY o.place, o.tenant, o.kind, r.runtime_digest, r.fontset_version, r.output_bytes_max
ORDER BY 1, 2, 3, 4, 5, 6 LIMIT $1
