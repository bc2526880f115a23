package datastore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

var _ store.Archiver = (*DB)(nil)

// Archives implements [store.Archiver]: every target's entities can be kept.
func (d *DB) Archives(store.Target) error { return nil }

// A whole is an entity as the service sent it: the client's own form of it would lack meanings, the flags of
// elements of arrays, and the database of keys.
type whole struct {
	read   bool
	result *pb.EntityResult // nil if it does not exist
}

func inTransaction(id []byte) *pb.ReadOptions {
	return &pb.ReadOptions{ConsistencyType: &pb.ReadOptions_Transaction{Transaction: id}}
}

// readWhole reads entities, which must differ, by as many lookups as it takes, until about CopyBytes are read,
// the first entity among them. The service may defer some of what it was asked for: these are asked for again.
func (d *DB) readWhole(ctx context.Context, how *pb.ReadOptions, kind string, keys []*sdk.Key) ([]whole, error) {
	all := make([]whole, len(keys))
	at := make(map[string]int, len(keys))
	for i, k := range keys {
		at[FormatKey(k)] = i
	}
	reading := d.sizes.Read(kind, len(keys))
	for next := reading.Next(); len(next) > 0; next = reading.Next() {
		req := &pb.LookupRequest{ProjectId: d.project, DatabaseId: d.database, ReadOptions: how}
		for _, i := range next {
			req.Keys = append(req.Keys, d.serviceKey(keys[i]))
		}
		var reply pb.LookupResponse
		if err := d.send(ctx, "Lookup", req, &reply); isTooLarge(err) && reading.Halve(len(next)) {
			continue
		} else if err != nil {
			return nil, err
		}
		answered := false
		for _, r := range reply.GetFound() {
			if i, ok := at[FormatKey(clientKey(r.GetEntity().GetKey()))]; ok && !all[i].read {
				all[i], answered = whole{true, r}, true
				reading.Got(i, proto.Size(r))
			}
		}
		for _, r := range reply.GetMissing() {
			if i, ok := at[FormatKey(clientKey(r.GetEntity().GetKey()))]; ok && !all[i].read {
				all[i].read, answered = true, true
				reading.Got(i, 0)
			}
		}
		if !answered {
			return nil, fmt.Errorf("%w: a lookup of %d keys tells of none", store.ErrUnavailable, len(next))
		}
	}
	return all, nil
}

func isTooLarge(err error) bool {
	var rpc *rpcError
	return errors.As(err, &rpc) && errors.Is(google.Sentinel(rpc.status), store.ErrTooLarge)
}

// propertyOf returns what a property of an entity holds, which may not exist.
func propertyOf(r *pb.EntityResult, name string) store.Value {
	return stored(clientForm(r.GetEntity().GetProperties()[name]))
}

// clientForm returns a value of the service in the client's form.
func clientForm(v *pb.Value) any {
	switch x := v.GetValueType().(type) {
	case *pb.Value_BooleanValue:
		return x.BooleanValue
	case *pb.Value_IntegerValue:
		return x.IntegerValue
	case *pb.Value_DoubleValue:
		return x.DoubleValue
	case *pb.Value_TimestampValue:
		return x.TimestampValue.AsTime()
	case *pb.Value_KeyValue:
		return clientKey(x.KeyValue)
	case *pb.Value_StringValue:
		return x.StringValue
	case *pb.Value_BlobValue:
		return x.BlobValue
	case *pb.Value_GeoPointValue:
		return sdk.GeoPoint{Lat: x.GeoPointValue.GetLatitude(), Lng: x.GeoPointValue.GetLongitude()}
	case *pb.Value_EntityValue:
		e := &sdk.Entity{}
		for name, inner := range x.EntityValue.GetProperties() {
			e.Properties = append(e.Properties, sdk.Property{Name: name, Value: clientForm(inner)})
		}
		return e
	case *pb.Value_ArrayValue:
		list := []any{}
		for _, inner := range x.ArrayValue.GetValues() {
			list = append(list, clientForm(inner))
		}
		return list
	default:
		return nil
	}
}

// copyOf returns an entity as an archive gets it.
func copyOf(t store.Target, r *pb.EntityResult) (store.Copy, error) {
	key := FormatKey(clientKey(r.GetEntity().GetKey()))
	data, err := google.EncodeJSON(r.GetEntity())
	if err != nil {
		return store.Copy{}, fmt.Errorf("%s: %w", key, err)
	}
	c := store.Copy{Key: key, Data: data, Version: strconv.FormatInt(r.GetVersion(), 10),
		Expiry: propertyOf(r, t.Property)}
	if at := r.GetCreateTime(); at != nil {
		c.Created = at.AsTime()
	}
	if at := r.GetUpdateTime(); at != nil {
		c.Updated = at.AsTime()
	}
	return c, nil
}

// keep gives entities to an archive.
func keep(ctx context.Context, archive store.Archive, t store.Target, list []*pb.EntityResult) error {
	copies := make([]store.Copy, len(list))
	for i, r := range list {
		var err error
		if copies[i], err = copyOf(t, r); err != nil {
			return err
		}
	}
	return google.Keep(ctx, archive, copies)
}

