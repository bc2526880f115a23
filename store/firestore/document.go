package firestore

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

// maxIndexed is the longest id and the longest text in an index, in bytes.
const maxIndexed = 1500

// dumpPage is how many documents Dump reads at a time.
const dumpPage = 300

var (
	reserved  = regexp.MustCompile(`(?s)^__.*__$`)
	numericID = regexp.MustCompile(`^__id(-?[0-9]+)__$`)
)

// Put implements [store.Writer], in one commit.
func (d *DB) Put(ctx context.Context, t store.Target, namespace string, entities []store.Entity) error {
	op := fmt.Sprintf("put %d of %s", len(entities), t.Kind)
	if err := check(t, namespace); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if len(entities) == 0 {
		return nil
	}
	if len(entities) > store.MaxPage {
		return fmt.Errorf("%s: %w: more than %d", op, store.ErrTooLarge, store.MaxPage)
	}
	writes := make([]*pb.Write, len(entities))
	seen := make(map[string]bool, len(entities))
	for i, e := range entities {
		key, err := documentKey(t, e)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if seen[key] {
			return fmt.Errorf("%s: %w: %s appears twice", op, store.ErrInvalid, key)
		}
		seen[key] = true
		fields, err := documentFields(t, e)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", op, key, err)
		}
		writes[i] = &pb.Write{Operation: &pb.Write_Update{Update: &pb.Document{Name: d.name(key), Fields: fields}}}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if _, err := d.commit(ctx, writes); err != nil {
		return d.fail(ctx, op, err)
	}
	return nil
}

// Key implements [store.Keyer].
func (d *DB) Key(t store.Target, _ string, e store.Entity) (string, error) { return documentKey(t, e) }

// ID implements [store.Keyer].
func (d *DB) ID(key string) (string, error) {
	id := key[strings.LastIndexByte(key, '/')+1:]
	if number := numericID.FindStringSubmatch(id); number != nil {
		return number[1], nil
	}
	return id, checkID(id)
}

// documentKey returns the path of an entity's document.
func documentKey(t store.Target, e store.Entity) (string, error) {
	id := e.Name
	if id == "" {
		if e.Number <= 0 {
			return "", fmt.Errorf("%w: a document has neither a name nor a positive number", store.ErrInvalid)
		}
		id = fmt.Sprintf("__id%d__", e.Number)
	} else if err := checkID(id); err != nil {
		return "", err
	}
	if e.Parent == "" {
		return t.Kind + "/" + id, nil
	}
	if !t.Group {
		return "", fmt.Errorf("%w: %s has the parent %s, but %s is no collection group",
			store.ErrInvalid, id, e.Parent, t.Kind)
	}
	segments := strings.Split(e.Parent, "/")
	if len(segments)%2 != 0 {
		return "", fmt.Errorf("%w: parent %s is the path of a collection: a document's has an even number of segments",
			store.ErrInvalid, e.Parent)
	}
	for _, s := range segments {
		if !numericID.MatchString(s) {
			if err := checkID(s); err != nil {
				return "", fmt.Errorf("parent %s: %w", e.Parent, err)
			}
		}
	}
	return e.Parent + "/" + t.Kind + "/" + id, nil
}

func checkID(id string) error {
	switch {
	case id == "" || id == "." || id == ".." || strings.Contains(id, "/") || reserved.MatchString(id) ||
		!utf8.ValidString(id):
		return fmt.Errorf("%w: no document can have the id %.80q", store.ErrInvalid, id)
	case len(id) > maxIndexed:
		return fmt.Errorf("%w: id %.80q… has %d bytes, more than %d", store.ErrInvalid, id, len(id), maxIndexed)
	}
	return nil
}

