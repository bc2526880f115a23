package throttle

import (
	"time"
)

// A Lease is one range's record as a snapshot shows it.
type Lease struct {
	Range    string // names the record
	Owner    string // empty where nobody holds it
	Token    int64  // rises with each claim
	Renewals int64  // rises with each renewal
	Length   time.Duration
	// Free is for how long nobody has held it, as far as the record can tell;
	// zero where that is not known. Only what is certain may stand here.
	Free time.Duration
}

// Shares divides a target's total among all claimed ranges of all processes, by
// nothing but what each process reads of the leases. A live lease is worth one
// part. It rests on one span of time, the trust, that all processes must share:
//
//   - a snapshot is good for one trust, counted from before it was asked for;
//     without a newer one a process has no share;
//   - a lease is worth something to its owner only one trust after a snapshot
//     showed it, so that by then every snapshot that is still good shows it too;
//   - a leaver's part stays its process's own for one trust, so that a process
//     that goes from range to range keeps what it has; the others count it for
//     that long, if it was old enough to be worth anything;
//   - the part of a lease that is not renewed ends with the lease for its owner,
//     reckoned from before the last renewal, and for the others one trust after
//     they have seen it stand still for that long: should it be renewed at the very
//     last, they all know by then.
//
// So each process counts, at any instant, at least every part that is in use by
// anyone, and takes that fraction of the total which its own parts are of those
// that it counts: together they never exceed the total. On each record at most
// one part can be in use, since a part is worth nothing before the one before it
// on the same record has run out.
//
// A process whose snapshot shows nobody else's part, but a lease of its own,
// has the whole total at once: whoever joins will see that lease, and wait.
//
// Shares reads no clock and is not safe for concurrent use. Its instants are of
// one monotonic clock that runs as fast as everyone else's.
type Shares struct {
	owner        string
	total, burst float64
	lease        time.Duration
	// All four are the trust. They have names of their own so that tests can show
	// what each is good for: how long a snapshot is, after which time a lease is
	// worth something, how long I keep what I gave back, and others count it.
	valid, matures, keeps, lingers time.Duration

	began   time.Time // of the snapshot that counts; zero before the first
	records map[string]*record
	claims  map[string]int64 // mine with their tokens, seen in a snapshot or not
}

// A record is what is known of one range's lease.
type record struct {
	Lease
	since   time.Time // no later than the claim; zero where not known
	renewed time.Time // no later than the claim or the last renewal
	seen    time.Time // when a snapshot showed the claim
	moved   time.Time // when a snapshot showed the last renewal

	// Earlier leases' parts may be in use until busy, others' than mine until
	// theirs, and mine until usable.
	busy, theirs, usable time.Time
}

// NewShares returns the shares of the process that claims as owner, none so far.
// Total is in entities per second; the burst of all claims together is one second
// of it. Trust must be at most half of the lease, and a
// few times as long as it takes to read the next snapshot.
func NewShares(owner string, total float64, lease, trust time.Duration) *Shares {
	s := &Shares{owner: owner, lease: lease, valid: trust, matures: trust, keeps: trust, lingers: trust,
		records: map[string]*record{}, claims: map[string]int64{}}
	s.SetTotal(total)
	return s
}

// SetTotal changes the total. Processes learn of it one by one; until the last
// one has, the larger of the two totals counts.
func (s *Shares) SetTotal(total float64) {
	s.total, s.burst = total, total // one second's worth
}

// Claimed tells that this process has claimed a range, and with which token.
func (s *Shares) Claimed(name string, token int64) { s.claims[name] = token }

// Leaving tells that this process gives a range back, or has lost it. It must be
// told, and the shares of the other claims set anew, before the release is sent.
func (s *Shares) Leaving(now time.Time, name string) {
	if r := s.records[name]; r != nil && s.live(r) && !now.Before(r.seen.Add(s.matures)) {
		r.usable = earlier(now.Add(s.keeps), r.renewed.Add(s.lease))
	}
	delete(s.claims, name)
}