// checkAndKeep decides about the keys of a set by reading the entities of those whole that are not carried, in the
// transaction with this id. What is doomed and not carried is given to the archive. About keys that were not read it
// decides nothing.
func (d *DB) checkAndKeep(ctx context.Context, tx *sdk.Transaction, id []byte, s *set) error {
	var carried, rest []int
	for k := range s.keys {
		if _, carry := s.to(k); carry {
			carried = append(carried, k)
		} else {
			rest = append(rest, k)
		}
	}
	if err := d.checkStored(ctx, tx, s, carried); err != nil {
		return err
	}
	q := s.batch.Query
	entities, err := d.readWhole(ctx, inTransaction(id), q.Target.Kind, pick(s.keys, rest))
	if err != nil {
		return err
	}
	premise := s.batch.PremiseProperty()
	var list []*pb.EntityResult
	for i, k := range rest {
		e := entities[i]
		if !e.read {
			continue
		}
		if at := e.result.GetUpdateTime(); at != nil {
			for _, op := range s.ops[k] {
				op.Entry.Written = at.AsTime()
			}
		}
		before := len(s.doomed)
		s.decide(k, e.result != nil, propertyOf(e.result, q.Target.Property), propertyOf(e.result, premise))
		if len(s.doomed) > before {
			list = append(list, e.result)
		}
	}
	return keep(ctx, q.Archive, q.Target, list)
}

// keepAll gives the entities with these keys to an archive, about CopyBytes at a time, and returns the keys of
// those that exist. It reads them in the transaction with this id.
func (d *DB) keepAll(
	ctx context.Context, id []byte, t store.Target, keys []*sdk.Key, archive store.Archive,
) (exist []*sdk.Key, err error) {
	for len(keys) > 0 {
		entities, err := d.readWhole(ctx, inTransaction(id), t.Kind+"/", keys) // of other sizes than its own
		if err != nil {
			return nil, err
		}
		var list []*pb.EntityResult
		var rest []*sdk.Key
		for i, e := range entities {
			switch {
			case !e.read:
				rest = append(rest, keys[i])
			case e.result != nil:
				list, exist = append(list, e.result), append(exist, keys[i])
			}
		}
		if err := keep(ctx, archive, t, list); err != nil {
			return nil, err
		}
		keys = rest
	}
	return exist, nil
}

// ExpiryOf returns what the property of target t holds in a copy that was archived for the target from; Missing if the
// entity is not of t's kind. Of a copy without Data nothing is known but its Expiry.
func (d *DB) ExpiryOf(c store.Copy, from, t store.Target) (store.Value, error) {
	key, err := ParseKey("", c.Key)
	switch {
	case err != nil || key.Kind != t.Kind:
		return store.Value{}, err
	case t.Property == from.Property:
		return c.Expiry, nil
	case c.Data == nil:
		return store.Value{}, nil
	}
	e := &pb.Entity{}
	if err := google.DecodeJSON(c.Data, e); err != nil {
		return store.Value{}, err
	}
	return stored(clientForm(e.GetProperties()[t.Property])), nil
}

// Fetch implements [store.Archiver], by lookups. It bills a read for each key that it looks up.
func (d *DB) Fetch(
	ctx context.Context, t store.Target, namespace string, keys []string, at time.Time,
) ([]store.Copy, error) {
	op := fmt.Sprintf("fetch %d of %s", len(keys), where(t, namespace))
	copies, err := d.fetch(ctx, t, namespace, keys, at)
	if whole := at.Truncate(time.Minute); err != nil && !at.IsZero() && !whole.Equal(at) && isRefused(err) {
		// The service keeps old versions of each whole minute only. Its words for that may change: ask.
		if _, again := d.fetch(ctx, t, namespace, keys[:1], whole); again == nil {
			err = fmt.Errorf("%w: so long ago, it knows whole minutes only: %w", store.ErrUnsupported, err)
		}
	}
	if err != nil {
		return nil, d.fail(ctx, op, err)
	}
	return copies, nil
}

// isRefused reports whether the service refused a read, but not because its instant has not come.
func isRefused(err error) bool {
	var rpc *rpcError
	return errors.As(err, &rpc) && errors.Is(google.Sentinel(rpc.status), store.ErrInvalid) &&
		!strings.Contains(rpc.status.Message(), "future")
}

func (d *DB) fetch(
	ctx context.Context, t store.Target, namespace string, keys []string, at time.Time,
) (copies []store.Copy, err error) {
	unique, place := google.Unique(keys)
	list := make([]*sdk.Key, len(unique))
	for i, text := range unique {
		if list[i], err = ParseKey(namespace, text); err != nil {
			return nil, err
		}
	}
	var how *pb.ReadOptions
	if !at.IsZero() {
		how = &pb.ReadOptions{ConsistencyType: &pb.ReadOptions_ReadTime{
			ReadTime: timestamppb.New(at.Truncate(time.Microsecond))}}
	}
	entities, err := d.readWhole(ctx, how, t.Kind, list)
	if err != nil {
		return nil, err
	}
	for i, text := range keys {
		e := entities[place[i]]
		if !e.read {
			break
		}
		c := store.Copy{Key: text}
		if e.result != nil {
			if c, err = copyOf(t, e.result); err != nil {
				return nil, err
			}
		}
		copies = append(copies, c)
	}
	return copies, nil
}

