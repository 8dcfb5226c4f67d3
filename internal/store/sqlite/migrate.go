package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

//go:embed migrations/*.sql
var migrations embed.FS

// versionTable records the steps that were applied.
const versionTable = "schema_version"

// adoptVersion is the number of the one step that is not SQL.
const adoptVersion = 3

// migrate brings the schema up to date, one step per transaction. A file of a newer release is left alone.
func migrate(ctx context.Context, db *sql.DB, logger *slog.Logger) error {
	provider, err := newProvider(db, logger)
	if err != nil {
		return err
	}
	have, want, err := provider.GetVersions(ctx)
	if err != nil {
		return damaged(fmt.Errorf("read the version of the schema: %w", err))
	}
	if have > want {
		return fmt.Errorf("%w: its schema has version %d and this release knows %d; use that release, or restore the backup made before the upgrade",
			store.ErrNewerSchema, have, want)
	}
	if have == want {
		return nil
	}
	if _, err := provider.Up(ctx); err != nil {
		return damaged(fmt.Errorf("bring the schema from version %d to %d: %w; the steps before the one that failed are kept", have, want, err))
	}
	logger.Info("brought the schema of the database up to date", slog.Int64("from", have), slog.Int64("to", want))
	return nil
}

func newProvider(db *sql.DB, logger *slog.Logger) (*goose.Provider, error) {
	folder, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("find the embedded migrations (this is a bug): %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, folder,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true),
		goose.WithSlog(logger),
		goose.WithGoMigrations(goose.NewGoMigration(adoptVersion, &goose.GoFunc{RunTx: adoptHashes}, nil)),
	)
	if err != nil {
		return nil, fmt.Errorf("read the embedded migrations (this is a bug): %w", err)
	}
	return provider, nil
}

// adoptHashes is the step after which every row has a hash: a pool without one gets that of its template, as revision
// 1, and its VMs count as made from it. They were made from some template, and an upgrade must not replace them all.
func adoptHashes(ctx context.Context, tx *sql.Tx) error {
	specs, err := specsWithoutHash(ctx, tx)
	if err != nil {
		return err
	}
	for _, spec := range specs {
		if err := adoptHash(ctx, tx, spec); err != nil {
			return fmt.Errorf("give pool %s its hash: %w", spec.Key, err)
		}
	}
	_, err = tx.ExecContext(ctx, `UPDATE vms SET (revision, template_hash) =
		(SELECT p.revision, p.template_hash FROM pools p WHERE p.namespace = vms.namespace AND p.name = vms.pool)
		WHERE template_hash = ''`)
	if err != nil {
		return fmt.Errorf("give VMs the hash of their pool: %w", err)
	}
	return nil
}

func specsWithoutHash(ctx context.Context, tx *sql.Tx) (specs []pool.Spec, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT spec FROM pools WHERE template_hash = '' ORDER BY namespace, name")
	if err != nil {
		return nil, fmt.Errorf("find pools without a hash: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var text []byte
		if err := rows.Scan(&text); err != nil {
			return nil, fmt.Errorf("find pools without a hash: %w", err)
		}
		spec, err := decodeSpec(text)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, rows.Err()
}

func adoptHash(ctx context.Context, tx *sql.Tx, spec pool.Spec) error {
	revision := pool.Revision{
		Pool: spec.Key, Number: 1, Template: spec.Template, CreateCommands: spec.CreateCommands,
		TemplateHash: pool.TemplateHash(spec.Template, spec.CreateCommands),
	}
	row := tx.QueryRowContext(ctx, "SELECT created_at FROM pools WHERE namespace = ? AND name = ?", spec.Namespace, spec.Name)
	if err := row.Scan(at(&revision.CreatedAt)); err != nil {
		return err
	}
	rest, err := revisionTable.restOf(&revision)
	if err != nil {
		return err
	}
	key := revisionTable.keyOf(engine.RevisionKey{Pool: spec.Key, Number: 1})
	if _, err := tx.ExecContext(ctx, revisionTable.insertSQL(), append(key, rest...)...); err != nil {
		return err
	}
	// A VM that was available once shows that the template boots, and so that its first rollout is over.
	_, err = tx.ExecContext(ctx, `UPDATE pools SET revision = 1, template_hash = @hash, rollout_started_at = created_at,
			rollout_proven = proven, rollout_completed = proven, rollout_last_completed = proven,
			rollout_completed_at = CASE WHEN proven THEN updated_at ELSE 0 END
		FROM (SELECT EXISTS (SELECT 1 FROM vms WHERE namespace = @namespace AND pool = @name AND available_at <> 0) AS proven)
		WHERE namespace = @namespace AND name = @name`,
		sql.Named("hash", revision.TemplateHash), sql.Named("namespace", spec.Namespace), sql.Named("name", spec.Name))
	return err
}
