package storetest

import (
	"errors"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// CheckExpiryOf checks ExpiryOf of a driver by a copy with this key and data, which was archived for a target of a kind
// and the property "expires". That holds the instant [Archived], and "expiry_key" the text "k".
func CheckExpiryOf(tb TB, db interface {
	ExpiryOf(c store.Copy, from, t store.Target) (store.Value, error)
}, kind, key, data string) {
	tb.Helper()
	from := store.Target{Kind: kind, Property: "expires", Type: store.Instant}
	own := store.InstantValue(Archived)
	whole := store.Copy{Key: key, Expiry: own, Data: []byte(data)}
	without := store.Copy{Key: key, Expiry: own}
	for _, c := range []struct {
		of             store.Copy
		kind, property string
		want           store.Value
	}{
		{whole, kind, "expires", own},
		{whole, kind, "expiry_key", store.TextValue("k")},
		{whole, kind, "other", store.Value{}},
		{whole, "other", "expires", store.Value{}},
		{without, kind, "expires", own},
		{without, kind, "expiry_key", store.Value{}},
	} {
		got, err := db.ExpiryOf(c.of, from, store.Target{Kind: c.kind, Property: c.property})
		if got != c.want || err != nil {
			tb.Errorf("by %s of %s: %v, not %v; %v", c.property, c.kind, got, c.want, err)
		}
	}
	whole.Data = []byte("{")
	got, err := db.ExpiryOf(whole, from, store.Target{Kind: kind, Property: "expiry_key"})
	if !errors.Is(err, store.ErrInvalid) {
		tb.Errorf("broken data: %v, %v", got, err)
	}
}

// Archived is what the copy of [CheckExpiryOf] holds.
var Archived = time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
