package sqlite

import (
	"database/sql"
	"fmt"

	"poolmgr/internal/pool"
)

var poolTable = table[pool.Pool, pool.Key]{
	name: "pools",
	key:  []string{"namespace", "name"},
	rest: []string{
		"spec", "generation", "revision", "template_hash", "restart", "next_slot", "short", "closing", "owner",
		"rollout_last_completed", "rollout_started", "rollout_completed", "rollout_proven", "rollout_total",
		"rollout_started_at", "rollout_completed_at", "rollout_last_success", "rollout_last_stale_drop",
		"rollout_blocked_since", "rollout_failures", "rollout_rolled_back_from", "rollout_announced",
		"created_at", "updated_at", "version",
	},
	keyOf:  func(k pool.Key) []any { return []any{k.Namespace, k.Name} },
	fixOf:  func(*pool.Pool) []any { return nil },
	restOf: poolColumns,
	load:   loadPools,
}

func poolColumns(p *pool.Pool) ([]any, error) {
	spec, err := marshal(p.Spec.API())
	if err != nil {
		return nil, fmt.Errorf("encode the spec of %s: %w", p.Key(), err)
	}
	r := p.Rollout
	failures, err := encodeFailures(r.Failures)
	if err != nil {
		return nil, fmt.Errorf("encode the failures of %s: %w", p.Key(), err)
	}
	return []any{
		spec, p.Generation, p.Revision, p.TemplateHash, p.Restart, p.NextSlot, p.Short, p.Closing, p.Owner,
		r.LastCompleted, r.Started, r.Completed, r.Proven, r.Total,
		nanos(r.StartedAt), nanos(r.CompletedAt), nanos(r.LastSuccess), nanos(r.LastStaleDrop),
		nanos(r.BlockedSince), failures, r.RolledBackFrom, string(r.Announced),
		nanos(p.CreatedAt), nanos(p.UpdatedAt), p.Version,
	}, nil
}

func loadPools(rows *sql.Rows, n int) ([]pool.Pool, error) {
	list := make([]pool.Pool, 0, n)
	for rows.Next() {
		var p pool.Pool
		var key pool.Key
		var spec []byte
		var failures []storedFailure
		r := &p.Rollout
		err := rows.Scan(&key.Namespace, &key.Name,
			&spec, &p.Generation, &p.Revision, &p.TemplateHash, &p.Restart, &p.NextSlot, &p.Short, &p.Closing, &p.Owner,
			&r.LastCompleted, &r.Started, &r.Completed, &r.Proven, &r.Total,
			at(&r.StartedAt), at(&r.CompletedAt), at(&r.LastSuccess), at(&r.LastStaleDrop),
			at(&r.BlockedSince), parse(&failures), &r.RolledBackFrom, &r.Announced,
			at(&p.CreatedAt), at(&p.UpdatedAt), &p.Version)
		if err != nil {
			return nil, err
		}
		if p.Spec, err = decodeSpec(spec); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if p.Key() != key {
			return nil, fmt.Errorf("the row of pool %s holds the spec of %s", key, p.Key())
		}
		if r.Failures, err = decodeFailures(failures); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		share(&p.Spec.Namespace, &p.Spec.Name, &p.TemplateHash)
		list = append(list, p)
	}
	return list, nil
}
