-- The state of a rollout that was last announced. A rollout of an earlier release is PROGRESSING, and the next pass tells
-- where it stands.

-- +goose Up
ALTER TABLE pools ADD COLUMN rollout_announced TEXT NOT NULL DEFAULT ''; -- empty = PROGRESSING
