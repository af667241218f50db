-- Checks that cost less. PostgreSQL reads and plans every CHECK anew for each statement that writes a row, so what a
-- step writes most often is checked by one call of a function that is planned once a session. What they check is the same.

CREATE FUNCTION ledger.conserves(
    granted ledger.amounts, spent ledger.amounts, held ledger.amounts, delegated ledger.amounts, free ledger.amounts
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN granted.steps = spent.steps + held.steps + delegated.steps + free.steps
       AND granted.tool_calls = spent.tool_calls + held.tool_calls + delegated.tool_calls + free.tool_calls
       AND granted.agents = spent.agents + held.agents + delegated.agents + free.agents
       AND granted.input_tokens = spent.input_tokens + held.input_tokens + delegated.input_tokens + free.input_tokens
       AND granted.output_tokens
           = spent.output_tokens + held.output_tokens + delegated.output_tokens + free.output_tokens
       AND granted.cost_microusd
           = spent.cost_microusd + held.cost_microusd + delegated.cost_microusd + free.cost_microusd
       AND granted.sandbox_ms = spent.sandbox_ms + held.sandbox_ms + delegated.sandbox_ms + free.sandbox_ms;
END $$;

CREATE FUNCTION ledger.not_negative(a ledger.amounts) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN a.steps >= 0 AND a.tool_calls >= 0 AND a.agents >= 0 AND a.input_tokens >= 0 AND a.output_tokens >= 0
       AND a.cost_microusd >= 0 AND a.sandbox_ms >= 0;
END $$;

CREATE FUNCTION ledger.sound(
    kind text, queue text, state text, lease_owner text, lease_expires_at timestamptz
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN kind IN ('decide', 'act', 'join', 'verify', 'publish')
       AND queue IN ('decide', 'sandbox', 'publish')
       AND state IN ('ready', 'leased', 'done', 'failed', 'cancelled')
       AND (state = 'leased') = (lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL);
END $$;

ALTER TABLE ledger.accounts
    DROP CONSTRAINT conserved,
    DROP CONSTRAINT spent_not_negative,
    DROP CONSTRAINT held_not_negative,
    DROP CONSTRAINT delegated_not_negative,
    DROP CONSTRAINT free_not_negative,
    ADD CONSTRAINT conserved CHECK (ledger.conserves(granted, spent, held, delegated, free)),
    ADD CONSTRAINT spent_not_negative CHECK (ledger.not_negative(spent)),
    ADD CONSTRAINT held_not_negative CHECK (ledger.not_negative(held)),
    ADD CONSTRAINT delegated_not_negative CHECK (ledger.not_negative(delegated)),
    ADD CONSTRAINT free_not_negative CHECK (ledger.not_negative(free));

ALTER TABLE ledger.steps
    DROP CONSTRAINT steps_kind_check,
    DROP CONSTRAINT steps_queue_check,
    DROP CONSTRAINT steps_state_check,
    DROP CONSTRAINT steps_check,
    ADD CONSTRAINT sound CHECK (ledger.sound(kind, queue, state, lease_owner, lease_expires_at));
