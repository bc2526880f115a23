package cursor_test

import (
	"fmt"
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

// A record that was found gone stays so, however much is read after that: a read that was sent
// earlier and is answered later must not bring it back.
func TestGoneIsRemembered(t *testing.T) {
	at := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	id := func(shard int) cursor.ID {
		return cursor.ID{Target: "sessions", Generation: 3, Shard: fmt.Sprintf("%04d", shard)}
	}
	began := at.Add(time.Minute)
	table := cursor.NewTable(cursor.Cursor{ID: id(5), Sent: at, Revision: "1-A"}).
		With(cursor.Changes{Sent: began.Add(time.Second), Gone: []cursor.ID{id(5)}})
	for shard := range 1000 { // more than a table keeps apart
		late := began.Add(2 * time.Second)
		table = table.With(cursor.Changes{Sent: late, Read: []cursor.Cursor{{ID: id(100 + shard), Sent: late, Revision: "1-A"}}})
	}
	if table.Has(id(5)) || !table.Sent(id(5)).Equal(began.Add(time.Second)) {
		t.Errorf("the record is there: %v; its read was sent at %v", table.Has(id(5)), table.Sent(id(5)))
	}
	earlier := cursor.Cursor{ID: id(5), Sent: began, Revision: "1-A"}
	if cursor.NewTable(earlier).Newer(table, began).Has(id(5)) {
		t.Error("a read of all records has brought it back")
	}
	if table.With(cursor.Changes{Read: []cursor.Cursor{earlier}}).Has(id(5)) {
		t.Error("a read of its own has brought it back")
	}
	again := cursor.Cursor{ID: id(5), Sent: began.Add(time.Minute), Revision: "1-B"}
	if !table.With(cursor.Changes{Read: []cursor.Cursor{again}}).Has(id(5)) {
		t.Error("it cannot be created again")
	}
}
