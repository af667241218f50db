-- Turns at the forges: who may write to which forge, and when. All workers of all hosts share them.
-- A forge is locked after everything else of the lock order.

CREATE TABLE ledger.forges (
    forge text PRIMARY KEY,
    not_before timestamptz NOT NULL DEFAULT '-infinity',
    closed_because text
);

-- A turn is planned for its holder, and used once. What was used within the hour counts against the forge's limits.
CREATE TABLE ledger.forge_turns (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    forge text NOT NULL REFERENCES ledger.forges,
    holder text NOT NULL,
    planned_at timestamptz NOT NULL,
    used_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX forge_turns_unused ON ledger.forge_turns (forge, holder) WHERE used_at IS NULL;
CREATE INDEX forge_turns_planned ON ledger.forge_turns (forge, planned_at);
CREATE INDEX forge_turns_used ON ledger.forge_turns (forge, used_at) WHERE used_at IS NOT NULL;
