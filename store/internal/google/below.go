package google

import (
	"fmt"
	"slices"
	"strings"

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

// A Between is an entity between one and its descendant that was not listed, as one that does not exist, and may get
// an owner: it must carry none of these properties when the descendant is deleted.
type Between struct {
	Key        string
	Properties []string
}

// What separates the parts of a premise is in no text of a service, which are all UTF-8.
const (
	nextBetween  = "\xff"
	nextProperty = "\xfe"
)

// AddBetween adds entities to the premise of a descendant.
func AddBetween(premise string, list []Between) string {
	for _, b := range list {
		premise += nextBetween + strings.Join(append([]string{b.Key}, b.Properties...), nextProperty)
	}
	return premise
}

// OwnPremise returns what a premise says of the descendant itself.
func OwnPremise(premise string) string {
	own, _, _ := strings.Cut(premise, nextBetween)
	return own
}

// Betweens returns the entities that the premises of a list are about in addition, each once.
func Betweens(list []store.Descendant) (all []Between) {
	seen := map[string]bool{}
	for _, below := range list {
		for _, text := range strings.Split(below.Premise, nextBetween)[1:] {
			if parts := strings.Split(text, nextProperty); !seen[parts[0]] {
				seen[parts[0]] = true
				all = append(all, Between{parts[0], parts[1:]})
			}
		}
	}
	return all
}

// PropertiesOf returns the properties by which entities belong to some of the owners, each once.
func PropertiesOf(owners []store.Target, is func(store.Target) bool) (list []string) {
	for _, t := range owners {
		if is(t) && !slices.Contains(list, t.Property) {
			list = append(list, t.Property)
		}
	}
	return list
}
