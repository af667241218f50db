-- Named statements that Python runs. One block each: "-- name: NAME", then the statement.

-- name: lease_step
SELECT fence, attempt, kind, seq, job_id, batch_id, batch_name, agent_id, spec::text, head_tree, input, free, reserve,
       model_state, recent, submitted_at, deadline_at, remaining_ms, ending
FROM ledger.lease_step(%(step)s, %(owner)s, make_interval(secs => %(seconds)s), %(queues)s, %(max_attempts)s)

-- name: hold
SELECT ledger.hold(%(step)s, %(fence)s, %(wanted)s::ledger.amounts, %(from_reserve)s)

-- name: refuse_claim
SELECT ledger.refuse_claim(%(step)s, %(resource)s)

-- name: note_unreadable
SELECT ledger.note_unreadable(%(step)s, %(why)s, %(max_attempts)s)

-- name: renew_leases
SELECT * FROM ledger.renew_leases(%(ids)s, %(fences)s, make_interval(secs => %(seconds)s))

-- name: complete_step
SELECT * FROM ledger.complete_step(
    %(step)s, %(fence)s, %(outcome)s, %(took)s::ledger.amounts,
    %(next_kind)s, %(next_input)s, make_interval(secs => %(next_delay)s), %(end_reason)s, %(new_state)s,
    %(old_head)s, %(new_head)s, %(packs)s::text[], %(told)s, %(action)s, %(action_state)s, %(receipt)s,
    %(model_state)s, %(verdict)s, %(patch)s, %(published)s, %(changed)s,
    %(mark)s, %(marks_kept)s)

-- name: completed_by
-- Whether this lease completed its step, and the step that followed it.
SELECT s.state, n.id AS next_id, n.queue AS next_queue
FROM ledger.steps s
LEFT JOIN ledger.steps n ON n.agent_id = s.agent_id AND n.seq = s.seq + 1 AND n.state = 'ready' AND n.attempt = 0
WHERE s.id = %(step)s AND s.fence = %(fence)s AND s.state = 'done'

-- name: give_back
SELECT ledger.give_back(
    %(step)s, %(fence)s, %(why)s, make_interval(secs => %(delay)s), %(took)s::ledger.amounts, %(model_state)s,
    %(exhausted)s, %(max_attempts)s, %(counted)s, %(told)s)

-- name: given_back_by
SELECT 1 WHERE ledger.given_back_by(%(step)s, %(fence)s)

-- name: lease_owners
SELECT ledger.lease_owners(%(prefix)s) AS owner

-- name: forfeit_leases
SELECT ledger.forfeit_leases(%(owner)s) AS forfeited

-- name: expired_steps
SELECT id FROM ledger.steps WHERE state = 'leased' AND lease_expires_at <= ledger.now()
ORDER BY lease_expires_at LIMIT %(amount)s

-- name: expire_step
SELECT ledger.expire_step(%(step)s, %(max_attempts)s) AS expired

-- name: open_batches
-- Batches with jobs that wait, and how many of their jobs are active now.
SELECT b.id, b.weight, b.max_parallel,
       (SELECT count(*) FROM ledger.jobs a
        WHERE a.batch_id = b.id AND a.admitted_at IS NOT NULL AND a.finished_at IS NULL) AS active
FROM ledger.batches b
WHERE b.finished_at IS NULL AND b.paused_at IS NULL
  AND EXISTS (SELECT FROM ledger.jobs w WHERE w.batch_id = b.id AND w.admitted_at IS NULL AND w.state = 'queued')
ORDER BY b.id

-- name: close_batches
UPDATE ledger.batches b SET finished_at = ledger.now()
WHERE b.finished_at IS NULL
  AND NOT EXISTS (SELECT FROM ledger.jobs j WHERE j.batch_id = b.id AND j.finished_at IS NULL)

-- name: count_active
-- Those of paused batches do nothing and take nobody's place.
SELECT count(*) AS active FROM ledger.jobs
WHERE admitted_at IS NOT NULL AND finished_at IS NULL
  AND batch_id NOT IN (SELECT id FROM ledger.batches WHERE paused_at IS NOT NULL)

-- name: admit
SELECT * FROM ledger.admit(%(batch)s, %(amount)s)

-- name: offer_ready
SELECT * FROM ledger.offer_ready(%(amount)s, make_interval(secs => %(stale)s))

-- name: put_object
INSERT INTO ledger.objects (sha256, kind, size, compressed, data, created_at)
VALUES (%(sha256)s, %(kind)s, %(size)s, %(compressed)s, %(data)s, ledger.now())
ON CONFLICT (sha256) DO NOTHING

-- name: get_object
SELECT compressed, data FROM ledger.objects WHERE sha256 = %(sha256)s

-- name: has_object
SELECT EXISTS (SELECT FROM ledger.objects WHERE sha256 = %(sha256)s) AS found

-- name: packs_of
SELECT sha256 FROM ledger.packs WHERE agent_id = %(agent)s ORDER BY seq

-- name: find_evidence
SELECT run FROM ledger.evidence WHERE key = %(key)s

-- name: record_evidence
INSERT INTO ledger.evidence (key, run, job_id, created_at)
SELECT %(key)s, %(run)s, s.job_id, ledger.now() FROM ledger.held_step(%(step)s, %(fence)s) s
ON CONFLICT (key) DO NOTHING

-- name: intend
SELECT * FROM ledger.intend(
    %(step)s, %(fence)s, %(action)s, %(tool)s, %(arguments)s, %(effect)s, %(before)s, %(after)s)

