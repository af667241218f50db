-- What a person does about a job that has ended: try it again, verify it again, resolve what is uncertain.
-- Laid down with engine.sql at every migration run; the same lock order.

CREATE OR REPLACE FUNCTION ledger.reopen_job(job bigint, who text, first_kind text, first_input jsonb, afresh boolean)
RETURNS text LANGUAGE plpgsql AS $$
-- Puts an ended job back into its batch's queue, with one new step. Afresh, the agent starts from the base with what
-- its budget grants: the account is granted what it is short of, so what was spent stays on record. Otherwise (a new
-- verification, a resolved effect) head and account stay, and only sandbox time is granted anew.
-- Returns the reason that the job had, or null if it has not ended.
DECLARE
    row ledger.jobs;
    agent ledger.agents;
    account ledger.accounts;
    full_grant ledger.amounts;
    missing ledger.amounts;
    step bigint;
BEGIN
    SELECT * INTO row FROM ledger.jobs WHERE id = job FOR NO KEY UPDATE;
    IF NOT FOUND OR row.finished_at IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT * INTO STRICT agent FROM ledger.agents WHERE job_id = job AND parent_id IS NULL FOR UPDATE;
    SELECT * INTO STRICT account FROM ledger.accounts WHERE agent_id = agent.id FOR UPDATE;
    full_grant := ledger.budget_amounts(row.spec -> 'budget');
    missing := ledger.larger(ledger.minus(full_grant, account.free), ledger.zero());
    IF NOT afresh THEN
        missing := ROW(0, 0, 0, 0, 0, 0, (missing).sandbox_ms)::ledger.amounts;
    END IF;
    UPDATE ledger.accounts SET granted = ledger.plus(granted, missing), free = ledger.plus(free, missing)
    WHERE agent_id = agent.id;
    UPDATE ledger.agents SET finished_at = NULL,
        head_tree = CASE WHEN afresh THEN row.spec ->> 'base_tree' ELSE head_tree END,
        model_state = CASE WHEN afresh THEN '{}' ELSE model_state END, recent = '{}'
    WHERE id = agent.id;
    UPDATE ledger.jobs SET state = 'queued', reason = NULL, finished_at = NULL, admitted_at = NULL, started_at = NULL,
        deadline_at = NULL, cancel_requested_at = NULL, cancel_requested_by = NULL,
        verdict = CASE WHEN first_kind = 'publish' THEN verdict END, patch_sha256 = NULL, published = NULL,
        files_changed = NULL
    WHERE id = job;
    UPDATE ledger.batches SET finished_at = NULL WHERE id = row.batch_id AND finished_at IS NOT NULL;
    step := ledger.add_step(job, agent.id, first_kind, first_input, '0');
    UPDATE ledger.steps SET available_at = 'infinity', offered_at = NULL WHERE id = step;
    PERFORM ledger.append_event(job, 'job_reopened', agent.id, step, jsonb_build_object(
        'by', who, 'was', row.reason, 'afresh', afresh, 'first', first_kind, 'granted', to_jsonb(missing)));
    RETURN row.reason;
END $$;

CREATE OR REPLACE FUNCTION ledger.continue_job(job bigint, who text, added ledger.amounts, added_wall_ms bigint)
RETURNS text LANGUAGE plpgsql AS $$
-- Adds to the budget of a job that ended for want of it, and lets it go on from where it stood: its head, what its
-- model remembers, and the step that was not done. Of its wall-clock time it has what was left, and what is added.
-- Returns 'continued'; 'unknown' or 'other' for a job that did not end so; or what is still short: a resource, or
-- 'deadline'. Then nothing has changed.
DECLARE
    row ledger.jobs;
    agent ledger.agents;
    last ledger.steps;
    left_ms bigint;
    short text;
    step bigint;
    what text;
    told jsonb;
