package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/internal/config"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/embedded"
)

// targetsForLines returns targets whose layouts read the same line differently.
func targetsForLines(t testing.TB) []config.Target {
	t.Helper()
	targets, err := config.ParseTargets("f.yaml", strings.NewReader(`targets:
- {name: keys, kind: Session}
- {name: instants, kind: Event, layout: timestamp, property: expires}
- {name: shards, kind: Item, layout: sharded-timestamp, property: expires, shard_values: [7, -1]}
- {name: names, kind: Thing, layout: sharded-timestamp, property: expires, shard_values: [eu, ""]}
`), config.Embedded)
	if err != nil {
		t.Fatal(err)
	}
	return targets
}

// FuzzLine gives load any line. If load accepts it, a store accepts the entity, and
// dump prints a line that load reads as the same entity.
func FuzzLine(f *testing.F) {
	for i, s := range []string{
		`{"id": "s-1842", "expires": "2026-11-21T00:07:30.855Z", "data": {"user": "u7"}}`,
		`{"id":7,"expires":"9999-12-31T23:59:59.9999999Z"}`, `{"id":"a","shard":7}`, `{"id":"a","shard":"eu","data":{"expires":null}}`,
		`{"id":"\ud800","expires":"2026-11-21T01:07:30+01:00"}`, `{"id":"__x__"}`, `{"id":0}`, `{"id":9223372036854775807}`, `{"id":1e3}`, `{"ID":"a","id":null}`, `null`, `[]`,
		`{"id":"a","parent":"users/u1"}`, `{"id":"a","expires":"0000-01-01T00:00:00Z"}`, `{"id":"a","data":{"expiry_key":1}}`, `{"id":"a","data":null}`, `{"id":"a"} {}`,
		`{"id":"a","expires":"0001-01-01T00:00:00Z"}`, `{"id":"a","id":"b"}`, `{"id":"a","data":{"x":{"y":1,"y":2}}}`,
	} {
		f.Add(uint8(i), []byte(s))
	}
	targets := targetsForLines(f)
	db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		target := targets[int(which)%len(targets)]
		e, err := parseLine(text, target)
		_ = e.checkDocument() // must not panic, even if the line was read only in part
		if err != nil {
			return
		}
		if (e.name == "") == (e.number == 0) || e.number < 0 || !utf8.ValidString(e.name) {
			t.Fatalf("%s: the id is %q or %d", text, e.name, e.number)
		}
		if e.parent != "" || e.namespace != "" {
			return // the embedded store has neither
		}
		se := store.Entity{Name: e.name, Number: e.number, Shard: e.shard, Data: e.data}
		w := layoutWriter{sweepTarget(target), always(generation.Stamper{Generation: 1, Shards: 4})}
		if e.shard.Type != store.Missing && !slices.Contains(w.target.ShardValues, e.shard) {
			return
		}
		if err := w.write(&se, e.expires); err != nil {
			return // the year does not fit a key
		}
		if err := db.Put(t.Context(), target.StoreTarget(), "", []store.Entity{se}); err != nil {
			t.Fatalf("%s was accepted and cannot be put: %v", text, err)
		}
		var found []store.Entity
		for e, err := range db.Dump(t.Context(), target.StoreTarget(), "") {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, e)
		}
		if len(found) != 1 {
			t.Fatalf("%d entities", len(found))
		}
		var printed bytes.Buffer
		out := bufio.NewWriter(&printed)
		if err := errors.Join(printEntity(out, found[0], target, false), out.Flush()); err != nil {
			t.Fatal(err)
		}
		again, err := parseLine(printed.Bytes(), target)
		if err != nil {
			t.Fatalf("%s is dumped as %s, which is refused: %v", text, &printed, err)
		}
		back := store.Entity{Name: again.name, Number: again.number, Shard: again.shard}
		if err := w.write(&back, again.expires); err != nil {
			t.Fatalf("%s is dumped as %s: %v", text, &printed, err)
		}
		// Dump prints milliseconds, so an expiry between two of them moves by up to one.
		late := back.Expiry.Time.Sub(se.Expiry.Time).Abs()
		if back.Name != se.Name || back.Number != se.Number || back.Shard != se.Shard || back.Expiry.Type != se.Expiry.Type || back.Expiry.Text != se.Expiry.Text || late > time.Millisecond {
			t.Errorf("%s is dumped as %s: %+v became %+v", text, &printed, se, back)
		}
		if !bytes.Equal(compact(t, e.data), compact(t, again.data)) {
			t.Errorf("data %s became %s", e.data, again.data)
		}
		b := &store.Batch{Query: store.Query{Target: target.StoreTarget()}}
		key, err := db.Key(target.StoreTarget(), "", se)
		if err != nil {
			t.Fatal(err)
		}
		o, err := db.Settle(t.Context(), b.Query, store.Entry{Key: key}, func(store.Value) store.Verdict { return store.Delete })
		if err != nil || o != store.Deleted {
			t.Fatalf("%s: %d, %v", key, o, err)
		}
	})
}

