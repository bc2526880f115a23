package main

import "sync"

// run runs all trials, on two cores: none knows of another.
func (s *study) run() {
	var work []func()
	for _, list := range [][]*trial{s.kind, s.processes, s.shards, s.tenants, s.ranges} {
		for _, t := range list {
			work = append(work, func() { t.outcome = t.run() })
		}
	}
	for _, m := range s.moves {
		work = append(work, func() { *m = moveTo(kind, m.minutes) })
	}
	jobs := make(chan func())
	var hands sync.WaitGroup
	for range 2 {
		hands.Go(func() {
			for job := range jobs {
				job()
			}
		})
	}
	for _, job := range work {
		jobs <- job
	}
	close(jobs)
	hands.Wait()
}
