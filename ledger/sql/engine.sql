-- The engine: every change of state is a statement in here. Python decides, these functions commit.
-- Laid down again by every migration run (CREATE OR REPLACE), so it must stay re-runnable.
--
-- SQLSTATEs of our own:
--   PY001 the lease was lost        PY002 the account cannot carry the hold (DETAIL: the resource)
--   PY003 the head tree moved       PY004 the action id stands for another payload
--   PY005 no probe allows this      PY009 append-only
--
-- Lock order: job, agents, accounts, step, action. A function that takes a step id reads its job id without a lock,
-- locks the job, and only then looks at the step again under a lock.

-- Functions whose parameters or columns may have changed since this database was last migrated. Everything here is one
-- transaction, so nobody sees them missing.
DO $$
DECLARE
    old text;
BEGIN
    FOR old IN SELECT p.oid::regprocedure::text FROM pg_proc p
               WHERE p.pronamespace = to_regnamespace('ledger')
                 AND p.proname IN ('lease_step', 'complete_step', 'give_back', 'register_sandbox', 'record_probe') LOOP
        EXECUTE 'DROP FUNCTION ' || old;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION ledger.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    -- Tests move the clock with ALTER DATABASE … SET patchyard.clock_offset = '1 hour'.
    SELECT statement_timestamp()
           + coalesce(nullif(current_setting('patchyard.clock_offset', true), ''), '0')::interval
$$;

-- Functions of amounts are written so that the planner puts their bodies in place of calls: none is STRICT, and arguments
-- are columns or variables. A call inside a call would be run as a query of its own, at ten times the price.

CREATE OR REPLACE FUNCTION ledger.plus(a ledger.amounts, b ledger.amounts) RETURNS ledger.amounts
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(
        (a).steps + (b).steps, (a).tool_calls + (b).tool_calls, (a).agents + (b).agents,
        (a).input_tokens + (b).input_tokens, (a).output_tokens + (b).output_tokens,
        (a).cost_microusd + (b).cost_microusd, (a).sandbox_ms + (b).sandbox_ms
    )::ledger.amounts
$$;

CREATE OR REPLACE FUNCTION ledger.minus(a ledger.amounts, b ledger.amounts) RETURNS ledger.amounts
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(
        (a).steps - (b).steps, (a).tool_calls - (b).tool_calls, (a).agents - (b).agents,
        (a).input_tokens - (b).input_tokens, (a).output_tokens - (b).output_tokens,
        (a).cost_microusd - (b).cost_microusd, (a).sandbox_ms - (b).sandbox_ms
    )::ledger.amounts
$$;

CREATE OR REPLACE FUNCTION ledger.smaller(a ledger.amounts, b ledger.amounts) RETURNS ledger.amounts
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(
        least((a).steps, (b).steps), least((a).tool_calls, (b).tool_calls), least((a).agents, (b).agents),
        least((a).input_tokens, (b).input_tokens), least((a).output_tokens, (b).output_tokens),
        least((a).cost_microusd, (b).cost_microusd), least((a).sandbox_ms, (b).sandbox_ms)
    )::ledger.amounts
$$;

CREATE OR REPLACE FUNCTION ledger.larger(a ledger.amounts, b ledger.amounts) RETURNS ledger.amounts
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ROW(
        greatest((a).steps, (b).steps), greatest((a).tool_calls, (b).tool_calls), greatest((a).agents, (b).agents),
        greatest((a).input_tokens, (b).input_tokens), greatest((a).output_tokens, (b).output_tokens),
        greatest((a).cost_microusd, (b).cost_microusd), greatest((a).sandbox_ms, (b).sandbox_ms)
    )::ledger.amounts
$$;

CREATE OR REPLACE FUNCTION ledger.covers(a ledger.amounts, b ledger.amounts) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (a).steps >= (b).steps AND (a).tool_calls >= (b).tool_calls AND (a).agents >= (b).agents
       AND (a).input_tokens >= (b).input_tokens AND (a).output_tokens >= (b).output_tokens
       AND (a).cost_microusd >= (b).cost_microusd AND (a).sandbox_ms >= (b).sandbox_ms
$$;

