package writers

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// inputs are the questions of docs/writer-vectors.json, without the answers. <d800> and
// <dc00> are surrogates without their other half.
func inputs() vectors {
	return vectors{
		Keys: []keyVector{
			{42, 7, "2026-11-21T00:07:30.855Z", ""},
			{42, 7, "2026-11-21T00:07:30.854000001Z", ""},
			{42, 7, "2026-11-21T00:07:30.854001Z", ""},
			{42, 7, "2026-11-21T00:07:30.854999999Z", ""},
			{42, 7, "2026-11-21T01:07:30.855+01:00", ""},
			{42, 7, "2026-11-20T18:22:30.8541-05:45", ""},
			{0, 0, "0001-01-01T00:00:00Z", ""},
			{0, 0, "0001-01-01T05:00:00+05:00", ""},
			{0, 0, "0099-12-31T23:59:59.9999Z", ""},
			{0, 9_998, "9999-12-31T23:59:59.999Z", ""},
			{0, 0, "9999-12-31T18:59:59.999-05:00", ""},
			{99_999_999, 9_999, "1970-01-01T00:00:00Z", ""},
			{1, 15, "1969-12-31T23:59:59.9991Z", ""},
			{1, 15, "1969-12-31T23:59:59.998999Z", ""},
			{1, 15, "1969-12-31T23:59:59.998Z", ""},
			{1, 3, "2024-02-29T12:00:00.5Z", ""},
			{1, 3, "2023-12-31T23:59:59.9999Z", ""},
			{1, 3, "2023-12-31T23:59:59.999001Z", ""},
			{1, 3, "2024-02-28T23:59:59.999000001Z", ""},
			{1, 3, "2100-02-28T23:59:59.9995Z", ""},
		},
		BadKeys: []keyVector{
			{-1, 0, "2026-11-21T00:07:30Z", ""},
			{100_000_000, 0, "2026-11-21T00:07:30Z", ""},
			{0, -1, "2026-11-21T00:07:30Z", ""},
			{0, 10_000, "2026-11-21T00:07:30Z", ""},
			{0, 0, "9999-12-31T23:59:59.9991Z", ""},
			{0, 0, "9999-12-31T23:59:59.999000001Z", ""},
			{0, 0, "9999-12-31T23:59:59.999-00:01", ""},
			{0, 0, "0001-01-01T00:00:00+00:01", ""},
		},
		Naive: []string{
			"2026-11-21T00:07:30", "2026-11-21T00:07:30.855", "2026-11-21", "2026-11-21 00:07:30Z", "20261121T000730.855Z",
			"2026-02-30T00:00:00Z", "2026-11-21T24:00:00Z", "2026-11-21T00:00:60Z", "",
		},
		Malformed: malformed(),
		Shards:    shardInputs(),
		Nursery: []nurseryVector{
			{"s-1842", "2026-11-21T00:07:30.854000001Z", 16, ""},
			{"1842", "2026-11-21T00:07:30.855Z", 16, ""},
			{"__id1842__", "2026-11-21T00:07:30.855Z", 16, ""},
			{"😀", "2026-12-31T23:59:59.999001Z", 9_999, ""},
			{"a<d800>", "2026-11-21T00:07:30.855Z", 1, ""},
		},
		Rollout: rolloutInputs(),
		Replays: replayInputs(),
	}
}

