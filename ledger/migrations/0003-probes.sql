-- Probes: the evidence that a sandbox of an image, a runtime and a host is isolated, and which sandbox relied on it.

CREATE TABLE ledger.probes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject text NOT NULL,
    image text NOT NULL,
    backend text NOT NULL,
    runtime text NOT NULL,
    host jsonb NOT NULL,
    ok boolean NOT NULL,
    failed text[] NOT NULL,
    checks jsonb NOT NULL CHECK (jsonb_typeof(checks) = 'array' AND jsonb_array_length(checks) > 0),
    took_ms bigint NOT NULL,
    probed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CHECK (ok = (failed = '{}')),
    CHECK (NOT ok OR NOT checks @? '$[*] ? (!(@.ok == true))')
);
CREATE INDEX probes_of_subject ON ledger.probes (subject, id DESC);
CREATE INDEX probes_of_image ON ledger.probes (image, id DESC);

-- `probe_id` is the probe that allowed the sandbox; a probe's own sandboxes, whose purpose is 'probe', have none.
ALTER TABLE ledger.sandboxes ADD COLUMN probe_id bigint REFERENCES ledger.probes;
ALTER TABLE ledger.sandboxes ADD COLUMN purpose text NOT NULL DEFAULT 'job' CHECK (purpose IN ('job', 'probe'));