-- name: mark_sandbox
UPDATE ledger.sandboxes SET state = %(state)s, evidence = evidence || %(evidence)s,
    removed_at = CASE WHEN %(state)s = 'removed' THEN ledger.now() END
WHERE name = %(name)s AND state <> 'removed'

-- name: live_sandboxes
SELECT s.name, s.job_id, s.step_id, s.fence, s.engine_host, s.image, s.state, s.evidence, s.registered_at,
       CASE WHEN s.armed_until IS NOT NULL THEN s.armed_until > ledger.now()
            ELSE EXISTS (SELECT FROM ledger.steps t WHERE t.id = s.step_id AND t.fence = s.fence AND t.state = 'leased'
                         AND t.lease_expires_at > ledger.now()) END AS lease_live,
       s.armed_until IS NOT NULL AS waits
FROM ledger.sandboxes s
WHERE s.state <> 'removed'
  AND (%(step)s::bigint IS NULL OR s.step_id = %(step)s)
  AND (%(job)s::bigint IS NULL OR s.job_id = %(job)s)
ORDER BY s.registered_at

-- name: append_events
SELECT ledger.append_events(s.job_id, s.agent_id, s.id, %(told)s) FROM ledger.held_step(%(step)s, %(fence)s) s

-- name: read_events
SELECT job_id, seq, at, kind, agent_id, step_id, body, encode(prev_hash, 'hex') AS prev_hash,
       encode(hash, 'hex') AS hash
FROM ledger.events WHERE job_id = %(job)s AND seq > %(after)s ORDER BY seq LIMIT %(amount)s

-- name: broken_links
-- Events whose hash, or whose link to the one before, is not what it should be; and a head that is not the last event.
SELECT seq FROM (
    SELECT seq, hash, prev_hash, lag(hash, 1, sha256(convert_to('job ' || job_id, 'UTF8'))) OVER w AS before,
           lag(seq, 1, 0) OVER w AS seq_before,
           ledger.event_hash(prev_hash, job_id, seq, at, kind, agent_id, step_id, body) AS right_hash
    FROM ledger.events WHERE job_id = %(job)s WINDOW w AS (ORDER BY seq)
) e WHERE hash <> right_hash OR prev_hash <> before OR seq <> seq_before + 1
UNION ALL
SELECT c.seq FROM ledger.chains c WHERE c.job_id = %(job)s AND NOT EXISTS (
    SELECT FROM ledger.events e WHERE e.job_id = c.job_id AND e.seq = c.seq AND e.hash = c.hash)

-- name: request_cancel
SELECT ledger.request_cancel(%(job)s, %(by)s) AS outcome

-- name: unfinished_jobs
SELECT id FROM ledger.jobs WHERE batch_id = %(batch)s AND finished_at IS NULL ORDER BY id

-- name: try_lead
SELECT pg_try_advisory_lock(4711, 1) AS leading

-- name: still_leading
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 4711 AND objid = 1
               AND pid = pg_backend_pid() AND granted) AS leading

-- name: reopen_job
SELECT ledger.reopen_job(%(job)s, %(by)s, %(kind)s, %(input)s, %(afresh)s) AS was

-- name: pause_batch
SELECT ledger.pause_batch(%(batch)s, %(by)s) AS outcome

-- name: resume_batch
SELECT ledger.resume_batch(%(batch)s) AS outcome

-- name: continue_job
SELECT ledger.continue_job(%(job)s, %(by)s, %(added)s::ledger.amounts, %(wall_ms)s) AS outcome

-- name: ended_jobs
SELECT id FROM ledger.jobs
WHERE batch_id = %(batch)s AND finished_at IS NOT NULL
  AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
  AND (%(reasons)s::text[] IS NULL OR reason = ANY (%(reasons)s))
ORDER BY id

-- name: job_spec
SELECT spec FROM ledger.jobs WHERE id = %(job)s

-- name: resolve_action
SELECT ledger.resolve_action(%(action)s, %(done)s, %(by)s) AS outcome

-- name: audit_job
SELECT * FROM ledger.audit_job(%(job)s)

-- name: jobs_of_batch
SELECT id FROM ledger.jobs WHERE batch_id = %(batch)s ORDER BY id

-- name: actions_of_job
SELECT a.action_id, a.tool, a.effect, a.state, a.arguments, a.before_tree, a.after_tree, a.receipt, a.intended_at,
       a.settled_at, a.step_id, b.name || '/' || j.key AS job
FROM ledger.actions a JOIN ledger.jobs j ON j.id = a.job_id JOIN ledger.batches b ON b.id = j.batch_id
WHERE a.job_id = %(job)s ORDER BY a.intended_at, a.action_id

-- name: find_action
SELECT a.action_id, a.tool, a.effect, a.state, a.arguments, a.before_tree, a.after_tree, a.receipt, a.intended_at,
       a.settled_at, a.step_id, b.name || '/' || j.key AS job
FROM ledger.actions a JOIN ledger.jobs j ON j.id = a.job_id JOIN ledger.batches b ON b.id = j.batch_id
WHERE a.action_id LIKE %(prefix)s || '%%' LIMIT 2

-- name: lock_logins
SELECT pg_advisory_xact_lock(4711, 2)

-- name: login_named
SELECT rolname FROM pg_roles WHERE rolname = %(login)s

-- name: create_login
CREATE ROLE {login} LOGIN PASSWORD {password}

-- name: change_login
ALTER ROLE {login} LOGIN PASSWORD {password}

-- name: grant_role
GRANT {role} TO {login}
