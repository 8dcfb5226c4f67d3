package sqlite

import (
	"database/sql"
	"fmt"
	"unique"

	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
	"poolmgr/internal/store/engine"
)

// share gives the one copy of a text that many rows have: names of pools and hosts, hashes.
func share(texts ...*string) {
	for _, t := range texts {
		*t = unique.Make(*t).Value()
	}
}

var hostTable = table[pool.Host, string]{
	name: "hosts",
	key:  []string{"name"},
	rest: []string{
		"address", "tls_insecure", "tls_ca_file", "tls_cert_file", "tls_key_file",
		"cordoned", "cordoned_reason", "cordoned_at", "max_vms", "memory_mb", "min_vm_memory_mb",
		"reachable", "message", "changed_at", "updated_at", "version",
	},
	keyOf: func(name string) []any { return []any{name} },
	fixOf: func(*pool.Host) []any { return nil },
	restOf: func(h *pool.Host) ([]any, error) {
		return []any{
			h.Address, h.TLS.Insecure, h.TLS.CAFile, h.TLS.CertFile, h.TLS.KeyFile,
			h.Cordoned, h.CordonedReason, nanos(h.CordonedAt), h.MaxVMs, h.MemoryMB, h.MinVMMemoryMB,
			h.Reachable, h.Message, nanos(h.ChangedAt), nanos(h.UpdatedAt), h.Version,
		}, nil
	},
	load: func(rows *sql.Rows, n int) ([]pool.Host, error) {
		list := make([]pool.Host, 0, n)
		var h pool.Host
		columns := []any{
			&h.Name,
			&h.Address, &h.TLS.Insecure, &h.TLS.CAFile, &h.TLS.CertFile, &h.TLS.KeyFile,
			&h.Cordoned, &h.CordonedReason, at(&h.CordonedAt), &h.MaxVMs, &h.MemoryMB, &h.MinVMMemoryMB,
			&h.Reachable, &h.Message, at(&h.ChangedAt), at(&h.UpdatedAt), &h.Version,
		}
		for rows.Next() {
			if err := rows.Scan(columns...); err != nil {
				return nil, err
			}
			list = append(list, h)
		}
		return list, nil
	},
}

var vmTable = table[pool.VM, string]{
	name:  "vms",
	key:   []string{"id"},
	fixed: []string{"namespace", "pool"},
	rest: []string{
		"slot", "phase", "host", "uid", "vm_namespace",
		"revision", "template_hash", "restart", "for_rollout", "lease_id", "reason", "message", "attempt",
		"not_before", "sent_at", "created_at", "available_at", "updated_at",
		"health", "failed_probes", "probed_at", "interfaces", "version",
	},
	keyOf: func(id string) []any { return []any{id} },
	fixOf: func(v *pool.VM) []any { return []any{v.Pool.Namespace, v.Pool.Name} },
	restOf: func(v *pool.VM) ([]any, error) {
		interfaces, err := encodeInterfaces(v.Interfaces)
		if err != nil {
			return nil, fmt.Errorf("encode the interfaces of VM %s: %w", v.ID, err)
		}
		return []any{
			v.Slot, string(v.Phase), nullable(v.Host), v.UID, v.Namespace,
			v.Revision, v.TemplateHash, v.Restart, v.ForRollout, nullable(v.LeaseID), string(v.Reason), v.Message, v.Attempt,
			nanos(v.NotBefore), nanos(v.SentAt), nanos(v.CreatedAt), nanos(v.AvailableAt), nanos(v.UpdatedAt),
			string(v.Health), v.FailedProbes, nanos(v.ProbedAt), interfaces, v.Version,
		}, nil
	},
	load: func(rows *sql.Rows, n int) ([]pool.VM, error) {
		list := make([]pool.VM, 0, n)
		var v pool.VM
		var interfaces map[string]storedInterface
		columns := []any{
			&v.ID, &v.Pool.Namespace, &v.Pool.Name,
			&v.Slot, &v.Phase, refer(&v.Host), &v.UID, &v.Namespace,
			&v.Revision, &v.TemplateHash, &v.Restart, &v.ForRollout, refer(&v.LeaseID), &v.Reason, &v.Message, &v.Attempt,
			at(&v.NotBefore), at(&v.SentAt), at(&v.CreatedAt), at(&v.AvailableAt), at(&v.UpdatedAt),
			&v.Health, &v.FailedProbes, at(&v.ProbedAt), parse(&interfaces), &v.Version,
		}
		for rows.Next() {
			if err := rows.Scan(columns...); err != nil {
				return nil, err
			}
			v.Interfaces = decodeInterfaces(interfaces)
			share(&v.Pool.Namespace, &v.Pool.Name, &v.Host, &v.Namespace, &v.TemplateHash)
			list = append(list, v)
		}
		return list, nil
	},
}

