package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	dsdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/internal/adopt"
)

// putLarge writes an entity with so many bytes, which is one that has no room for a key.
func putLarge(o oldWriter, id string, bytesOf int) error {
	blob := bytes.Repeat([]byte{7}, bytesOf)
	created := time.Now().Add(-time.Hour)
	switch o := o.(type) {
	case oldDatastore:
		_, err := o.client.Put(o.t.Context(), dsdk.NameKey("Session", id, nil), &dsdk.PropertyList{
			{Name: "created", Value: created}, {Name: "blob", Value: blob, NoIndex: true}})
		return err
	case oldNative:
		fields := map[string]*pb.Value{"created": {ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(created)}},
			"blob": {ValueType: &pb.Value_BytesValue{BytesValue: blob}}}
		_, err := o.client.Commit(o.t.Context(), &pb.CommitRequest{Database: o.root, Writes: []*pb.Write{{
			Operation: &pb.Write_Update{Update: &pb.Document{Name: o.root + "/documents/Session/" + id, Fields: fields}}}}})
		return err
	}
	panic("another writer")
}

// An entity that has no room for a key is kept as it is, counted and named; all others get
// theirs.
func TestAdoptAtTheSizeLimit(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	inBothModes(t, adoptTarget, func(t *testing.T, b *workdir, o oldWriter) {
		seed(o, 60)
		size := 0 // the largest that the store takes
		for lo, hi := 900_000, 1_100_000; lo < hi; {
			mid := (lo + hi + 1) / 2
			if err := putLarge(o, "large", mid); err == nil {
				lo, size = mid, mid
			} else {
				hi = mid - 1
			}
		}
		if size == 0 || size >= 1_100_000 {
			t.Fatalf("the emulator has no limit of an entity's size: %d bytes", size)
		}
		if err := putLarge(o, "large", size); err != nil {
			t.Fatal(err)
		}
		_, before := o.all()
		res := b.adopts("sessions", "--apply")
		if res.Stamped != 60 || res.Counts[adopt.Refused] != 1 || !strings.Contains(res.Samples[adopt.Refused][0].Key, "large") {
			t.Errorf("%d bytes: %d stamped, %+v, %+v", size, res.Stamped, res.Counts, res.Samples[adopt.Refused])
		}
		keys, after := o.all()
		if after["large"] != before["large"] || keys["large"] != "" || len(keys) != 60 {
			t.Errorf("%d keys", len(keys))
		}
		if r := b.must(nil, "adopt", "sessions", "--apply"); !strings.Contains(r.out, "refused") || !strings.Contains(r.out, "large") {
			t.Errorf("%s", r.out)
		}
	})
}

// An adoption that the breaker holds ends with its exit code, as a sweep does; one that an
// operator holds ends in good order. Counting what is there is not held.
func TestAdoptOfATrippedTarget(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, strings.ReplaceAll(adoptTarget, "lease: 5s", "lease: 3s\n    breaker: {floor: 10}"))
	var in strings.Builder
	for i := range 40 {
		at := time.Now().Add(-40 * 24 * time.Hour).UTC().Format(time.RFC3339)
		fmt.Fprintf(&in, `{"id":"s-%03d","data":{"created":%q}}`+"\n", i, at)
	}
	b.must(strings.NewReader(in.String()), "load")
	b.adopts("sessions", "--apply")
	if r := b.run(nil, "sweep", "--apply"); r.code != exitBreaker {
		t.Fatalf("the first sweep: exit code %d: %s%s", r.code, r.out, r.log)
	}
	b.must(strings.NewReader(`{"id":"late","data":{"created":"2026-01-01T00:00:00Z"}}`+"\n"), "load")
	r := b.run(nil, "adopt", "sessions", "--apply")
	if r.code != exitBreaker || !strings.Contains(r.out, "then the target was held") || !strings.Contains(r.log, "breaker show") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
	}
	b.adopts("sessions") // the dry run
	if res := b.adopts("undo", "sessions", "--apply"); res.Removed != 40 {
		t.Errorf("%+v", res)
	}
}

