package cursor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reaper-ttl/reaper/internal/background"
	"github.com/reaper-ttl/reaper/store"
)

const (
	// IdleBeat is how often a process that holds nothing says that it is there.
	IdleBeat = 5 * time.Minute
	// beatAgain is how soon a heartbeat that could not be written is tried again.
	beatAgain = 500 * time.Millisecond
	// mostMeet bounds how long the first claims of an epoch wait until the heartbeats of others
	// are read.
	mostMeet = time.Second
	// mostWhy bounds what a heartbeat says of a fault, in bytes.
	mostWhy = 500
)

// ErrTwin is why a heartbeat cannot be written whose record another process of the
// same owner name keeps alive.
var ErrTwin = errors.New("another process uses the same owner name")

// errNoHeartbeat is why nothing can be claimed.
var errNoHeartbeat = errors.New("the heartbeat was not written in time")

// Why an epoch ends by itself, and why one ends whose record somebody has removed.
var (
	errResting  = errors.New("the process holds nothing")
	errRemoved  = errors.New("somebody has removed the heartbeat")
	errWentBack = errors.New("the heartbeat is an older one: the records were restored")
)

// errStoodStill is why a heartbeat lapsed though no write of it failed.
var errStoodStill = errors.New("the process or its machine stood still, or the store did not answer")

// A Beat says how the epoch of this process stands.
type Beat struct {
	Live  bool // an epoch is in force
	Epoch int64
	Sent  time.Time // when the write that began or renewed it was sent, on this process's clock
	Acked time.Time // when that write was answered
}

// A Pulse keeps the heartbeat of this process for one target: the lease of all its claims.
// It begins an epoch when something is to be claimed; renews it every third of the lease;
// and ends it when nothing is claimed any more. An epoch that was not renewed for a lease,
// counted from before the last write was sent, is over, whatever becomes of a renewal under
// way: what holds by it holds no longer, and the next epoch begins with nothing.
type Pulse struct {
	keeper  *Keeper
	target  string
	version string
	process string
	told    func(Beat) // before an epoch ends by a write, and after one began or was renewed

	wake chan struct{}

	mu     sync.Mutex
	saved  Heartbeat // as the store has it, as far as this process knows
	beat   Beat
	held   map[ID]*Claim // that end with the epoch in force
	wanted int           // claims, and those under way
	seeks  bool
	why    string
	behind Behind
	hurry  bool // somebody waits for the next heartbeat
	read   time.Time
	tried  attempt
	missed time.Time // when a claim last waited for an epoch in vain; zero once there is one
	meeting
}

// A meeting is the first read of the heartbeats in an epoch: it shows the others that divide
// the ranges with this process, which may have begun at the same time.
type meeting struct {
	from time.Time     // reads that were sent from here on show them
	over chan struct{} // closed after such a read, or after mostMeet; nil if no other process can use the store
}

// end lets the claims go on that wait for the meeting.
func (m *meeting) end() {
	select {
	case <-m.over:
	default:
		close(m.over)
	}
}

// An attempt is what came of the last write of the heartbeat.
type attempt struct {
	number int
	err    error
	done   chan struct{} // closed when the next one has ended
}

// NewPulse returns a pulse that does nothing before Run. Told is called with each change
// of the epoch; it must not block.
func (k *Keeper) NewPulse(target, version string, told func(Beat)) *Pulse {
	return &Pulse{keeper: k, target: target, version: version, process: store.NewRevision(""), told: told,
		wake: make(chan struct{}, 1), saved: Heartbeat{Target: target, Owner: k.Owner}, held: map[ID]*Claim{},
		tried: attempt{done: make(chan struct{})}}
}

// Beat returns how the epoch of this process stands.
func (p *Pulse) Beat() Beat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beat
}

