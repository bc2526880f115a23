package breaker

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/store"
)

// Schema is the version of the budget record that this program writes, and the newest that
// it reads.
const Schema = 1

// ErrNewer is wrapped by the error for a budget of a newer program.
var ErrNewer = store.WithHint(errors.New("the budget record was written by a newer reaper"), "update this one")

// Query asks for the budget of a target.
func Query(target string) store.RecordQuery {
	return store.RecordQuery{Sort: store.BudgetRecord, Target: target, Keys: []string{target}}
}

// Encode returns the record that holds the budget, with a new revision. Its lists are texts:
// hundreds of nested fields would cost more than the rest of the record.
func (b Budget) Encode() store.Record {
	samples := make([]store.Fields, 0, len(b.Trip.Samples))
	for _, id := range b.Trip.Samples {
		samples = append(samples, store.Fields{"id": id})
	}
	return store.Record{
		Sort: store.BudgetRecord, Key: b.Target, Target: b.Target, Revision: store.NewRevision(b.Revision),
		Fields: store.Fields{
			"schema":    int64(Schema),
			"began":     store.FormatTime(b.Began),
			"tallies":   join(b.Tallies, encodeTally),
			"charged":   join(slices.DeleteFunc(slices.Clone(b.Tallies), isUncharged), encodeCharged),
			"days":      join(b.Days, encodeDay),
			"taught":    strings.Join(b.taught(), " "),
			"all":       join(b.Alls, func(a All) string { return fields(stamp(a.At), number(a.N)) }),
			"spent":     fields(stamp(b.Spent.Hour), number(b.Spent.InHour), number(b.Spent.InDay), number(b.Spent.Ever)),
			"announced": join(b.Announced, func(a Announced) string { return fields(stamp(a.Hour), number(a.N)) }),
			"lives":     join(b.Lives, encodeLives),
			"uncounted": b.Uncounted,
			"trip":      b.Trip.ID,
			"histogram": join(b.Trip.Histogram, encodeBar),
			"samples":   samples,
		},
	}
}

// Decode reads a record that Encode has made. It refuses one that does not make sense.
func Decode(rec store.Record) (Budget, error) {
	what := fmt.Sprintf("budget record %s %q", rec.Sort, rec.Key)
	f := rec.Fields.Reader(what)
	if err := f.Schema(Schema, what, ErrNewer); err != nil {
		return Budget{}, err
	}
	b := Budget{Target: rec.Key, Revision: rec.Revision, Began: f.Time("began")}
	b.Trip.ID, b.Uncounted = f.Text("trip"), f.Text("uncounted")
	b.Tallies = split(f, "tallies", 9, decodeTally)
	for _, t := range split(f, "charged", 2, decodeCharged) {
		if i := b.index(t.Key); i >= 0 {
			b.Tallies[i].Charged = min(t.Charged, b.Tallies[i].Done)
		}
	}
	b.Days = split(f, "days", 2, func(p *parts) Day { return Day{Begin: p.time(), Share: p.float()} })
	for _, t := range split(f, "taught", 3, decodeTaught) {
		if i := slices.IndexFunc(b.Days, func(d Day) bool { return d.Begin.Equal(t.Begin) }); i >= 0 {
			b.Days[i].Steps = append(b.Days[i].Steps, t.Steps...)
		}
	}
	b.Alls = split(f, "all", 2, func(p *parts) All { return All{At: p.time(), N: p.number()} })
	for _, s := range split(f, "spent", 4, func(p *parts) Spent {
		return Spent{p.time(), p.number(), p.number(), p.number()}
	}) {
		b.Spent = s
	}
	b.Announced = split(f, "announced", 2, func(p *parts) Announced { return Announced{p.time(), p.number()} })
	b.Lives = split(f, "lives", 2, decodeLives)
	b.Trip.Histogram = split(f, "histogram", 4, func(p *parts) Bar {
		return Bar{From: p.time(), To: p.time(), Generation: int(p.number()), N: p.number()}
	})
	for _, one := range f.List("samples") {
		s := one.Reader(what + ": samples")
		b.Trip.Samples = append(b.Trip.Samples, s.Text("id"))
		if err := s.Err(); err != nil {
			return Budget{}, err
		}
	}
	return b, f.Err()
}

func encodeTally(t Tally) string {
	return fields(encodeKey(t.Key), number(t.Granted), number(t.Done), flag(t.Counted), flag(t.Tripped),
		number(t.Open), number(t.Coming), stamp(t.At), stamp(t.Since))
}

func decodeTally(p *parts) Tally {
	return Tally{Key: p.key(), Granted: p.number(), Done: p.number(), Counted: p.flag(), Tripped: p.flag(),
		Open: p.number(), Coming: p.number(), At: p.time(), Since: p.time()}
}

