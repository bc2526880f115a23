package orphans

import (
	"context"
	"errors"
	"fmt"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/throttle"
)

// A part is a span of the names of one namespace, from behind one root to the end of what lies below
// another one. It is read by one worker.
type part struct {
	namespace string
	whole     bool
	after     string // exclusive, with all below it; "" is before all
	until     string // inclusive, with all below it; "" is behind all

	done  bool
	root  string // of the last name; what lies below it may not have been read to its end
	clear string // everything up to this root and below it was read, and deleted if that was the order
}

// A scan reads one part, name by name, and deletes what it finds to be an orphan.
type scan struct {
	job     *job
	part    *part
	tally   *tally
	deleter *deleter // nil in a run that deletes nothing

	query store.LineageQuery
	tree  tree
	queue queue
	kept  refusals // below the part's root
}

func newScan(j *job, p *part, t *tally, d *deleter) *scan {
	s := &scan{job: j, part: p, tally: t, deleter: d, query: j.query(p.namespace, p.whole)}
	s.query.After, s.query.Behind, s.query.Until = p.after, p.after != "", p.until
	p.clear = p.after
	return s
}

// run reads the part to its end.
func (s *scan) run(ctx context.Context) error {
	var page store.Lineage
	for {
		if err := s.read(ctx, &page); err != nil {
			return err
		}
		wasted := 0
		for _, r := range page.List {
			is, err := s.name(ctx, r)
			if err != nil {
				return err
			}
			if is == living && !r.Own {
				wasted++
			}
		}
		if !page.More {
			return s.end(ctx)
		}
		n := len(page.List)
		if n == 0 {
			return fmt.Errorf("%w: there are more names of target %s after an empty page, and nothing to go on from",
				store.ErrFailed, s.job.Target.Name)
		}
		s.query.After, s.query.Behind = page.List[n-1].Key, false
		if key, ok := s.tree.skippable(); ok && !s.part.whole {
			s.query.After, s.query.Behind = key, true
		}
		if page.Billed {
			s.query.Limit = nextLimit(s.query.Limit, n, wasted)
		}
	}
}

// read reads one page, and makes sure of the owners of what may be an orphan. A page that is too large,
// or takes too long, is halved.
func (s *scan) read(ctx context.Context, page *store.Lineage) error {
	err := s.repeat(ctx, func(ctx context.Context) error { return s.job.store.Lineage(ctx, s.query, page) })
	if err != nil {
		return err
	}
	var unsure []store.Relative
	var at []int
	ahead := s.tree.copy()
	for i, r := range page.List {
		if is, _, _ := ahead.place(r); is == orphaned && r.Unsure {
			unsure, at = append(unsure, r), append(at, i)
		}
	}
	if len(unsure) == 0 {
		return nil
	}
	err = s.repeat(ctx, func(ctx context.Context) error { return s.job.store.Claim(ctx, s.query, unsure) })
	for n, i := range at {
		page.List[i] = unsure[n]
	}
	return err
}

// repeat makes a call until it succeeds, is refused for good, or has failed for too long.
func (s *scan) repeat(ctx context.Context, call func(context.Context) error) error {
	began := s.job.Sweep.Now()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		err := call(bounded)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		smaller := s.query.Limit > 1 && (errors.Is(err, store.ErrTooLarge) || store.TookTooLong(err))
		if smaller {
			s.query.Limit /= 2
		}
		if !smaller && !store.Transient(err) || s.job.Sweep.Now().Sub(began) > patience {
			return err
		}
		if err := throttle.Sleep(ctx, jitter(ctx, wait)); err != nil {
			return err
		}
	}
}

// name judges one name, and deletes what is ready by then.
func (s *scan) name(ctx context.Context, r store.Relative) (standing, error) {
	if err := checkPlace(s.part.after, r); err != nil { // it came after the run had begun
		return outside, err
	}
	s.queue.reach(r.Key)
	if r.Root != s.part.root {
		if err := s.flush(ctx, true); err != nil {
			return outside, err
		}
		if s.part.root != "" {
			s.part.clear = s.part.root
		}
		s.part.root, s.kept = r.Root, refusals{}
	}
	is, missing, first := s.tree.place(r)
	s.tally.met(s.part.namespace, r, is, missing, first)
	if is == orphaned && s.deleter != nil {
		s.queue.add(orphan{r, missing})
		return is, s.flush(ctx, false)
	}
	return is, nil
}

// checkPlace fails if a run that went on behind a key would go on below a root with the name that follows.
func checkPlace(after string, next store.Relative) error {
	if !store.IsBelow(after, next.Root) {
		return nil
	}
	return fmt.Errorf("%w: %s lies below %s; the key where a run stopped does not", ErrMidst, after, next.Root)
}

// end deletes what is left when the part is read to its end.
func (s *scan) end(ctx context.Context) error {
	s.queue.close()
	if err := s.flush(ctx, true); err != nil {
		return err
	}
	if s.part.root != "" {
		s.part.clear = s.part.root
	}
	s.part.done = true
	return nil
}

// flush deletes orphans that are ready: whole batches or, with all, every one.
func (s *scan) flush(ctx context.Context, all bool) error {
	for len(s.queue.ready) >= mostBelow || all && len(s.queue.ready) > 0 {
		missing, list := s.queue.batch(mostBelow)
		exists, err := s.deleter.run(ctx, s.query, missing, list, &s.kept)
		if err != nil {
			return err
		}
		if !exists {
			s.queue.done(len(list))
			continue
		}
		s.queue.drop(missing)
		s.tree.learn(missing)
		s.tally.rescued()
		s.job.Sweep.Log.InfoContext(ctx, "an entity came into being, and what lies below it stays", "target",
			s.job.Target.Name, "key", missing)
	}
	return nil
}