func malformed() []string {
	list := []string{
		"", "0", "null", "2026-11-21T00:07:30.855Z",
		"00000042.0007.20261121T000730.855", "00000042.0007.20261121T000730.855Zx", "00000042.0007.20261121T000730.855Z\n",
		" 00000042.0007.20261121T000730.855", "00000042.0007.20261121T000730.855Z ", "00000042-0007-20261121T000730-855Z",
		"00000042.0007.20261121 000730.855Z", "00000042.0007.20261121t000730.855Z", "00000042.0007.20261121T000730.855z",
		"00000042.0007.20261121T000730,855Z", "0000004x.0007.20261121T000730.855Z", "00000042.-007.20261121T000730.855Z",
		"+0000042.0007.20261121T000730.855Z", "-0000042.0007.20261121T000730.855Z", "00000042.0007.+2026121T000730.855Z",
		"00000042.0007.00001121T000730.855Z", "00000042.0007.20260021T000730.855Z", "00000042.0007.20261321T000730.855Z",
		"00000042.0007.20261100T000730.855Z", "00000042.0007.20261131T000730.855Z", "00000042.0007.20230229T000730.855Z",
		"00000042.0007.21000229T000730.855Z", "00000042.0007.20261121T240000.000Z", "00000042.0007.20261121T006000.000Z",
		"00000042.0007.20261121T000060.000Z", "00000042.0007.20261121T000730.85xZ", "00000042.0007.20261121T000730.85 Z",
		"٠0000042.0007.20261121T000730.855", "٠0000042.0007.20261121T000730.855Z", "00000042.0007.２0261121T000730.855Z",
		"00000042.0007.20261121T000730.855Z00000042.0007.20261121T000730.855Z", "0x000042.0007.20261121T000730.855Z",
		"00000_42.0007.20261121T000730.855Z", "0000042.00007.20261121T000730.855Z",
	}
	return append(list, strings.Repeat("0", 34), strings.Repeat("0", 1500))
}

func shardInputs() []shardVector {
	var list []shardVector
	for _, id := range []string{
		"", "a", "s-1842", "zürich", "会话", "😀", "e\u0301", "a/b", "a\nb", "a\x00b", "1842", "__id1842__", "0", "-1", "__id-1__",
		"9007199254740993", "9223372036854775807", "__id9223372036854775807__", "-9223372036854775808",
		"__id7__", "7", "__id7__\n", "__id__", "__idx__", "__ID7__", "x__id7__", "<d800>", "<dc00>", "a<d800>b", "<dc00><d800>",
		strings.Repeat("long ", 300),
	} {
		for _, shards := range []int{1, 16, 9_999} {
			list = append(list, shardVector{id, shards, 0})
		}
	}
	return list
}

func rolloutInputs() []rolloutVector {
	var list []rolloutVector
	for _, salt := range []string{"", "adopt sessions", "Grüße 😀"} {
		for _, id := range []string{"", "s-1842", "1842", "__id1842__", "9223372036854775807", "会话", "😀", "a<d800>", "a\nb"} {
			list = append(list, rolloutVector{id, salt, 0})
		}
	}
	return list
}

// ids are those that each stamp of a replay has.
func ids(n int) []stamp {
	list := []stamp{{ID: "1842"}, {ID: "__id1842__"}, {ID: "会话 😀"}, {ID: "a<d800>"}, {ID: ""}}
	for i := range n {
		list = append(list, stamp{ID: fmt.Sprint("s-", i)})
	}
	return list
}

const replayBegins = "2026-11-21T00:00:00.000000Z"

func after(d time.Duration) string {
	at, _ := time.Parse(time.RFC3339Nano, replayBegins)
	return at.Add(d).Format("2006-01-02T15:04:05.000000Z")
}

// A live is one generation of a record.
type live map[string]any

func open(number, shards int, opened time.Duration, ramp time.Duration) live {
	return live{"number": number, "shards": shards, "opened": after(opened), "ramp_ms": ramp.Milliseconds(),
		"closed": "", "draining": "", "staleness_ms": 60_000, "slack_ms": 600_000}
}

// but returns a copy with one field changed; nil takes it out.
func but[M ~map[string]any](m M, name string, value any) M {
	c := M{}
	for k, v := range m {
		c[k] = v
	}
	if c[name] = value; value == nil {
		delete(c, name)
	}
	return c
}

func target(list ...live) map[string]any {
	if list == nil {
		list = []live{}
	}
	return map[string]any{"schema": 1, "target": "sessions", "created": replayBegins, "kind": "Session", "property": "expiry_key",
		"generations": list, "nursery_shards": 24, "staleness_ms": 60_000, "slack_ms": 600_000, "paused": false}
}

func read(at time.Duration, record any) step {
	raw, err := json.Marshal(record)
	if err != nil {
		panic(err)
	}
	return step{At: after(at), Mono: 5_000_000 + at.Milliseconds(), Read: raw}
}

func fails(at time.Duration) step {
	return step{At: after(at), Mono: 5_000_000 + at.Milliseconds(), Fails: true}
}

func stamps(at time.Duration, n int) step {
	return step{At: after(at), Mono: 5_000_000 + at.Milliseconds(), Stamps: ids(n)}
}

