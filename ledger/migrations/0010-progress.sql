-- The fingerprints of an agent's last turns, oldest first: an agent that goes round in circles is stopped by them.

ALTER TABLE ledger.agents ADD COLUMN recent text[] NOT NULL DEFAULT '{}';
