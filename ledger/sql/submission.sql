-- Statements of a submission, all of one transaction.

-- name: stage
CREATE TEMPORARY TABLE staged (
    key text PRIMARY KEY, spec jsonb NOT NULL, fingerprint text NOT NULL, priority smallint NOT NULL,
    wall_ms bigint NOT NULL, granted text NOT NULL, reserve text NOT NULL, head_tree text NOT NULL, goal text NOT NULL,
    first_kind text NOT NULL, first_input jsonb NOT NULL
) ON COMMIT DROP

-- name: copy_staged
COPY staged (key, spec, fingerprint, priority, wall_ms, granted, reserve, head_tree, goal, first_kind, first_input)
FROM STDIN

-- name: lock_name
SELECT pg_advisory_xact_lock(hashtextextended('patchyard batch ' || %(name)s, 0))

-- name: batch_named
SELECT id, weight, max_parallel, jobs FROM ledger.batches WHERE name = %(name)s

-- name: differing_jobs
SELECT coalesce(s.key, j.key) AS key, s.spec AS new_spec, j.spec AS old_spec
FROM staged s FULL JOIN (SELECT * FROM ledger.jobs WHERE batch_id = %(batch)s) j ON j.key = s.key
WHERE s.fingerprint IS DISTINCT FROM j.fingerprint
ORDER BY 1 LIMIT %(amount)s

-- name: insert_batch
INSERT INTO ledger.batches (name, weight, max_parallel, jobs, submitted_at)
SELECT %(name)s, %(weight)s, %(max_parallel)s, count(*), ledger.now() FROM staged
RETURNING id

-- name: insert_jobs
-- Jobs, root agents, accounts, first steps and the first event of each chain. The genesis of a chain is the hash of
-- the job's id, so that chains can't be swapped. A first step is due when its job is admitted.
WITH job AS (
    INSERT INTO ledger.jobs (batch_id, key, spec, fingerprint, priority, wall_ms, submitted_at)
    SELECT %(batch)s, key, spec, fingerprint, priority, wall_ms, ledger.now() FROM staged ORDER BY key
    RETURNING id, key, fingerprint
), agent AS (
    INSERT INTO ledger.agents (job_id, role, goal, head_tree, last_seq, created_at)
    SELECT job.id, 'root', staged.goal, staged.head_tree, 1, ledger.now() FROM job JOIN staged USING (key)
    RETURNING id, job_id
), account AS (
    INSERT INTO ledger.accounts (agent_id, granted, free, reserve)
    SELECT agent.id, staged.granted::ledger.amounts, staged.granted::ledger.amounts, staged.reserve::ledger.amounts
    FROM agent JOIN job ON job.id = agent.job_id JOIN staged USING (key)
), step AS (
    INSERT INTO ledger.steps (job_id, agent_id, seq, kind, queue, input, created_at, available_at)
    SELECT agent.job_id, agent.id, 1, staged.first_kind, ledger.queue_of(staged.first_kind), staged.first_input,
           ledger.now(), 'infinity'
    FROM agent JOIN job ON job.id = agent.job_id JOIN staged USING (key)
), told AS (
    SELECT job.id AS job_id, jsonb_build_object('batch', %(name)s::text, 'job', job.key, 'fingerprint', job.fingerprint)
           AS body, sha256(convert_to('job ' || job.id, 'UTF8')) AS genesis
    FROM job
), event AS (
    INSERT INTO ledger.events (job_id, seq, at, kind, body, prev_hash, hash)
    SELECT job_id, 1, ledger.now(), 'job_submitted', body, genesis,
           ledger.event_hash(genesis, job_id, 1, ledger.now(), 'job_submitted', NULL, NULL, body)
    FROM told
    RETURNING job_id, hash
)
INSERT INTO ledger.chains (job_id, seq, hash) SELECT job_id, 1, hash FROM event