func compact(t *testing.T, data []byte) []byte {
	t.Helper()
	if len(data) == 0 {
		return []byte("{}")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzLines reads lines of any length and with any line ends, also from a reader that
// returns one byte at a time. The lines are those that bytes.Split returns; only a line
// that is too long is skipped, whatever is before or after it.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{}\r\n\n{}\nlast"), uint32(0), uint8(0))
	f.Add([]byte("\xef\xbb\xbfa\nb"), uint32(maxLine), uint8(1))
	f.Add([]byte("a\nb\n\r"), uint32(maxLine+1), uint8(1))
	f.Add([]byte("a\nb\nc\n"), uint32(3*maxLine), uint8(5))
	f.Fuzz(func(t *testing.T, text []byte, long uint32, at uint8) {
		if long > 4*maxLine || len(text) > maxLine {
			return
		}
		if long > 0 { // insert many bytes without a line end
			i := int(at) % (len(text) + 1)
			text = slices.Concat(text[:i], bytes.Repeat([]byte("x"), int(long)), text[i:])
		}
		want := bytes.Split(text, []byte("\n"))
		if len(want[len(want)-1]) == 0 {
			want = want[:len(want)-1]
		}
		var source io.Reader = bytes.NewReader(text)
		if at%2 == 1 && len(text) < 1<<16 {
			source = iotest.OneByteReader(source)
		}
		r := newLineReader(source)
		for i, line := range want {
			got, err := r.next()
			whole := len(line)
			line = bytes.TrimRight(line, "\r")
			if i == 0 {
				line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
			}
			if r.number != i+1 {
				t.Fatalf("line %d has the number %d", i+1, r.number)
			}
			if errors.Is(err, errLongLine) {
				if whole < maxLine {
					t.Fatalf("line %d has %d bytes: %v", i+1, whole, err)
				}
				continue
			}
			if err != nil || !bytes.Equal(got, line) || len(got) > maxLine+2 {
				t.Fatalf("line %d: %d bytes, want %d; %v", i+1, len(got), len(line), err)
			}
		}
		if got, err := r.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last of %d lines: %q, %v", len(want), got, err)
		}
	})
}

