package adopt

import (
	"context"
	"sync"

	"github.com/reaper-ttl/reaper/internal/switches"
)

// A targetView is what is known of the target's switches and of the adoption's record, both read again every few
// seconds, in one go.
type targetView struct {
	*switches.Switches

	job *job

	mu     sync.Mutex
	record Record
	exists bool
}

func newTargetView(j *job) *targetView {
	v := &targetView{job: j}
	t := j.cfg.Target
	v.Switches = switches.New(switches.Config{Store: j.store, Target: t.Name, Shards: t.Shards, Lease: t.Lease,
		Gate: t.Gate, Now: j.now, Log: j.log, Work: "adoption",
		PastBreaker: j.cfg.Order == Undo, // what the breaker holds may be what was adopted
		Also:        v.load})
	return v
}

// load reads the adoption's record.
func (v *targetView) load(ctx context.Context) error {
	rec, _, exists, err := Load(ctx, v.job.store, v.job.cfg.Target.Name)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.record, v.exists = rec, exists
	return nil
}

func (v *targetView) adoption() (rec Record, exists bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.record, v.exists
}
