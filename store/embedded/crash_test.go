package embedded

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestCrash stops the world at many moments of a workload, keeping any part of
// what was not synced, and opens what is left: entity and index agree, and the
// record is not ahead of the deletes that came before it.
func TestCrash(t *testing.T) {
	fsys := vfs.NewCrashableMem()
	db := openIn(t, fsys)
	rng := rand.New(rand.NewPCG(1, 2))
	type moment struct {
		durable int
		fs      *vfs.MemFS
	}
	var mu sync.Mutex
	var moments []moment
	saved := 0
	take := func() {
		mu.Lock()
		defer mu.Unlock()
		cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 30, 70, 100}[len(moments)%4], RNG: rng}
		before := saved // durable when the clone is taken
		moments = append(moments, moment{before, fsys.CrashClone(cfg)})
	}
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() { // crashes in the middle of calls
		for {
			select {
			case <-stop:
				return
			default:
				mu.Lock()
				enough := len(moments) >= 150
				mu.Unlock()
				if !enough {
					take()
				}
			}
		}
	})
	const rounds = 120
	_, _ = workUntilFailure(t, db, func(round int) {
		mu.Lock()
		saved = round // the round before has saved its record
		mu.Unlock()
		if round%10 == 5 {
			take()
		}
		if round == rounds {
			closeDB(t, db) // which ends the work
		}
	})
	close(stop)
	wait.Wait()
	take()
	for i, m := range moments {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			again := openIn(t, m.fs)
			defer closeDB(t, again)
			checkWork(t, again, m.durable)
		})
	}
	if len(moments) < 20 {
		t.Errorf("only %d crashes", len(moments))
	}
}