// hold lets a claim end with the epoch that is in force, and returns it. Without one it
// waits for the next attempts to begin one. Full tells it by how many ranges this process
// holds, once it knows of the others, whether it may hold another one; nil is always.
func (p *Pulse) hold(ctx context.Context, c *Claim, full func(held int) bool) (epoch int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, claimTimeout, errNoHeartbeat)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.live(ctx); err != nil {
		return 0, err
	}
	if full != nil && p.awaitMeeting(ctx) && full(len(p.held)) {
		return 0, ErrFull
	}
	if !p.beat.Live {
		return 0, ErrLost
	}
	p.held[c.id] = c
	return p.beat.Epoch, nil
}

// awaitMeeting waits until the meeting of the epoch in force is over, and reports whether
// there is one.
func (p *Pulse) awaitMeeting(ctx context.Context) bool {
	m := p.meeting
	if m.over == nil {
		return false
	}
	p.mu.Unlock()
	timer := time.NewTimer(mostMeet)
	select {
	case <-m.over:
	case <-timer.C:
	case <-ctx.Done():
	}
	timer.Stop()
	p.mu.Lock()
	m.end()
	return true
}

// meet takes in that a read of the heartbeats was answered.
func (p *Pulse) meet(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil && !sent.Before(p.from) {
		p.end()
	}
}

// live waits until an epoch is in force.
func (p *Pulse) live(ctx context.Context) error {
	began, before := p.keeper.Now(), p.tried.number
	for !p.beat.Live {
		err, patient := p.tried.err, p.keeper.Now().Sub(began) < claimPatience
		if p.tried.number > before && err != nil && !(patient && MayPass(err)) {
			if MayPass(err) { // else there is nothing to wait for
				p.missed = p.keeper.Now()
			}
			return err
		}
		done := p.tried.done
		p.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if err := context.Cause(ctx); err != nil {
			if errors.Is(err, errNoHeartbeat) {
				p.missed = p.keeper.Now()
			}
			return err
		}
	}
	return nil
}

// MayPass reports whether a claim that failed may succeed a little later: the store may
// answer by then, if only more slowly than a claim waits for, or the heartbeat of a former
// process of this name be found dead.
func MayPass(err error) bool {
	return store.Transient(err) || errors.Is(err, ErrTwin) || errors.Is(err, store.ErrConflict) ||
		errors.Is(err, errNoHeartbeat)
}

// Missing returns why there is no epoch, if a claim has lately waited for one in vain, and the pulse
// still tries to begin one; nil otherwise. Until it has, to read the ranges again that are to be
// claimed would only add to what keeps the store from taking the heartbeat.
func (p *Pulse) Missing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isAwaited(p.keeper.Now()) {
		return nil
	}
	return cmp.Or(p.tried.err, errNoHeartbeat)
}

func (p *Pulse) isAwaited(now time.Time) bool {
	return !p.beat.Live && !p.missed.IsZero() && passed(p.missed, now) < p.keeper.Lease
}

// holds reports whether this process holds the range.
func (p *Pulse) holds(id ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[id] != nil
}

// Held returns how many ranges this process holds.
func (p *Pulse) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}

// Seek says whether this process looks for ranges that it may take from others. A
// heartbeat tells them, though it gives no share of a total.
func (p *Pulse) Seek(seeks bool) {
	p.mu.Lock()
	news := p.seeks != seeks
	p.seeks = seeks
	p.mu.Unlock()
	if news {
		p.wakeUp()
	}
}

// Explain says why this process deletes nothing, to who reads the heartbeats; empty if it may. A
// process without a heartbeat begins none for it, unless it announces itself.
func (p *Pulse) Explain(why string) {
	if len(why) > mostWhy {
		why = strings.ToValidUTF8(why[:mostWhy], "") + "..."
	}
	p.mu.Lock()
	news := p.why != why
	p.why = why
	p.mu.Unlock()
	if news {
		p.wakeUp()
	}
}