var leaseTable = table[pool.Lease, string]{
	name:  "leases",
	key:   []string{"id"},
	fixed: []string{"namespace", "pool", "vm", "request_id"},
	rest: []string{
		"consumer", "owner", "pending", "epoch", "claimed_at", "last_heartbeat_at", "expires_at", "warned", "version",
	},
	keyOf: func(id string) []any { return []any{id} },
	fixOf: func(l *pool.Lease) []any { return []any{l.Pool.Namespace, l.Pool.Name, l.VM, l.RequestID} },
	restOf: func(l *pool.Lease) ([]any, error) {
		return []any{
			l.Consumer, l.Owner, l.Pending, l.Epoch,
			nanos(l.ClaimedAt), nanos(l.LastHeartbeatAt), nanos(l.ExpiresAt), l.Warned, l.Version,
		}, nil
	},
	load: func(rows *sql.Rows, n int) ([]pool.Lease, error) {
		list := make([]pool.Lease, 0, n)
		var l pool.Lease
		columns := []any{
			&l.ID, &l.Pool.Namespace, &l.Pool.Name, &l.VM, &l.RequestID,
			&l.Consumer, &l.Owner, &l.Pending, &l.Epoch,
			at(&l.ClaimedAt), at(&l.LastHeartbeatAt), at(&l.ExpiresAt), &l.Warned, &l.Version,
		}
		for rows.Next() {
			if err := rows.Scan(columns...); err != nil {
				return nil, err
			}
			share(&l.Pool.Namespace, &l.Pool.Name)
			list = append(list, l)
		}
		return list, nil
	},
}

// revisionTable has no versions, since a revision never changes.
var revisionTable = table[pool.Revision, engine.RevisionKey]{
	name:  "revisions",
	key:   []string{"namespace", "pool", "number"},
	rest:  []string{"template_hash", "template", "create_commands", "created_at"},
	keyOf: func(k engine.RevisionKey) []any { return []any{k.Pool.Namespace, k.Pool.Name, k.Number} },
	fixOf: func(*pool.Revision) []any { return nil },
	restOf: func(r *pool.Revision) ([]any, error) {
		template, err := marshal(r.Template)
		if err != nil {
			return nil, fmt.Errorf("encode the template of revision %d of %s: %w", r.Number, r.Pool, err)
		}
		commands, err := toJSON(r.CreateCommands, r.CreateCommands == nil)
		if err != nil {
			return nil, fmt.Errorf("encode the commands of revision %d of %s: %w", r.Number, r.Pool, err)
		}
		return []any{r.TemplateHash, template, commands, nanos(r.CreatedAt)}, nil
	},
	load: func(rows *sql.Rows, n int) ([]pool.Revision, error) {
		list := make([]pool.Revision, 0, n)
		for rows.Next() {
			var r pool.Revision
			var template []byte
			err := rows.Scan(&r.Pool.Namespace, &r.Pool.Name, &r.Number,
				&r.TemplateHash, &template, parse(&r.CreateCommands), at(&r.CreatedAt))
			if err != nil {
				return nil, err
			}
			r.Template = &vmtypes.MicroVMSpec{}
			if err := proto.Unmarshal(template, r.Template); err != nil {
				return nil, fmt.Errorf("decode the template of revision %d of %s: %w", r.Number, r.Pool, err)
			}
			list = append(list, r)
		}
		return list, nil
	},
}