// live reports whether the lease that the record shows is a claim of this
// process, and not one that it has given back since.
func (s *Shares) live(r *record) bool {
	token, ok := s.claims[r.Range]
	return ok && r.Owner == s.owner && r.Token == token
}

// Observe takes in a snapshot of all of a target's leases, which was asked for
// when began and had been read when ended. One that is older than the last is
// left out.
func (s *Shares) Observe(began, ended time.Time, leases []Lease) {
	if !s.began.IsZero() && began.Before(s.began) {
		return
	}
	shown := make(map[string]bool, len(leases))
	for _, l := range leases {
		shown[l.Range] = true
		s.observe(ended, l)
	}
	for name, r := range s.records { // deleted records: nobody holds them
		if !shown[name] {
			s.observe(ended, Lease{Range: name, Token: r.Token})
			if !r.busy.After(ended) {
				delete(s.records, name)
			}
		}
	}
	s.began = began
}

func (s *Shares) observe(ended time.Time, l Lease) {
	r := s.records[l.Range]
	if r == nil {
		// Nothing was there at the last snapshot, if there was one.
		r = &record{Lease: Lease{Range: l.Range}, since: s.began}
		s.records[l.Range] = r
		if s.began.IsZero() && l.Token > 0 && l.Owner == "" {
			r.busy = ended.Add(s.lingers - l.Free)
			r.theirs = r.busy
		}
	}
	old := r.Lease
	switch {
	case l.Token == old.Token && l.Owner == old.Owner:
		if l.Renewals != old.Renewals {
			if ended.Sub(r.renewed) > s.lease {
				r.seen = ended // it may have lapsed, and others left it out: it begins anew
			}
			r.renewed, r.moved = s.began, ended
		}
		r.Lease = l
		return
	case old.Owner != "":
		s.ended(r, ended)
	}
	// Leases that came and went between two snapshots are no older than the first.
	hidden := l.Token > old.Token+1 || l.Token > old.Token && l.Owner == ""
	if hidden && !s.began.IsZero() && ended.Sub(s.began) >= s.matures {
		r.busy, r.theirs = ended.Add(s.lingers), ended.Add(s.lingers)
	}
	r.Lease = l
	if l.Owner != "" {
		r.since, r.renewed = s.began, s.began
		r.seen, r.moved = ended, ended
	}
}

// ended keeps the part of a lease that is over, if it can have been worth
// anything.
func (s *Shares) ended(r *record, now time.Time) {
	if !r.since.IsZero() && now.Sub(r.since) < s.matures {
		return
	}
	r.busy = now.Add(s.lingers)
	if r.Owner != s.owner {
		r.theirs = r.busy
	}
}

// Share returns what each of this process's claims may use from now on, until
// the instant that stands in it at the latest. It is nothing while the process
// has no part, and for a process without claims. Ask again every second, and
// after each call that tells something.
func (s *Shares) Share(now time.Time) Share {
	share := Share{Until: now}
	if s.began.IsZero() || len(s.claims) == 0 {
		return share
	}
	until := s.began.Add(s.valid)
	own, all, alone, anchor := 0, 0, true, time.Time{}
	limit := until // of the parts that are mine
	for _, r := range s.records {
		held := r.Owner != "" && now.Before(r.moved.Add(max(s.lease, r.Length)+s.lingers))
		busy := now.Before(r.busy)
		if !held && !busy {
			continue
		}
		all++
		if held && r.Owner != s.owner || now.Before(r.theirs) {
			alone = false
		}
		ends := r.usable
		if s.live(r) {
			lapses := r.renewed.Add(s.lease)
			anchor = later(anchor, lapses)
			if !now.Before(r.seen.Add(s.matures)) {
				ends = lapses
			}
		}
		if now.Before(ends) {
			own++
			limit = earlier(limit, ends)
		}
	}
	if alone && now.Before(anchor) {
		own, all, limit = 1, 1, earlier(until, anchor)
	}
	if own == 0 || !now.Before(limit) {
		return share
	}
	part := float64(own) / float64(all) / float64(len(s.claims))
	return Share{PerSecond: s.total * part, Burst: s.burst * part, Until: limit}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
