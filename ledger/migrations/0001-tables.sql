-- The ledger's tables. Functions are in sql/engine.sql, which every migration run lays down again.
-- Lock order, everywhere: job, agents from the root down, accounts, step, action. Time is ledger.now().

CREATE SCHEMA ledger;

CREATE TYPE ledger.amounts AS (
    steps bigint,
    tool_calls bigint,
    agents bigint,
    input_tokens bigint,
    output_tokens bigint,
    cost_microusd bigint,
    sandbox_ms bigint
);

CREATE FUNCTION ledger.plus(a ledger.amounts, b ledger.amounts) RETURNS ledger.amounts
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ROW(
        (a).steps + (b).steps, (a).tool_calls + (b).tool_calls, (a).agents + (b).agents,
        (a).input_tokens + (b).input_tokens, (a).output_tokens + (b).output_tokens,
        (a).cost_microusd + (b).cost_microusd, (a).sandbox_ms + (b).sandbox_ms
    )::ledger.amounts
$$;

CREATE FUNCTION ledger.covers(a ledger.amounts, b ledger.amounts) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (a).steps >= (b).steps AND (a).tool_calls >= (b).tool_calls AND (a).agents >= (b).agents
       AND (a).input_tokens >= (b).input_tokens AND (a).output_tokens >= (b).output_tokens
       AND (a).cost_microusd >= (b).cost_microusd AND (a).sandbox_ms >= (b).sandbox_ms
$$;

CREATE FUNCTION ledger.zero() RETURNS ledger.amounts
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT ROW(0, 0, 0, 0, 0, 0, 0)::ledger.amounts $$;

CREATE TABLE ledger.batches (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    weight double precision NOT NULL CHECK (weight > 0),
    max_parallel integer CHECK (max_parallel > 0),
    jobs integer NOT NULL CHECK (jobs > 0),
    submitted_at timestamptz NOT NULL,
    finished_at timestamptz
);
CREATE INDEX batches_open ON ledger.batches (id) WHERE finished_at IS NULL;

