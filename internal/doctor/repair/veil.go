package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/reaper-ttl/reaper/store"
)

// errHealed is why a rebuilt record is not written: what it stands for has changed.
var errHealed = errors.New("the target record was written by somebody else meanwhile")

// A veil hides the target record that makes no sense. So what a sweep would write without a
// record is made by the code that sweeps use, and a veil puts it in the place of the one that it
// hides, by one compare-and-set: no process ever meets a target without a record, nor one that
// has lost its pause.
type veil struct {
	patient
	target  string
	was     store.Record // what is replaced
	hidden  bool         // there is one; otherwise it is lost
	carried store.Fields // are added to what is written

	mu    sync.Mutex
	mine  map[string]bool // revisions that were sent
	saved bool            // one of them was written
}

// store returns the veil as a store that has what the hidden one has, as far as a target record
// depends on it.
func (v *veil) store() store.Store {
	if e, ok := v.Store.(store.Exclusive); ok {
		return struct {
			*veil
			store.Exclusive
		}{v, e}
	}
	return v
}

// isSaved reports whether the veil has written a record.
func (v *veil) isSaved() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.saved
}

// isMine reports whether the record that the store has is one that the veil has written.
func (v *veil) isMine(list []store.Record) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(list) == 0 || !v.mine[list[0].Revision] {
		return false
	}
	v.saved = true
	return true
}

// isAsItWas reports whether the store has what was examined. A person may have edited it without a
// new revision.
func (v *veil) isAsItWas(list []store.Record) bool {
	if !v.hidden || len(list) == 0 {
		return !v.hidden && len(list) == 0
	}
	return list[0].Revision == v.was.Revision && reflect.DeepEqual(list[0].Fields, v.was.Fields)
}

// Load implements [store.Loader].
func (v *veil) Load(ctx context.Context, q store.RecordQuery) (store.Records, error) {
	got, err := v.patient.Load(ctx, q)
	switch {
	case err != nil, q.Sort != store.TargetRecord, q.Target != v.target, v.isMine(got.List):
		return got, err
	case !v.isAsItWas(got.List):
		return got, errHealed
	}
	got.List = nil
	return got, nil
}

// Save implements [store.Store].
func (v *veil) Save(ctx context.Context, rec store.Record, prev string) error {
	if rec.Sort != store.TargetRecord {
		return v.patient.Save(ctx, rec, prev)
	}
	got, err := v.patient.Load(ctx, store.RecordQuery{Sort: rec.Sort, Target: v.target, Keys: []string{v.target}})
	if err != nil {
		return err
	}
	if prev != "" || !v.isMine(got.List) && !v.isAsItWas(got.List) {
		return errHealed
	}
	rec.Fields = maps.Clone(rec.Fields)
	maps.Copy(rec.Fields, v.carried)
	v.mu.Lock()
	if v.mine == nil {
		v.mine = map[string]bool{}
	}
	v.mine[rec.Revision] = true
	v.mu.Unlock()
	err = v.Store.Save(ctx, rec, v.was.Revision) // once: before another try the record is looked at again
	switch {
	case errors.Is(err, store.ErrConflict):
		return errHealed
	case err == nil:
		v.mu.Lock()
		v.saved = true
		v.mu.Unlock()
	}
	return err
}

// Namespaces implements [store.Namespacer]; without it a store has the default one only.
func (v *veil) Namespaces(ctx context.Context) ([]string, error) {
	if n, ok := v.Store.(store.Namespacer); ok {
		return n.Namespaces(ctx)
	}
	return []string{""}, nil
}

// Drop implements [store.Dropper]; a record that is rebuilt drops nothing.
func (v *veil) Drop(context.Context, store.Target, string, string) error {
	return fmt.Errorf("%w: a repair drops no generation", store.ErrUnsupported)
}

// Dropped implements [store.Dropper]; a store without it has dropped nothing.
func (v *veil) Dropped(ctx context.Context, t store.Target) (string, error) {
	if d, ok := v.Store.(store.Dropper); ok {
		return d.Dropped(ctx, t)
	}
	return "", nil
}
