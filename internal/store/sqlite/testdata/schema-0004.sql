-- A database as a release of poolmgr wrote it. Never changed: later releases must open it.
BEGIN;
CREATE TABLE schema_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
INSERT INTO schema_version VALUES (1, 0, 1, '2026-03-04 05:06:07');
INSERT INTO schema_version VALUES (2, 1, 1, '2026-03-04 05:06:07');
INSERT INTO schema_version VALUES (3, 2, 1, '2026-03-04 05:06:07');
INSERT INTO schema_version VALUES (4, 3, 1, '2026-03-04 05:06:07');
INSERT INTO schema_version VALUES (5, 4, 1, '2026-03-04 05:06:07');
CREATE TABLE store (
    id           INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    installation TEXT    NOT NULL CHECK (installation <> ''), -- marks our VMs on hosts
    epoch        INTEGER NOT NULL                             -- openings of this file so far
) STRICT;
INSERT INTO store VALUES (1, 'fcfd52d03d0101d08f8d5bb1414dd94e', 1);
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
INSERT INTO hosts VALUES ('host-a', 'host-a:9090', 0, '', '', '', 0, '', 0, 40, 0, 0, 1, '', 1772600767000000089, 1772600767000000089, 1);
INSERT INTO hosts VALUES ('host-b', 'host-b:9090', 0, '', '', '', 0, '', 0, 40, 0, 0, 1, '', 1772600767000000089, 1772600767000000089, 1);
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
    version    INTEGER NOT NULL CHECK (version >= 1), revision INTEGER NOT NULL DEFAULT 0, template_hash TEXT NOT NULL DEFAULT '', restart INTEGER NOT NULL DEFAULT 0, rollout_last_completed INTEGER NOT NULL DEFAULT 0, rollout_started INTEGER NOT NULL DEFAULT 0 CHECK (rollout_started IN (0, 1)), rollout_completed INTEGER NOT NULL DEFAULT 0 CHECK (rollout_completed IN (0, 1)), rollout_proven INTEGER NOT NULL DEFAULT 0 CHECK (rollout_proven IN (0, 1)), rollout_total INTEGER NOT NULL DEFAULT 0, rollout_started_at INTEGER NOT NULL DEFAULT 0, rollout_completed_at INTEGER NOT NULL DEFAULT 0, rollout_last_success INTEGER NOT NULL DEFAULT 0, rollout_last_stale_drop INTEGER NOT NULL DEFAULT 0, rollout_blocked_since INTEGER NOT NULL DEFAULT 0, rollout_failures TEXT NOT NULL DEFAULT '', rollout_rolled_back_from INTEGER NOT NULL DEFAULT 0, rollout_announced TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, name)
) STRICT;
INSERT INTO pools VALUES ('default', 'web', X'0A03776562120764656661756C741A1A1A130A0874656D706C617465120766697874757265200128800120072A06686F73742D612A06686F73742D623204080210023A047472756542047472756548025202080A5A02083CA80632B206040880A305B80607C2060308901CCA0602083CD20602083CD80603', 1, 7, 0, 0, '', 1772600767000000089, 1772600771000000089, 7, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 0, 0, 0, 1, 0, 1772600767000000089, 0, 1772600771000000089, 0, 0, '', 0, '');
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
    version       INTEGER NOT NULL CHECK (version >= 1), revision INTEGER NOT NULL DEFAULT 0, template_hash TEXT NOT NULL DEFAULT '', restart INTEGER NOT NULL DEFAULT 0, for_rollout INTEGER NOT NULL DEFAULT 0 CHECK (for_rollout IN (0, 1)),
    FOREIGN KEY (namespace, pool) REFERENCES pools (namespace, name) DEFERRABLE INITIALLY DEFERRED,
    CHECK ((phase IN ('PROVISIONING', 'CREATE_HOOK_RUNNING', 'AVAILABLE')) = (slot <> '')),
    CHECK ((phase IN ('PRE_LEASE_HOOK_RUNNING', 'LEASED')) = (lease_id IS NOT NULL))
) STRICT;
INSERT INTO vms VALUES ('web-00000001', 'default', 'web', 's0', 'PROVISIONING', NULL, '', 'default', NULL, '', '', 0, 0, 0, 1772600767000000089, 0, 1772600767000000089, 'GOOD', 0, 0, '', 1, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
INSERT INTO vms VALUES ('web-00000002', 'default', 'web', 's1', 'CREATE_HOOK_RUNNING', 'host-a', 'uid-web-00000002', 'default', NULL, '', '', 0, 0, 1772600767000000089, 1772600767000000089, 0, 1772600767000000089, 'GOOD', 0, 0, '{"eth1":{"host_device":"tap-web-00000002","index":4,"mac":"02:00:00:00:00:02"}}', 4, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
INSERT INTO vms VALUES ('web-00000003', 'default', 'web', 's2', 'AVAILABLE', 'host-a', 'uid-web-00000003', 'default', NULL, '', '', 0, 0, 1772600767000000089, 1772600767000000089, 1772600771000000089, 1772600771000000089, 'GOOD', 0, 1772600771000000089, '{"eth1":{"host_device":"tap-web-00000003","index":4,"mac":"02:00:00:00:00:03"}}', 5, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
INSERT INTO vms VALUES ('web-00000004', 'default', 'web', '', 'PRE_LEASE_HOOK_RUNNING', 'host-a', 'uid-web-00000004', 'default', 'lease-pending', '', '', 0, 0, 1772600767000000089, 1772600767000000089, 1772600768000000089, 1772600827000000089, 'GOOD', 0, 1772600768000000089, '{"eth1":{"host_device":"tap-web-00000004","index":4,"mac":"02:00:00:00:00:04"}}', 6, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
INSERT INTO vms VALUES ('web-00000005', 'default', 'web', '', 'LEASED', 'host-a', 'uid-web-00000005', 'default', 'lease-leased', '', '', 0, 0, 1772600767000000089, 1772600767000000089, 1772600769000000089, 1772600827000000089, 'GOOD', 0, 1772600769000000089, '{"eth1":{"host_device":"tap-web-00000005","index":4,"mac":"02:00:00:00:00:05"}}', 6, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
INSERT INTO vms VALUES ('web-00000006', 'default', 'web', '', 'DELETING', 'host-a', 'uid-web-00000006', 'default', NULL, 'RELEASED', '', 0, 0, 1772600767000000089, 1772600767000000089, 1772600770000000089, 1772600827000000089, 'GOOD', 0, 1772600770000000089, '{"eth1":{"host_device":"tap-web-00000006","index":4,"mac":"02:00:00:00:00:06"}}', 7, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
INSERT INTO vms VALUES ('web-00000007', 'default', 'web', '', 'QUARANTINED', 'host-a', 'uid-web-00000007', 'default', NULL, 'FAILED', 'exit code 1', 0, 0, 1772600767000000089, 1772600767000000089, 0, 1772600767000000089, 'GOOD', 0, 0, '{"eth1":{"host_device":"tap-web-00000007","index":4,"mac":"02:00:00:00:00:07"}}', 5, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
INSERT INTO vms VALUES ('web-00000008', 'default', 'web', 's6', 'PROVISIONING', NULL, '', 'default', NULL, '', '', 1, 0, 0, 1772600767000000089, 0, 1772600767000000089, 'GOOD', 0, 0, '', 1, 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', 0, 1);
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
INSERT INTO leases VALUES ('lease-pending', 'default', 'web', 'web-00000004', '', 'somebody', '', 1, 1, 1772600827000000089, 1772600827000000089, 1772600887000000089, 0, 1);
INSERT INTO leases VALUES ('lease-leased', 'default', 'web', 'web-00000005', 'request-1', '', '', 0, 1, 1772600827000000089, 1772600827000000089, 1772600887000000089, 0, 1);
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
INSERT INTO events VALUES (1, 'default', 'web', '', '', 'POOL_REPLENISHING', 1772600767000000089, '{"available":0,"count":7,"desired":7,"revision":1}');
INSERT INTO events VALUES (2, 'default', 'web', 'web-00000002', 'uid-web-00000002', 'VM_PROVISIONED', 1772600767000000089, '{"host":"host-a","revision":1,"slot":"s1","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000002"}');
INSERT INTO events VALUES (3, 'default', 'web', 'web-00000003', 'uid-web-00000003', 'VM_PROVISIONED', 1772600767000000089, '{"host":"host-a","revision":1,"slot":"s2","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000003"}');
INSERT INTO events VALUES (4, 'default', 'web', 'web-00000004', 'uid-web-00000004', 'VM_PROVISIONED', 1772600767000000089, '{"host":"host-a","revision":1,"slot":"s3","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000004"}');
INSERT INTO events VALUES (5, 'default', 'web', 'web-00000005', 'uid-web-00000005', 'VM_PROVISIONED', 1772600767000000089, '{"host":"host-a","revision":1,"slot":"s4","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000005"}');
INSERT INTO events VALUES (6, 'default', 'web', 'web-00000006', 'uid-web-00000006', 'VM_PROVISIONED', 1772600767000000089, '{"host":"host-a","revision":1,"slot":"s5","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000006"}');
INSERT INTO events VALUES (7, 'default', 'web', 'web-00000007', 'uid-web-00000007', 'VM_PROVISIONED', 1772600767000000089, '{"host":"host-a","revision":1,"slot":"s6","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000007"}');
INSERT INTO events VALUES (8, 'default', 'web', 'web-00000007', 'uid-web-00000007', 'VM_HOOK_FAILED', 1772600767000000089, '{"exit_code":1,"host":"host-a","message":"exit code 1","reason":"FAILED","revision":1,"slot":"s6","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000007"}');
INSERT INTO events VALUES (9, 'default', 'web', 'web-00000004', 'uid-web-00000004', 'VM_AVAILABLE', 1772600768000000089, '{"host":"host-a","revision":1,"slot":"s3","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000004"}');
INSERT INTO events VALUES (10, 'default', 'web', 'web-00000005', 'uid-web-00000005', 'VM_AVAILABLE', 1772600769000000089, '{"host":"host-a","revision":1,"slot":"s4","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000005"}');
INSERT INTO events VALUES (11, 'default', 'web', 'web-00000006', 'uid-web-00000006', 'VM_AVAILABLE', 1772600770000000089, '{"host":"host-a","revision":1,"slot":"s5","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000006"}');
INSERT INTO events VALUES (12, 'default', 'web', 'web-00000003', 'uid-web-00000003', 'VM_AVAILABLE', 1772600771000000089, '{"host":"host-a","revision":1,"slot":"s2","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000003"}');
INSERT INTO events VALUES (13, 'default', 'web', 'web-00000005', 'uid-web-00000005', 'VM_CLAIMED', 1772600827000000089, '{"expires_at":"2026-03-04T05:08:07.000000089Z","host":"host-a","revision":1,"slot":"s4","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000005"}');
INSERT INTO events VALUES (14, 'default', 'web', 'web-00000006', 'uid-web-00000006', 'VM_CLAIMED', 1772600827000000089, '{"expires_at":"2026-03-04T05:08:07.000000089Z","host":"host-a","revision":1,"slot":"s5","template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000006"}');
INSERT INTO events VALUES (15, 'default', 'web', 'web-00000006', 'uid-web-00000006', 'VM_RELEASED', 1772600827000000089, '{"host":"host-a","reason":"RELEASED","revision":1,"template_hash":"v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63","vm_id":"web-00000006"}');
CREATE TABLE revisions (
    namespace       TEXT    NOT NULL,
    pool            TEXT    NOT NULL,
    number          INTEGER NOT NULL CHECK (number >= 1),
    template_hash   TEXT    NOT NULL,
    template        BLOB    NOT NULL, -- flintlock.types.MicroVMSpec
    create_commands TEXT    NOT NULL, -- JSON array; empty = none
    created_at      INTEGER NOT NULL,
    PRIMARY KEY (namespace, pool, number),
    FOREIGN KEY (namespace, pool) REFERENCES pools (namespace, name) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
) STRICT;
INSERT INTO revisions VALUES ('default', 'web', 1, 'v1:0d5eb47cc743dd1a665aae7171815f01247983a0e213f7661498595cbbe5dd63', X'1A130A0874656D706C6174651207666978747572652001288001', '["true"]', 1772600767000000089);
CREATE INDEX vms_pool ON vms (namespace, pool);
CREATE UNIQUE INDEX leases_request ON leases (namespace, pool, request_id) WHERE request_id <> '';
CREATE INDEX events_pool ON events (namespace, pool);
COMMIT;
