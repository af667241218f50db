-- Probes and the sandboxes that they allow. Laid down with engine.sql at every migration run; the same lock order.

CREATE OR REPLACE FUNCTION ledger.record_probe(
    about text, image_digest text, backend text, runtime text, host jsonb, checks jsonb, took_ms bigint,
    lasts interval, lasts_failed interval
) RETURNS bigint LANGUAGE plpgsql AS $$
-- Writes down what was seen. Whether all is well is computed here, from the checks: one that does not say so is not.
DECLARE
    failed text[];
    probe bigint;
BEGIN
    SELECT coalesce(array_agg(c ->> 'name' ORDER BY n), '{}') INTO failed
    FROM jsonb_array_elements(checks) WITH ORDINALITY AS each (c, n) WHERE (c -> 'ok') IS DISTINCT FROM 'true'::jsonb;
    INSERT INTO ledger.probes (subject, image, backend, runtime, host, ok, failed, checks, took_ms, probed_at,
                               expires_at)
    VALUES (about, image_digest, backend, runtime, host, failed = '{}', failed, checks, took_ms, ledger.now(),
            ledger.now() + CASE WHEN failed = '{}' THEN lasts ELSE least(lasts, lasts_failed) END)
    RETURNING id INTO probe;
    RETURN probe;
END $$;

CREATE OR REPLACE FUNCTION ledger.require_probe(probe bigint, image_digest text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
-- PY005 unless the probe of this image found nothing amiss, has not run out, and was not followed by one about the same
-- subject that did.
BEGIN
    IF NOT EXISTS (
        SELECT FROM ledger.probes p WHERE p.id = probe AND p.ok AND p.image = image_digest
          AND p.expires_at > ledger.now()
          AND NOT EXISTS (SELECT FROM ledger.probes q WHERE q.subject = p.subject AND q.id > p.id AND NOT q.ok)) THEN
        RAISE EXCEPTION 'no valid probe allows this sandbox' USING ERRCODE = 'PY005';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION ledger.register_sandbox(
    step bigint, step_fence bigint, sandbox text, host text, image_digest text, sandbox_purpose text, probe bigint,
    armed interval
) RETURNS void LANGUAGE plpgsql AS $$
-- A sandbox of a job needs a probe that allows it. There is no way around this but to call the sandbox a probe's.
DECLARE
    row ledger.steps;
BEGIN
    row := ledger.held_step(step, step_fence);
    IF sandbox_purpose <> 'probe' THEN
        PERFORM ledger.require_probe(probe, image_digest);
    END IF;
    INSERT INTO ledger.sandboxes (name, job_id, step_id, fence, engine_host, image, purpose, probe_id, state,
                                  registered_at, armed_until)
    VALUES (sandbox, row.job_id, step, step_fence, host, image_digest, sandbox_purpose,
            CASE WHEN sandbox_purpose <> 'probe' THEN probe END, 'registered', ledger.now(), ledger.now() + armed);
END $$;

CREATE OR REPLACE FUNCTION ledger.bind_sandbox(step bigint, step_fence bigint, sandbox text) RETURNS boolean
LANGUAGE plpgsql AS $$
-- The armed sandbox becomes this step's, and is about to get its command: once, in its time, for a step of its own job,
-- and if its probe still allows it.
DECLARE
    row ledger.steps;
    armed ledger.sandboxes;
BEGIN
    row := ledger.held_step(step, step_fence);
    SELECT * INTO armed FROM ledger.sandboxes
    WHERE name = sandbox AND state = 'armed' AND job_id = row.job_id AND armed_until > ledger.now() FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM ledger.require_probe(armed.probe_id, armed.image);
    UPDATE ledger.sandboxes SET state = 'running', step_id = step, fence = step_fence, armed_until = NULL,
        evidence = evidence || jsonb_build_object('armed_by_step', armed.step_id,
                                                  'waited_ms', ledger.span_ms(armed.registered_at, ledger.now()))
    WHERE name = sandbox;
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION ledger.renew_armed(names text[], duration interval) RETURNS SETOF text
LANGUAGE sql AS $$
-- Those of the named that still wait, for a job that needs them, may wait on for `duration`; the others come back.
    WITH kept AS (
        UPDATE ledger.sandboxes b SET armed_until = ledger.now() + duration FROM ledger.jobs j
        WHERE b.name = ANY (names) AND b.armed_until > ledger.now() AND j.id = b.job_id
          AND b.state IN ('registered', 'created', 'armed') AND j.finished_at IS NULL AND j.cancel_requested_at IS NULL
        RETURNING b.name
    )
    SELECT name FROM unnest(names) AS asked (name) WHERE name NOT IN (SELECT kept.name FROM kept)
$$;