// clocks is a stamp at which the two clocks have not run alike.
func clocks(wall, mono time.Duration) step {
	return step{At: after(wall), Mono: 5_000_000 + mono.Milliseconds(), Stamps: ids(2)}
}

func replayInputs() []replay {
	const ms, s, m, h = time.Millisecond, time.Second, time.Minute, time.Hour
	one := target(open(1, 16, -h, 0))
	list := []replay{
		{Name: "no record, and no answer", Steps: []step{
			stamps(0, 2), read(s, nil), stamps(s, 2), fails(2 * s), stamps(2*s, 2), read(3*s, one), stamps(3*s, 4)}},
		{Name: "a copy is good for staleness, also after reads that fail", Steps: []step{
			read(0, one), stamps(0, 2), fails(30 * s), stamps(30*s, 2), read(40*s, nil), stamps(41*s, 2), stamps(60*s, 2),
			stamps(60*s+ms, 2), fails(70 * s), stamps(70*s, 2), read(80*s, one), stamps(80*s, 2)}},
		{Name: "a record of a newer schema does not replace the copy", Steps: []step{
			read(0, one), read(30*s, but(target(open(1, 16, -h, 0), open(2, 32, -h, 0)), "schema", 3)), stamps(31*s, 2),
			stamps(61*s, 2)}},
		{Name: "age counts from before the read", Steps: []step{
			{At: after(0), Mono: 5_000_000, Took: 20_000, Read: mustJSON(one)}, stamps(20*s, 2), stamps(60*s, 2), stamps(60*s+ms, 2)}},
		{Name: "a staleness of an hour, and one that is not set", Steps: []step{
			read(0, but(one, "staleness_ms", 3_600_000)), stamps(h, 2), stamps(h+ms, 2), read(2*h, but(one, "staleness_ms", 0)),
			stamps(2*h+60*s, 2), stamps(2*h+60*s+ms, 2), read(3*h, but(one, "staleness_ms", nil)), stamps(3*h+60*s, 2)}},
		{Name: "the larger of wall and monotonic time", Steps: []step{
			read(0, one), clocks(59*s, 59*s), clocks(2*m, 10*s), clocks(10*s, 2*m), clocks(-s, 10*s), clocks(-h, 10*s), clocks(10*s, 10*s)}},
		{Name: "no generations", Steps: []step{
			read(0, target()), stamps(s, 3), read(2*s, but(target(), "nursery_shards", 0)), stamps(2*s, 3),
			read(3*s, but(target(), "generations", nil)), stamps(3*s, 3)}},
		{Name: "whatever the clock says, a closed generation is not stamped", Steps: []step{
			read(-1000*h, target(but(open(1, 16, 0, 0), "closed", after(h)), open(2, 32, h-m, h))), stamps(-1000*h+s, 20)}},
		{Name: "two ramps at once", Steps: []step{
			read(0, target(open(1, 16, -24*h, 0), open(2, 32, -40*m, h), open(3, 64, -30*m, h))), stamps(s, 60)}},
		{Name: "a ramp that began in a fraction of a second", Steps: []step{
			read(0, target(open(1, 16, -24*h, 0), open(2, 32, -50*m+123_457*time.Microsecond, h))), stamps(ms, 40)}},
		{Name: "a record opened in the future of this clock", Steps: []step{
			read(0, target(open(1, 16, -24*h, 0), open(2, 32, 5*m, h))), stamps(s, 40)}},
		{Name: "a generation without a ramp, opened in the future of this clock", Steps: []step{
			read(0, target(open(1, 16, -24*h, 0), open(2, 32, 2*s, 0))), stamps(s, 10), stamps(2*s, 10)}},
	}
	ramp := replay{Name: "a ramp of an hour to another number of shards"}
	for _, at := range []time.Duration{0, 5 * m, 15 * m, 30 * m, 45 * m, 55 * m, 60*m - ms, 60 * m} {
		ramp.Steps = append(ramp.Steps, read(at-ms, target(open(1, 16, -24*h, 0), open(2, 64, 0, h))), stamps(at, 40))
	}
	list = append(append(list, ramp, tenGenerations()), refused(one)...)
	for i := range list {
		list[i].Expires, list[i].Shards = "2026-12-31T23:59:59.999001Z", 8
	}
	return list
}

