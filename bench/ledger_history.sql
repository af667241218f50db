-- A ledger's past, made at once: jobs that were verified and published, ten steps each, as the engine leaves them.
-- $steps steps are added to what is there. Run in one transaction by `bench.ledger_history`.

-- Rows are written as they ended, so nothing has to be checked or looked up for them.
SET LOCAL session_replication_role = replica;
SET LOCAL synchronous_commit = off;

CREATE TEMPORARY TABLE past ON COMMIT DROP AS
SELECT n,
       (SELECT coalesce(max(id), 0) FROM ledger.batches) + (n - 1) / 1000 + 1 AS batch_id,
       (SELECT coalesce(max(id), 0) FROM ledger.jobs) + n AS job_id,
       (SELECT coalesce(max(id), 0) FROM ledger.agents) + n AS agent_id,
       (SELECT coalesce(max(id), 0) FROM ledger.steps) + (n - 1) * 10 AS steps_before,
       ledger.now() - interval '90 days' + n * interval '90 days' / ($steps / 10 + 1) AS began
FROM generate_series(1, $steps / 10) AS n;

INSERT INTO ledger.batches (id, name, weight, jobs, submitted_at, finished_at) OVERRIDING SYSTEM VALUE
SELECT batch_id, 'past-' || batch_id, 1, count(*), min(began), max(began) + interval '5 minutes'
FROM past GROUP BY batch_id;

INSERT INTO ledger.jobs (id, batch_id, key, state, reason, spec, fingerprint, wall_ms, submitted_at, admitted_at,
                         started_at, deadline_at, finished_at, verdict, patch_sha256, files_changed)
OVERRIDING SYSTEM VALUE
SELECT job_id, batch_id, 'job-' || n, 'completed', 'verified',
       $spec::jsonb || jsonb_build_object('key', 'job-' || n), encode(sha256(convert_to('spec ' || n, 'UTF8')), 'hex'),
       900000, began - interval '2 minutes', began - interval '1 minute', began, began + interval '15 minutes',
       began + interval '2 minutes',
       jsonb_build_object('reason', 'verified', 'tree', encode(sha256(convert_to('tree ' || n, 'UTF8')), 'hex')),
       encode(sha256(convert_to('patch ' || n, 'UTF8')), 'hex'), 1
FROM past;

INSERT INTO ledger.agents (id, job_id, role, goal, head_tree, model_state, last_seq, created_at, finished_at)
OVERRIDING SYSTEM VALUE
SELECT agent_id, job_id, 'root', 'The link checker resolves links in sub-folders from the wrong place.',
       left(encode(sha256(convert_to('tree ' || n, 'UTF8')), 'hex'), 40), '{"position": 4}', 10,
       began - interval '2 minutes', began + interval '2 minutes'
FROM past;

INSERT INTO ledger.accounts (agent_id, granted, spent, free, reserve)
SELECT agent_id, ROW(40, 60, 4, 400000, 40000, 2000000, 600000)::ledger.amounts,
       ROW(4, 3, 0, 8000, 900, 12000, 21000)::ledger.amounts,
       ROW(36, 57, 4, 392000, 39100, 1988000, 579000)::ledger.amounts,
       ROW(0, 0, 0, 0, 0, 0, 150000)::ledger.amounts
FROM past;

INSERT INTO ledger.steps (id, job_id, agent_id, seq, kind, queue, state, attempt, fence, available_at, offered_at,
                          input, result, spent, created_at, started_at, finished_at)
