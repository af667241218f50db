-- External effects: their receipts, and the turns at the forges. Laid down again by every migration run, after
-- engine.sql and roles.sql, so it must stay re-runnable. Lock order: as in engine.sql, and the forge last.

CREATE OR REPLACE FUNCTION ledger.settle_effect(
    step bigint, step_fence bigint, action text, outcome text, told jsonb
) RETURNS void LANGUAGE plpgsql AS $$
-- The receipt of one external effect, the refusal, or what was found in the world that fits neither. A step may have
-- several effects, so this does not wait for its completion. A refused effect is known not to be in place: it may be
-- tried again and settled anew. Repeated with the same content it does nothing.
DECLARE
    row ledger.steps;
    known ledger.actions;
BEGIN
    row := ledger.held_step(step, step_fence);
    UPDATE ledger.actions SET state = outcome, receipt = told, settled_at = ledger.now()
    WHERE action_id = action AND agent_id = row.agent_id AND effect = 'external' AND state IN ('intended', 'refused')
      AND (state, receipt) IS DISTINCT FROM (outcome, told)
    RETURNING * INTO known;
    IF FOUND THEN
        PERFORM ledger.append_event(row.job_id, 'effect_' || outcome, row.agent_id, step, jsonb_build_object(
            'action', action, 'tool', known.tool, 'receipt', told));
        RETURN;
    END IF;
    SELECT * INTO known FROM ledger.actions WHERE action_id = action;
    IF NOT FOUND OR (known.state, known.receipt) IS DISTINCT FROM (outcome, told) THEN
        RAISE EXCEPTION 'action % was settled otherwise', action USING ERRCODE = 'PY004';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION ledger.known_effect(step bigint, step_fence bigint, action text)
RETURNS TABLE (state text, receipt jsonb) LANGUAGE plpgsql AS $$
-- What an earlier attempt left of an effect; no row when there is not even an intent.
#variable_conflict use_column
DECLARE
    row ledger.steps;
BEGIN
    row := ledger.held_step(step, step_fence);
    RETURN QUERY SELECT a.state, a.receipt FROM ledger.actions a
    WHERE a.action_id = action AND a.agent_id = row.agent_id;
END $$;

CREATE OR REPLACE FUNCTION ledger.postpone_step(step bigint, step_fence bigint, delay interval, why text)
RETURNS void LANGUAGE plpgsql AS $$
-- Gives a step back that only waits for its turn: the attempt is not counted. It never becomes the first one again,
-- since a step with attempts has been started.
DECLARE
    row ledger.steps;
    job ledger.jobs;
BEGIN
    row := ledger.held_step(step, step_fence);
    SELECT * INTO STRICT job FROM ledger.jobs WHERE id = row.job_id;
    PERFORM ledger.settle(row.agent_id, row.held, ledger.zero());
    UPDATE ledger.steps SET state = 'ready', lease_owner = NULL, lease_expires_at = NULL, held = ledger.zero(),
        attempt = greatest(row.attempt - 1, 1), offered_at = NULL, result = jsonb_build_object('given_back', why),
        available_at = ledger.now() + CASE WHEN job.cancel_requested_at IS NULL THEN delay ELSE interval '0' END
    WHERE id = step;
    PERFORM ledger.append_event(row.job_id, 'step_postponed', row.agent_id, step, jsonb_build_object(
        'why', why, 'delay_seconds', extract(epoch FROM delay)));
END $$;

CREATE OR REPLACE FUNCTION ledger.take_turn(
    step bigint, step_fence bigint, which text, who text, gap interval, per_minute integer, per_hour integer,
    use_it boolean
) RETURNS double precision LANGUAGE plpgsql AS $$
-- Seconds until `who` may write to the forge; 0 is now, and then the turn is used when `use_it` says so. The first
-- call plans a turn behind all others, so that those who wait come back one after the other and not all at once. What
-- holds whatever the plan says are the limits on turns used: the gap, and the numbers in any minute and any hour.
DECLARE
    instant timestamptz;
    closed_until timestamptz;
    mine ledger.forge_turns;
    due timestamptz;
