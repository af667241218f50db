-- One database role for each kind of service, with the least that it needs. A deployment gives each service a login of
-- its own and grants it the role of its kind: GRANT patchyard_sandbox TO my_sandbox_login.
-- Laid down at every migration run. Roles belong to the whole server: where the migrating user may not create them,
-- somebody who may has to run `CREATE ROLE patchyard_… NOLOGIN` once, and migrate again.
--
--   patchyard_scheduler  admits, offers, sweeps        patchyard_decide   works on decide steps, reads what models read
--   patchyard_sandbox    works on sandbox steps        patchyard_publish  works on publish steps
--   patchyard_api        submits, reads all, cancels, retries, resolves
--   patchyard_exporter   reads counts

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['scheduler', 'decide', 'sandbox', 'publish', 'api', 'exporter'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'patchyard_' || role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', 'patchyard_' || role);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE WARNING 'role patchyard_% is missing and may not be created by %', role, current_user;
                WHEN duplicate_object OR unique_violation THEN NULL;  -- another database's migration was faster
            END;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION ledger.may_work(queue text) RETURNS boolean LANGUAGE sql STABLE AS $$
    -- Whether whoever is logged in may take leases of this queue. A superuser, and the ledger's owner, may.
    SELECT pg_has_role(session_user, c.relowner, 'MEMBER')
        OR (EXISTS (SELECT FROM pg_roles WHERE rolname = 'patchyard_' || queue)
            AND pg_has_role(session_user, 'patchyard_' || queue, 'MEMBER'))
    FROM pg_class c WHERE c.oid = 'ledger.steps'::regclass
$$;

-- Every entry runs with the rights of the ledger's owner, so that a service needs no right on the tables behind it.
DO $$
DECLARE
    entry text;
BEGIN
    FOREACH entry IN ARRAY ARRAY[
        'lease_step', 'hold', 'refuse_claim', 'renew_leases', 'complete_step', 'give_back', 'held_step', 'append_events',
        'lease_owners', 'forfeit_leases', 'note_unreadable', 'intend', 'register_sandbox', 'bind_sandbox',
        'renew_armed', 'record_probe', 'expire_step', 'admit', 'offer_ready', 'request_cancel', 'reopen_job',
        'continue_job', 'pause_batch', 'resume_batch',
        'resolve_action', 'audit_job'
    ] LOOP
        EXECUTE (SELECT string_agg(format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp; '
                                          'REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC',
                                          p.oid::regprocedure, p.oid::regprocedure), '; ')
                 FROM pg_proc p WHERE p.pronamespace = 'ledger'::regnamespace AND p.proname = entry);
    END LOOP;
    FOREACH entry IN ARRAY ARRAY['append_event', 'settle', 'end_job', 'add_step', 'insert_step'] LOOP
        EXECUTE (SELECT string_agg(format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure), '; ')
                 FROM pg_proc p WHERE p.pronamespace = 'ledger'::regnamespace AND p.proname = entry);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION ledger.grant_to(kind text, entries text[], tables text[]) RETURNS void
LANGUAGE plpgsql AS $$
-- Gives the role of a kind of service its entries and its rights on tables ('SELECT ON ledger.jobs').
DECLARE
    role text := 'patchyard_' || kind;
    one text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
        RETURN;
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA ledger TO %I', role);
    FOREACH one IN ARRAY entries LOOP
        EXECUTE (SELECT string_agg(format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, role), '; ')
                 FROM pg_proc p WHERE p.pronamespace = 'ledger'::regnamespace AND p.proname = one);
    END LOOP;
    FOREACH one IN ARRAY tables LOOP
        EXECUTE format('GRANT %s TO %I', one, role);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION ledger.grant_to FROM PUBLIC;