// Report says what was counted behind the cursors, to who reads the heartbeats.
func (p *Pulse) Report(b Behind) {
	b = b.rounded()
	p.mu.Lock()
	news := p.behind != b
	p.behind = b
	p.mu.Unlock()
	if news {
		p.wakeUp()
	}
}

// drop takes back what a claim wants.
func (p *Pulse) drop(c *Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[c.id] == c {
		delete(p.held, c.id)
	}
	p.wanted--
}

// Want says that so many more need a heartbeat, or fewer.
func (p *Pulse) Want(more int) {
	p.mu.Lock()
	p.wanted += more
	first := more > 0 && p.wanted == more
	p.mu.Unlock()
	if first {
		p.wakeUp()
	}
}

// SetRead says what the share rests on from now on: the heartbeats as they were at an
// instant in the store's time, or later. An instant before an earlier one says nothing
// new, and who has relied on the earlier one must not be told less: the store's time is
// only known from its answers, and a late answer shows less of it. Hurry asks for the
// next heartbeat at once, since somebody waits to be told.
func (p *Pulse) SetRead(at time.Time, hurry bool) {
	p.mu.Lock()
	p.read = latest(p.read, at)
	hurry = hurry && p.beat.Live
	p.hurry = p.hurry || hurry
	p.mu.Unlock()
	if hurry {
		p.wakeUp()
	}
}

func (p *Pulse) wakeUp() {
	background.Wake(p.wake)
}

