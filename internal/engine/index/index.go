package index

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/layout"
	"github.com/reaper-ttl/reaper/shardquery"
	"github.com/reaper-ttl/reaper/store"
	"golang.org/x/sync/errgroup"
)

const (
	// inventoryPage is how many entries a search for the first matching one reads at a
	// time: nearly always the first entry matches.
	inventoryPage = 20
	// InventoryPatience bounds the tries at one of its queries.
	InventoryPatience = 5 * time.Second
)

const (
	// CountTimeout bounds one COUNT, which the services end after 60 s.
	CountTimeout = time.Minute
	// CountersAtOnce is how many COUNTs run at the same time: few, because sweeps go on meanwhile.
	CountersAtOnce = 4
)

// An Index is the index of one target's expiry property. Reading it needs no claim.
type Index struct {
	Store  store.Store
	Target store.Target
	Form   layout.Form
	MaxAge time.Duration    // an expiry older than this before a horizon is suspect
	Now    func() time.Time // this process's clock
}

// A Span is a part of one namespace's index.
type Span struct {
	Namespace string
	store.Span
}

// Everywhere lists a span in several namespaces.
func Everywhere(namespaces []string, is store.Span) (list []Span) {
	for _, ns := range namespaces {
		list = append(list, Span{ns, is})
	}
	return list
}

// AppendSpan appends what expires in a range, from one instant on and before another.
func AppendSpan(list []Span, r shardquery.Range, from, to time.Time) []Span {
	if !from.Before(to) {
		return list
	}
	return append(list, Span{r.Namespace, store.Span{From: store.Point{Shard: r.Value, Value: r.At(from).Value},
		To: store.Point{Shard: r.Value, Value: r.At(to).Value}}})
}

// Floor returns the instant before which an expiry is implausible.
func (x *Index) Floor(horizon time.Time) time.Time { return horizon.Add(-x.MaxAge) }

// Decide judges the value of an expiry property at a horizon.
func (x *Index) Decide(v store.Value, horizon time.Time) Judgement {
	return x.Judge(v, horizon).Judgement
}

// Judge also returns when it expires.
func (x *Index) Judge(v store.Value, horizon time.Time) Judged {
	return decide(x.Form, v, horizon, x.MaxAge)
}

// Counter returns the store's counter; ok is false if it cannot count.
func (x *Index) Counter() (counter store.Counter, ok bool) {
	counter, ok = x.Store.(store.Counter)
	return counter, ok
}

// Count counts the entries in all the spans together, each once and up to a bound; 0 means no
// bound. It fails with [store.ErrUnsupported] if the store cannot count.
func (x *Index) Count(ctx context.Context, spans []Span, upTo int64) (sum int64, err error) {
	counter, ok := x.Counter()
	if !ok {
		return 0, fmt.Errorf("count: %w", store.ErrUnsupported)
	}
	counted := make([]int64, len(spans))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(CountersAtOnce)
	for i, at := range spans {
		background.Go(group, func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, CountTimeout)
			defer cancel()
			counted[i], err = counter.Count(ctx, x.Target, at.Namespace, at.Span, upTo)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	for _, n := range counted {
		sum += n
	}
	return sum, nil
}

// FirstOf returns the expiry of the first entry of a range that want accepts, by its judgement
// at a horizon; found is false if want accepts none. The zero time is an expiry like any other.
func (x *Index) FirstOf(ctx context.Context, r shardquery.Range, from store.Position, until, horizon time.Time,
	want func(store.Entry, Judgement) bool) (at time.Time, found bool, err error) {
	var malformed error
	err = x.Entries(ctx, r, from, until, horizon, inventoryPage, func(e store.Entry, j Judgement) bool {
		if found = want(e, j); found {
			at, malformed = r.Expires(e.Value)
		}
		return !found
	})
	return at, found, cmp.Or(err, malformed)
}

// Entries calls visit for each entry of a range from a position up to an instant, with its
// judgement at a horizon. It reads page by page, until visit returns false.
func (x *Index) Entries(ctx context.Context, r shardquery.Range, from store.Position, until, horizon time.Time,
	page int, visit func(store.Entry, Judgement) bool) error {
	reader := &shardquery.Reader{Store: x.Store, Target: x.Target, Range: r, From: from, Until: until,
		Floor: x.Floor(horizon), Now: x.Now}
	var p store.Page
	for more := true; more; {
		err := shardquery.Patiently(ctx, InventoryPatience, func() (err error) {
			more, err = reader.Next(ctx, &p, page)
			return err
		})
		if err != nil {
			return err
		}
		for _, e := range p.Entries {
			if !visit(e, x.Decide(e.Value, horizon)) {
				return nil
			}
		}
	}
	return nil
}