CREATE TABLE ledger.jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch_id bigint NOT NULL REFERENCES ledger.batches,
    key text NOT NULL,
    state text NOT NULL DEFAULT 'queued' CHECK (state IN (
        'queued', 'running', 'awaiting_approval', 'verifying', 'publishing',
        'completed', 'failed', 'cancelled', 'budget_exhausted', 'needs_attention')),
    reason text,
    spec jsonb NOT NULL,
    fingerprint text NOT NULL,
    priority smallint NOT NULL DEFAULT 0,
    wall_ms bigint NOT NULL CHECK (wall_ms > 0),
    submitted_at timestamptz NOT NULL,
    admitted_at timestamptz,
    started_at timestamptz,
    deadline_at timestamptz,
    finished_at timestamptz,
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    verdict jsonb,
    patch_sha256 text,
    files_changed integer,
    UNIQUE (batch_id, key),
    CHECK ((state IN ('completed', 'failed', 'cancelled', 'budget_exhausted', 'needs_attention'))
           = (reason IS NOT NULL AND finished_at IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX jobs_waiting ON ledger.jobs (batch_id, priority DESC, id) WHERE admitted_at IS NULL AND state = 'queued';
CREATE INDEX jobs_active ON ledger.jobs (batch_id) WHERE admitted_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX jobs_unfinished ON ledger.jobs (batch_id) WHERE finished_at IS NULL;
CREATE INDEX jobs_by_state ON ledger.jobs (batch_id, state);

CREATE TABLE ledger.agents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL REFERENCES ledger.jobs,
    parent_id bigint REFERENCES ledger.agents,
    role text NOT NULL,
    goal text NOT NULL DEFAULT '',
    head_tree text NOT NULL,
    model_state jsonb NOT NULL DEFAULT '{}',
    last_seq integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    finished_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX agents_of_job ON ledger.agents (job_id);

-- One account an agent. `reserve` is the part of what is free that only the verification of the head may hold.
CREATE TABLE ledger.accounts (
    agent_id bigint PRIMARY KEY REFERENCES ledger.agents,
    granted ledger.amounts NOT NULL,
    spent ledger.amounts NOT NULL DEFAULT ledger.zero(),
    held ledger.amounts NOT NULL DEFAULT ledger.zero(),
    delegated ledger.amounts NOT NULL DEFAULT ledger.zero(),
    free ledger.amounts NOT NULL,
    reserve ledger.amounts NOT NULL DEFAULT ledger.zero(),
    CONSTRAINT conserved CHECK (
        granted = ledger.plus(ledger.plus(spent, held), ledger.plus(delegated, free))),
    CONSTRAINT spent_not_negative CHECK (ledger.covers(spent, ledger.zero())),
    CONSTRAINT held_not_negative CHECK (ledger.covers(held, ledger.zero())),
    CONSTRAINT delegated_not_negative CHECK (ledger.covers(delegated, ledger.zero())),
    CONSTRAINT free_not_negative CHECK (ledger.covers(free, ledger.zero()))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

-- `available_at` is infinity until the job is admitted. `ending` is set when a former attempt may have left a sandbox
-- behind and the job has to end: the next claim proves its death and then ends the job for that reason.
CREATE TABLE ledger.steps (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL REFERENCES ledger.jobs,
    agent_id bigint NOT NULL REFERENCES ledger.agents,
    seq integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('decide', 'act', 'join', 'verify', 'publish')),
    queue text NOT NULL CHECK (queue IN ('decide', 'sandbox', 'publish')),
    state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'leased', 'done', 'failed', 'cancelled')),
    attempt integer NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    lease_owner text,
    lease_expires_at timestamptz,
    held ledger.amounts NOT NULL DEFAULT ledger.zero(),
    ending text,
    available_at timestamptz NOT NULL,
    offered_at timestamptz,
    input jsonb NOT NULL DEFAULT '{}',
    result jsonb,
    spent ledger.amounts,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    UNIQUE (agent_id, seq),
    CHECK ((state = 'leased') = (lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX steps_ready ON ledger.steps (available_at) WHERE state = 'ready';
CREATE INDEX steps_leased ON ledger.steps (lease_expires_at) WHERE state = 'leased';
CREATE INDEX steps_of_job ON ledger.steps (job_id);

CREATE TABLE ledger.actions (
    action_id text PRIMARY KEY,
    job_id bigint NOT NULL REFERENCES ledger.jobs,
    agent_id bigint NOT NULL REFERENCES ledger.agents,
    step_id bigint NOT NULL REFERENCES ledger.steps,
    tool text NOT NULL,
    arguments jsonb NOT NULL,
    effect text NOT NULL CHECK (effect IN ('none', 'workspace', 'external')),
    before_tree text,
    after_tree text,
    state text NOT NULL DEFAULT 'intended' CHECK (state IN ('intended', 'done', 'refused', 'uncertain')),
    receipt jsonb,
    intended_at timestamptz NOT NULL,
    settled_at timestamptz,
    CHECK ((state = 'intended') = (receipt IS NULL))
);
CREATE INDEX actions_of_step ON ledger.actions (step_id);

CREATE TABLE ledger.objects (
    sha256 text PRIMARY KEY CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    kind text NOT NULL,
    size bigint NOT NULL,
    compressed boolean NOT NULL,
    data bytea NOT NULL,
    created_at timestamptz NOT NULL
);
ALTER TABLE ledger.objects ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE ledger.packs (
    agent_id bigint NOT NULL REFERENCES ledger.agents,
    seq integer NOT NULL,
    sha256 text NOT NULL REFERENCES ledger.objects,
    PRIMARY KEY (agent_id, seq, sha256)
);

CREATE TABLE ledger.evidence (
    key text PRIMARY KEY,
    run jsonb NOT NULL,
    job_id bigint NOT NULL REFERENCES ledger.jobs,
    created_at timestamptz NOT NULL
);

CREATE TABLE ledger.sandboxes (
    name text PRIMARY KEY,
    job_id bigint NOT NULL REFERENCES ledger.jobs,
    step_id bigint NOT NULL REFERENCES ledger.steps,
    fence bigint NOT NULL,
    engine_host text NOT NULL,
    image text NOT NULL,
    state text NOT NULL CHECK (state IN ('registered', 'created', 'running', 'exited', 'removed')),
    evidence jsonb NOT NULL DEFAULT '{}',
    registered_at timestamptz NOT NULL,
    removed_at timestamptz
) WITH (fillfactor = 70);
CREATE INDEX sandboxes_live ON ledger.sandboxes (step_id) WHERE state <> 'removed';
CREATE INDEX sandboxes_of_job ON ledger.sandboxes (job_id);

CREATE TABLE ledger.chains (
    job_id bigint PRIMARY KEY REFERENCES ledger.jobs,
    seq integer NOT NULL,
    hash bytea NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE ledger.events (
    job_id bigint NOT NULL REFERENCES ledger.jobs,
    seq integer NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    agent_id bigint,
    step_id bigint,
    body jsonb NOT NULL,
    prev_hash bytea NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (job_id, seq)
);

CREATE FUNCTION ledger.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are append-only: % refused', lower(TG_OP) USING ERRCODE = 'PY009';
END $$;
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON ledger.events
    FOR EACH ROW EXECUTE FUNCTION ledger.refuse_change();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON ledger.events
    FOR EACH STATEMENT EXECUTE FUNCTION ledger.refuse_change();
