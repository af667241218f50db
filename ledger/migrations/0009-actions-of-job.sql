-- The actions of one job, for those who look at it: audit, show.

CREATE INDEX actions_of_job ON ledger.actions (job_id);
