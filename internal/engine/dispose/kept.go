package dispose

import (
	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/store"
)

// Kept are the entries of entities that a visit has met and keeps, so that it neither
// tries them again nor counts them as left to be carried. An entity that gets another expiry
// has another entry, which is tried. Beyond a thousand Kept forgets: any more keep their
// generation alive, as suspects do.
type Kept struct {
	refused  map[store.Position]bool
	mistyped map[string]bool // by key: an entity may have several entries, and counts once
}

const mostKept = 1000

// Add remembers an entry. Refused says that the store refuses its entity; otherwise the
// entity's value is of another type than the entry.
func (k *Kept) Add(e store.Entry, refused bool) {
	if k.refused == nil {
		k.refused, k.mistyped = map[store.Position]bool{}, map[string]bool{}
	}
	if len(k.refused) < mostKept {
		k.refused[e.Position()] = refused
		if !refused {
			k.mistyped[e.Key] = true
		}
	}
}

// Refuse remembers an entry whose entity the store refuses, or that stays for another reason. In a sealed range
// the record says so, too: another visit may read on behind the entity, and take stock.
func (k *Kept) Refuse(e store.Entry, h *Hold, sealed bool) {
	k.Add(e, true)
	if sealed {
		h.Update(func(c *cursor.Cursor) { c.Rewind.Refused = true })
	}
}

// Has reports whether the entity of an entry is kept.
func (k *Kept) Has(e store.Entry) bool {
	_, ok := k.refused[e.Position()]
	return ok
}

// IsRefused reports whether the store refuses the entity of an entry.
func (k *Kept) IsRefused(e store.Entry) bool { return k.refused[e.Position()] }

// AnyRefused reports whether the store refuses any entity.
func (k *Kept) AnyRefused() bool {
	for _, refused := range k.refused {
		if refused {
			return true
		}
	}
	return false
}

// IsMistyped reports whether the entity of an entry is kept for its type.
func (k *Kept) IsMistyped(e store.Entry) bool { return k.Has(e) && !k.IsRefused(e) }

// HasMistyped reports whether an entity was kept for its type at any of its entries.
func (k *Kept) HasMistyped(key string) bool { return k.mistyped[key] }