-- Columns of steps without what models and tools said: enough to find out what became of a lease.
SELECT ledger.grant_to(kind,
    ARRAY['lease_step', 'hold', 'refuse_claim', 'renew_leases', 'complete_step', 'give_back', 'held_step',
          'append_events', 'intend', 'lease_owners', 'forfeit_leases', 'note_unreadable'],
    ARRAY['SELECT (id, job_id, agent_id, seq, queue, state, attempt, fence, lease_expires_at) ON ledger.steps',
          'SELECT, INSERT ON ledger.objects', 'SELECT ON ledger.packs'])
FROM unnest(ARRAY['decide', 'sandbox', 'publish']) AS kind;

-- Whether a step was given back is a fact of its own, so that its result need not be readable.
CREATE OR REPLACE FUNCTION ledger.given_back_by(step bigint, step_fence bigint) RETURNS boolean LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM ledger.steps WHERE id = step AND fence = step_fence
                   AND state IN ('ready', 'failed', 'cancelled') AND result ? 'given_back')
$$;

-- Which images jobs that have not ended need: what may not be taken away on a worker's machine.
CREATE OR REPLACE FUNCTION ledger.live_images() RETURNS TABLE (image text) LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT DISTINCT spec ->> 'image' FROM ledger.jobs WHERE finished_at IS NULL
$$;
REVOKE EXECUTE ON FUNCTION ledger.live_images FROM PUBLIC;

SELECT ledger.grant_to('sandbox', ARRAY['register_sandbox', 'bind_sandbox', 'renew_armed', 'record_probe', 'live_images'],
    ARRAY['SELECT, INSERT ON ledger.evidence', 'SELECT, UPDATE (state, evidence, removed_at) ON ledger.sandboxes',
          'SELECT ON ledger.probes']);
SELECT ledger.grant_to('publish', ARRAY[]::text[], ARRAY['SELECT (id, verdict) ON ledger.jobs',
    'SELECT ON ledger.sandboxes']);
SELECT ledger.grant_to('scheduler', ARRAY['expire_step', 'admit', 'offer_ready'],
    ARRAY['SELECT (id, batch_id, state, admitted_at, finished_at) ON ledger.jobs',
          'SELECT, UPDATE (finished_at) ON ledger.batches',
          'SELECT (id, job_id, state, lease_expires_at) ON ledger.steps']);
SELECT ledger.grant_to('api', ARRAY['request_cancel', 'reopen_job', 'continue_job', 'pause_batch', 'resume_batch',
                                 'resolve_action', 'audit_job', 'live_images'],
    ARRAY['SELECT ON ALL TABLES IN SCHEMA ledger',
          'INSERT ON ledger.batches, ledger.jobs, ledger.agents, ledger.accounts, ledger.steps, ledger.events, '
          || 'ledger.chains, ledger.objects']);
SELECT ledger.grant_to('exporter', ARRAY[]::text[],
    ARRAY['SELECT (id, batch_id, state, reason, admitted_at, started_at, finished_at) ON ledger.jobs',
          'SELECT ON ledger.batches, ledger.accounts, ledger.sandboxes, ledger.probes',
          'SELECT (id, job_id, parent_id) ON ledger.agents',
          'SELECT (id, job_id, agent_id, kind, queue, state, attempt, lease_expires_at, available_at) ON ledger.steps',
          'SELECT (action_id, job_id, tool, effect, state, intended_at) ON ledger.actions']);

CREATE OR REPLACE FUNCTION ledger.reads_models() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN ('patchyard_decide', 'patchyard_api')
                   AND pg_has_role(session_user, r.oid, 'MEMBER'))
$$;

-- What models read and said is in objects of its own kinds; only decide workers and people may read those.
ALTER TABLE ledger.objects ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_writes ON ledger.objects;
CREATE POLICY everybody_writes ON ledger.objects FOR INSERT WITH CHECK (true);
DROP POLICY IF EXISTS not_what_models_read ON ledger.objects;
CREATE POLICY not_what_models_read ON ledger.objects FOR SELECT USING (
    kind NOT IN ('replay', 'prompt', 'reply') OR ledger.reads_models());
