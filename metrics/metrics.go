package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/reaper-ttl/reaper/store"
)

const namespace = "reaper"

// What labels other than a target may hold. The words are those of logs and
// status; a word that is missing here counts as "other".
var (
	throttlings = words("ramp", "max", "total", "pushback", "latency", "compaction", "lease", "paused", "gate", "breaker",
		"limit", "archive", "record")
	adoptions  = words(Stamped, Unstamped, Mismatched)
	holds      = words("paused", "gate", "breaker", "limit", "archive", "record")
	operations = words(OpRead, OpWrite, OpDelete)
	errorOps   = words(OpScan, OpCommit, OpRecord)
	errorCodes = words(store.Labels()...)
	results    = words(string(Complete), string(Incomplete), string(Failed))
)

// Billed operations, for [Metrics.Operations].
const (
	OpRead   = "read"
	OpWrite  = "write"
	OpDelete = "delete"
)

// What an error met, for [Metrics.Error].
const (
	OpScan   = "scan"   // a page's query
	OpCommit = "commit" // a page's conditional writes
	OpRecord = "record" // the reaper's own records
)

// What an adoption has found or done, for [Metrics.Adoption].
const (
	Stamped    = "stamped"
	Unstamped  = "unstamped"
	Mismatched = "mismatch"
)

// A Result is how a sweep of a target ended.
type Result string

const (
	Complete   Result = "complete"   // every range was swept to its horizon
	Incomplete Result = "incomplete" // stopped in good order before that; no failure
	Failed     Result = "failed"
)

const (
	other       = "other"
	otherTarget = "_other"
)

type vocabulary map[string]bool

func words(all ...string) vocabulary {
	v := vocabulary{}
	for _, w := range all {
		v[w] = true
	}
	return v
}

func (v vocabulary) word(s string) string {
	if v[s] {
		return s
	}
	return other
}

// Options say what is measured.
type Options struct {
	Registry *prometheus.Registry // nil makes one, with the Go and process collectors
	Targets  []string             // all that will ever be named, as configured
	Version  string               // of this program
	Apply    bool                 // deletes for real
}

// Metrics are a running process's collectors. All methods are safe for
// concurrent use and none blocks.
type Metrics struct {
	registry *prometheus.Registry
	targets  vocabulary

	counted                               map[string]*prometheus.CounterVec // by name; see counters
	sweeps, throttled, operations, errors *prometheus.CounterVec

	outside, oldestDue, lastSuccess, rate, generation, live, leases, emptyIndex, stuck, held,
	behind, breaker, wouldTrip, halved, adoption *prometheus.GaugeVec

	delay, sweep, query, commit, readyWait *prometheus.HistogramVec
}

// New registers the collectors. It panics where the registry has them already,
// which is a mistake of the program's.
func New(o Options) *Metrics {
	m := &Metrics{registry: o.Registry, targets: words(o.Targets...)}
	if m.registry == nil {
		m.registry = prometheus.NewRegistry()
		m.registry.MustRegister(collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	m.registerCounts()
	m.sweeps = m.counter("sweeps_total", "Sweeps that ended, by result.", "result")
	m.throttled = m.counter("throttled_seconds_total", "Time that ranges were held back, summed over ranges, by reason.",
		"reason")
	m.operations = m.counter("store_operations_total", "Billed operations as the service counts them.", "op")
	m.errors = m.counter("store_errors_total",
		"Requests to the store that failed, each attempt, by what they were for and why they failed.",
		"op", "code")

	m.outside = m.gauge("outside_entities", "Entities that carry the property but lie in no range, as last counted.")
	m.behind = m.gauge("behind_entities",
		"Due entities behind the cursors, as last counted; absent before the first count.")
	m.oldestDue = m.gauge("oldest_due_timestamp_seconds",
		"When the oldest entity that is still there became due; 0 if nothing is due.")
	m.lastSuccess = m.gauge("last_success_timestamp_seconds",
		"When a sweep last ended without a failure; absent before the first.")
	m.rate = m.gauge("rate_limit_entities_per_second",
		"What the ranges held by this process may delete a second at present, added up.")
	m.generation = m.gauge("current_generation", "The newest generation.")
	m.live = m.gauge("live_generations", "Generations that are not retired, the nursery not counted.")
	m.leases = m.gauge("leases_held", "Ranges that this process holds.")
	m.emptyIndex = m.gauge("empty_index", "1 if there are entities but no index entry in any range.")
	m.stuck = m.gauge("stuck_ranges", "Ranges with due entities and no progress.")
	m.halved = m.gauge("lives_halved", "1 while entities are written with half as long to live as on the day before.")
	m.breaker = m.gauge("breaker_open", "1 while the target waits for the approval of an event that is unusual.")
	m.wouldTrip = m.gauge("breaker_would_trip",
		"1 while the breaker would trip at the next reads from the start, for what lies behind the cursors.")
	m.held = m.gauge("held", "1 while nothing of the target may be deleted, by what holds it.", "why")

	m.adoption = m.gauge("adoption_entities", "Entities of an adoption: that got a key in its last round and since, "+
		"that this left without one, and whose key disagrees with the rule; absent without an adoption.", "state")

	m.delay = m.histogram("deletion_delay_seconds", "From when an entity was due to when its deletion was acknowledged.",
		delayBuckets()...)
	m.sweep = m.histogram("sweep_duration_seconds", "How long a target's sweep took.",
		.1, .5, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 6*3600)
	page := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m.query = m.histogram("page_query_duration_seconds", "How long a page's query took.", page...)
	m.commit = m.histogram("page_commit_duration_seconds", "How long a page's conditional writes took.", page...)

	m.readyWait = m.histogram("ready_wait_seconds", "How long a range or chore that was ready waited for a worker.",
		.0001, .001, .01, .1, .5, 1, 2.5, 5, 10, 30, 60)

	apply := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "apply", Help: applyHelp})
	apply.Set(truth(o.Apply))
	info := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": o.Version, "goversion": runtime.Version()}})
	info.Set(1)
	m.registry.MustRegister(apply, info)
	for _, t := range o.Targets {
		m.announce(t)
	}
	return m
}

