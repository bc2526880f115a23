package adopt

import (
	"context"
	"fmt"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// An Expectation is how many entities a reading of all keys is likely to meet. Each of them
// costs a read.
type Expectation struct {
	Entities int64
	AtLeast  bool   // there may be many more
	Source   string // where the number comes from; empty if nothing is known
}

// countWithin bounds the count of an index. A command can do without it.
const countWithin = 30 * time.Second

// Expect says how many entities an order is likely to read, before it reads them. It goes by
// the last round, at a read for each of its parts. If that was not read to its end, it counts
// the index of the property that the rule reads, too. It refuses an order that does not fit
// the adoption, as Run does. The progress has the number, too.
func Expect(ctx context.Context, cfg Config) (e Expectation, err error) {
	p, err := newPlanner(cfg)
	if err != nil {
		return e, err
	}
	defer func() { p.job.cfg.Progress.Expected.Store(e.Entities) }()
	rec, exists, err := p.load(ctx)
	if err != nil {
		return e, err
	}
	e.AtLeast = true
	if exists {
		parts, _, err := loadParts(ctx, p.job.store, rec)
		if err != nil {
			return e, err
		}
		e.AtLeast = false
		for _, one := range parts {
			e.Entities += one.scanned
			e.AtLeast = e.AtLeast || !one.done
		}
		e.Source = fmt.Sprintf("round %d, of %s", rec.Round().Number, rec.Round().Began.UTC().Format(time.DateOnly))
	}
	if !e.AtLeast {
		return e, nil
	}
	if n := p.job.countSource(ctx); n > e.Entities {
		e.Entities, e.Source = n, "the index of "+p.job.cfg.Rule.Property
	}
	if e.Entities == 0 {
		e.Source = ""
	}
	return e, nil
}

// countSource counts the index of the property that the rule reads; 0 if that is not possible.
func (j *job) countSource(ctx context.Context) (n int64) {
	counter, ok := j.store.(store.Counter)
	if !ok || j.cfg.Rule.CreateTime {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, countWithin)
	defer cancel()
	namespaces, err := j.namespaces(ctx)
	if err != nil {
		return 0
	}
	for _, ns := range namespaces {
		some, err := counter.Count(ctx, j.sourceTarget(), ns, store.Span{}, 0)
		if err != nil {
			return 0
		}
		n += some
	}
	return n
}
