package selftest_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reaper-ttl/reaper/internal/selftest"
	"github.com/reaper-ttl/reaper/store/embedded"
	"github.com/reaper-ttl/reaper/store/storetest"
)

// caps are those of the embedded store.
var caps = storetest.Caps{
	Counter: true, Dumper: true, Dropper: true, Keyer: true, Adopter: true,
	Steps: true, ListsInIndex: true, KeepsLists: true, TellsGone: true, NumbersFirst: true, OrdersByBytes: true,
}

// in runs a test with an embedded store in memory, in a synctest bubble: leases pass at once.
func in(t *testing.T, test func(t *testing.T, db *embedded.DB)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db, err := embedded.Open("db", embedded.Options{Now: time.Now, InMemory: true})
		if err != nil {
			t.Fatal(err)
		}
		test(t, db)
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

func setup(db selftest.Database) selftest.Setup {
	return selftest.Setup{Store: db, Spec: "embedded:db", Mode: selftest.Embedded, Caps: caps, ID: "test", Now: time.Now,
		Within: selftest.DefaultWithin}
}

// TestGoodStore: a store that keeps all promises passes all checks, and nothing is left.
func TestGoodStore(t *testing.T) {
	in(t, func(t *testing.T, db *embedded.DB) {
		r, err := selftest.Run(t.Context(), setup(db))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range r.Results {
			if c.Status != selftest.Passed {
				t.Logf("%s is %s after %d tries: %s\n%s", c.Name, c.Status, c.Tries, c.Why, strings.Join(c.Evidence, "\n"))
			}
		}
		t.Logf("%+v %+v %+v %+v", r.Operations, r.Cleaned, r.Differences, r.Duration)
		for _, l := range r.Latencies {
			t.Logf("%+v", l)
		}
		if r.HasFindings() {
			t.Errorf("%d failed; cleaned: %+v; stopped: %s", r.Count(selftest.Failed), r.Cleaned, r.Stopped)
		}
	})
}