// Insert implements [store.Archiver], in one transaction that looks up which of the entities exist, a read for
// each, and inserts the others, a write for each.
func (d *DB) Insert(ctx context.Context, t store.Target, namespace string, list []store.Insertion) error {
	op := fmt.Sprintf("insert %d of %s", len(list), where(t, namespace))
	if err := google.CheckInsertions(list); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := d.insert(ctx, t, namespace, list); err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// An inserting is an entity that is to be inserted unless it exists.
type inserting struct {
	entity   *pb.Entity
	stripped string
	exists   bool
}

// insert inserts as many of a list, from its beginning on, as one request may hold.
func (d *DB) insert(ctx context.Context, t store.Target, namespace string, list []store.Insertion) error {
	var keys []*sdk.Key
	var all []inserting
	for i, size := 0, 0; i < min(len(list), d.most()); i++ {
		e, key, err := d.insertable(t, namespace, &list[i])
		if err != nil {
			return fmt.Errorf("%s: %w", list[i].Key, err)
		}
		if size += proto.Size(e); size > store.CopyBytes && i > 0 {
			break
		}
		keys, all = append(keys, key), append(all, inserting{entity: e, stripped: strip(e)})
	}
	if len(keys) == 0 {
		return nil
	}
	if err := d.insertNew(ctx, t, keys, all); err != nil {
		return err
	}
	for i, in := range all {
		if list[i].Outcome = store.Kept; !in.exists {
			list[i].Outcome, list[i].Stripped = store.Inserted, in.stripped
		}
	}
	return nil
}

// insertNew looks up which entities exist, and inserts the others, in one transaction.
func (d *DB) insertNew(ctx context.Context, t store.Target, keys []*sdk.Key, all []inserting) error {
	c := &call{mask: t.Property}
	ctx = withCall(ctx, c)
	tx, err := d.begin(ctx)
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			rollback(tx)
		}
	}()
	for _, g := range groups(keys) {
		_, found, err := d.look(ctx, tx, t.Property, "", pick(keys, g))
		if err != nil {
			return err
		}
		for i, n := range g {
			all[n].exists = found[i]
		}
	}
	req := &pb.CommitRequest{ProjectId: d.project, DatabaseId: d.database, Mode: pb.CommitRequest_TRANSACTIONAL,
		TransactionSelector: &pb.CommitRequest_Transaction{Transaction: c.tx}}
	for _, in := range all {
		if !in.exists {
			req.Mutations = append(req.Mutations, &pb.Mutation{Operation: &pb.Mutation_Insert{Insert: in.entity}})
		}
	}
	if err := ctx.Err(); err != nil || len(req.GetMutations()) == 0 {
		return err
	}
	if err := d.send(ctx, "Commit", req, &pb.CommitResponse{}); hasCode(err, codes.AlreadyExists) {
		return fmt.Errorf("%w: it was written after it was looked for: %w", store.ErrContention, err)
	} else if err != nil {
		return err
	}
	committed = true
	return nil
}

func hasCode(err error, code codes.Code) bool {
	var rpc *rpcError
	return errors.As(err, &rpc) && rpc.status.Code() == code
}

// insertable returns the entity that an insertion is to become, and its key.
func (d *DB) insertable(t store.Target, namespace string, in *store.Insertion) (*pb.Entity, *sdk.Key, error) {
	key, err := ParseKey(namespace, in.Key)
	if err != nil {
		return nil, nil, err
	}
	e := &pb.Entity{}
	if err := google.DecodeJSON(in.Data, e); err != nil {
		return nil, nil, err
	}
	if own := FormatKey(clientKey(e.GetKey())); own != in.Key {
		return nil, nil, fmt.Errorf("%w: it holds the entity %.200q", store.ErrInvalid, own)
	}
	e.Key = d.serviceKey(key)
	if in.AsIs || key.Kind != t.Kind {
		return e, key, nil
	}
	before := stored(clientForm(e.GetProperties()[t.Property]))
	switch in.To.Type {
	case before.Type:
		if in.To == before {
			return e, key, nil // with its flags
		}
	case store.Missing:
		delete(e.GetProperties(), t.Property)
		return e, key, nil
	}
	if e.Properties == nil {
		e.Properties = map[string]*pb.Value{}
	}
	switch in.To.Type {
	case store.Text:
		e.Properties[t.Property] = &pb.Value{ValueType: &pb.Value_StringValue{StringValue: in.To.Text}}
	case store.Instant:
		e.Properties[t.Property] = &pb.Value{ValueType: &pb.Value_TimestampValue{
			TimestampValue: timestamppb.New(in.To.Time)}}
	default:
		return nil, nil, fmt.Errorf("%w: its expiry cannot become %s", store.ErrInvalid, in.To)
	}
	return e, key, nil
}
