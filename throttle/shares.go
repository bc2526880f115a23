package throttle

import (
	"time"
)

// A Heartbeat is what a read shows of one process that works on a target.
type Heartbeat struct {
	Owner string
	Epoch int64
	Mark  string        // another one after each write
	Lease time.Duration // zero: the process has no share, and claims none
	Read  time.Time     // the process counts everybody who was there by then, in the store's time
}

// Shares divides a target's total evenly among the processes that work on it, by
// nothing but their heartbeats. It rests on these rules, which all processes follow:
//
//   - a process inserts its own heartbeat before it reads those of the others. It has
//     a share once each other live process has told, by its own heartbeat, that it
//     rests on a read which began after that insert had been answered: they all
//     count the newcomer by then, and always will. One that does not tell may be dead:
//     after a trust any share that it uses rests on such a read, too;
//   - a share is valid for one trust, counted from before the read of heartbeats that
//     it rests on, and for one lease, counted from before its process's last heartbeat
//     was sent. A process whose heartbeat was not renewed within that lease
//     joins again, with its next one;
//   - a heartbeat counts until a read that was sent one lease after it was seen to move
//     still shows the same. A renewal that was on its way by then is answered too
//     late for its own process, so that it joins again, too;
//   - a process that leaves stops using its share before it says so.
//
// So of two processes with a share each counts the other: together they never exceed
// the total. A process that is alone has all of it at once.
//
// Instants in the store's time are only compared with each other: a read tells one
// from before it was sent, and an insert waits for one from after it was answered.
//
// Shares reads no clock and is not safe for concurrent use. Its other instants are of
// one monotonic clock that runs as fast as everyone else's.
type Shares struct {
	owner        string
	total        Limit
	lease, trust time.Duration

	own    own
	others map[string]other
	sent   time.Time // when the read was sent that counts; zero before the first
	live   int       // other processes with a share, or who may have one
}

// An own is how the heartbeat of this process stands.
type own struct {
	sent, acked time.Time // when the last one was sent, and answered; sent is zero while none is in force
	inserted    time.Time // when the first one of this epoch had been answered
	known       time.Time // an instant after that, in the store's time; zero before there was a read
	joined      bool      // it has a share
}

// An other is the heartbeat of another process.
type other struct {
	Heartbeat
	moved time.Time // when a read first showed it like this
	// untold is how many reads are still to be told at once, since its epoch began: it
	// waits for one that was sent after its own first one.
	untold int
}

// tellReads is how many reads are told at once to a process that joins.
const tellReads = 2

// NewShares returns the shares of the process whose heartbeat names it owner, none so
// far. Without a total it may have everything.
func NewShares(owner string, lease, trust time.Duration) *Shares {
	return &Shares{owner: owner, total: Limit{Unlimited: true}, lease: lease, trust: trust, others: map[string]other{}}
}

// SetTotal changes the total. Processes learn of it one by one; until the last
// one has, the larger of the two totals counts.
func (s *Shares) SetTotal(total Limit) { s.total = total }

// Renewed tells that a heartbeat of this process was written: when it was sent, and
// when it was answered.
func (s *Shares) Renewed(sent, acked time.Time) {
	if s.own.sent.IsZero() || !acked.Before(s.own.sent.Add(s.lease)) {
		s.own = own{inserted: acked} // others may have taken it for dead until now
	}
	s.own.sent, s.own.acked = sent, acked
}

// Ended tells that this process has no share from now on, until its next heartbeat. Call
// it, and reset what depends on the share, before the other processes are told.
func (s *Shares) Ended() { s.own = own{} }

// Observe takes in a read of all heartbeats of the target, which was sent and answered
// at these instants, while it was stored in the store. One that was sent before the last
// is left out. It reports whether somebody waits to be told of this read.
func (s *Shares) Observe(sent, answered, stored time.Time, all []Heartbeat) (news bool) {
	if !s.sent.IsZero() && sent.Before(s.sent) {
		return false
	}
	s.sent, s.live = sent, 0
	inserted := !s.own.sent.IsZero() && sent.After(s.own.inserted) // at one instant either may have been first
	if s.own.known.IsZero() && inserted {
		s.own.known = stored
	}
	before := s.others
	s.others = make(map[string]other, len(all))
	told := inserted
	for _, h := range all {
		if h.Owner == s.owner {
			continue
		}
		o, seen := before[h.Owner]
		untold := o.untold
		if isNew := !seen || o.Epoch != h.Epoch || o.Lease == 0; isNew && h.Lease > 0 {
			untold = tellReads
		}
		if !seen || o.Mark != h.Mark {
			o = other{Heartbeat: h, moved: answered}
		}
		news = news || untold > 0
		o.untold = max(0, untold-1)
		s.others[h.Owner] = o
		if h.Lease == 0 || !sent.Before(o.moved.Add(max(s.lease, h.Lease))) {
			continue
		}
		s.live++
		replaced := answered.Sub(s.own.inserted) >= max(s.trust, h.Lease/2) // the share that it had had by then
		told = told && (replaced || h.Read.After(s.own.known))
	}
	s.own.joined = s.own.joined || told
	return news
}

// Joining reports whether this process waits for a share.
func (s *Shares) Joining() bool { return !s.own.sent.IsZero() && !s.own.joined }

// Joined reports whether this process has a share, though perhaps not at present.
func (s *Shares) Joined() bool { return s.own.joined }

// Share returns what this process may use from now on, until the instant that stands
// in it at the latest. It is nothing while the process has no share. That instant may have
// passed: then the share is to be renewed by a read, and counts for the others as before.
// Ask again every second, and after each call that tells something.
func (s *Shares) Share(now time.Time) Share {
	if s.total.Unlimited {
		return Share{Unlimited: true}
	}
	alive := s.own.sent.Add(s.lease)
	if !s.own.joined || !now.Before(alive) { // from here on others may use all of it
		return Share{Until: now}
	}
	part := s.total.PerSecond / float64(1+s.live)
	return Share{PerSecond: part, Burst: part, Until: earlier(s.sent.Add(s.trust), alive)} // one second's worth
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
