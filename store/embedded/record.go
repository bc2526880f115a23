package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reaper-ttl/reaper/store"
)

// recordRow is the JSON of a record's row; the rest is in the row's key.
type recordRow struct {
	Revision string         `json:"revision"`
	Fields   map[string]any `json:"fields"`
}

func recordPrefix(sort store.RecordSort, target string) []byte {
	return appendTerm(appendTerm([]byte{rowRecord}, string(sort)), target)
}

// encodeFields turns fields into what encoding/json prints without a loss: a
// float64 always shows that it is one.
func encodeFields(fields store.Fields) (map[string]any, error) {
	out := make(map[string]any, len(fields))
	for name, value := range fields {
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("the name of field %q is not UTF-8", name)
		}
		switch v := value.(type) {
		case string:
			if !utf8.ValidString(v) {
				return nil, fmt.Errorf("field %s is not UTF-8", name)
			}
			out[name] = v
		case int64, bool:
			out[name] = v
		case float64:
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, fmt.Errorf("field %s is %v, which no record holds", name, v)
			}
			s := strconv.FormatFloat(v, 'g', -1, 64)
			if !strings.ContainsAny(s, ".e") {
				s += ".0"
			}
			out[name] = json.Number(s)
		case []store.Fields:
			list := make([]map[string]any, len(v))
			for i := range v {
				var err error
				if list[i], err = encodeFields(v[i]); err != nil {
					return nil, fmt.Errorf("field %s, %d: %w", name, i, err)
				}
			}
			out[name] = list
		default:
			return nil, fmt.Errorf("field %s has a %T, which no record holds", name, value)
		}
	}
	return out, nil
}

func decodeFields(in map[string]any) (store.Fields, error) {
	out := make(store.Fields, len(in))
	for name, value := range in {
		switch v := value.(type) {
		case string, bool:
			out[name] = v
		case json.Number:
			if strings.ContainsAny(v.String(), ".eE") {
				f, err := v.Float64()
				if err != nil {
					return nil, fmt.Errorf("%w: field %s: %w", errRow, name, err)
				}
				out[name] = f
				continue
			}
			n, err := v.Int64()
			if err != nil {
				return nil, fmt.Errorf("%w: field %s: %w", errRow, name, err)
			}
			out[name] = n
		case []any:
			list := make([]store.Fields, len(v))
			for i := range v {
				nested, ok := v[i].(map[string]any)
				if !ok {
					return nil, fmt.Errorf("%w: field %s", errRow, name)
				}
				var err error
				if list[i], err = decodeFields(nested); err != nil {
					return nil, err
				}
			}
			out[name] = list
		default:
			return nil, fmt.Errorf("%w: field %s", errRow, name)
		}
	}
	return out, nil
}

func decodeRecord(b []byte) (revision string, fields store.Fields, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var row recordRow
	if err := d.Decode(&row); err != nil {
		return "", nil, fmt.Errorf("%w: %w", errRow, err)
	}
	fields, err = decodeFields(row.Fields)
	return row.Revision, fields, err
}

