package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/archive"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// A scale is a store that weighs the batches, and refuses those with too many entities.
type scale struct {
	takes   int
	batches [][]store.Entity
}

func (s *scale) Put(_ context.Context, _ store.Target, _ string, entities []store.Entity) error {
	if len(entities) > s.takes {
		return fmt.Errorf("so many: %w", store.ErrTooLarge)
	}
	s.batches = append(s.batches, append([]store.Entity(nil), entities...))
	return nil
}

func (s *scale) sizes() (sizes []int) {
	for _, b := range s.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

func loaderInto(t *testing.T, s *scale) *loader {
	t.Helper()
	target := targetsForLines(t)[0]
	return &loader{now: time.Now, store: s, target: target, log: slog.New(slog.DiscardHandler),
		writer: layoutWriter{sweepTarget(target), always(generation.Stamper{Shards: 16})}}
}

func loadInto(t *testing.T, s *scale, lines string) *loader {
	t.Helper()
	l := loaderInto(t, s)
	if err := l.run(t.Context(), newLineReader(strings.NewReader(lines))); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLoadIsStopped while it waits for input: what it has read is written, and the result says that this is not all.
func TestLoadIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := &scale{takes: 500}
		l := loaderInto(t, s)
		in, input := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- l.run(ctx, newLineReader(readUntil(ctx, in))) }()
		if _, err := io.WriteString(input, heavyLines(3, 10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stop()
		if err := <-ended; err != nil || l.res.Written != 3 || l.res.Complete {
			t.Errorf("stopped: %v, %+v", err, l.res)
		}
		_ = input.Close()
	})
	if l := loadInto(t, &scale{takes: 500}, heavyLines(3, 10)); !l.res.Complete || l.res.Written != 3 {
		t.Errorf("not stopped: %+v", l.res)
	}
}

// An inserter is a store that only takes entities back.
type inserter struct{ typedStore }

func (inserter) Insert(_ context.Context, _ store.Target, _ string, list []store.Insertion) error {
	for i := range list {
		list[i].Outcome = store.Inserted
	}
	return nil
}

// TestTypedLoadIsStopped likewise.
func TestTypedLoadIsStopped(t *testing.T) {
	var lines []byte
	for i := range 3 {
		var err error
		if lines, err = archive.AppendLine(lines, "", store.Copy{Key: fmt.Sprintf(`"e-%d"`, i), Data: []byte("{}")}, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		target := targetsForLines(t)[0]
		l := &typedLoader{target: target, store: inserter{}, writer: layoutWriter{sweepTarget(target), always(generation.Stamper{Shards: 16})}}
		ended := make(chan error, 1)
		in, input := io.Pipe()
		go func() { ended <- l.run(ctx, newLineReader(readUntil(ctx, in))) }()
		if _, err := input.Write(lines); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stop()
		if err := <-ended; err != nil || l.res.Complete || l.res.Written != 3 {
			t.Errorf("stopped: %v, %+v", err, l.res)
		}
		_ = input.Close()
	})
}

func heavyLines(n, bytes int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"id\":%d,\"data\":{\"text\":\"%s\"}}\n", i+1, strings.Repeat("x", bytes))
	}
	return b.String()
}

// A commit has at most 500 entities and 3 MiB, whatever the mix of their sizes.
func TestBatchesAreWeighed(t *testing.T) {
	for name, c := range map[string]struct {
		lines, want string
		takes       int
	}{
		"many light ones":    {heavyLines(1200, 10), "[500 500 200]", 500},
		"heavy ones":         {heavyLines(20, 900_000), "[3 3 3 3 3 3 2]", 500},
		"one of all that":    {heavyLines(1, maxLine-100) + `{"id":"a"}`, "[2]", 500},
		"numbers":            {strings.Repeat(`{"id":"a","data":{"l":[`+strings.Repeat("1,", 50_000)+"1]}}\n", 1) + `{"id":"b"}`, "[2]", 500},
		"the store's bounds": {heavyLines(20, 10), "[5 5 5 5]", 7}, // 20 and 10 are too many
	} {
		t.Run(name, func(t *testing.T) {
			s := &scale{takes: c.takes}
			l := loadInto(t, s, c.lines)
			if got := fmt.Sprint(s.sizes()); got != c.want || l.res.Written != int64(strings.Count(strings.TrimSuffix(c.lines, "\n"), "\n")+1) {
				t.Errorf("batches of %s, %d written; want %s", got, l.res.Written, c.want)
			}
			for _, b := range s.batches {
				size := 0
				for _, e := range b {
					size += len(e.Data)
				}
				if size > mostWeight {
					t.Errorf("%d entities with %d bytes of data", len(b), size)
				}
			}
		})
	}
}

