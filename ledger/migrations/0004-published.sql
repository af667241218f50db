-- Where a job's verified patch went: {"to", "ref", "url", …}, as the publish step's receipt says.

ALTER TABLE ledger.jobs ADD COLUMN published jsonb;