BEGIN
    SELECT * INTO row FROM ledger.jobs WHERE id = job FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    ELSIF row.state <> 'budget_exhausted' THEN
        RETURN 'other';
    END IF;
    short := substr(row.reason, length('budget:') + 1);
    IF short <> 'deadline' AND coalesce((to_jsonb(added) ->> short)::bigint, 0) = 0 THEN
        RETURN short;
    END IF;
    left_ms := added_wall_ms + CASE WHEN row.deadline_at IS NULL THEN row.wall_ms
        ELSE greatest(ledger.span_ms(row.finished_at, row.deadline_at), 0) END;
    IF left_ms = 0 OR (short = 'deadline' AND added_wall_ms = 0) THEN
        RETURN 'deadline';
    END IF;
    SELECT * INTO STRICT agent FROM ledger.agents WHERE job_id = job AND parent_id IS NULL FOR UPDATE;
    SELECT * INTO STRICT last FROM ledger.steps WHERE agent_id = agent.id ORDER BY seq DESC LIMIT 1;
    IF last.kind = 'act' AND last.state = 'done' AND last.ending IS NULL THEN
        what := 'decide';
        told := jsonb_build_object('observed', last.id);
    ELSE
        what := last.kind;
        told := last.input;
    END IF;
    UPDATE ledger.accounts SET granted = ledger.plus(granted, added), free = ledger.plus(free, added)
    WHERE agent_id = agent.id;
    UPDATE ledger.agents SET finished_at = NULL, recent = '{}' WHERE id = agent.id;
    UPDATE ledger.jobs SET state = 'queued', reason = NULL, finished_at = NULL, admitted_at = NULL, started_at = NULL,
        deadline_at = NULL, wall_ms = left_ms
    WHERE id = job;
    UPDATE ledger.batches SET finished_at = NULL WHERE id = row.batch_id AND finished_at IS NOT NULL;
    step := ledger.add_step(job, agent.id, what, told, '0');
    UPDATE ledger.steps SET available_at = 'infinity', offered_at = NULL WHERE id = step;
    PERFORM ledger.append_event(job, 'job_continued', agent.id, step, jsonb_build_object(
        'by', who, 'was', row.reason, 'first', what, 'granted', to_jsonb(added), 'wall_ms', left_ms));
    RETURN 'continued';
END $$;

CREATE OR REPLACE FUNCTION ledger.pause_batch(batch bigint, who text) RETURNS text LANGUAGE plpgsql AS $$
-- From now on no step of the batch is begun and no job admitted; what runs goes on to the end of its step.
-- 'paused', or what stands in the way: 'unknown', 'finished', or 'before' (it is paused).
DECLARE
    row ledger.batches;
BEGIN
    SELECT * INTO row FROM ledger.batches WHERE id = batch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    ELSIF NOT EXISTS (SELECT FROM ledger.jobs WHERE batch_id = batch AND finished_at IS NULL) THEN
        RETURN 'finished';
    ELSIF row.paused_at IS NOT NULL THEN
        RETURN 'before';
    END IF;
    UPDATE ledger.batches SET paused_at = ledger.now(), paused_by = who WHERE id = batch;
    RETURN 'paused';
END $$;

CREATE OR REPLACE FUNCTION ledger.resume_batch(batch bigint) RETURNS text LANGUAGE plpgsql AS $$
-- 'resumed', 'unknown', or 'before' (it is not paused). The clocks of its jobs stood still meanwhile. Its jobs are locked
-- before the batch is, as by a claim: one that saw the pause has put its step aside by then, and a later one sees its end.
DECLARE
    since timestamptz;
BEGIN
    PERFORM FROM ledger.jobs WHERE batch_id = batch AND admitted_at IS NOT NULL AND finished_at IS NULL
    ORDER BY id FOR NO KEY UPDATE;
    SELECT paused_at INTO since FROM ledger.batches WHERE id = batch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    ELSIF since IS NULL THEN
        RETURN 'before';
    END IF;
    UPDATE ledger.batches SET paused_at = NULL, paused_by = NULL WHERE id = batch;
    UPDATE ledger.jobs SET deadline_at = deadline_at + (ledger.now() - greatest(since, started_at))
    WHERE batch_id = batch AND admitted_at IS NOT NULL AND finished_at IS NULL AND deadline_at IS NOT NULL;
    UPDATE ledger.steps s SET available_at = ledger.now(), offered_at = NULL
    FROM ledger.jobs j
    WHERE j.batch_id = batch AND j.admitted_at IS NOT NULL AND j.finished_at IS NULL AND s.job_id = j.id
      AND s.state = 'ready' AND s.available_at = 'infinity';
    RETURN 'resumed';
END $$;

CREATE OR REPLACE FUNCTION ledger.budget_amounts(budget jsonb) RETURNS ledger.amounts LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT ROW((budget ->> 'steps')::bigint, (budget ->> 'tool_calls')::bigint, (budget ->> 'agents')::bigint,
               (budget ->> 'input_tokens')::bigint, (budget ->> 'output_tokens')::bigint,
               round((budget ->> 'cost_usd')::numeric * 1000000)::bigint,
               round((budget ->> 'sandbox_seconds')::numeric * 1000)::bigint)::ledger.amounts
$$;

CREATE OR REPLACE FUNCTION ledger.resolve_action(action text, is_done boolean, who text) RETURNS text
LANGUAGE plpgsql AS $$
-- A person says what became of an uncertain effect. The job goes on from there: done, it only takes note of it; not
-- done, it looks at the world and acts anew. Returns the state that was found if that is not 'uncertain'.
DECLARE
    known ledger.actions;
    job bigint;
