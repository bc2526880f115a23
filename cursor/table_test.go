package cursor_test

import (
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/cursor"
)

// A read of all records shows which ones are gone. A cursor that was read alone before it must
// not come back; one that was read alone after it began stays as that read has shown it.
func TestReadOfAllForgetsWhatIsGone(t *testing.T) {
	at := time.Date(2026, 11, 24, 3, 0, 0, 0, time.UTC)
	id := func(shard string) cursor.ID { return cursor.ID{Target: "sessions", Generation: 3, Shard: shard} }
	sent := func(shard string, at time.Time) cursor.Cursor {
		return cursor.Cursor{ID: id(shard), Sent: at, Revision: "1-A"}
	}
	before := cursor.NewTable(sent("0000", at)).With(cursor.Changes{Read: []cursor.Cursor{sent("0005", at)}})
	began := at.Add(time.Minute)
	late := began.Add(time.Second)
	before = before.With(cursor.Changes{Sent: late, Read: []cursor.Cursor{sent("0006", late)}, Gone: []cursor.ID{id("0001")}})

	all := cursor.NewTable(sent("0001", began)).Newer(before, began)
	for shard, want := range map[string]bool{"0000": false, "0001": false, "0005": false, "0006": true} {
		if all.Has(id(shard)) != want {
			t.Errorf("shard %s has a record: %v, want %v", shard, !want, want)
		}
	}
}
