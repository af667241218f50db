-- What the face shows. None of these locks anything.

-- name: find_batch
SELECT id, name, weight, max_parallel, jobs, submitted_at, finished_at, paused_at, paused_by FROM ledger.batches
WHERE name = %(ref)s OR id = %(id)s ORDER BY name = %(ref)s DESC LIMIT 1

-- name: list_batches
SELECT b.id, b.name, b.weight, b.max_parallel, b.jobs, b.submitted_at, b.finished_at, b.paused_at, b.paused_by,
       (SELECT jsonb_object_agg(state, n) FROM
            (SELECT state, count(*) AS n FROM ledger.jobs j WHERE j.batch_id = b.id GROUP BY state) c) AS states
FROM ledger.batches b ORDER BY b.id DESC LIMIT %(amount)s

-- name: state_counts
SELECT state, count(*) AS n FROM ledger.jobs WHERE batch_id = %(batch)s GROUP BY state

-- name: batch_times
SELECT min(started_at) AS first_started, max(finished_at) AS last_finished,
       count(*) FILTER (WHERE admitted_at IS NOT NULL AND finished_at IS NULL) AS active,
       (SELECT b.paused_at IS NOT NULL FROM ledger.batches b WHERE b.id = %(batch)s) AS paused
FROM ledger.jobs WHERE batch_id = %(batch)s

-- name: batch_accounts
SELECT ROW(sum((c.spent).steps), sum((c.spent).tool_calls), sum((c.spent).agents), sum((c.spent).input_tokens),
           sum((c.spent).output_tokens), sum((c.spent).cost_microusd), sum((c.spent).sandbox_ms))::ledger.amounts
           AS spent,
       ROW(sum((c.granted).steps), sum((c.granted).tool_calls), sum((c.granted).agents),
           sum((c.granted).input_tokens), sum((c.granted).output_tokens), sum((c.granted).cost_microusd),
           sum((c.granted).sandbox_ms))::ledger.amounts AS granted
FROM ledger.jobs j JOIN ledger.agents a ON a.job_id = j.id JOIN ledger.accounts c ON c.agent_id = a.id
WHERE j.batch_id = %(batch)s AND a.parent_id IS NULL

-- name: batch_account
SELECT v.part, ROW(sum((v.a).steps), sum((v.a).tool_calls), sum((v.a).agents), sum((v.a).input_tokens),
                   sum((v.a).output_tokens), sum((v.a).cost_microusd), sum((v.a).sandbox_ms))::ledger.amounts AS amount
FROM ledger.jobs j JOIN ledger.agents a ON a.job_id = j.id JOIN ledger.accounts c ON c.agent_id = a.id
CROSS JOIN LATERAL (VALUES ('granted', c.granted), ('held', c.held), ('spent', c.spent), ('delegated', c.delegated),
                           ('free', c.free), ('reserve', c.reserve)) v (part, a)
WHERE j.batch_id = %(batch)s AND a.parent_id IS NULL GROUP BY v.part

-- name: leased_agents
SELECT count(DISTINCT s.agent_id) AS running FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id
WHERE s.state = 'leased' AND j.batch_id = %(batch)s

-- name: unfinished
SELECT count(*) AS n FROM ledger.jobs WHERE batch_id = %(batch)s AND finished_at IS NULL

-- name: find_job
SELECT j.*, b.name AS batch_name, a.head_tree FROM ledger.jobs j
JOIN ledger.batches b ON b.id = j.batch_id
JOIN ledger.agents a ON a.job_id = j.id AND a.parent_id IS NULL
WHERE j.id = %(id)s OR (b.name = %(batch)s AND j.key = %(key)s) OR (b.id = %(batch_id)s AND j.key = %(key)s)
ORDER BY b.name = %(batch)s DESC LIMIT 1

-- name: verdict_of
SELECT verdict FROM ledger.jobs WHERE id = %(job)s

-- name: list_jobs
SELECT j.id, j.key, j.batch_id, j.state, j.reason, j.submitted_at, j.started_at, j.finished_at, j.deadline_at,
       j.files_changed, c.spent, c.granted
FROM ledger.jobs j
JOIN ledger.agents a ON a.job_id = j.id AND a.parent_id IS NULL
JOIN ledger.accounts c ON c.agent_id = a.id
WHERE j.batch_id = %(batch)s AND j.id > %(after)s AND (%(states)s::text[] IS NULL OR j.state = ANY (%(states)s))
ORDER BY j.id LIMIT %(amount)s

-- name: job_steps
SELECT id, agent_id, seq, kind, queue, state, attempt, fence, lease_owner, input, result, spent, created_at, offered_at,
       started_at, finished_at
FROM ledger.steps WHERE job_id = %(job)s ORDER BY agent_id, seq

-- name: job_agents
SELECT a.id, a.parent_id, a.role, a.goal, a.head_tree, a.model_state, a.created_at, a.finished_at,
       c.granted, c.held, c.spent, c.delegated, c.free, c.reserve
FROM ledger.agents a JOIN ledger.accounts c ON c.agent_id = a.id WHERE a.job_id = %(job)s ORDER BY a.id

-- name: job_sandboxes
SELECT name, step_id, fence, engine_host, image, purpose, probe_id, state, evidence, registered_at, removed_at
FROM ledger.sandboxes WHERE job_id = %(job)s ORDER BY registered_at

-- name: results
SELECT b.name AS batch, j.key AS job, j.id AS job_id, j.state, j.reason, j.spec ->> 'base_commit' AS base,
       a.head_tree AS tree, j.patch_sha256, j.published, j.files_changed, j.verdict, c.granted, c.spent,
       j.submitted_at, j.started_at, j.finished_at, j.spec ->> 'model' AS model,
       t.steps, t.attempts, t.deciding_ms, t.sandbox_ms, t.verifying_ms, t.queued_ms,
       (SELECT count(*) FROM ledger.agents x WHERE x.job_id = j.id) AS agents
FROM ledger.jobs j
JOIN ledger.batches b ON b.id = j.batch_id
JOIN ledger.agents a ON a.job_id = j.id AND a.parent_id IS NULL
JOIN ledger.accounts c ON c.agent_id = a.id
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE s.state = 'done') AS steps, coalesce(sum(s.attempt), 0) AS attempts,
           coalesce(sum(ledger.span_ms(s.started_at, s.finished_at)) FILTER (WHERE s.kind = 'decide'), 0) AS deciding_ms,
           coalesce(sum(ledger.span_ms(s.started_at, s.finished_at)) FILTER (WHERE s.kind = 'act'), 0) AS sandbox_ms,
           coalesce(sum(ledger.span_ms(s.started_at, s.finished_at)) FILTER (WHERE s.kind IN ('verify', 'publish')), 0)
               AS verifying_ms,
           coalesce(sum(greatest(ledger.span_ms(s.created_at, s.started_at), 0)), 0) AS queued_ms
    FROM ledger.steps s WHERE s.job_id = j.id
) t
WHERE j.batch_id = %(batch)s ORDER BY j.id

-- name: live_images
SELECT image FROM ledger.live_images()

-- name: stored_bytes
-- By table, partitions of one counted together; with indexes, and with what was deleted and is not used again yet.
SELECT coalesce(parent.relname, c.relname) AS name, sum(pg_total_relation_size(c.oid))::bigint AS bytes
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
LEFT JOIN pg_class parent ON parent.oid = i.inhparent
WHERE c.relnamespace = 'ledger'::regnamespace AND c.relkind IN ('r', 'p')
GROUP BY 1 ORDER BY 2 DESC