// Discard returns metrics that nobody reads.
func Discard() *Metrics { return New(Options{Registry: prometheus.NewRegistry()}) }

const applyHelp = "1 if sweeps delete for real, 0 if they only count."

// announce makes a target's series, so that a counter's first increase is an
// increase and not a new series.
func (m *Metrics) announce(target string) {
	m.announceCounts(target)
	for _, g := range []*prometheus.GaugeVec{
		m.outside, m.oldestDue, m.rate, m.generation, m.live, m.leases, m.emptyIndex, m.stuck, m.breaker, m.halved,
	} {
		g.WithLabelValues(target)
	}
	for _, h := range []*prometheus.HistogramVec{m.delay, m.sweep, m.query, m.commit, m.readyWait} {
		h.WithLabelValues(target)
	}
	m.Held(target, "")
	for c, v := range map[*prometheus.CounterVec]vocabulary{
		m.sweeps: results, m.throttled: throttlings, m.operations: operations,
	} {
		for w := range v {
			c.WithLabelValues(target, w)
		}
	}
	for op := range errorOps {
		for code := range errorCodes {
			m.errors.WithLabelValues(target, op, code)
		}
	}
}

// Registry is where the collectors are registered.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler answers a scrape. A scrape that hangs ends after the given time, and
// no more than a few are answered at once.
func (m *Metrics) Handler(timeout time.Duration) http.Handler {
	return promhttp.HandlerFor(m.registry,
		promhttp.HandlerOpts{Timeout: timeout, MaxRequestsInFlight: 4, EnableOpenMetrics: true})
}

// Operations counts billed operations: OpRead, OpWrite or OpDelete.
func (m *Metrics) Operations(target, op string, n int64) {
	m.add(m.operations, n, target, operations.word(op))
}

// Error counts an attempt that failed: OpScan, OpCommit or OpRecord, and the kind of its error.
func (m *Metrics) Error(target, op string, err error) {
	m.add(m.errors, 1, target, errorOps.word(op), errorCodes.word(store.Label(err)))
}

// Throttled counts the time that a range was held back.
func (m *Metrics) Throttled(target, reason string, d time.Duration) {
	if d > 0 { // a counter cannot fall, and a clock can
		m.throttled.WithLabelValues(m.target(target), throttlings.word(reason)).Add(d.Seconds())
	}
}

// Delay observes, for each entity of a page, the time from due to deleted.
func (m *Metrics) Delay(target string, each ...time.Duration) {
	observe(m.delay.WithLabelValues(m.target(target)), each...)
}

// Query observes a page's query.
func (m *Metrics) Query(target string, d time.Duration) {
	observe(m.query.WithLabelValues(m.target(target)), d)
}

// Commit observes a page's conditional writes.
func (m *Metrics) Commit(target string, d time.Duration) {
	observe(m.commit.WithLabelValues(m.target(target)), d)
}