// tenGenerations follows each other, each with another number of shards.
func tenGenerations() replay {
	r := replay{Name: "ten generations with resharding"}
	for i := range 10 {
		at := time.Duration(i) * 24 * time.Hour
		newest := open(i+2, 8+5*i, at, time.Hour)
		before := open(i+1, 8+5*(i+4)%50, at-24*time.Hour, time.Hour)
		older := but(open(i+1, 3, at-48*time.Hour, 0), "closed", after(at-23*time.Hour))
		older["number"] = max(1, i)
		record := target(before, newest)
		if i > 0 {
			record = target(older, before, newest)
		}
		record["schema"] = 1 + i%2
		r.Steps = append(r.Steps, read(at+40*time.Minute, record), stamps(at+40*time.Minute+time.Second, 12))
	}
	return r
}

// refused are records that make no sense: a follower stamps the nursery instead.
func refused(one map[string]any) []replay {
	gen := func(name string, value any) map[string]any {
		return target(but(open(1, 16, -time.Hour, 0), name, value))
	}
	var list []replay
	for _, c := range []struct {
		name   string
		record any
	}{
		{"schema 3", but(one, "schema", 3)}, {"schema 0", but(one, "schema", 0)}, {"no schema", but(one, "schema", nil)},
		{"schema as text", but(one, "schema", "1")}, {"schema true", but(one, "schema", true)}, {"schema 1.5", but(one, "schema", 1.5)},
		{"an empty record", map[string]any{}},
		{"generations is a text", but(one, "generations", "none")}, {"generations is a map", but(one, "generations", map[string]any{})},
		{"a generation is a number", but(one, "generations", []any{1})},
		{"number 0", gen("number", 0)}, {"number 100000000", gen("number", 100_000_000)}, {"number as text", gen("number", "1")},
		{"shards 0", gen("shards", 0)}, {"shards 10001", gen("shards", 10_001)}, {"no shards", gen("shards", nil)},
		{"no opened", gen("opened", nil)}, {"empty opened", gen("opened", "")}, {"opened yesterday", gen("opened", "yesterday")},
		{"opened without microseconds", gen("opened", "2026-11-20T00:00:00Z")},
		{"opened on 30 February", gen("opened", "2026-02-30T00:00:00.000000Z")},
		{"opened at 24:00", gen("opened", "2026-11-20T24:00:00.000000Z")},
		{"opened in a leap second", gen("opened", "2026-11-20T23:59:60.000000Z")},
		{"opened with a comma", gen("opened", "2026-11-20T23:00:00,000000Z")},
		{"opened with another zone", gen("opened", "2026-11-20T00:00:00.000000+01:00")}, {"opened is a number", gen("opened", 5)},
		{"a negative ramp", gen("ramp_ms", -1)}, {"too long a ramp", gen("ramp_ms", 9_223_372_036_855)},
		{"the newest is closed", gen("closed", after(0))}, {"closed is a boolean", gen("closed", false)},
		{"numbers do not rise", target(open(2, 16, -2*time.Hour, 0), open(2, 16, -time.Hour, 0))},
		{"opened before the one before", target(open(1, 16, -time.Hour, 0), open(2, 16, -2*time.Hour, 0))},
		{"closed before it was opened", target(but(open(1, 16, -time.Hour, 0), "closed", after(-2*time.Hour)), open(2, 16, 0, 0))},
		{"a negative staleness", but(one, "staleness_ms", -5)}, {"too long a staleness", but(one, "staleness_ms", 9_223_372_036_855)},
		{"staleness as text", but(one, "staleness_ms", "1m")}, {"no nursery", but(one, "nursery_shards", nil)},
		{"nursery_shards 10001", but(one, "nursery_shards", 10_001)}, {"a nursery below zero", but(target(), "nursery_shards", -1)},
	} {
		list = append(list, replay{Name: "refused: " + c.name, Steps: []step{read(0, c.record), stamps(time.Second, 1)}})
	}
	// What writers do not read may be anything.
	list = append(list, replay{Name: "fields of a later version", Steps: []step{
		read(0, but(but(but(one, "schema", 2), "paused", "soon"), "created", nil)), stamps(time.Second, 3)}})
	return list
}

func mustJSON(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}