// Load implements [store.Store].
func (db *DB) Load(ctx context.Context, q store.RecordQuery) (recs store.Records, err error) {
	defer func() {
		if err != nil {
			recs, err = store.Records{}, fmt.Errorf("load %s of %s: %w", q.Sort, q.Target, err)
		}
	}()
	if err := q.Check(); err != nil {
		return recs, err
	}
	if err := db.enter(ctx); err != nil {
		return recs, err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	if len(q.Keys) > 0 {
		recs.List, err = db.loadKeys(q)
	} else {
		recs.List, recs.More, err = db.loadPage(ctx, q)
	}
	if err != nil {
		return recs, classify("read", err)
	}
	recs.Now = db.now().UTC()
	store.Bill(ctx, store.Operations{Reads: int64(max(1, len(recs.List), len(q.Keys)))})
	return recs, nil
}

func (db *DB) loadKeys(q store.RecordQuery) (list []store.Record, err error) {
	for _, key := range slices.Sorted(slices.Values(q.Keys)) {
		value, err := db.get(append(recordPrefix(q.Sort, q.Target), key...))
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue
		}
		if list, err = appendRecord(list, q, key, value); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (db *DB) loadPage(ctx context.Context, q store.RecordQuery) (list []store.Record, more bool, err error) {
	prefix := recordPrefix(q.Sort, q.Target)
	lower, upper := bytes.Clone(prefix), prefixEnd(bytes.Clone(prefix))
	if q.After != "" {
		lower = append(append(lower, q.After...), 0) // the next key there can be
	}
	if q.Before != "" {
		upper = append(bytes.Clone(prefix), q.Before...)
	}
	it, err := db.engine.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		if len(list) == q.Most() {
			return list, true, nil
		}
		if len(list)%ctxEvery == 0 && ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, false, err
		}
		if list, err = appendRecord(list, q, string(it.Key()[len(prefix):]), value); err != nil {
			return nil, false, err
		}
	}
	return list, false, it.Error()
}

// appendRecord decodes a record and appends it.
func appendRecord(list []store.Record, q store.RecordQuery, key string, value []byte) ([]store.Record, error) {
	revision, fields, err := decodeRecord(value)
	if err != nil {
		return list, fmt.Errorf("record %q: %w", key, err)
	}
	return append(list, store.Record{Sort: q.Sort, Key: key, Target: q.Target, Revision: revision, Fields: fields}), nil
}

// Save implements [store.Store]. It returns once the record is durable, and with
// it all that was written before; it waits for the disk without the write lock.
func (db *DB) Save(ctx context.Context, r store.Record, prev string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("save %s %q: %w", r.Sort, r.Key, err)
		}
	}()
	switch {
	case r.Sort == "" || r.Key == "" || r.Target == "":
		return invalid("a record has a sort, a key and a target")
	case len(r.Key) > maxIndexed || !utf8.ValidString(r.Key):
		return invalid("the key of a record is UTF-8 of at most %d bytes", maxIndexed)
	case r.Fields != nil && r.Revision == "":
		return invalid("a record has a revision")
	}
	var row []byte
	if r.Fields != nil {
		fields, err := encodeFields(r.Fields)
		if err != nil {
			return invalid("%w", err)
		}
		if row, err = json.Marshal(recordRow{r.Revision, fields}); err != nil {
			return invalid("%w", err)
		}
	}
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer db.leave()
	defer db.fault.rescue(&err)
	if err := db.acquire(ctx); err != nil {
		return err
	}
	batch := db.engine.NewBatch()
	bill, err := db.saveLocked(ctx, r, prev, row, batch)
	if err != nil {
		db.release()
		return errors.Join(err, batch.Close())
	}
	if err := db.commitDurably(batch); err != nil {
		return err
	}
	store.Bill(ctx, bill)
	return nil
}

// saveLocked adds to the batch what Save has to write. If there is nothing to write, the
// batch still makes the present record durable: it may come from a call that has not
// waited for the disk yet.
func (db *DB) saveLocked(
	ctx context.Context, r store.Record, prev string, row []byte, batch *pebble.Batch,
) (bill store.Operations, err error) {
	key := append(recordPrefix(r.Sort, r.Target), r.Key...)
	old, err := db.get(key)
	if err != nil {
		return bill, classify("read", err)
	}
	revision := ""
	if old != nil {
		if revision, _, err = decodeRecord(old); err != nil {
			return bill, classify("read", err)
		}
	}
	switch {
	case row == nil && old == nil, row != nil && revision == r.Revision:
		err = batch.LogData(nil, nil)
	case revision != prev:
		return bill, fmt.Errorf("%w: its revision is %q, not %q", store.ErrConflict, revision, prev)
	case row == nil:
		bill.Deletes, err = 1, batch.Delete(key, nil)
	default:
		bill.Writes, err = 1, batch.Set(key, row, nil)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return bill, classify("write", err)
	}
	return bill, nil
}
