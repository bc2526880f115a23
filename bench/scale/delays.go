package main

// delays is how many entities waited how long, in bins of a second. It keeps differences,
// so that entities that waited evenly between two times cost the same as one.
type delays struct{ change []float64 }

// add counts n entities that waited evenly between low and high seconds.
func (d *delays) add(low, high, n float64) {
	from := int(max(0, low))
	to := max(from+1, int(max(0, high)+0.5))
	for len(d.change) <= to {
		d.change = append(d.change, 0)
	}
	d.change[from] += n / float64(to-from)
	d.change[to] -= n / float64(to-from)
}

// quantiles returns how long the given parts of the entities waited at most.
func (d *delays) quantiles(parts ...float64) []float64 {
	all, bin := 0.0, 0.0
	for _, c := range d.change {
		bin += c
		all += bin
	}
	out := make([]float64, len(parts))
	for i, part := range parts {
		seen, bin := 0.0, 0.0
		for second, c := range d.change {
			bin += c
			if seen+bin >= part*all && bin > 0 {
				out[i] = float64(second) + (part*all-seen)/bin
				break
			}
			seen += bin
		}
	}
	return out
}
