package measure

import (
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/forecast"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// What an index row holds, in bytes: an id as the store's clients make them and an expiry key, with the byte
// that each text has in addition; a timestamp; and a shard value before it, which is an integer or about as long.
const (
	idBytes      = 21
	keyBytes     = 35
	instantBytes = 8
	shardBytes   = 8
)

// SettingsOf returns what a forecast has to know of a target that is swept at each tick by serve. Namespaces
// that are not listed but found count as one.
func SettingsOf(t sweep.Target, mode forecast.Mode, tick time.Duration) forecast.Settings {
	isText := t.Type == store.Text
	s := forecast.Settings{Mode: mode, Namespaces: 1, Shards: max(1, t.Shards, len(t.ShardValues)),
		Retention: t.Retention, Page: t.Page, Tick: tick, Guard: forecast.ByLookup, Pace: paceOf(t),
		Breaker: sweep.BreakerRules(t)}
	if !slices.Contains(t.Namespaces, "*") {
		s.Namespaces = max(1, len(t.Namespaces))
	}
	kind := t.Kind[strings.LastIndexByte(t.Kind, '/')+1:]
	s.Layout.Row = forecast.Row{Kind: len(kind), Property: len(t.Property), ID: idBytes, Value: keyBytes}
	if !isText {
		s.Layout.Row.Value = instantBytes
	}
	if t.ShardProperty != "" {
		s.Layout.Row.Composite, s.Layout.Row.Value = true, instantBytes+shardBytes
	}
	if t.Generations {
		s.Layout.Every, s.Layout.Ramp, s.Layout.Keep = t.Policy.Every, t.Policy.Ramp, t.Policy.Keep
	}
	if t.Guard == store.GuardQuery || t.Guard == store.GuardAuto && t.SingleValued && isText {
		s.Guard = forecast.ByQuery
	}
	return s
}

// paceOf returns the pace of a target; what its limits allow in an hour and a day bounds its total.
func paceOf(t sweep.Target) forecast.Pace {
	var p forecast.Pace
	if !t.Pace.Unlimited {
		p.Start, p.Max = t.Pace.Start, t.Pace.Max
	}
	bound := func(perSecond float64) {
		if perSecond > 0 && (p.Total == 0 || perSecond < p.Total) {
			p.Total = perSecond
		}
	}
	if !t.Total.Unlimited {
		bound(t.Total.PerSecond)
	}
	bound(float64(t.Limits.PerHour) / time.Hour.Seconds())
	bound(float64(t.Limits.PerDay) / (24 * time.Hour).Seconds())
	return p
}