func documentFields(t store.Target, e store.Entity) (map[string]*pb.Value, error) {
	fields := map[string]*pb.Value{}
	if len(e.Data) > 0 {
		v, err := parseJSON(e.Data)
		if err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		if v.GetMapValue() == nil {
			return nil, fmt.Errorf("data: %w: it is no JSON object", store.ErrInvalid)
		}
		fields = v.GetMapValue().GetFields()
	}
	for _, name := range []string{t.Property, t.ShardProperty} {
		if _, taken := fields[name]; taken {
			return nil, fmt.Errorf("data: %w: it holds the field %s, which is set apart from the data", store.ErrInvalid, name)
		}
	}
	if e.Shard.Type != store.Missing {
		if t.ShardProperty == "" {
			return nil, fmt.Errorf("%w: the target has no shard property", store.ErrInvalid)
		}
		if err := checkShard(e.Shard); err != nil {
			return nil, err
		}
		fields[t.ShardProperty] = toValue(e.Shard)
	}
	switch v := e.Expiry; v.Type {
	case store.Missing:
	case store.Text:
		if !utf8.ValidString(v.Text) {
			return nil, fmt.Errorf("%w: the expiry %.80q is not UTF-8", store.ErrInvalid, v.Text)
		}
		if len(v.Text) > maxIndexed {
			return nil, fmt.Errorf("%w: the expiry has %d bytes, more than an index takes (%d)",
				store.ErrInvalid, len(v.Text), maxIndexed)
		}
		fields[t.Property] = toValue(v)
	case store.Instant:
		fields[t.Property] = toValue(v)
	default:
		value, err := parseJSON([]byte(v.Text))
		if err != nil {
			return nil, fmt.Errorf("expiry: %w", err)
		}
		fields[t.Property] = value
	}
	return fields, nil
}

// Dump implements [store.Dumper]. It reads some documents at a time: what is
// written meanwhile may or may not be among them.
func (d *DB) Dump(ctx context.Context, t store.Target, namespace string) iter.Seq2[store.Entity, error] {
	return func(yield func(store.Entity, error) bool) {
		op := "dump " + t.Kind
		if err := check(t, namespace); err != nil {
			yield(store.Entity{}, fmt.Errorf("%s: %w", op, err))
			return
		}
		parent, query := d.collection(t)
		query.OrderBy = []*pb.StructuredQuery_Order{ascending(nameField)}
		query.Limit = wrapperspb.Int32(dumpPage)
		for {
			var docs []*pb.Document
			err := d.query(ctx, parent, query, func(r *pb.RunQueryResponse) error {
				if r.GetDocument() != nil {
					docs = append(docs, r.GetDocument())
				}
				return nil
			})
			if err != nil {
				yield(store.Entity{}, d.fail(ctx, op, err))
				return
			}
			for _, doc := range docs {
				if !yield(d.entity(t, doc), nil) {
					return
				}
			}
			if len(docs) < dumpPage {
				return
			}
			last := &pb.Value{ValueType: &pb.Value_ReferenceValue{ReferenceValue: docs[len(docs)-1].GetName()}}
			query.StartAt = &pb.Cursor{Values: []*pb.Value{last}}
		}
	}
}

func (d *DB) entity(t store.Target, doc *pb.Document) store.Entity {
	var e store.Entity
	above, id := splitPath(d.key(doc.GetName()))
	if t.Group {
		e.Parent, _ = splitPath(above)
	}
	e.Name = id
	if m := numericID.FindStringSubmatch(id); m != nil {
		if n, err := strconv.ParseInt(m[1], 10, 64); err == nil && n > 0 {
			e.Name, e.Number = "", n
		}
	}
	data := make(map[string]any, len(doc.GetFields()))
	for name, v := range doc.GetFields() {
		switch shard := fromValue(v); {
		case name == t.Property:
			e.Expiry = shard
		case name == t.ShardProperty && checkShard(shard) == nil:
			e.Shard = shard
		default:
			data[name] = jsonValue(v)
		}
	}
	e.Data = []byte(google.JSONText(data))
	return e
}