BEGIN
    PERFORM ledger.held_step(step, step_fence);
    INSERT INTO ledger.forges (forge) VALUES (which) ON CONFLICT DO NOTHING;
    SELECT not_before INTO STRICT closed_until FROM ledger.forges WHERE forge = which FOR UPDATE;
    -- The time after the wait for that lock, on the ledger's clock.
    instant := clock_timestamp() + (ledger.now() - statement_timestamp());
    DELETE FROM ledger.forge_turns WHERE forge = which AND planned_at < instant - interval '1 hour';
    SELECT * INTO mine FROM ledger.forge_turns WHERE forge = which AND holder = who AND used_at IS NULL;
    IF NOT FOUND THEN
        INSERT INTO ledger.forge_turns (forge, holder, planned_at) VALUES (which, who, greatest(
            instant, closed_until,
            (SELECT max(planned_at) + gap FROM ledger.forge_turns WHERE forge = which),
            (SELECT planned_at + interval '1 minute' FROM ledger.forge_turns
             WHERE forge = which AND per_minute IS NOT NULL
             ORDER BY planned_at DESC OFFSET per_minute - 1 LIMIT 1),
            (SELECT planned_at + interval '1 hour' FROM ledger.forge_turns
             WHERE forge = which AND per_hour IS NOT NULL
             ORDER BY planned_at DESC OFFSET per_hour - 1 LIMIT 1)))
        RETURNING * INTO mine;
    END IF;
    due := greatest(
        mine.planned_at, closed_until,
        (SELECT max(used_at) + gap FROM ledger.forge_turns WHERE forge = which AND used_at IS NOT NULL),
        (SELECT used_at + interval '1 minute' FROM ledger.forge_turns
         WHERE forge = which AND used_at IS NOT NULL AND per_minute IS NOT NULL
         ORDER BY used_at DESC OFFSET per_minute - 1 LIMIT 1),
        (SELECT used_at + interval '1 hour' FROM ledger.forge_turns
         WHERE forge = which AND used_at IS NOT NULL AND per_hour IS NOT NULL
         ORDER BY used_at DESC OFFSET per_hour - 1 LIMIT 1));
    IF due > instant THEN
        RETURN extract(epoch FROM due - instant);
    END IF;
    IF use_it THEN
        UPDATE ledger.forge_turns SET used_at = instant, planned_at = instant WHERE id = mine.id;
    END IF;
    RETURN 0;
END $$;

CREATE OR REPLACE FUNCTION ledger.close_forge(which text, duration interval, why text) RETURNS void
LANGUAGE plpgsql AS $$
-- Nobody writes to the forge for so long. Turns planned already move back by the time that is lost, in their order.
DECLARE
    instant timestamptz := ledger.now();
    closed_until timestamptz;
BEGIN
    INSERT INTO ledger.forges (forge) VALUES (which) ON CONFLICT DO NOTHING;
    SELECT greatest(not_before, instant) INTO STRICT closed_until FROM ledger.forges WHERE forge = which FOR UPDATE;
    IF instant + duration <= closed_until THEN
        RETURN;
    END IF;
    UPDATE ledger.forges SET not_before = instant + duration, closed_because = why WHERE forge = which;
    UPDATE ledger.forge_turns SET planned_at = planned_at + (instant + duration - closed_until)
    WHERE forge = which AND used_at IS NULL AND planned_at >= closed_until;
END $$;

CREATE OR REPLACE FUNCTION ledger.closed_for(which text) RETURNS double precision LANGUAGE sql STABLE AS $$
    -- For how many seconds the forge still wants to be left alone.
    SELECT coalesce((SELECT extract(epoch FROM not_before - ledger.now())::double precision FROM ledger.forges
                     WHERE forge = which AND not_before > ledger.now()), 0)
$$;

-- Only publish workers come in here; they need no right on the tables behind.
DO $$
DECLARE
    entry text;
BEGIN
    FOREACH entry IN ARRAY ARRAY[
        'settle_effect', 'known_effect', 'postpone_step', 'take_turn', 'close_forge', 'closed_for'
    ] LOOP
        EXECUTE (SELECT format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp',
                               p.oid::regprocedure)
                 FROM pg_proc p WHERE p.pronamespace = 'ledger'::regnamespace AND p.proname = entry);
        EXECUTE (SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure)
                 FROM pg_proc p WHERE p.pronamespace = 'ledger'::regnamespace AND p.proname = entry);
    END LOOP;
END $$;
SELECT ledger.grant_to('publish',
    ARRAY['settle_effect', 'known_effect', 'postpone_step', 'take_turn', 'close_forge', 'closed_for'],
    ARRAY[]::text[]);
