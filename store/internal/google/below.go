package google

import (
	"fmt"

	"github.com/reaper-ttl/reaper/store"
)

// CheckDescendantQuery refuses a query of more than a page, or one that goes on behind what is elsewhere.
func CheckDescendantQuery(q store.DescendantQuery) error {
	if q.Limit < 1 || q.Limit > store.MaxPage {
		return fmt.Errorf("%w: a page of %d descendants, not of 1 to %d", store.ErrInvalid, q.Limit, store.MaxPage)
	}
	if q.After != "" && !store.IsBelow(q.After, q.Key) {
		return fmt.Errorf("%w: %s is not below %s", store.ErrInvalid, q.After, q.Key)
	}
	return nil
}

// MarkAbove says of each descendant of a page whether it is above the last one, or is that one.
func MarkAbove(list []store.Descendant) {
	for i := range list {
		last := list[len(list)-1].Key
		list[i].Above = list[i].Key == last || store.IsBelow(last, list[i].Key)
	}
}

// CheckBelow refuses a list that is too long for one call of DeleteBelow, and a key that does not lie below
// the entity's: the entity's expiry says nothing of what lies elsewhere.
func CheckBelow(key string, list []store.Descendant) error {
	if len(list) >= store.MaxPage {
		return fmt.Errorf("%w: more than %d descendants", store.ErrTooLarge, store.MaxPage-1)
	}
	for _, d := range list {
		if !store.IsBelow(d.Key, key) {
			return fmt.Errorf("%w: %s is not below %s", store.ErrInvalid, d.Key, key)
		}
	}
	return nil
}

// ClaimBelow sets the owner of those of a list that lie below an entity with an owner, and reports whether there are
// any. No owner sets none.
func ClaimBelow(list []store.Relative, key, owner string) (some bool) {
	for i := range list {
		if owner != "" && store.IsBelow(list[i].Key, key) {
			list[i].Owner, some = owner, true
		}
	}
	return some
}
