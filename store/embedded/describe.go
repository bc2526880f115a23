package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/reaper-ttl/reaper/store"
)

// Kinds lists tables that have entities, at most so many, in order. It costs a seek each.
func (db *DB) Kinds(ctx context.Context, most int) ([]string, error) {
	return db.terms(ctx, "list tables", []byte{rowEntity}, most)
}

// RecordedTargets lists the targets that have a record, at most so many, in order.
func (db *DB) RecordedTargets(ctx context.Context, most int) ([]string, error) {
	return db.terms(ctx, "list target records", appendTerm([]byte{rowRecord}, string(store.TargetRecord)), most)
}

// terms lists the texts that follow a prefix in the keys of rows, each once.
func (db *DB) terms(ctx context.Context, op string, prefix []byte, most int) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", op, err)
		}
	}()
	if err := db.enter(ctx); err != nil {
		return nil, err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	end := bytes.Clone(prefix)
	end[len(end)-1]++
	it, err := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: prefix, UpperBound: end})
	if err != nil {
		return nil, classify("read", err)
	}
	defer func() { err = classify("read", errors.Join(err, it.Close())) }()
	for ok := it.First(); ok && len(names) < most; {
		text, _, err := cutTerm(nil, it.Key()[len(prefix):])
		if err != nil {
			return nil, err
		}
		names = append(names, string(text))
		ok = it.SeekGE(prefixEnd(appendTerm(bytes.Clone(prefix), text)))
	}
	return names, it.Error()
}