// Run keeps the heartbeat until ctx is done, and then removes it while last is not.
// Announce says that there is one also before anything is claimed.
func (p *Pulse) Run(ctx, last context.Context, announce bool) {
	w := beatWriter{Pulse: p, announce: announce}
	for ctx.Err() == nil {
		step, wait := w.next(p.keeper.Now())
		if step != nil {
			wait = 0
			err := step(ctx)
			w.attempted(err)
			if err != nil && ctx.Err() == nil {
				w.note(ctx, err)
				if wait = beatAgain; errors.Is(err, ErrTwin) {
					wait = max(wait, p.keeper.Lease/6)
				}
			}
			if wait == 0 {
				continue
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	w.remove(last)
}

// A beatWriter is what the goroutine of Run alone knows.
type beatWriter struct {
	*Pulse
	announce bool
	owed     bool      // the store may still show an epoch that has ended
	unsure   bool      // a write may or may not have happened: the record is read before the next one
	wrote    time.Time // when the record was written last
	failing  error
	begun    int64     // the last epoch that a write was to begin
	twin     Heartbeat // another process's record under this one's name, as it was met first
}

// attempted tells who waits for an epoch what came of an attempt to begin one.
func (w *beatWriter) attempted(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.tried.done)
	w.tried = attempt{number: w.tried.number + 1, err: err, done: make(chan struct{})}
}

// next decides what is to be done now; nil is nothing for so long.
func (w *beatWriter) next(now time.Time) (step func(context.Context) error, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lease := w.keeper.Lease
	third, held := lease/3, passed(w.beat.Sent, now)
	switch {
	case w.beat.Live && held >= lease:
		return w.lapse, 0
	case w.beat.Live && w.wanted > 0 && (held >= third || w.hurry):
		return w.renew, 0
	case w.beat.Live && w.wanted == 0 && held >= third:
		return w.rest, 0
	case w.beat.Live:
		return nil, third - held
	case w.wanted > 0, w.isAwaited(now):
		return w.begin, 0
	case w.owed, w.seeks != w.saved.Seeks, w.seeks && now.Sub(w.wrote) >= third,
		w.announce && (w.wrote.IsZero() || w.why != w.saved.Why || w.behind != w.saved.Behind ||
			now.Sub(w.wrote) >= IdleBeat):
		return w.idle, 0
	case w.seeks:
		return nil, third - now.Sub(w.wrote)
	case !w.announce:
		return nil, IdleBeat
	}
	return nil, IdleBeat - now.Sub(w.wrote)
}

// passed returns how long ago an instant was, by the clock that says more: one of them
// may have stood still while the machine slept.
func passed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// end ends the epoch in force. What holds by it is told before anything else happens.
func (w *beatWriter) end(why error) {
	w.mu.Lock()
	w.beat.Live = false
	b := w.beat
	lost := slices.SortedFunc(maps.Values(w.held), func(a, b *Claim) int {
		return strings.Compare(a.id.Key(), b.id.Key())
	})
	clear(w.held)
	w.mu.Unlock()
	for _, c := range lost {
		c.cancel(fmt.Errorf("%w: %w", ErrLost, why))
	}
	w.told(b)
}

// lapse ends an epoch that was not renewed in time.
func (w *beatWriter) lapse(ctx context.Context) error {
	why := w.failing
	if why == nil {
		why = errStoodStill
	}
	w.mu.Lock()
	epoch, ranges := w.beat.Epoch, len(w.held)
	w.mu.Unlock()
	w.end(why)
	w.keeper.Log.WarnContext(ctx, "heartbeat lapsed: giving up all ranges and beginning a new epoch", "epoch", epoch,
		"ranges", ranges, "error", why)
	return nil
}

func (w *beatWriter) begin(ctx context.Context) error {
	return w.write(ctx, func(h *Heartbeat) {
		h.Epoch, h.Count, h.Begun, h.Lease = h.Epoch+1, 0, w.storeNow(), w.keeper.Lease
		w.begun = h.Epoch
	})
}

func (w *beatWriter) renew(ctx context.Context) error {
	return w.write(ctx, func(h *Heartbeat) { h.Count++ })
}

// rest ends the epoch of a process that holds nothing any more, and says so.
func (w *beatWriter) rest(ctx context.Context) error {
	w.mu.Lock()
	resumed := w.wanted > 0
	w.beat.Live = resumed // under the same lock: who wants to claim something from here on waits for the next epoch
	w.mu.Unlock()
	if resumed {
		return nil
	}
	w.end(errResting)
	w.owed = true
	return w.idle(ctx)
}

func (w *beatWriter) idle(ctx context.Context) error {
	err := w.write(ctx, func(h *Heartbeat) {
		if h.Epoch < 1 {
			h.Epoch, h.Begun = 1, w.storeNow()
		}
		h.Count, h.Lease = h.Count+1, 0
	})
	w.owed = w.owed && err != nil
	return err
}

func (w *beatWriter) storeNow() time.Time {
	return w.keeper.StoreNow().UTC().Truncate(time.Microsecond)
}

// write writes the heartbeat by compare-and-set. If its outcome is not known, the next
// one reads the record first.
func (w *beatWriter) write(ctx context.Context, change func(*Heartbeat)) error {
	k := w.keeper
	ctx, cancel := context.WithTimeout(ctx, max(k.Lease/3, time.Second))
	defer cancel()
	if w.unsure {
		known := w.saved.Revision
		if err := w.find(ctx); err != nil {
			return err
		}
		if w.isRemoved() { // others count this process no longer
			w.end(errRemoved)
			return nil
		}
		if w.isOlder(known) { // the records of its ranges went back, too
			w.end(errWentBack)
			return nil
		}
	}
	w.mu.Lock()
	prev, before := w.saved, w.beat
	next := prev
	next.Read, next.Claims = w.read.UTC().Truncate(time.Microsecond), int64(len(w.held))
	next.Seeks, next.Why, next.Behind = w.seeks, w.why, w.behind
	w.hurry = false
	w.mu.Unlock()
	change(&next)
	next.Process, next.Version, next.Renewed = w.process, w.version, w.storeNow()
	next.Revision = store.NewRevision(prev.Revision)
	sent := k.Now()
	if before.Live && passed(before.Sent, sent) >= k.Lease {
		return nil // it lapsed while the record was read
	}
	if err := k.Store.Save(ctx, next.encode(), prev.Revision); err != nil {
		w.unsure = true
		return fmt.Errorf("write heartbeat %s: %w", next.Key(), err)
	}
	w.note(ctx, nil)
	acked := k.Now()
	w.mu.Lock()
	w.saved, w.wrote = next, acked
	if before.Live && passed(before.Sent, acked) >= k.Lease || next.Lease == 0 {
		w.mu.Unlock()
		return nil // others may have taken it for dead before this write
	}
	if !before.Live && k.Opening == "" {
		w.meeting = meeting{from: acked, over: make(chan struct{})}
	}
	w.beat, w.missed = Beat{Live: true, Epoch: next.Epoch, Sent: sent, Acked: acked}, time.Time{}
	b := w.beat
	w.mu.Unlock()
	w.told(b)
	return nil
}

// find reads the record after a write whose outcome is not known. A record of another
// process under the same name is left alone until it has stood still for a lease.
func (w *beatWriter) find(ctx context.Context) error {
	k, sent := w.keeper, w.keeper.Now()
	key, all := HeartbeatKey(w.target, k.Owner), Heartbeats{}
	got, err := k.Store.Load(ctx, store.RecordQuery{Sort: store.WorkerRecord, Target: w.target, Keys: []string{key}})
	if err == nil {
		err = all.add(got, nil, k.Now())
	}
	if err != nil {
		return fmt.Errorf("load heartbeat %s: %w", key, err)
	}
	is, found := all[key]
	w.mu.Lock()
	defer w.mu.Unlock()
	if found && is.Invalid != nil { // it does not tell whether an epoch began whose answer was lost
		is.Epoch = w.begun
	}
	switch {
	case !found:
		w.saved.Revision = ""
	case is.Process == w.process:
		w.saved.Revision, w.saved.Epoch = is.Revision, max(is.Epoch, w.saved.Epoch)
	case w.twin.Revision != is.Revision:
		w.twin = is
		return fmt.Errorf("heartbeat %s: %w", is.Key(), ErrTwin)
	case sent.Sub(w.twin.Seen) < max(k.Lease, is.Lease):
		return fmt.Errorf("heartbeat %s: %w", is.Key(), ErrTwin)
	default:
		w.saved.Revision, w.saved.Epoch = is.Revision, max(is.Epoch, w.saved.Epoch)
	}
	w.unsure = false
	return nil
}

// isRemoved reports whether an epoch is in force whose record is no more.
func (w *beatWriter) isRemoved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beat.Live && w.saved.Revision == ""
}

// isOlder reports whether an epoch is in force, and the record was found to be older than one that
// was written before: somebody has restored the records.
func (w *beatWriter) isOlder(known string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beat.Live && store.RevisionCount(w.saved.Revision) < store.RevisionCount(known)
}

// note says when heartbeats begin to fail, and when they are written again. The
// receiver of BeatFails finds out for itself when failures are over.
func (w *beatWriter) note(ctx context.Context, err error) {
	was := w.failing
	w.failing = err
	switch log, tell := w.keeper.Log, w.keeper.BeatFails; {
	case err != nil && was == nil && tell != nil:
		tell(err)
	case tell != nil:
	case err != nil && was == nil:
		log.WarnContext(ctx, "cannot write the heartbeat; within a lease this process gives up its ranges", "error", err)
	case err == nil && was != nil:
		log.InfoContext(ctx, "the heartbeat is written again")
	}
}

// remove removes the record at a good end. If that fails, others remove it later.
func (w *beatWriter) remove(ctx context.Context) {
	w.end(errResting)
	if w.saved.Revision == "" && !w.unsure || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	err := store.Retry(ctx, claimPatience, func() error {
		if w.unsure {
			if err := w.find(ctx); err != nil {
				return err
			}
		}
		return w.keeper.ForgetHeartbeat(ctx, w.saved)
	})
	if err != nil {
		w.keeper.Log.DebugContext(ctx, "cannot remove the heartbeat; others will", "error", err)
	}
}
