package storetest

import (
	"sync"

	"github.com/reaper-ttl/reaper/store"
)

var settleCases = []testCase{
	{name: "SettleDeletes", run: settleDeletes},
	{name: "SettleKeeps", run: settleKeeps},
	{name: "SettleFindsGone", run: settleGone},
	{name: "SettleSeesWhatIsThereNow", run: settleChanged},
	{name: "SettleMeetsAWriter", run: settleMeetsWriter},
}

func settleDeletes(w *world) {
	put := w.row(2)
	o, seen := w.settle(w.find(2)[0], store.Delete)
	if o != store.Deleted || len(seen) == 0 || seen[len(seen)-1] != put[0].Expiry {
		w.Errorf("settle says %s and showed %v", outcome(o), seen)
	}
	w.shows("afterwards", put[1].Expiry.Text)
}

func settleKeeps(w *world) {
	put := w.row(2)
	o, seen := w.settle(w.find(2)[0], store.Keep)
	if o != store.Kept || len(seen) == 0 {
		w.Errorf("settle says %s and showed %v", outcome(o), seen)
	}
	w.shows("afterwards", texts(put...)...)
}

func settleGone(w *world) {
	w.row(1)
	e := w.find(1)[0]
	w.dispose(e)
	o, seen := w.settle(e, store.Delete)
	if o != store.Gone || len(seen) != 0 {
		w.Errorf("settle says %s of what is not there, and showed %v", outcome(o), seen)
	}
}

func settleChanged(w *world) {
	put := w.row(2)
	e := w.find(2)[0]
	put[0].Expiry = key(4000)
	w.put(put[0])
	o, seen := w.settle(e, store.Keep)
	if o != store.Kept || len(seen) == 0 || seen[len(seen)-1] != key(4000) {
		w.Errorf("settle says %s and showed %v, not %v", outcome(o), seen, key(4000))
	}
	w.shows("afterwards", put[1].Expiry.Text, key(4000).Text)
	// If it is deleted after all, all its index entries must be deleted, too.
	if o, _ := w.settle(e, store.Delete); o != store.Deleted {
		w.Errorf("settle says %s, not deleted", outcome(o))
	}
	w.shows("at the end", put[1].Expiry.Text)
}

// settleMeetsWriter: a writer extends the entity again and again, while others settle it
// and delete it only if it is due. It must exist at the end.
func settleMeetsWriter(w *world) {
	put := w.row(1)
	e := w.find(1)[0]
	due := put[0].Expiry
	var wait sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := store.Retry(w.ctx, settleWithin, func() error {
					_, err := w.store.Settle(w.ctx, w.all(), e, func(v store.Value) store.Verdict {
						if v.Text <= due.Text {
							return store.Delete
						}
						return store.Keep
					})
					return err
				})
				if err != nil {
					w.Errorf("settle: %v", err)
					return
				}
			}
		})
	}
	for i := range 5 {
		live := put[0]
		live.Expiry = key(1000 + i)
		w.put(live)
		if got := values(w.scan(w.all(), false)); len(got) != 1 || got[0] != live.Expiry.Text {
			w.Errorf("round %d: %q is there, not %s", i, got, live.Expiry.Text)
		}
		dead := put[0]
		dead.Expiry = key(-i)
		w.put(dead)
	}
	close(stop)
	wait.Wait()
}
