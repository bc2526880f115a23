package sim

import "time"

// Dice are random numbers that depend on nothing but the seed and on what they are
// thrown for: every actor asks for (seed, actor, step) or (seed, actor, instant). So
// leaving one actor or one kind of fault out changes nothing for the others, and the
// order in which goroutines ask does not matter.
type dice uint64

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// on returns other dice, for a purpose.
func (d dice) on(what string) dice {
	h := uint64(14695981039346656037)
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * 1099511628211
	}
	return dice(mix(uint64(d)*31 + h))
}

// at returns other dice, for a step or an instant.
func (d dice) at(n int64) dice { return dice(mix(uint64(d) + 0x9e3779b97f4a7c15*uint64(n) + 1)) }

// float returns a number in [0, 1).
func (d dice) float() float64 { return float64(mix(uint64(d)+0x9e3779b97f4a7c15)>>11) / (1 << 53) }

// below returns a number from 0 to n-1.
func (d dice) below(n int) int { return int(d.float() * float64(n)) }

// yes returns true so often.
func (d dice) yes(often float64) bool { return d.float() < often }

// between returns a length of time, to the nanosecond, so that hardly ever two things
// happen at one instant.
func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.float()*float64(most-least))
}

// pick returns one of a list.
func pick[T any](d dice, list ...T) T { return list[d.below(len(list))] }