// ReadyWait observes how long a range or chore that was ready waited for a worker.
func (m *Metrics) ReadyWait(target string, d time.Duration) {
	observe(m.readyWait.WithLabelValues(m.target(target)), d)
}

// Swept records the end of a target's sweep. A failed one leaves the time of
// the last success alone.
func (m *Metrics) Swept(target string, r Result, took time.Duration, ended time.Time) {
	m.add(m.sweeps, 1, target, results.word(string(r)))
	observe(m.sweep.WithLabelValues(m.target(target)), took)
	if r == Complete || r == Incomplete {
		m.lastSuccess.WithLabelValues(m.target(target)).Set(unix(ended))
	}
}

// OldestDue says when the oldest entity that is still there became due; the zero
// time if nothing is due.
func (m *Metrics) OldestDue(target string, t time.Time) { m.set(m.oldestDue, unix(t), target) }

// Outside says how many entities lie in no range.
func (m *Metrics) Outside(target string, n int64) { m.set(m.outside, float64(n), target) }

// Behind says how many entities are due behind the cursors, which a read from the start finds, and
// whether the breaker would trip then.
func (m *Metrics) Behind(target string, n int64, wouldTrip bool) {
	m.set(m.behind, float64(n), target)
	m.set(m.wouldTrip, truth(wouldTrip), target)
}

// Rate says how many entities a second the ranges that this process holds may
// delete, added up; +Inf if they are unlimited.
func (m *Metrics) Rate(target string, perSecond float64) { m.set(m.rate, perSecond, target) }

// Generations says which generation is the newest and how many are live.
func (m *Metrics) Generations(target string, newest, live int) {
	m.set(m.generation, float64(newest), target)
	m.set(m.live, float64(live), target)
}

// LeaseHeld counts ranges held: 1 for a claim, -1 for its release.
func (m *Metrics) LeaseHeld(target string, change int) {
	m.leases.WithLabelValues(m.target(target)).Add(float64(change))
}

// EmptyIndex says whether the target holds entities without an index entry.
func (m *Metrics) EmptyIndex(target string, empty bool) { m.set(m.emptyIndex, truth(empty), target) }

// Stuck says how many ranges make no progress; see [Watchdog].
func (m *Metrics) Stuck(target string, ranges int) { m.set(m.stuck, float64(ranges), target) }

// Held says what holds the target; nothing if why is empty.
func (m *Metrics) Held(target, why string) {
	for w := range holds {
		m.set(m.held, truth(w == why), target, w)
	}
}

// Adoption says how many entities an adoption has stamped, left without a key, and found with a
// key that disagrees with the rule. Without an adoption the target has none of these series.
func (m *Metrics) Adoption(target string, entities map[string]int64) {
	for state := range adoptions {
		if n, ok := entities[state]; ok {
			m.set(m.adoption, float64(n), target, state)
		} else {
			m.adoption.DeleteLabelValues(m.target(target), state)
		}
	}
}

// Halved says whether entities are written with half as long to live as on the day before.
func (m *Metrics) Halved(target string, is bool) { m.set(m.halved, truth(is), target) }

// Breaker says whether the breaker of the target is open.
func (m *Metrics) Breaker(target string, open bool) { m.set(m.breaker, truth(open), target) }

func (m *Metrics) target(t string) string {
	if m.targets[t] {
		return t
	}
	return otherTarget
}

// add counts up. Less than nothing would make the client panic, in the middle
// of a sweep, over a number that nobody's data depends on.
func (m *Metrics) add(c *prometheus.CounterVec, n int64, target string, labels ...string) {
	if n > 0 {
		c.WithLabelValues(append([]string{m.target(target)}, labels...)...).Add(float64(n))
	}
}

func (m *Metrics) set(g *prometheus.GaugeVec, v float64, target string, labels ...string) {
	g.WithLabelValues(append([]string{m.target(target)}, labels...)...).Set(v)
}

// observe takes a negative duration, as a clock that is a little off yields
// one, for none at all.
func observe(o prometheus.Observer, each ...time.Duration) {
	for _, d := range each {
		o.Observe(max(0, d).Seconds())
	}
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help},
		append([]string{"target"}, labels...))
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help},
		append([]string{"target"}, labels...))
	m.registry.MustRegister(g)
	return g
}

// histogram makes a native histogram with at most 160 buckets, each at most 10 %
// wide. It also has classic buckets, for servers without native histograms.
func (m *Metrics) histogram(name, help string, classic ...float64) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help,
		Buckets: classic, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		NativeHistogramMinResetDuration: time.Hour}, []string{"target"})
	m.registry.MustRegister(h)
	return h
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// unix is the instant in seconds; 0 for the zero time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
