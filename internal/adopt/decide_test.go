package adopt

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
)

// What a key means depends on the rule and the rounds alone.
func TestJudge(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	j := judge{target: "sessions", rule: Rule{Property: "created", Plus: time.Hour}, maxAge: 1000 * time.Hour, horizon: noon,
		rounds: []Round{{Number: 1, Began: noon.Add(-48 * time.Hour), Spread: time.Hour, Percent: 100},
			{Number: 2, Began: noon, Spread: 10 * time.Minute, Percent: 100}}}
	key := func(at time.Time) store.Value {
		k, err := expirykey.New(3, 1, at)
		if err != nil {
			t.Fatal(err)
		}
		return store.TextValue(k.String())
	}
	spreadIn := func(round int) time.Time {
		return j.rounds[round].instant("sessions", "a", noon.Add(-99*time.Hour))
	}
	for name, c := range map[string]struct {
		source, expiry store.Value
		want           Outcome
		expires        time.Time
	}{
		"a timestamp":                           {store.InstantValue(noon), store.Value{}, Unstamped, noon.Add(time.Hour)},
		"a text":                                {store.TextValue("2026-11-21T13:00:00+01:00"), store.Value{}, Unstamped, noon.Add(time.Hour)},
		"a key":                                 {key(noon.Add(time.Minute)), store.Value{}, Unstamped, noon.Add(61 * time.Minute)},
		"microseconds round up":                 {store.InstantValue(noon.Add(time.Microsecond)), store.Value{}, Unstamped, noon.Add(time.Hour + time.Millisecond)},
		"what has expired is spread":            {store.InstantValue(noon.Add(-100 * time.Hour)), store.Value{}, Unstamped, spreadIn(1)},
		"implausible":                           {store.InstantValue(noon.Add(-1001*time.Hour - time.Millisecond)), store.Value{}, Suspect, time.Time{}},
		"beyond all years":                      {store.InstantValue(time.Date(9999, 12, 31, 23, 30, 0, 0, time.UTC)), store.Value{}, Suspect, time.Time{}},
		"no source":                             {store.Value{}, store.Value{}, NoSource, time.Time{}},
		"a number":                              {store.IntegerValue(7), store.Value{}, Mistyped, time.Time{}},
		"another text":                          {store.TextValue("tomorrow"), store.Value{}, Mistyped, time.Time{}},
		"a text without a zone":                 {store.TextValue("2026-11-21T13:00:00"), store.Value{}, Mistyped, time.Time{}},
		"keyed by the rule":                     {store.InstantValue(noon), key(noon.Add(time.Hour)), Keyed, noon.Add(time.Hour)},
		"keyed by a writer that rounds up":      {store.InstantValue(noon), key(noon.Add(70*time.Minute + time.Millisecond)), Keyed, noon.Add(70*time.Minute + time.Millisecond)},
		"too late":                              {store.InstantValue(noon), key(noon.Add(70*time.Minute + 2*time.Millisecond)), Mismatch, noon.Add(70*time.Minute + 2*time.Millisecond)},
		"too early":                             {store.InstantValue(noon), key(noon.Add(time.Hour - time.Millisecond)), Mismatch, noon.Add(time.Hour - time.Millisecond)},
		"given by this round":                   {store.InstantValue(noon.Add(-100 * time.Hour)), key(spreadIn(1)), Keyed, spreadIn(1)},
		"given by an earlier round":             {store.InstantValue(noon.Add(-100 * time.Hour)), key(spreadIn(0)), Keyed, spreadIn(0)},
		"given by a round, and implausible now": {store.InstantValue(time.Time{}.AddDate(0, 1, 0)), key(spreadIn(1)), Mismatch, spreadIn(1)},
		"given by none":                         {store.InstantValue(noon.Add(-100 * time.Hour)), key(spreadIn(0).Add(time.Millisecond)), Mismatch, spreadIn(0).Add(time.Millisecond)},
		"keyed, and the rule does not fit":      {store.IntegerValue(7), key(noon), Mismatch, noon},
		"something else in the key property":    {store.InstantValue(noon), store.TextValue("blue"), Foreign, time.Time{}},
		"a number in the key property":          {store.InstantValue(noon), store.IntegerValue(7), Foreign, time.Time{}},
	} {
		got := j.judge(store.Row{Key: "a", Expiry: c.expiry, Source: c.source}, "a")
		if got.outcome != c.want || !got.expires.Equal(c.expires) {
			t.Errorf("%s: %s, expires %v (%s); want %s, %v", name, got.outcome, got.expires, got.why, c.want, c.expires)
		}
	}
}
