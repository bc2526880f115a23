package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/expirykey"
	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/sweep"
)

// A WriterTable says with what the entities of a sample are stamped, by the hour in which each was
// last written, in the form that `reaper doctor --writers --json` prints.
type WriterTable struct {
	Name    string `json:"name"`
	Sampled int    `json:"sampled"` // entities
	More    bool   `json:"more"`    // the kind has more
	Reads   int64  `json:"reads"`   // billed for the sample, and for the records of the target
	// NurseryShare is the part of those with a key that have one of the nursery; nil without any.
	NurseryShare *float64           `json:"nursery_share"`
	Generations  []WriterGeneration `json:"generations"` // of the keys, the newest first
	WithoutKey   int                `json:"without_key"` // entities that never expire
	Unexplained  []WriterFault      `json:"unexplained"` // keys that no rule explains
	Hours        []WriterHour       `json:"hours"`       // the latest first
	Note         string             `json:"note"`        // why there is less to say; empty otherwise
}

// A WriterGeneration is how many keys of a sample are of one generation.
type WriterGeneration struct {
	Number   int    `json:"number"`
	State    string `json:"state"`
	Entities int    `json:"entities"`
}

// A WriterFault is what is wrong with some keys.
type WriterFault struct {
	Why      string     `json:"why"`
	Entities int        `json:"entities"`
	Last     *time.Time `json:"last"`     // when the latest of them was written; nil if the store does not tell
	Examples []string   `json:"examples"` // ids
}

// A WriterHour is what was last written in one hour.
type WriterHour struct {
	From        *time.Time `json:"from"` // nil if the store does not tell
	Entities    int        `json:"entities"`
	Newest      int        `json:"newest"` // with a key of the newest generation
	Older       int        `json:"older"`  // of an earlier one that is live
	Nursery     int        `json:"nursery"`
	WithoutKey  int        `json:"without_key"`
	Unexplained int        `json:"unexplained"`
}

const (
	// sampledPlaces is in how many places of a kind entities are sampled at most, and
	// sampledNamespaces in how many namespaces.
	sampledPlaces     = 20
	sampledNamespaces = 32
	// writerExamples is how many entities are named for each fault.
	writerExamples = 3
)

// A datedWalker is a store that tells when each entity was last written.
type datedWalker interface {
	WalkWritten(ctx context.Context, q store.WalkQuery, rows *store.Rows) ([]time.Time, error)
}

// Writers samples the entities of a target, at most so many, in places that are spread over its
// keys, and says with what they are stamped. It writes nothing. Each entity costs a read, and each
// place a query. What it says is true of a sample: of a few writers among many nothing may show.
func Writers(ctx context.Context, cfg sweep.Config, t sweep.Target, most int) (WriterTable, error) {
	var meter store.Meter
	ctx = store.WithMeter(ctx, &meter)
	table := WriterTable{Name: t.Name, Generations: []WriterGeneration{}, Unexplained: []WriterFault{},
		Hours: []WriterHour{}}
	if !t.Layout.Form().HasGenerations() {
		table.Note = fmt.Sprintf("the layout %s has timestamps, not keys: nothing tells writers apart", t.Layout)
		return table, nil
	}
	adopter, walks := cfg.Store.(store.Adopter)
	keyer, tells := cfg.Store.(store.Keyer)
	if !walks || !tells {
		return table, errors.New("this store cannot list entities")
	}
	s, err := sweep.TakeSnapshot(ctx, cfg, t)
	if err != nil {
		return table, err
	}
	w := &writerSample{Snapshot: s, adopter: adopter, keyer: keyer, most: most, table: &table,
		byHour: map[time.Time]*WriterHour{}, byNumber: map[int]int{}, faults: map[string]*WriterFault{}}
	w.dated, _ = cfg.Store.(datedWalker)
	if w.dated == nil {
		table.Note = "this store does not tell when an entity was last written"
	}
	err = w.read(ctx)
	w.sum()
	table.Reads = meter.Operations().Reads
	return table, err
}

// A writerSample is what was read so far.
type writerSample struct {
	*sweep.Snapshot
	adopter  store.Adopter
	keyer    store.Keyer
	dated    datedWalker // nil if the store cannot
	most     int
	table    *WriterTable
	byHour   map[time.Time]*WriterHour
	byNumber map[int]int
	faults   map[string]*WriterFault
}

// read samples each of the first namespaces.
func (w *writerSample) read(ctx context.Context) error {
	namespaces := w.View.Namespaces
	if len(namespaces) > sampledNamespaces {
		namespaces, w.table.More = namespaces[:sampledNamespaces], true
	}
	for i, ns := range namespaces {
		share := (w.most - w.table.Sampled) / (len(namespaces) - i)
		if share == 0 {
			w.table.More = true
			continue
		}
		if err := w.readIn(ctx, ns, share); err != nil {
			return err
		}
	}
	return nil
}

