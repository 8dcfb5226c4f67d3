-- Pools, their VMs, leases, hosts and events, as they were before rollouts.
--
-- Instants are nanoseconds since 1970-01-01 UTC, 0 = none. Flags are 0 or 1. Every row has a version, which grows with
-- every write; every write names the one it replaces. Foreign keys are deferred, because a commit holds many changes
-- whose rows fit together only as a whole.

-- +goose Up
CREATE TABLE store (
    id           INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    installation TEXT    NOT NULL CHECK (installation <> ''), -- marks our VMs on hosts
    epoch        INTEGER NOT NULL                             -- openings of this file so far
) STRICT;

INSERT INTO store (id, installation, epoch) VALUES (1, lower(hex(randomblob(16))), 0);

CREATE TABLE hosts (
    name             TEXT    NOT NULL PRIMARY KEY,
    address          TEXT    NOT NULL,
    tls_insecure     INTEGER NOT NULL CHECK (tls_insecure IN (0, 1)),
    tls_ca_file      TEXT    NOT NULL,
    tls_cert_file    TEXT    NOT NULL,
    tls_key_file     TEXT    NOT NULL,
    cordoned         INTEGER NOT NULL CHECK (cordoned IN (0, 1)),
    cordoned_reason  TEXT    NOT NULL,
    cordoned_at      INTEGER NOT NULL,
    max_vms          INTEGER NOT NULL, -- 0 = not limited
    memory_mb        INTEGER NOT NULL, -- 0 = not limited
    min_vm_memory_mb INTEGER NOT NULL, -- 0 = flintlock's own minimum
    reachable        INTEGER NOT NULL CHECK (reachable IN (0, 1)),
    message          TEXT    NOT NULL,
    changed_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    version          INTEGER NOT NULL CHECK (version >= 1)
) STRICT;

CREATE TABLE pools (
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    spec       BLOB    NOT NULL, -- poolmgr.v1alpha1.PoolSpec
    generation INTEGER NOT NULL CHECK (generation >= 1),
    next_slot  INTEGER NOT NULL CHECK (next_slot >= 0),
    short      INTEGER NOT NULL CHECK (short IN (0, 1)),
    closing    INTEGER NOT NULL CHECK (closing IN (0, 1)),
    owner      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    version    INTEGER NOT NULL CHECK (version >= 1),
    PRIMARY KEY (namespace, name)
) STRICT;

CREATE TABLE vms (
    id            TEXT    NOT NULL PRIMARY KEY, -- also the VM's name on its host
    namespace     TEXT    NOT NULL,
    pool          TEXT    NOT NULL,
    slot          TEXT    NOT NULL,
    phase         TEXT    NOT NULL CHECK (phase IN ('PROVISIONING', 'CREATE_HOOK_RUNNING', 'AVAILABLE',
                      'PRE_LEASE_HOOK_RUNNING', 'LEASED', 'DELETING', 'QUARANTINED', 'FAILED')),
    -- No index for this reference: hosts are removed rarely, VMs change often.
    host          TEXT REFERENCES hosts (name) DEFERRABLE INITIALLY DEFERRED, -- NULL until it is placed
    uid           TEXT    NOT NULL, -- the host's id of the VM
    vm_namespace  TEXT    NOT NULL, -- the namespace on the host
    lease_id      TEXT,
    reason        TEXT    NOT NULL,
    message       TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    not_before    INTEGER NOT NULL,
    sent_at       INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    available_at  INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    health        TEXT    NOT NULL CHECK (health IN ('', 'GOOD', 'UNKNOWN', 'BROKEN')),
    failed_probes INTEGER NOT NULL,
    probed_at     INTEGER NOT NULL,
    interfaces    TEXT    NOT NULL, -- JSON by device id; empty = none known
    version       INTEGER NOT NULL CHECK (version >= 1),
    FOREIGN KEY (namespace, pool) REFERENCES pools (namespace, name) DEFERRABLE INITIALLY DEFERRED,
    CHECK ((phase IN ('PROVISIONING', 'CREATE_HOOK_RUNNING', 'AVAILABLE')) = (slot <> '')),
    CHECK ((phase IN ('PRE_LEASE_HOOK_RUNNING', 'LEASED')) = (lease_id IS NOT NULL))
) STRICT;

CREATE INDEX vms_pool ON vms (namespace, pool);

CREATE TABLE leases (
    id                TEXT    NOT NULL PRIMARY KEY, -- a credential: whoever knows it holds the VM
    namespace         TEXT    NOT NULL,
    pool              TEXT    NOT NULL,
    vm                TEXT    NOT NULL UNIQUE REFERENCES vms (id) DEFERRABLE INITIALLY DEFERRED,
    request_id        TEXT    NOT NULL,
    consumer          TEXT    NOT NULL,
    owner             TEXT    NOT NULL,
    pending           INTEGER NOT NULL CHECK (pending IN (0, 1)),
    epoch             INTEGER NOT NULL,
    claimed_at        INTEGER NOT NULL,
    last_heartbeat_at INTEGER NOT NULL,
    expires_at        INTEGER NOT NULL,
    warned            INTEGER NOT NULL CHECK (warned IN (0, 1)),
    version           INTEGER NOT NULL CHECK (version >= 1)
) STRICT;

CREATE UNIQUE INDEX leases_request ON leases (namespace, pool, request_id) WHERE request_id <> '';

-- Events outlive their pool and their VM, so they refer to neither.
CREATE TABLE events (
    id        INTEGER NOT NULL PRIMARY KEY, -- grows by one
    namespace TEXT    NOT NULL,
    pool      TEXT    NOT NULL,
    vm        TEXT    NOT NULL,
    uid       TEXT    NOT NULL,
    type      TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    payload   TEXT    NOT NULL -- a JSON object; empty = none
) STRICT;

CREATE INDEX events_pool ON events (namespace, pool);