// Only the flag begins an adoption, finishes it or takes it back: the variable is for sweeps.
func TestAdoptNeedsTheFlag(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, adoptTarget)
	b.must(strings.NewReader(`{"id":"a","data":{"created":"2026-11-01T00:00:00Z"}}`+"\n"), "load")
	set := b.env
	b.env = append(slices.Clone(set), "REAPER_APPLY=true")
	if res := b.adopts("sessions"); res.Apply || res.Stamped != 0 || b.status().Adoption != nil {
		t.Errorf("%+v", res)
	}
	if r := b.run(nil, "adopt", "sessions", "--watch"); r.code != exitUsage {
		t.Errorf("a watch: exit code %d: %s%s", r.code, r.out, r.log)
	}
	b.adopts("sessions", "--apply")
	for _, args := range [][]string{{"undo", "sessions"}, {"dual", "sessions"}, {"finish", "sessions"}, {"sessions", "--apply=false"}} {
		if res := b.adopts(args...); res.Apply || res.Phase != adopt.Stamping {
			t.Errorf("adopt %q: %+v", args, res)
		}
	}
	if st := b.status().Adoption; st == nil || st.Phase != adopt.Stamping || st.Written != 1 {
		t.Errorf("%+v", st)
	}
}

// Explain says of an entity what sweeps do with it: they keep one whose key disagrees with the
// rule, until the adoption is finished.
func TestExplainMismatch(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	b := newEmbedded(t, adoptTarget)
	b.must(strings.NewReader(`{"id":"a","expires":"2026-11-01T00:00:00Z","data":{"created":"2999-01-01T00:00:00Z"}}`+"\n"), "load")
	explain := func(want string) {
		t.Helper()
		if r := b.must(nil, "explain", "a"); !strings.Contains(r.out, "\n  "+want+":") {
			t.Errorf("not %s:\n%s", want, r.out)
		}
	}
	explain("due")
	b.adopts("sessions", "--apply")
	if res := b.sweep("--apply"); res.Mismatch != 1 || res.Deleted != 0 {
		t.Errorf("%+v", res)
	}
	explain("mismatch")
	b.must(nil, "pause", "--reason", "a test")
	explain("mismatch")
	b.must(nil, "resume")
	b.adopts("finish", "sessions", "--apply", "--accept", "1")
	explain("due")
}

// A rule that was given as flags need not be given again, and finish prints a target that has
// none: the record knows it.
func TestAdoptByTheRecordedRule(t *testing.T) {
	noRaces(t)
	t.Parallel() // most of it is waiting
	file, _, _ := strings.Cut(adoptTarget, "    adopt:")
	b := newEmbedded(t, file)
	b.must(strings.NewReader(`{"id":"a","data":{"created":"2026-11-01T00:00:00Z"}}`+"\n"), "load")
	for _, order := range [][]string{{"sessions"}, {"verify", "sessions"}, {"undo", "sessions"}} {
		r := b.run(nil, append([]string{"adopt"}, order...)...)
		if r.code != exitUsage || !strings.Contains(r.log, "has no rule") {
			t.Errorf("adopt %q: exit code %d: %s%s", order, r.code, r.out, r.log)
		}
	}
	b.adopts("sessions", "--from", "created", "--plus", "30d", "--percent", "50", "--apply")
	for _, order := range [][]string{{"sessions", "--apply"}, {"dual", "sessions", "--apply"}, {"verify", "sessions"},
		{"finish", "sessions", "--apply"}, {"undo", "sessions", "--also-writers", "--apply"}} {
		if res := b.adopts(order...); res.Rule != "property created plus 30d" {
			t.Errorf("adopt %q: %+v", order, res)
		}
	}
}