// readIn samples one namespace: evenly from the begin of its keys and from places in it.
func (w *writerSample) readIn(ctx context.Context, namespace string, most int) error {
	var places []string
	if most >= 2*sampledPlaces { // else a few from the begin are as good
		err := patiently(ctx, func(ctx context.Context) (err error) {
			places, err = w.adopter.Splits(ctx, w.Target.Target, namespace, sampledPlaces-1)
			return err
		})
		if err != nil {
			return err
		}
	}
	starts := append([]string{""}, places...)
	for i, after := range starts {
		q := store.WalkQuery{Target: w.Target.Target, Namespace: namespace, After: after}
		if i+1 < len(starts) {
			q.Until = starts[i+1]
		}
		more, err := w.readPart(ctx, q, max(1, most/len(starts)))
		if err != nil {
			return err
		}
		w.table.More = w.table.More || more
	}
	return nil
}

// readPart reads the first entities of a span of keys, and reports whether there may be more.
func (w *writerSample) readPart(ctx context.Context, q store.WalkQuery, most int) (more bool, err error) {
	for most > 0 {
		var rows store.Rows
		var written []time.Time
		q.Limit = min(most, store.MaxPage)
		err := patiently(ctx, func(ctx context.Context) (err error) {
			if w.dated == nil {
				return w.adopter.Walk(ctx, q, &rows)
			}
			written, err = w.dated.WalkWritten(ctx, q, &rows)
			return err
		})
		if err != nil {
			return false, err
		}
		for i, row := range rows.List {
			at := time.Time{}
			if i < len(written) {
				at = written[i]
			}
			if err := w.take(row, at); err != nil {
				return false, err
			}
			q.After = row.Key
		}
		if !rows.More || len(rows.List) == 0 {
			return false, nil
		}
		q.Next = rows.Next
		most -= len(rows.List)
	}
	return true, nil
}

// take takes in one entity, last written at an instant that may be zero.
func (w *writerSample) take(row store.Row, written time.Time) error {
	w.table.Sampled++
	from := written.Truncate(time.Hour)
	hour := w.byHour[from]
	if hour == nil {
		hour = &WriterHour{From: timePtr(from)}
		w.byHour[from] = hour
	}
	hour.Entities++
	if row.Expiry.Type == store.Missing {
		w.table.WithoutKey++
		hour.WithoutKey++
		return nil
	}
	number, why := w.judge(row.Expiry, written)
	live := w.View.Record.Generations
	switch {
	case why != "":
		hour.Unexplained++
		return w.fault(row, why, written)
	case number == expirykey.Nursery:
		hour.Nursery++
	case number == live[len(live)-1].Number:
		hour.Newest++
	default:
		hour.Older++
	}
	w.byNumber[number]++
	return nil
}

// judge returns the generation of a key, or what no rule explains.
func (w *writerSample) judge(v store.Value, written time.Time) (number int, why string) {
	if v.Type != store.Text {
		return 0, "not a text"
	}
	k, err := expirykey.Parse(v.Text)
	if err != nil {
		return 0, "not an expiry key"
	}
	number = k.Generation
	if number == expirykey.Nursery {
		if most := w.View.Record.NurseryShards; k.Shard >= most {
			return 0, fmt.Sprintf("a shard of the nursery behind its %d", most)
		}
		return number, ""
	}
	for _, g := range w.View.Record.Generations {
		if g.Number != number {
			continue
		}
		sealed := w.Plan.Stage(number).Sealed
		switch {
		case k.Shard >= g.Shards:
			return 0, "a shard that its generation does not have"
		case !sealed.IsZero() && written.After(sealed):
			return 0, "written after its generation was sealed: stamped by an old copy of the record, or not stamped again"
		}
		return number, ""
	}
	if live := w.View.Record.Generations; len(live) == 0 || number > live[len(live)-1].Number {
		return 0, "a generation that was never opened"
	}
	return 0, "a generation that has retired"
}

func (w *writerSample) fault(row store.Row, why string, written time.Time) error {
	f := w.faults[why]
	if f == nil {
		f = &WriterFault{Why: why, Examples: []string{}}
		w.faults[why] = f
	}
	f.Entities++
	if !written.IsZero() && (f.Last == nil || written.After(*f.Last)) {
		f.Last = &written
	}
	if len(f.Examples) < writerExamples {
		id, err := w.keyer.ID(row.Key)
		if err != nil {
			return err
		}
		f.Examples = append(f.Examples, id)
	}
	return nil
}

// sum completes the table.
func (w *writerSample) sum() {
	states := map[int]string{}
	for _, g := range generationsOf(w.Snapshot) {
		states[g.Number] = g.State
	}
	keys := 0
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(w.byNumber))) {
		n := w.byNumber[number]
		keys += n
		w.table.Generations = append(w.table.Generations, WriterGeneration{number, states[number], n})
	}
	if keys > 0 {
		share := float64(w.byNumber[expirykey.Nursery]) / float64(keys)
		w.table.NurseryShare = &share
	}
	for _, f := range w.faults {
		w.table.Unexplained = append(w.table.Unexplained, *f)
	}
	slices.SortFunc(w.table.Unexplained, func(a, b WriterFault) int {
		return cmp.Or(b.Entities-a.Entities, strings.Compare(a.Why, b.Why))
	})
	for _, at := range slices.SortedFunc(maps.Keys(w.byHour), func(a, b time.Time) int { return b.Compare(a) }) {
		w.table.Hours = append(w.table.Hours, *w.byHour[at])
	}
}
