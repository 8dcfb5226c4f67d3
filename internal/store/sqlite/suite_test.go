package sqlite

import (
	"context"
	"testing"

	"poolmgr/internal/store"
	"poolmgr/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		path := newDatabase(t)
		return func(ctx context.Context) (store.Store, error) { return Open(ctx, path, Options{}) }
	})
}
