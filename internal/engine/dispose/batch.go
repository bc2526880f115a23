package dispose

// A BatchSize is how many entities one call may dispose of.
type BatchSize struct {
	full   int // smaller than a page after calls that were too large or too slow; 0 before
	growth int // calls of that size that went well
	part   int // after a failed batch, until the rest of it is disposed of; 0 otherwise
}

const (
	// smallBatch is how far batches shrink because they are too slow.
	smallBatch = 50
	// patientBatches is how many full batches go well before the next is larger.
	patientBatches = 8
)

// Next returns the size of the next batch.
func (b *BatchSize) Next(page int) int {
	if b.part > 0 {
		return min(b.part, b.whole(page))
	}
	return b.whole(page)
}

// whole returns the size of a batch if no part of a failed one is left.
func (b *BatchSize) whole(page int) int {
	if b.full > 0 {
		return min(b.full, page)
	}
	return page
}

// InParts reports whether the rest of a failed batch is tried in parts.
func (b *BatchSize) InParts() bool { return b.part > 0 }

// EndParts lets batches have their whole size again: the entity that made one fail is out of the way.
func (b *BatchSize) EndParts() { b.part = 0 }

// Halve makes the next batches half as large as the one that failed: for the rest of this
// page and, if the size was the cause, for later pages, too.
func (b *BatchSize) Halve(n int, size bool) {
	b.part = max(1, n/2)
	if size {
		b.full, b.growth = max(smallBatch, n/2), 0
	}
}

// WentWell lets batches grow again.
func (b *BatchSize) WentWell(n, page int) {
	if b.part > 0 {
		if b.part *= 2; b.part >= b.whole(page) {
			b.part = 0
		}
		return
	}
	if b.full == 0 || n < b.full {
		return
	}
	if b.growth++; b.growth >= patientBatches {
		b.growth = 0
		if b.full += max(1, b.full/4); b.full >= page {
			b.full = 0
		}
	}
}

// TookPart makes the next batches as large as what the store took of one: it reads whole entities for the
// archive, and so many are as much as one call may read.
func (b *BatchSize) TookPart(n int) { b.full, b.growth = max(1, n), 0 }