BEGIN
    SELECT a.job_id INTO job FROM ledger.actions a WHERE a.action_id = action;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    PERFORM FROM ledger.jobs WHERE id = job FOR NO KEY UPDATE;
    SELECT * INTO STRICT known FROM ledger.actions WHERE action_id = action FOR UPDATE;
    IF known.state <> 'uncertain' THEN
        RETURN known.state;
    END IF;
    UPDATE ledger.actions SET state = CASE WHEN is_done THEN 'done' ELSE 'refused' END, settled_at = ledger.now(),
        receipt = known.receipt || jsonb_build_object('resolved_by', who, 'resolved_as',
                                                      CASE WHEN is_done THEN 'done' ELSE 'not-done' END)
    WHERE action_id = action;
    PERFORM ledger.append_event(job, 'action_resolved', known.agent_id, known.step_id, jsonb_build_object(
        'action', action, 'as', CASE WHEN is_done THEN 'done' ELSE 'not-done' END, 'by', who));
    PERFORM ledger.reopen_job(job, who, 'publish', jsonb_build_object('resolved', action), false);
    RETURN 'resolved';
END $$;

CREATE OR REPLACE FUNCTION ledger.audit_job(job bigint) RETURNS TABLE (finding text, detail jsonb)
LANGUAGE sql STABLE AS $$
    -- What must never be. No row means that the job's books are in order (its chain is checked apart).
    SELECT 'account does not conserve', jsonb_build_object('agent', c.agent_id, 'granted', to_jsonb(c.granted))
    FROM ledger.agents a JOIN ledger.accounts c ON c.agent_id = a.id
    WHERE a.job_id = job
      AND NOT (c.granted = ledger.plus(ledger.plus(c.spent, c.held), ledger.plus(c.delegated, c.free))
               AND ledger.covers(c.spent, ledger.zero()) AND ledger.covers(c.held, ledger.zero())
               AND ledger.covers(c.free, ledger.zero()))
  UNION ALL
    SELECT 'something is held although nothing is leased', jsonb_build_object('agent', c.agent_id, 'held', to_jsonb(c.held))
    FROM ledger.agents a JOIN ledger.accounts c ON c.agent_id = a.id
    WHERE a.job_id = job AND c.held <> ledger.zero()
      AND NOT EXISTS (SELECT FROM ledger.steps s WHERE s.agent_id = a.id AND s.state = 'leased')
  UNION ALL
    SELECT 'intent without receipt', jsonb_build_object('action', x.action_id, 'tool', x.tool, 'effect', x.effect)
    FROM ledger.actions x JOIN ledger.jobs j ON j.id = x.job_id
    WHERE x.job_id = job AND x.state = 'intended' AND j.finished_at IS NOT NULL AND x.effect = 'external'
  UNION ALL
    SELECT 'uncertain effect', jsonb_build_object('action', x.action_id, 'tool', x.tool, 'found', x.receipt)
    FROM ledger.actions x WHERE x.job_id = job AND x.state = 'uncertain'
  UNION ALL
    SELECT 'step open although the job has ended', jsonb_build_object('step', s.id, 'state', s.state)
    FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id
    WHERE s.job_id = job AND j.finished_at IS NOT NULL AND s.state IN ('ready', 'leased')
  UNION ALL
    SELECT 'nothing left to do although the job has not ended', jsonb_build_object('state', j.state)
    FROM ledger.jobs j
    WHERE j.id = job AND j.finished_at IS NULL
      AND NOT EXISTS (SELECT FROM ledger.steps s WHERE s.job_id = job AND s.state IN ('ready', 'leased'))
  UNION ALL
    SELECT 'sandbox not proved dead', jsonb_build_object('sandbox', b.name, 'state', b.state, 'host', b.engine_host)
    FROM ledger.sandboxes b JOIN ledger.jobs j ON j.id = b.job_id
    WHERE b.job_id = job AND j.finished_at IS NOT NULL AND b.state NOT IN ('exited', 'removed')
      AND (b.armed_until IS NULL OR b.armed_until <= ledger.now())  -- in one that waits, nothing of the job has run
  UNION ALL
    SELECT 'verdict of another tree', jsonb_build_object('verdict', j.verdict ->> 'tree', 'head', a.head_tree)
    FROM ledger.jobs j JOIN ledger.agents a ON a.job_id = j.id AND a.parent_id IS NULL
    WHERE j.id = job AND j.state = 'completed' AND j.verdict ->> 'tree' IS DISTINCT FROM a.head_tree
$$;