// command runs one command line in this process.
func command(t *testing.T, args ...string) (code int, out, log string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// FuzzStamp gives stamp any id, instant and numbers. It prints the key that a writer
// would stamp, or says what is wrong and exits with 2.
func FuzzStamp(f *testing.F) {
	f.Add("s-1842", "2026-11-21T00:07:30.855Z", "0", "16")
	f.Add("1842", "7d", "3", "9999")
	f.Add("", "9999-12-31T23:59:59.9999Z", "-1", "0")
	f.Add("__a__", "106751d", "99999999", "10000")
	f.Add("-x", "0000-12-31T23:59:59.9999Z", "0x10", "1e3")
	f.Fuzz(func(t *testing.T, id, instant, gen, shards string) {
		code, out, log := command(t, "stamp", "--json", "--generation="+gen, "--shards="+shards, "--", id, instant)
		switch code {
		case exitUsage:
			if out != "" || !strings.HasPrefix(log, "reaper: ") || len(log) < 12 {
				t.Errorf("exit %d with %q and %q", code, out, log)
			}
			return
		case exitDone:
		default:
			t.Fatalf("stamp %q %q %q %q exits with %d: %s", id, instant, gen, shards, code, log)
		}
		var res stampResult
		if err := json.Unmarshal([]byte(out), &res); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		k, err := expirykey.Parse(res.Key)
		n, err2 := strconv.ParseInt(shards, 0, 64) // as the flag is read
		if err != nil || err2 != nil || k.Generation != res.Generation || k.Shard != res.Shard || k.Shard != expirykey.ShardOfName(id, int(n)) {
			t.Errorf("stamp %q %q %q %q prints %+v; %v, %v", id, instant, gen, shards, res, err, err2)
		}
		if at, err := time.Parse(time.RFC3339Nano, instant); err == nil && (k.Expires.Before(at) || k.Expires.Sub(at) >= time.Millisecond) {
			t.Errorf("%s is stamped %s", instant, k)
		}
	})
}

// FuzzCommandLine gives a command any flags, but neither a store nor a targets file. It
// prints help, or reports wrong usage and exits with 2.
func FuzzCommandLine(f *testing.F) {
	commands := []string{"sweep", "sweep --max-duration", "sweep --workers", "status", "load", "dump", "stamp", "explain", "explain --number", "list", "list --kept suspect --limit", "generation", "generation list",
		"generation advance --shards", "audit", "pause", "pause --reason x --for", "resume", "resume --reason", "pace", "pace --max", "pace --total", "indexes", "indexes --format", "version"}
	for i := range commands {
		for _, s := range []string{"", "--help", "1 --store datastore:x --target a", "-1", "--json --yes x", "--store embedded: --config /nowhere", "--log-level= --log-format x"} {
			f.Add(uint8(i), s)
		}
	}
	for _, s := range config.Settings() {
		f.Setenv(s.Env, "") // restores the variable after the test
		if err := os.Unsetenv(s.Env); err != nil {
			f.Fatal(err)
		}
	}
	f.Chdir(f.TempDir())
	f.Fuzz(func(t *testing.T, which uint8, rest string) {
		args := append(strings.Fields(commands[int(which)%len(commands)]), strings.Fields(rest)...)
		code, out, log := command(t, args...)
		switch code {
		case exitDone: // help, versions and keys of the nursery
		case exitUsage:
			if out != "" || len(log) < len("reaper: x") || strings.Contains(log, "internal error") {
				t.Errorf("%q prints %q and %q", args, out, log)
			}
		default:
			t.Errorf("%q exits with %d: %s%s", args, code, out, log)
		}
	})
}

// FuzzDumpPrints prints entities with any content. Each is one line of JSON.
func FuzzDumpPrints(f *testing.F) {
	f.Add("a", int64(0), uint8(store.Text), "00000001.0000.20261121T000730.855Z", int64(0), []byte(`{"a":1}`))
	f.Add("", int64(7), uint8(store.Other), `{"a"`, int64(1), []byte(nil))
	f.Add("\xff", int64(0), uint8(store.List), `[1]`, int64(-62135596800000000), []byte(`{}`))
	targets := targetsForLines(f)
	f.Fuzz(func(t *testing.T, name string, number int64, kind uint8, text string, at int64, data []byte) {
		e := store.Entity{Name: name, Number: number, Expiry: store.Value{Type: store.Type(kind % 5), Text: text, Time: time.UnixMicro(at).UTC()}}
		if json.Valid(data) {
			e.Data = data
		}
		for _, target := range targets {
			var b bytes.Buffer
			out := bufio.NewWriter(&b)
			if err := errors.Join(printEntity(out, e, target, true), out.Flush()); err != nil {
				t.Errorf("%+v: %v", e, err)
			}
			if got := b.Bytes(); len(got) > 0 && (!json.Valid(got) || bytes.Count(got, []byte("\n")) != 1) {
				t.Errorf("%+v is dumped as %q", e, got)
			}
		}
	})
}