func isUncharged(t Tally) bool { return t.Charged == 0 }

func encodeCharged(t Tally) string { return fields(encodeKey(t.Key), number(t.Charged)) }

func decodeCharged(p *parts) Tally { return Tally{Key: p.key(), Charged: p.number()} }

// encodeLives writes the counts as bucket=number, separated by commas.
func encodeLives(h HourOfLives) string {
	counts := make([]string, 0, len(h.Counts))
	for _, c := range h.Counts {
		counts = append(counts, number(int64(c.Bucket))+"="+number(c.N))
	}
	return fields(stamp(h.Begin), strings.Join(counts, ","))
}

func decodeLives(p *parts) HourOfLives {
	h := HourOfLives{Begin: p.time()}
	for _, one := range strings.Split(p.next(), ",") {
		bucket, n, _ := strings.Cut(one, "=")
		q := &parts{rest: []string{bucket, n}}
		h.Counts = append(h.Counts, LifeCount{Bucket: int(q.number()), N: q.number()})
		if q.err != nil {
			p.note(q.err)
		}
	}
	return h
}

func encodeDay(d Day) string { return fields(stamp(d.Begin), decimal(d.Share)) }

// taught lists the steps of the days of which it is known which hours have taught them.
func (b Budget) taught() (list []string) {
	for _, d := range b.Days {
		for _, s := range d.Steps {
			list = append(list, fields(stamp(d.Begin), stamp(s.Hour), decimal(s.Share)))
		}
	}
	return list
}

func decodeTaught(p *parts) Day {
	return Day{Begin: p.time(), Steps: []Step{{Hour: p.time(), Share: p.float()}}}
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

func encodeBar(b Bar) string {
	return fields(stamp(b.From), stamp(b.To), number(int64(b.Generation)), number(b.N))
}

// encodeKey writes what is late as L, an hour as its begin, and an approval with a leading A; all with a
// leading B if it is the key of descendants.
func encodeKey(k Key) string {
	switch {
	case k.Below:
		return "B" + encodeKey(k.Entities())
	case k.IsLate():
		return "L"
	case k.Approval != "":
		return "A" + k.Approval
	}
	return stamp(k.Hour)
}

func join[T any](list []T, encode func(T) string) string {
	all := make([]string, 0, len(list))
	for _, one := range list {
		all = append(all, encode(one))
	}
	return strings.Join(all, " ")
}

func fields(list ...string) string { return strings.Join(list, ":") }

func number(n int64) string { return strconv.FormatInt(n, 10) }

func flag(b bool) string {
	if b {
		return "1"
	}
	return ""
}

// stamp writes an instant in milliseconds since 1970; the zero instant is empty.
func stamp(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return number(at.UnixMilli())
}

// parts are the fields of one entry of a list.
type parts struct {
	rest []string
	err  error
}

func split[T any](f *store.FieldReader, name string, n int, decode func(*parts) T) (list []T) {
	for _, one := range strings.Fields(f.Text(name)) {
		p := &parts{rest: strings.Split(one, ":")}
		if len(p.rest) != n {
			f.Fail(name, "%q has %d parts, not %d", one, len(p.rest), n)
			return nil
		}
		got := decode(p)
		if p.err != nil {
			f.Fail(name, "%q: %v", one, p.err)
			return nil
		}
		list = append(list, got)
	}
	return list
}

func (p *parts) next() (text string) {
	text, p.rest = p.rest[0], p.rest[1:]
	return text
}

func (p *parts) note(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *parts) number() int64 {
	n, err := strconv.ParseInt(p.next(), 10, 64)
	if p.note(err); n < 0 {
		p.note(fmt.Errorf("%d is less than 0", n))
	}
	return n
}

func (p *parts) float() float64 {
	x, err := strconv.ParseFloat(p.next(), 64)
	if p.note(err); !(x >= 0) {
		p.note(fmt.Errorf("%g is not a share", x))
	}
	return x
}

func (p *parts) flag() bool { return p.next() == "1" }

func (p *parts) time() time.Time {
	if p.rest[0] == "" {
		p.next()
		return time.Time{}
	}
	return time.UnixMilli(p.number()).UTC()
}

func (p *parts) key() Key {
	text := p.rest[0]
	if above, ok := strings.CutPrefix(text, "B"); ok {
		p.rest[0] = above
		return p.key().Descendants()
	}
	if id, ok := strings.CutPrefix(text, "A"); ok {
		p.next()
		return Key{Approval: id}
	}
	if text == "L" {
		p.next()
		return Late()
	}
	return Key{Hour: p.time()}
}
