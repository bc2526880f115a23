package google

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"

	"github.com/reaper-ttl/reaper/store"
)

// A reading asks for few entities until it knows their size, then for as many as fit, and for what is missing first.
func TestReading(t *testing.T) {
	const kB, mB = 1 << 10, 1 << 20
	for _, c := range []struct {
		what  string
		known int // the size that the kind had before
		sizes []int
		most  int // requests
		read  int // at least so many are read
		bytes int // at most so many
	}{
		{"small", 0, slices.Repeat([]int{kB}, 500), 4, 500, mB},
		{"small, known", kB, slices.Repeat([]int{kB}, 500), 1, 500, mB},
		{"large", 0, slices.Repeat([]int{mB}, 500), 1, 3, 4 * mB},
		{"large, known", mB, slices.Repeat([]int{mB}, 500), 1, 3, 4 * mB},
		{"missing", 0, make([]int, 500), 125, 500, 0},
		{"smaller than known", mB, slices.Repeat([]int{kB}, 500), 6, 500, mB},
		{"small, then large", 0, append(slices.Repeat([]int{kB}, 4), slices.Repeat([]int{mB}, 2)...), 2, 6, 3 * mB},
	} {
		var sizes Sizes
		if c.known > 0 {
			sizes.Read("K", 1).Got(0, c.known)
		}
		r := sizes.Read("K", len(c.sizes))
		requests, read, bytes := 0, 0, 0
		for next := r.Next(); len(next) > 0; next = r.Next() {
			requests++
			for _, i := range next {
				r.Got(i, c.sizes[i])
				read, bytes = read+1, bytes+c.sizes[i]
			}
		}
		if requests > c.most || read < c.read || bytes > c.bytes || read < len(c.sizes) && !r.Full() {
			t.Errorf("%s: %d requests read %d of %d bytes", c.what, requests, read, bytes)
		}
	}
	r := new(Sizes).Read("K", 9)
	r.Got(1, store.CopyBytes)
	if next := r.Next(); r.Full() || !slices.Equal(next, []int{0}) {
		t.Errorf("without the first: full %v, next %v", r.Full(), next)
	}
	if r = new(Sizes).Read("K", 9); !r.Halve(4) || len(r.Next()) != 2 || !r.Halve(2) || len(r.Next()) != 1 || r.Halve(1) {
		t.Error("it does not halve")
	}
}

func TestEncodeJSON(t *testing.T) {
	doc := &pb.Document{Name: "n", Fields: map[string]*pb.Value{}}
	for _, name := range []string{"b", "a", "ü <&> \u2028", "c"} {
		doc.Fields[name] = &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: map[string]*pb.Value{
			"x": {ValueType: &pb.Value_StringValue{StringValue: " a , b : c \n"}}}}}}
	}
	first, err := EncodeJSON(doc)
	if err != nil || strings.Contains(string(first), "\n") || !strings.HasPrefix(string(first), `{"name":"n","fields":{"a":{"mapValue":`) {
		t.Fatalf("%s, %v", first, err)
	}
	for range 50 {
		back := &pb.Document{}
		if err := DecodeJSON(first, back); err != nil || !proto.Equal(back, doc) {
			t.Fatalf("%v, %v", back, err)
		}
		if again, err := EncodeJSON(back); err != nil || string(again) != string(first) {
			t.Fatalf("%s, %v", again, err)
		}
	}
	doc.Fields["c"].GetMapValue().GetFields()["x"].ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1})
	if text, err := EncodeJSON(doc); !errors.Is(err, store.ErrFailed) {
		t.Errorf("%s, %v", text, err)
	}
	list := &pb.ArrayValue{Values: []*pb.Value{doc.Fields["a"], doc.Fields["c"]}}
	if text, err := EncodeJSON(list); !errors.Is(err, store.ErrFailed) {
		t.Errorf("%s, %v", text, err)
	}
	if err := DecodeJSON([]byte(`{"name":"n","novelty":1}`), &pb.Document{}); !errors.Is(err, store.ErrInvalid) {
		t.Error(err)
	}
}

type keeper func() error

func (k keeper) Keep(context.Context, []store.Copy) error { return k() }

func TestKeep(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	own := errors.New("own")
	one := make([]store.Copy, 1)
	for _, c := range []struct {
		list []store.Copy
		err  error
		want error
	}{
		{nil, own, nil}, {one, nil, nil}, {one, own, store.ErrFailed}, {one, store.ErrPushback, store.ErrPushback},
		{one, context.DeadlineExceeded, store.ErrFailed}, // its own, not the caller's
	} {
		err := Keep(ctx, keeper(func() error { return c.err }), c.list)
		if !errors.Is(err, c.want) || c.want != nil && !errors.Is(err, c.err) {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	if err := Keep(ctx, keeper(func() error { cancel(); return nil }), one); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