OVERRIDING SYSTEM VALUE
SELECT steps_before + seq, job_id, agent_id, seq, kind, ledger.queue_of(kind), 'done', 1, 1, ready, ready,
       CASE kind
           WHEN 'act' THEN jsonb_build_object('call_id', 'call_' || seq, 'name', 'read_file', 'arguments',
                jsonb_build_object('path', 'src/links/module_' || n % 97 || '.py', 'lines', jsonb_build_array(1, 120)))
           WHEN 'verify' THEN jsonb_build_object('on', CASE seq WHEN 1 THEN 'base' ELSE 'head' END)
           ELSE '{}' END,
       CASE kind
           WHEN 'decide' THEN jsonb_build_object('kind', 'tool', 'tool', 'read_file', 'call_id', 'call_' || seq,
                'usage', jsonb_build_object('input_tokens', 2000, 'output_tokens', 220, 'cost_microusd', 3000))
           ELSE jsonb_build_object('call_id', 'call_' || seq, 'ok', true, 'observed_at', ready, 'data',
                jsonb_build_object('text', repeat(md5((steps_before + seq)::text) || ' ', 12))) END,
       CASE WHEN kind = 'decide' THEN ROW(1, 0, 0, 2000, 220, 3000, 0)::ledger.amounts
            ELSE ROW(0, 1, 0, 0, 0, 0, 4000)::ledger.amounts END,
       ready, ready + interval '4 milliseconds', ready + interval '11 seconds'
FROM past
CROSS JOIN LATERAL unnest(ARRAY['verify', 'decide', 'act', 'decide', 'act', 'decide', 'act', 'decide', 'verify',
                                'publish']) WITH ORDINALITY AS way (kind, seq)
CROSS JOIN LATERAL (SELECT began + seq * interval '11 seconds' AS ready) AS at
ORDER BY steps_before, seq;

INSERT INTO ledger.actions (action_id, job_id, agent_id, step_id, tool, arguments, effect, before_tree, after_tree,
                            state, receipt, intended_at, settled_at)
SELECT encode(sha256(convert_to('action ' || steps_before + seq, 'UTF8')), 'hex'), job_id, agent_id,
       steps_before + seq, 'read_file', jsonb_build_object('path', 'src/links/module_' || n % 97 || '.py'), 'none',
       repeat('a', 40), NULL, 'done', '{"ok": true}', began, began
FROM past CROSS JOIN unnest(ARRAY[3, 5, 7]) AS seq;

INSERT INTO ledger.sandboxes (name, job_id, step_id, fence, engine_host, image, state, evidence, registered_at,
                              removed_at)
SELECT 'patchyard-' || steps_before + seq || '-1', job_id, steps_before + seq, 1, 'local',
       'sha256:' || repeat('a', 64), 'removed', '{"found": []}', began, began
FROM past CROSS JOIN unnest(ARRAY[1, 7, 9]) AS seq;

-- Two events a step and three a job. The hashes are of the right size and of nothing: no speed depends on them.
INSERT INTO ledger.events (job_id, seq, at, kind, agent_id, step_id, body, prev_hash, hash)
SELECT job_id, seq, began + seq * interval '5 seconds',
       CASE seq WHEN 1 THEN 'job_submitted' WHEN 2 THEN 'job_started' WHEN 23 THEN 'job_ended'
                ELSE CASE seq % 2 WHEN 1 THEN 'decision' ELSE 'step_done' END END,
       agent_id, steps_before + seq / 2,
       jsonb_build_object('kind', 'act', 'seq', seq / 2, 'attempt', 1, 'fence', 1, 'owner',
           'sandbox@host:4711.123456.abcdef01-4026531836', 'head', NULL, 'spent', jsonb_build_object('steps', 0,
           'tool_calls', 1, 'agents', 0, 'input_tokens', 0, 'output_tokens', 0, 'cost_microusd', 0, 'sandbox_ms', 4000)),
       sha256(int8send(steps_before * 3 + seq)), sha256(int8send(steps_before * 3 + seq + 1))
FROM past CROSS JOIN generate_series(1, 23) AS seq
ORDER BY job_id, seq;

INSERT INTO ledger.chains (job_id, seq, hash) SELECT job_id, 23, sha256(int8send(steps_before * 3 + 24)) FROM past;

SELECT setval(pg_get_serial_sequence('ledger.' || name, 'id'), last) FROM (VALUES
    ('batches', (SELECT max(id) FROM ledger.batches)), ('jobs', (SELECT max(id) FROM ledger.jobs)),
    ('agents', (SELECT max(id) FROM ledger.agents)), ('steps', (SELECT max(id) FROM ledger.steps))
) AS filled (name, last);