CREATE OR REPLACE FUNCTION ledger.shortfall(has ledger.amounts, needs ledger.amounts) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- The first resource of which there is not enough, or null.
    SELECT CASE
        WHEN (has).steps < (needs).steps THEN 'steps'
        WHEN (has).tool_calls < (needs).tool_calls THEN 'tool_calls'
        WHEN (has).agents < (needs).agents THEN 'agents'
        WHEN (has).input_tokens < (needs).input_tokens THEN 'input_tokens'
        WHEN (has).output_tokens < (needs).output_tokens THEN 'output_tokens'
        WHEN (has).cost_microusd < (needs).cost_microusd THEN 'cost_microusd'
        WHEN (has).sandbox_ms < (needs).sandbox_ms THEN 'sandbox_ms'
    END
$$;

CREATE OR REPLACE FUNCTION ledger.state_of(reason text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE
        WHEN reason = 'verified' THEN 'completed'
        WHEN reason = 'cancelled_by_user' THEN 'cancelled'
        WHEN reason LIKE 'budget:%' THEN 'budget_exhausted'
        WHEN reason IN ('too_many_attempts', 'effect_uncertain') THEN 'needs_attention'
        ELSE 'failed'
    END
$$;

-- ---------------------------------------------------------------------------------------------------------- events

CREATE OR REPLACE FUNCTION ledger.event_hash(
    prev bytea, job bigint, number integer, happened_at timestamptz, what text, agent bigint, step bigint, told jsonb
) RETURNS bytea LANGUAGE sql STABLE AS $$
    -- jsonb's text form is canonical: keys sorted, one spacing. Time goes in as microseconds since 1970.
    SELECT sha256(prev || convert_to(jsonb_build_object(
        'job', job, 'seq', number, 'at', (extract(epoch FROM happened_at) * 1000000)::bigint, 'kind', what,
        'agent', agent, 'step', step, 'body', told)::text, 'UTF8'))
$$;

CREATE OR REPLACE FUNCTION ledger.append_events(job bigint, agent bigint, step bigint, told jsonb)
RETURNS void LANGUAGE plpgsql AS $$
-- `told`: an array of {"kind": …, "body": …}. The chain is locked and moved once for all of them.
DECLARE
    head ledger.chains;
    happened_at timestamptz := ledger.now();
    one jsonb;
    next_hash bytea;
BEGIN
    IF told = '[]' THEN
        RETURN;
    END IF;
    SELECT * INTO STRICT head FROM ledger.chains WHERE job_id = job FOR UPDATE;
    FOR one IN SELECT * FROM jsonb_array_elements(told) LOOP
        head.seq := head.seq + 1;
        next_hash := ledger.event_hash(
            head.hash, job, head.seq, happened_at, one ->> 'kind', agent, step, one -> 'body');
        INSERT INTO ledger.events (job_id, seq, at, kind, agent_id, step_id, body, prev_hash, hash)
        VALUES (job, head.seq, happened_at, one ->> 'kind', agent, step, one -> 'body', head.hash, next_hash);
        head.hash := next_hash;
    END LOOP;
    UPDATE ledger.chains SET seq = head.seq, hash = head.hash WHERE job_id = job;
END $$;

CREATE OR REPLACE FUNCTION ledger.told(what text, body jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('kind', what, 'body', body)
$$;

CREATE OR REPLACE FUNCTION ledger.append_event(job bigint, what text, agent bigint, step bigint, told jsonb)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ledger.append_events(job, agent, step, jsonb_build_array(ledger.told(what, told)));
END $$;

-- -------------------------------------------------------------------------------------------------------- accounts

CREATE OR REPLACE FUNCTION ledger.settle(agent bigint, was_held ledger.amounts, took ledger.amounts)
RETURNS text LANGUAGE plpgsql AS $$
-- Turns a hold into what was spent; the rest is free again. What was taken over the hold comes out of the free part.
-- Returns the resource whose free part could not carry that (an overrun), else null.
DECLARE
    account ledger.accounts;
    within_hold ledger.amounts := ledger.smaller(took, was_held);
    over_hold ledger.amounts := ledger.minus(took, within_hold);
    returned ledger.amounts := ledger.minus(was_held, within_hold);
    carried ledger.amounts;
    moved ledger.amounts;
BEGIN
    SELECT * INTO STRICT account FROM ledger.accounts WHERE agent_id = agent FOR UPDATE;
    account.free := ledger.plus(account.free, returned);
    carried := ledger.smaller(over_hold, account.free);
    account.free := ledger.minus(account.free, carried);
    account.held := ledger.minus(account.held, was_held);
    moved := ledger.plus(within_hold, carried);
    account.spent := ledger.plus(account.spent, moved);
    UPDATE ledger.accounts SET held = account.held, spent = account.spent, free = account.free WHERE agent_id = agent;
    RETURN ledger.shortfall(carried, over_hold);
END $$;

CREATE OR REPLACE FUNCTION ledger.hold(step bigint, step_fence bigint, wanted ledger.amounts, from_reserve boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    account ledger.accounts;
    available ledger.amounts;
    nothing ledger.amounts := ledger.zero();
BEGIN
    SELECT c.* INTO STRICT account FROM ledger.steps s JOIN ledger.accounts c ON c.agent_id = s.agent_id
    WHERE s.id = step FOR UPDATE OF c;
    available := account.free;
    IF NOT from_reserve THEN
        available := ledger.minus(account.free, account.reserve);
        available := ledger.larger(available, nothing);
    END IF;
    IF NOT ledger.covers(available, wanted) THEN
        RAISE EXCEPTION 'the account cannot carry this hold'
            USING ERRCODE = 'PY002', DETAIL = ledger.shortfall(available, wanted);
    END IF;
    account.free := ledger.minus(account.free, wanted);
    account.held := ledger.plus(account.held, wanted);
    UPDATE ledger.accounts SET free = account.free, held = account.held WHERE agent_id = account.agent_id;
    UPDATE ledger.steps SET held = wanted
    WHERE id = step AND fence = step_fence AND state = 'leased' AND lease_expires_at > ledger.now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'PY001';
    END IF;
END $$;

-- ------------------------------------------------------------------------------------------------------------ jobs

CREATE OR REPLACE FUNCTION ledger.end_job(job bigint, why text, told jsonb DEFAULT '{}')
RETURNS void LANGUAGE plpgsql AS $$
-- The one way in which a job ends. The caller holds the job's lock. What is still ready is cancelled.
BEGIN
    UPDATE ledger.jobs SET state = ledger.state_of(why), reason = why, finished_at = ledger.now(),
        admitted_at = coalesce(admitted_at, ledger.now())
    WHERE id = job AND finished_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % has ended already', job;
    END IF;
    UPDATE ledger.steps SET state = 'cancelled', finished_at = ledger.now() WHERE job_id = job AND state = 'ready';
    UPDATE ledger.agents SET finished_at = ledger.now() WHERE job_id = job AND finished_at IS NULL;
    PERFORM ledger.append_event(job, 'job_ended', NULL, NULL,
        told || jsonb_build_object('reason', why, 'state', ledger.state_of(why)));
END $$;

CREATE OR REPLACE FUNCTION ledger.request_cancel(job bigint, who text) RETURNS text LANGUAGE plpgsql AS $$
-- 'ended' (already), 'cancelled' (now), or 'cancelling' (a worker has to prove a sandbox's death first).
DECLARE
    row ledger.jobs;
    busy boolean;
BEGIN
    SELECT * INTO row FROM ledger.jobs WHERE id = job FOR NO KEY UPDATE;
    IF NOT FOUND OR row.finished_at IS NOT NULL THEN
        RETURN 'ended';
    END IF;
    IF row.cancel_requested_at IS NULL THEN
        UPDATE ledger.jobs SET cancel_requested_at = ledger.now(), cancel_requested_by = who WHERE id = job;
        PERFORM ledger.append_event(job, 'cancel_requested', NULL, NULL, jsonb_build_object('by', who));
    END IF;
    UPDATE ledger.steps SET ending = 'cancelled_by_user', available_at = ledger.now(), offered_at = NULL
    WHERE job_id = job AND state = 'ready' AND attempt > 0;
    SELECT EXISTS (SELECT FROM ledger.steps WHERE job_id = job
                   AND (state = 'leased' OR (state = 'ready' AND attempt > 0))) INTO busy;
    IF busy THEN
        RETURN 'cancelling';
    END IF;
    PERFORM ledger.end_job(job, 'cancelled_by_user', jsonb_build_object('by', who));
    RETURN 'cancelled';
END $$;

-- ----------------------------------------------------------------------------------------------------------- steps

CREATE OR REPLACE FUNCTION ledger.insert_step(
    job bigint, agent bigint, number integer, what text, told jsonb, delay interval
) RETURNS bigint LANGUAGE plpgsql AS $$
-- A step without delay is recorded as offered: who completes its predecessor sends its message.
DECLARE
    instant timestamptz := ledger.now();
    new_id bigint;
BEGIN
    INSERT INTO ledger.steps (job_id, agent_id, seq, kind, queue, input, created_at, available_at, offered_at)
    VALUES (job, agent, number, what, ledger.queue_of(what), told, instant, instant + delay,
            CASE WHEN delay = '0' THEN instant END)
    RETURNING id INTO new_id;
    RETURN new_id;
END $$;

CREATE OR REPLACE FUNCTION ledger.add_step(job bigint, agent bigint, what text, told jsonb, delay interval)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number integer;
BEGIN
    UPDATE ledger.agents SET last_seq = last_seq + 1 WHERE id = agent RETURNING last_seq INTO number;
    RETURN ledger.insert_step(job, agent, number, what, told, delay);
END $$;

CREATE OR REPLACE FUNCTION ledger.queue_of(kind text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE kind WHEN 'decide' THEN 'decide' WHEN 'join' THEN 'decide' WHEN 'publish' THEN 'publish'
           ELSE 'sandbox' END
$$;

CREATE OR REPLACE FUNCTION ledger.lease_step(
    step bigint, owner text, duration interval, queues text[], max_attempts integer
) RETURNS TABLE (
    fence bigint, attempt integer, kind text, seq integer, job_id bigint, batch_id bigint, batch_name text,
    agent_id bigint, spec jsonb, head_tree text, input jsonb, free ledger.amounts, reserve ledger.amounts,
    model_state jsonb, recent text, submitted_at timestamptz, deadline_at timestamptz, remaining_ms bigint, ending text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    job ledger.jobs;
    found_step ledger.steps;
    must_end text;
    instant timestamptz;
BEGIN
    SELECT j.* INTO job FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id
    WHERE s.id = step FOR NO KEY UPDATE OF j;
    IF NOT FOUND OR job.finished_at IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT * INTO found_step FROM ledger.steps s WHERE s.id = step FOR UPDATE;
    instant := ledger.now();
    IF found_step.state <> 'ready' OR found_step.available_at > instant OR found_step.queue <> ALL (queues)
       OR NOT ledger.may_work(found_step.queue) THEN
        RETURN;
    END IF;
    IF found_step.ending IS NULL AND job.cancel_requested_at IS NULL
       AND EXISTS (SELECT FROM ledger.batches b WHERE b.id = job.batch_id AND b.paused_at IS NOT NULL) THEN
        -- It waits here until the batch is resumed, so that nobody offers it again and again.
        UPDATE ledger.steps s SET available_at = 'infinity', offered_at = NULL WHERE s.id = step;
        RETURN;
    END IF;
    IF job.started_at IS NULL THEN
        UPDATE ledger.jobs SET state = 'running', started_at = instant,
            deadline_at = instant + make_interval(secs => wall_ms / 1000.0)
        WHERE id = job.id RETURNING * INTO job;
        PERFORM ledger.append_event(job.id, 'job_started', NULL, NULL,
            jsonb_build_object('deadline_at', job.deadline_at));
    END IF;
    must_end := CASE
        WHEN found_step.ending IS NOT NULL THEN found_step.ending
        WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled_by_user'
        WHEN found_step.attempt >= max_attempts THEN 'too_many_attempts'
        -- The agent's time is over once its result is verified: a publication may have to wait for its turn at a forge.
        WHEN job.deadline_at <= instant AND found_step.kind <> 'publish' THEN 'budget:deadline'
    END;
    IF must_end IS NOT NULL AND found_step.attempt = 0 THEN
        PERFORM ledger.end_job(job.id, must_end);
        RETURN;
    END IF;
    UPDATE ledger.steps s SET state = 'leased', attempt = s.attempt + 1, fence = s.fence + 1, lease_owner = owner,
        lease_expires_at = instant + duration, started_at = instant, ending = must_end
    WHERE s.id = step RETURNING * INTO found_step;
    IF found_step.attempt > 1 THEN
        PERFORM ledger.append_event(job.id, 'step_taken_again', found_step.agent_id, step, jsonb_build_object(
            'attempt', found_step.attempt, 'fence', found_step.fence, 'owner', owner, 'ending', must_end));
    END IF;
    RETURN QUERY
        SELECT found_step.fence, found_step.attempt, found_step.kind, found_step.seq, job.id, b.id, b.name, a.id,
               job.spec, a.head_tree, found_step.input, c.free, c.reserve,
               CASE WHEN found_step.kind = 'decide' THEN a.model_state ELSE '{}' END, array_to_string(a.recent, ' '),
               job.submitted_at, job.deadline_at,
               greatest((extract(epoch FROM job.deadline_at - instant) * 1000)::bigint, 0), must_end
        FROM ledger.agents a
        JOIN ledger.accounts c ON c.agent_id = a.id
        JOIN ledger.batches b ON b.id = job.batch_id
        WHERE a.id = found_step.agent_id;
END $$;

CREATE OR REPLACE FUNCTION ledger.held_step(step bigint, step_fence bigint) RETURNS ledger.steps
LANGUAGE plpgsql AS $$
-- Locks job and step for a writer that claims to hold this lease; PY001 if it does not.
DECLARE
    row ledger.steps;
BEGIN
    PERFORM FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id
    WHERE s.id = step FOR NO KEY UPDATE OF j;
    SELECT * INTO row FROM ledger.steps s
    WHERE s.id = step AND s.fence = step_fence AND s.state = 'leased' AND s.lease_expires_at > ledger.now()
    FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'PY001';
    END IF;
    RETURN row;
END $$;

CREATE OR REPLACE FUNCTION ledger.renew_leases(ids bigint[], fences bigint[], duration interval)
RETURNS TABLE (step_id bigint, cancelling boolean) LANGUAGE sql AS $$
    UPDATE ledger.steps s SET lease_expires_at = ledger.now() + duration
    FROM unnest(ids, fences) AS mine (id, fence), ledger.jobs j
    WHERE s.id = mine.id AND s.fence = mine.fence AND s.state = 'leased' AND s.lease_expires_at > ledger.now()
      AND j.id = s.job_id
    RETURNING s.id, j.cancel_requested_at IS NOT NULL
$$;

CREATE OR REPLACE FUNCTION ledger.complete_step(
    step bigint, step_fence bigint, outcome jsonb, took ledger.amounts,
    next_kind text, next_input jsonb, next_delay interval, end_reason text, new_state text,
    old_head text, new_head text, pack_sha256s text[], told jsonb, action text, action_state text,
    action_receipt jsonb, new_model_state jsonb, new_verdict jsonb, new_patch text, new_published jsonb,
    changed integer, mark text, marks_kept integer
) RETURNS TABLE (step_id bigint, queue text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    row ledger.steps;
    job ledger.jobs;
    short text;
    follows boolean;
    number integer;
    new_id bigint;
    nothing ledger.amounts := ledger.zero();
BEGIN
    SELECT j.* INTO job FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id
    WHERE s.id = step FOR NO KEY UPDATE OF j;
    SELECT * INTO row FROM ledger.steps s WHERE s.id = step;
    -- The one statement that decides whether this lease still counts; what it overwrites stays in `row`.
    UPDATE ledger.steps SET state = 'done', result = outcome, spent = took, finished_at = ledger.now(),
        lease_owner = NULL, lease_expires_at = NULL, held = nothing
    WHERE id = step AND fence = step_fence AND state = 'leased' AND lease_expires_at > ledger.now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'PY001';
    END IF;
    IF new_head IS NOT NULL THEN
        INSERT INTO ledger.packs (agent_id, seq, sha256)
        SELECT row.agent_id, row.seq, p FROM unnest(pack_sha256s) AS p ON CONFLICT DO NOTHING;
    END IF;
    IF action IS NOT NULL THEN
        UPDATE ledger.actions SET state = action_state, receipt = action_receipt, settled_at = ledger.now()
        WHERE action_id = action AND state = 'intended';
    END IF;
    short := ledger.settle(row.agent_id, row.held, took);
    follows := end_reason IS NULL AND job.cancel_requested_at IS NULL;
    IF follows OR new_head IS NOT NULL OR new_model_state IS NOT NULL THEN
        UPDATE ledger.agents SET head_tree = coalesce(new_head, head_tree),
            model_state = coalesce(new_model_state, model_state), last_seq = last_seq + follows::integer,
            recent = CASE WHEN mark IS NULL THEN recent
                          ELSE recent [cardinality(recent) - marks_kept + 2 :] || mark END
        WHERE id = row.agent_id AND (new_head IS NULL OR head_tree = old_head) RETURNING last_seq INTO number;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the head tree moved' USING ERRCODE = 'PY003';
        END IF;
    END IF;
    told := told || ledger.told('step_done', jsonb_build_object(
        'kind', row.kind, 'seq', row.seq, 'attempt', row.attempt, 'fence', row.fence, 'owner', row.lease_owner,
        'spent', to_jsonb(took), 'head', new_head));
    IF short IS NOT NULL THEN
        told := told || ledger.told('overrun',
            jsonb_build_object('resource', short, 'held', to_jsonb(row.held), 'took', to_jsonb(took)));
    END IF;
    PERFORM ledger.append_events(row.job_id, row.agent_id, step, told);
    IF new_state IS NOT NULL OR new_verdict IS NOT NULL OR new_patch IS NOT NULL THEN
        UPDATE ledger.jobs SET state = coalesce(new_state, state), verdict = coalesce(new_verdict, verdict),
            patch_sha256 = coalesce(new_patch, patch_sha256),
            published = coalesce(new_published, published), files_changed = coalesce(changed, files_changed)
        WHERE id = row.job_id;
    END IF;
    IF end_reason IS NOT NULL THEN
        PERFORM ledger.end_job(row.job_id, end_reason);
    ELSIF job.cancel_requested_at IS NOT NULL THEN
        PERFORM ledger.end_job(row.job_id, 'cancelled_by_user', jsonb_build_object('by', job.cancel_requested_by));
    ELSIF short IS NOT NULL THEN
        -- What would have followed is there, cancelled, for whoever adds to the budget.
        PERFORM ledger.insert_step(row.job_id, row.agent_id, number, next_kind, next_input, next_delay);
        PERFORM ledger.end_job(row.job_id, 'budget:' || short);
    ELSE
        new_id := ledger.insert_step(row.job_id, row.agent_id, number, next_kind, next_input, next_delay);
        IF next_delay = '0' THEN
            RETURN QUERY SELECT new_id, ledger.queue_of(next_kind);
        END IF;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION ledger.give_back(
    step bigint, step_fence bigint, why text, delay interval, took ledger.amounts, new_model_state jsonb,
    exhausted text, max_attempts integer, counted boolean, told jsonb
) RETURNS void LANGUAGE plpgsql AS $$
-- An attempt that was not `counted` (its worker had to end) is one that the step may make again.
DECLARE
    row ledger.steps;
    job ledger.jobs;
    short text;
    finished boolean;
BEGIN
    row := ledger.held_step(step, step_fence);
    SELECT * INTO STRICT job FROM ledger.jobs WHERE id = row.job_id;
    short := ledger.settle(row.agent_id, row.held, took);
    IF new_model_state IS NOT NULL THEN
        UPDATE ledger.agents SET model_state = new_model_state WHERE id = row.agent_id;
    END IF;
    -- A cleanup (`ending`) is tried until it succeeds: the job may not end before its sandboxes are proved dead.
    finished := row.ending IS NULL AND ((counted AND row.attempt >= max_attempts) OR short IS NOT NULL);
    UPDATE ledger.steps SET state = CASE WHEN finished THEN 'failed' ELSE 'ready' END,
        attempt = CASE WHEN counted THEN attempt ELSE attempt - 1 END,
        lease_owner = NULL, lease_expires_at = NULL, held = ledger.zero(), offered_at = NULL,
        available_at = ledger.now() + delay, finished_at = CASE WHEN finished THEN ledger.now() END,
        result = jsonb_build_object('given_back', why)
    WHERE id = step;
    PERFORM ledger.append_events(row.job_id, row.agent_id, step, told);
    PERFORM ledger.append_event(row.job_id, 'step_given_back', row.agent_id, step, jsonb_build_object(
        'why', why, 'attempt', row.attempt, 'delay_seconds', extract(epoch FROM delay), 'spent', to_jsonb(took)));
    IF finished THEN
        PERFORM ledger.end_job(row.job_id,
            CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled_by_user'
                 WHEN short IS NOT NULL THEN 'budget:' || short ELSE exhausted END,
            jsonb_build_object('why', why, 'attempts', row.attempt));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION ledger.refuse_claim(step bigint, resource text) RETURNS void LANGUAGE plpgsql AS $$
-- The account could not carry the step: nothing was started. The job ends, unless a former attempt left something to
-- prove dead first: then the step's next claim is that proof.
DECLARE
    row ledger.steps;
BEGIN
    PERFORM FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id WHERE s.id = step FOR NO KEY UPDATE OF j;
    SELECT * INTO row FROM ledger.steps WHERE id = step AND state = 'ready' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM ledger.append_event(row.job_id, 'hold_refused', row.agent_id, step,
        jsonb_build_object('resource', resource));
    IF row.attempt = 0 THEN
        PERFORM ledger.end_job(row.job_id, 'budget:' || resource);
    ELSE
        UPDATE ledger.steps SET ending = 'budget:' || resource, available_at = ledger.now(), offered_at = NULL
        WHERE id = step;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION ledger.note_unreadable(step bigint, why text, max_attempts integer) RETURNS void
LANGUAGE plpgsql AS $$
-- A worker of another version cannot read the job. It is offered again, ever later, so that a worker that can may take
-- it, and in the end it needs a person.
DECLARE
    row ledger.steps;
BEGIN
    PERFORM FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id WHERE s.id = step FOR NO KEY UPDATE OF j;
    SELECT * INTO row FROM ledger.steps WHERE id = step AND state = 'ready' FOR UPDATE;
    IF NOT FOUND OR row.available_at > ledger.now() THEN
        RETURN;
    END IF;
    UPDATE ledger.steps SET attempt = attempt + 1, offered_at = NULL,
        available_at = ledger.now() + make_interval(secs => 5 * 2 ^ row.attempt)
    WHERE id = step;
    PERFORM ledger.append_event(row.job_id, 'job_unreadable', row.agent_id, step,
        jsonb_build_object('why', why, 'attempt', row.attempt + 1));
    IF row.attempt + 1 >= max_attempts AND row.fence = 0 THEN
        PERFORM ledger.end_job(row.job_id, 'too_many_attempts', jsonb_build_object('why', why));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION ledger.expire_step(step bigint, max_attempts integer) RETURNS boolean
LANGUAGE plpgsql AS $$
-- A lease that ran out is taken away. What the attempt may have cost stays spent: a model call its whole hold of tokens
-- and money, a sandbox the time that passed, within the hold.
DECLARE
    row ledger.steps;
    job ledger.jobs;
    took ledger.amounts := ledger.zero();
BEGIN
    SELECT j.* INTO job FROM ledger.steps s JOIN ledger.jobs j ON j.id = s.job_id
    WHERE s.id = step FOR NO KEY UPDATE OF j SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT * INTO row FROM ledger.steps s
    WHERE s.id = step AND s.state = 'leased' AND s.lease_expires_at <= ledger.now() FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF row.kind = 'decide' THEN
        took.input_tokens := (row.held).input_tokens;
        took.output_tokens := (row.held).output_tokens;
        took.cost_microusd := (row.held).cost_microusd;
    ELSE
        took.sandbox_ms := least((row.held).sandbox_ms,
            (extract(epoch FROM ledger.now() - row.started_at) * 1000)::bigint);
    END IF;
    PERFORM ledger.settle(row.agent_id, row.held, took);
    UPDATE ledger.steps SET state = 'ready', lease_owner = NULL, lease_expires_at = NULL, held = ledger.zero(),
        available_at = ledger.now(), offered_at = NULL,
        ending = CASE WHEN row.ending IS NOT NULL THEN row.ending
                      WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled_by_user'
                      WHEN row.attempt >= max_attempts THEN 'too_many_attempts' END
    WHERE id = step;
    PERFORM ledger.append_event(row.job_id, 'lease_expired', row.agent_id, step, jsonb_build_object(
        'attempt', row.attempt, 'fence', row.fence, 'owner', row.lease_owner,
        'kept_as_spent', to_jsonb(took), 'attempts_left', greatest(max_attempts - row.attempt, 0)));
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION ledger.lease_owners(prefix text) RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT DISTINCT lease_owner FROM ledger.steps WHERE state = 'leased' AND starts_with(lease_owner, prefix)
$$;

CREATE OR REPLACE FUNCTION ledger.forfeit_leases(owner text) RETURNS bigint LANGUAGE sql AS $$
    -- The owner is known to be dead: its leases run out now, and the next sweep takes them.
    WITH forfeited AS (
        UPDATE ledger.steps SET lease_expires_at = ledger.now()
        WHERE state = 'leased' AND lease_owner = owner AND lease_expires_at > ledger.now() RETURNING id
    ) SELECT count(*) FROM forfeited
$$;

-- -------------------------------------------------------------------------------------------------------- dispatch

CREATE OR REPLACE FUNCTION ledger.admit(batch bigint, amount integer) RETURNS TABLE (step_id bigint, queue text)
LANGUAGE sql AS $$
    WITH chosen AS (
        SELECT id FROM ledger.jobs
        WHERE batch_id = batch AND admitted_at IS NULL AND state = 'queued'
        ORDER BY priority DESC, id LIMIT amount FOR NO KEY UPDATE SKIP LOCKED
    ), admitted AS (
        UPDATE ledger.jobs j SET admitted_at = ledger.now() FROM chosen WHERE j.id = chosen.id RETURNING j.id
    )
    UPDATE ledger.steps s SET available_at = ledger.now(), offered_at = ledger.now()
    FROM admitted WHERE s.job_id = admitted.id AND s.state = 'ready'
    RETURNING s.id, s.queue
$$;

CREATE OR REPLACE FUNCTION ledger.offer_ready(amount integer, stale interval) RETURNS TABLE (step_id bigint, queue text)
LANGUAGE sql AS $$
    WITH due AS (
        SELECT id FROM ledger.steps
        WHERE state = 'ready' AND available_at <= ledger.now()
          AND (offered_at IS NULL OR offered_at <= ledger.now() - stale)
        ORDER BY available_at LIMIT amount FOR UPDATE SKIP LOCKED
    )
    UPDATE ledger.steps s SET offered_at = ledger.now() FROM due WHERE s.id = due.id RETURNING s.id, s.queue
$$;

-- --------------------------------------------------------------------------------------------- actions and sandboxes

CREATE OR REPLACE FUNCTION ledger.intend(
    step bigint, step_fence bigint, action text, what text, args jsonb, changes text, old_tree text, new_tree text
) RETURNS TABLE (state text, receipt jsonb, after_tree text, was_there boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    row ledger.steps;
    known ledger.actions;
BEGIN
    row := ledger.held_step(step, step_fence);
    INSERT INTO ledger.actions (action_id, job_id, agent_id, step_id, tool, arguments, effect, before_tree, after_tree,
                                intended_at)
    VALUES (action, row.job_id, row.agent_id, step, what, args, changes, old_tree, new_tree, ledger.now())
    ON CONFLICT (action_id) DO NOTHING;
    IF FOUND THEN
        PERFORM ledger.append_event(row.job_id, 'action_intended', row.agent_id, step, jsonb_build_object(
            'action', action, 'tool', what, 'effect', changes, 'before', old_tree, 'after', new_tree));
        RETURN QUERY SELECT 'intended', NULL::jsonb, new_tree, false;
        RETURN;
    END IF;
    SELECT * INTO STRICT known FROM ledger.actions WHERE action_id = action;
    IF known.tool <> what OR known.arguments <> args OR known.agent_id <> row.agent_id THEN
        RAISE EXCEPTION 'action % stands for another payload', action USING ERRCODE = 'PY004';
    END IF;
    RETURN QUERY SELECT known.state, known.receipt, known.after_tree, true;
END $$;

CREATE OR REPLACE FUNCTION ledger.span_ms(since timestamptz, until timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce((extract(epoch FROM until - since) * 1000)::bigint, 0) $$;
