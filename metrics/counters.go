package metrics

import (
	"reflect"

	"github.com/prometheus/client_golang/prometheus"
)

// CountsOf are the numbers that sweeps add up for each target. A new one is a field here and a
// row of counters at the same place: `sweep --json`, the metrics, the dashboard and
// docs/reference.md follow.
type CountsOf[T any] struct {
	Scanned   T `json:"scanned"`
	Expired   T `json:"expired"`
	Deleted   T `json:"deleted"`
	Conflicts T `json:"conflicts"`
	Suspect   T `json:"suspect"`
	Malformed T `json:"malformed"`
	Refused   T `json:"refused"`
	Mismatch  T `json:"mismatch"`
	Waiting   T `json:"waiting"`
	Carried   T `json:"carried"`
	Strays    T `json:"strays"`
	Pages     T `json:"pages"`

	Descendants T `json:"descendants"`
	Archived    T `json:"archived"`

	ArchivedBytes T `json:"archived_bytes"`
}

// Counts are the sums so far. While a sweep adds up, its fields are of type [sync/atomic.Int64].
type Counts = CountsOf[int64]

// A counter is what users see of one of the counts.
type counter struct {
	about  string // for docs/reference.md
	metric family // the zero family if it is no metric
	reason string // the counts of one family differ in this label
}

// A family is one metric.
type family struct {
	name, help   string
	panel, shown string // title of its panel on the dashboard, and what the legend calls it
}

// Titles of panels, as in deploy/prometheus/dashboard.json. What is shown per second or per hour
// says so at the end of its title.
const (
	panelRate = "Deleted and scanned per second"
	panelRare = "Kept, carried, strays per hour"

	panelBytes = "Archived per second"
)

var (
	deleted = family{"deleted_entities_total", "Entities whose deletion the store acknowledged.", panelRate, "deleted"}
	scanned = family{"scanned_entries_total", "Index entries read.", panelRate, "scanned"}
	kept    = family{"kept_entities_total", "Entities in a range that were due or unreadable and kept, by reason.",
		panelRare, "{{reason}}"}
	carried = family{"carried_entities_total",
		"Survivors of a draining generation that were carried to the newest one.", panelRare, "carried"}
	descended = family{"descendants_deleted_total", "What lay below entities and was deleted before them.",
		panelRate, "descendants"}
	archived = family{"archived_entities_total", "Entities and descendants that were kept in the archive, and deleted.",
		panelRate, "archived"}
	archivedBytes = family{"archived_bytes_total", "Bytes of what was kept in the archive, before compression.",
		panelBytes, "archived"}
	strays = family{"stray_entities_total", "Entries found in retired generations.", panelRare, "strays"}
)

// counters has a row for each field of CountsOf, in the same order.
var counters = []counter{
	{about: "index entries read", metric: scanned},
	{about: "found due; in a dry run, what the next sweep would delete"},
	{about: "deletes that the store acknowledged", metric: deleted},
	{about: "changed by the application between scan and delete, and then judged by their new expiry",
		metric: kept, reason: "conflict"},
	{about: "kept: expired implausibly long ago. Counted by the sweep whose cursor passes them, and again at each " +
		"rewind. In native mode and in the timestamp layouts most of them are `outside` instead",
		metric: kept, reason: "suspect"},
	{about: "kept: not an expiry key, or a list. Counted as `suspect` is (a malformed text may sort among keys that " +
		"have not expired yet)", metric: kept, reason: "malformed"},
	{about: "kept: the store refuses, again and again, to delete or carry them", metric: kept, reason: "refused"},
	{about: "kept while entities are adopted: due by a key that is earlier than the rule, or later by more than the " +
		"spread, or without a value that the rule can read", metric: kept, reason: "mismatch"},
	{about: "kept until what lies below them and is another target's own has gone by its own expiry",
		metric: kept, reason: "waiting"},
	{about: "survivors of a draining generation, stamped again in the newest one", metric: carried},
	{about: "found by the daily audit in retired generations, and deleted or moved to the nursery", metric: strays},
	{about: "index pages read"},
	{about: "deletes of what lay below entities; in a dry run, what the next sweep would delete", metric: descended},
	{about: "deletes, descendants included, of which the archive has a copy or the key", metric: archived},
	{about: "bytes of the copies, before compression", metric: archivedBytes},
}

// field returns the number at a place of the table.
func (c *CountsOf[T]) field(i int) *T {
	return reflect.ValueOf(c).Elem().Field(i).Addr().Interface().(*T)
}

// Load returns the sums as they are now. Each of them is read for itself.
func Load[T any, P interface {
	*T
	Load() int64
}](from *CountsOf[T]) (c Counts) {
	for i := range counters {
		*c.field(i) = P(from.field(i)).Load()
	}
	return c
}

// Add returns the sums of both counts.
func Add(a, b Counts) Counts { return combine(a, b, 1) }

// Subtract returns what was counted since b.
func Subtract(a, b Counts) Counts { return combine(a, b, -1) }

func combine(a, b Counts, sign int64) Counts {
	for i := range counters {
		*a.field(i) += sign * *b.field(i)
	}
	return a
}

// Counted adds to the metrics of a target what it has more of now than it had before.
func (m *Metrics) Counted(target string, now, before Counts) {
	for i, row := range counters {
		if row.metric != (family{}) {
			m.add(m.counted[row.metric.name], *now.field(i)-*before.field(i), target, row.labels()...)
		}
	}
}

// labels returns the values of the labels in addition to the target's.
func (c counter) labels() []string {
	if c.reason == "" {
		return nil
	}
	return []string{c.reason}
}

// registerCounts makes the metrics of the table.
func (m *Metrics) registerCounts() {
	m.counted = map[string]*prometheus.CounterVec{}
	for _, row := range counters {
		if name := row.metric.name; name != "" && m.counted[name] == nil {
			var labels []string
			if row.reason != "" {
				labels = []string{"reason"}
			}
			m.counted[name] = m.counter(name, row.metric.help, labels...)
		}
	}
}

// announceCounts makes the series of a target.
func (m *Metrics) announceCounts(target string) {
	for _, row := range counters {
		if row.metric != (family{}) {
			m.counted[row.metric.name].WithLabelValues(append([]string{target}, row.labels()...)...)
		}
	}
}
