-- Revisions, hashes and the stored facts of a rollout. Rows that were there before have revision 0 and no hash; the next
-- step gives them their pool's.

-- +goose Up
ALTER TABLE pools ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN template_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE pools ADD COLUMN restart INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN rollout_last_completed INTEGER NOT NULL DEFAULT 0; -- revision; 0 = none
ALTER TABLE pools ADD COLUMN rollout_started INTEGER NOT NULL DEFAULT 0 CHECK (rollout_started IN (0, 1));
ALTER TABLE pools ADD COLUMN rollout_completed INTEGER NOT NULL DEFAULT 0 CHECK (rollout_completed IN (0, 1));
ALTER TABLE pools ADD COLUMN rollout_proven INTEGER NOT NULL DEFAULT 0 CHECK (rollout_proven IN (0, 1));
ALTER TABLE pools ADD COLUMN rollout_total INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN rollout_started_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN rollout_completed_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN rollout_last_success INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN rollout_last_stale_drop INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN rollout_blocked_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pools ADD COLUMN rollout_failures TEXT NOT NULL DEFAULT ''; -- JSON array; empty = none
ALTER TABLE pools ADD COLUMN rollout_rolled_back_from INTEGER NOT NULL DEFAULT 0; -- revision; 0 = none

ALTER TABLE vms ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE vms ADD COLUMN template_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE vms ADD COLUMN restart INTEGER NOT NULL DEFAULT 0;
ALTER TABLE vms ADD COLUMN for_rollout INTEGER NOT NULL DEFAULT 0 CHECK (for_rollout IN (0, 1));

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
