-- Sandboxes that are started ahead and wait for a command. `armed_until` is when one that waits is given up, by whoever
-- looks, whatever became of who started it. It is registered under the step that just ended, and bound to the step whose
-- command it runs.

ALTER TABLE ledger.sandboxes ADD COLUMN armed_until timestamptz;
ALTER TABLE ledger.sandboxes DROP CONSTRAINT sandboxes_state_check;
ALTER TABLE ledger.sandboxes ADD CONSTRAINT sandboxes_state_check
    CHECK (state IN ('registered', 'created', 'armed', 'running', 'exited', 'removed'));