// An entity weighs at least what it has in a request of Firestore, with its many tags and
// lengths: lists of small numbers and keys take more there than as JSON.
func TestWeightIsAnUpperBound(t *testing.T) {
	for name, data := range map[string]string{
		"integers": `{"l":[` + strings.Repeat("1,", 10_000) + `1]}`,
		"doubles":  `{"l":[` + strings.Repeat("1e1,", 10_000) + `1]}`,
		"maps":     `{"l":[` + strings.Repeat(`{"":{}},`, 10_000) + `1]}`,
		"escapes":  `{"l":"` + strings.Repeat(`\u0001`, 10_000) + `é"}`,
		"keys": `{` + strings.Repeat(" ", 100) + func() string {
			var b strings.Builder
			for i := range 10_000 {
				fmt.Fprintf(&b, `"%d":null,`, i)
			}
			return b.String()
		}() + `"a":true}`,
	} {
		weight, err := weigh([]byte(`{"id":"a","data":` + data + `}`))
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatal(err)
		}
		if want := wireSize(v); weight < want || weight > 8*want+entityWeight+8*valueWeight {
			t.Errorf("%s weighs %d, and has %d bytes in a request", name, weight, want)
		}
	}
}

// wireSize is what a value takes as a google.firestore.v1.Value, with lengths of at most
// three bytes, or as one of Datastore, which has a flag in addition.
func wireSize(v any) int {
	const tagAndLength, flag = 4, 3
	n := flag
	switch v := v.(type) {
	case string:
		n += tagAndLength + len(v)
	case float64:
		n += 1 + 8
	case bool, nil:
		n += 2
	case []any:
		n += tagAndLength
		for _, e := range v {
			n += tagAndLength + wireSize(e)
		}
	case map[string]any:
		n += tagAndLength
		for k, e := range v {
			n += 3*tagAndLength + len(k) + wireSize(e)
		}
	}
	return n
}

// Entities of legal size are loaded, however large they are together. In a single commit
// the emulators refused them for a minute, with an error that looks like a quota.
func TestHeavyEntitiesAreLoaded(t *testing.T) {
	noRaces(t)
	lines := heavyLines(20, 900_000)
	for name, open := range map[string]func() *workdir{
		"embedded":  func() *workdir { return newEmbedded(t, oneTarget) },
		"datastore": func() *workdir { b, _, _ := newDatastore(t, oneTarget); return b },
		"firestore": func() *workdir { b, _, _ := newFirestore(t, oneTarget); return b },
	} {
		t.Run(name, func(t *testing.T) {
			if r := open().must(strings.NewReader(lines), "load"); !strings.Contains(r.out, "wrote 20 entities") || strings.Contains(r.log, "pushes back") {
				t.Errorf("%s%s", r.out, r.log)
			}
		})
	}
}

// A key that an object has twice is an error that names its path. Equal keys of different
// objects are fine.
func TestKeysThatAppearTwice(t *testing.T) {
	target := targetsForLines(t)[0]
	for line, want := range map[string]string{
		`{"id":"a","data":{"a":{"id":1},"b":[{"a":1},{"a":1}],"id":"a","c":{}}}`:     "",
		`{"id":"a","data":{"A":1,"a":2,"":3}}`:                                       "",
		`{"id":"a","id":"b"}`:                                                        `the key "id" appears twice`,
		`{"id":"a","ID":"b"}`:                                                        `the key "id" appears twice`,
		`{"expires":"2026-01-01T00:00:00Z","expireſ":"2027-01-01T00:00:00Z","id":1}`: `the key "expires" appears twice`,
		`{"id":"a","data":{"x":1},"data":{}}`:                                        `the key "data" appears twice`,
		`{"id":"a","data":{"x":{"y":1,"z":[],"y":1}}}`:                               `the key "data.x.y" appears twice`,
		`{"id":"a","data":{"l":[1,[{"k":1,"\u006b":2}]]}}`:                           `the key "data.l.k" appears twice`,
		`{"id":"a","data":{"":1,"":2}}`:                                              `the key "data." appears twice`,
		`{"id":"a","data":{"x":{"deep":{"er":{"and":{"deeper":{"a":1,"a":2}}}}}}}`:   `the key "data.x.deep.er.and.….a" appears twice`,
	} {
		_, err := parseLine([]byte(line), target)
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && got != want {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	deep := `{"id":"a","data":` + strings.Repeat(`{"k":`, 9_000) + "1" + strings.Repeat("}", 9_000) + "}"
	if _, err := parseLine([]byte(deep), target); err != nil {
		t.Error(err)
	}
}
