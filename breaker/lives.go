package breaker

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Some mistakes do not show in counts, but in how long entities live from their last write to
// their expiry: a shorter life at each write, and a deploy that stops extending. Lives are
// compared with those of the day before. That leads to a warning only, and never holds a target.
const (
	// leastLives is the least number of lives that are compared.
	leastLives = 30
	// recentLives is the time that is compared with the day before it.
	recentLives = 2 * time.Hour
	// perOctave is how many buckets there are for each doubling of a life.
	perOctave = 4
)

// An HourOfLives counts the entities that were deleted in an hour of the clock, by how long they
// were meant to live.
type HourOfLives struct {
	Begin  time.Time
	Counts []LifeCount // by bucket
}

// A LifeCount is how many lives fell into a bucket. Buckets grow by a fifth.
type LifeCount struct {
	Bucket int
	N      int64
}

// BucketOf returns the bucket of a life.
func BucketOf(life time.Duration) int {
	return int(math.Round(perOctave * math.Log2(max(1, life.Seconds()))))
}

// lifeOf returns the life that a bucket stands for.
func lifeOf(bucket int) time.Duration {
	return time.Duration(math.Exp2(float64(bucket)/perOctave) * float64(time.Second))
}

// TakeLives returns the budget after the deletes of entities, counted by the buckets of their lives.
func (b Budget) TakeLives(now time.Time, lives map[int]int64) Budget {
	if len(lives) == 0 {
		return b
	}
	b.Lives = slices.DeleteFunc(slices.Clone(b.Lives), func(h HourOfLives) bool {
		return now.Sub(h.Begin) > day+recentLives
	})
	begin := now.UTC().Truncate(time.Hour)
	if n := len(b.Lives); n == 0 || b.Lives[n-1].Begin.Before(begin) {
		b.Lives = append(b.Lives, HourOfLives{Begin: begin})
	}
	h := &b.Lives[len(b.Lives)-1]
	h.Counts = slices.Clone(h.Counts)
	for bucket, n := range lives {
		i, found := slices.BinarySearchFunc(h.Counts, bucket, func(c LifeCount, to int) int {
			return cmp.Compare(c.Bucket, to)
		})
		if !found {
			h.Counts = slices.Insert(h.Counts, i, LifeCount{Bucket: bucket})
		}
		h.Counts[i].N += n
	}
	return b
}

// HalvedLives reports whether entities live at most half as long as on the day before. It compares
// the lower third: the median would show it late, while old ones with long lives still expire.
func (b Budget) HalvedLives(now time.Time) (before, after time.Duration, halved bool) {
	var old, recent []LifeCount
	for _, h := range b.Lives {
		if age := now.Sub(h.Begin); age > day+recentLives {
			continue
		} else if age < recentLives {
			recent = append(recent, h.Counts...)
		} else {
			old = append(old, h.Counts...)
		}
	}
	was, known := lowerThird(old)
	is, told := lowerThird(recent)
	if !known || !told {
		return 0, 0, false
	}
	return lifeOf(was), lifeOf(is), is <= was-perOctave
}

// lowerThird returns the bucket below which a third of the lives lie. Ok is false if they are
// too few.
func lowerThird(counts []LifeCount) (bucket int, ok bool) {
	slices.SortFunc(counts, func(a, b LifeCount) int { return cmp.Compare(a.Bucket, b.Bucket) })
	var all, sum int64
	for _, c := range counts {
		all += c.N
	}
	for _, c := range counts {
		if sum += c.N; 3*sum > all {
			return c.Bucket, all >= leastLives
		}
	}
	return 0, false
}
