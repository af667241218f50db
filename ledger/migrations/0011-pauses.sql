-- A batch that somebody has paused: none of its steps is begun until somebody resumes it.

ALTER TABLE ledger.batches ADD COLUMN paused_at timestamptz, ADD COLUMN paused_by text;
CREATE INDEX batches_paused ON ledger.batches (id) WHERE paused_at IS NOT NULL;
