package main

import (
	"strconv"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A layoutWriter sets the expiry of entities in the form of their target's layout, as
// applications do.
type layoutWriter struct {
	target  sweep.Target
	stamper func(id string) generation.Stamper // for layouts with expiry keys
}

// always returns the same stamper for every entity.
func always(s generation.Stamper) func(string) generation.Stamper {
	return func(string) generation.Stamper { return s }
}

// write sets the entity's expiry, unless it is nil, and its shard, unless it has one.
func (w layoutWriter) write(e *store.Entity, expires *time.Time) error {
	id := e.Name
	if id == "" {
		id = strconv.FormatInt(e.Number, 10) // its hash is that of its digits
	}
	if n := len(w.target.ShardValues); n > 0 && e.Shard.Type == store.Missing {
		e.Shard = w.target.ShardValues[expirykey.ShardOfName(id, n)]
	}
	if expires == nil {
		return nil
	}
	var err error
	e.Expiry, err = w.target.Layout.Form().Value(*expires, func(at time.Time) (expirykey.Key, error) {
		return w.stamper(id).Name(id, at)
	})
	return err
}
