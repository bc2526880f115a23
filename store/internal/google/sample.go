package google

import (
	"context"
	"strconv"
	"strings"

	"github.com/reaper-ttl/reaper/store"
)

// SampleKeys samples the keys of a collection or kind by seeking to random ones. It is what is left
// if the service does not split a key space by itself. A key is its path: kinds and ids in
// turn, an id that begins with # being a number. seek returns the first key at or after a
// path, or the first of all without one; nil if no key is left. Each further path is a
// key that was found, with one of its characters replaced and the rest cut off.
//
// Gaps between keys are found rather than keys, so that the parts may differ much in size.
func SampleKeys(
	ctx context.Context, most int, seek func(ctx context.Context, path []string) ([]string, error),
) (found [][]string, err error) {
	const tries = 2 // for each key that is wanted
	first, err := seek(ctx, nil)
	if err != nil || first == nil {
		return nil, err
	}
	found = append(found, first)
	for range most * tries {
		from := found[pickOf(ctx, len(found))]
		key, err := seek(ctx, mutate(ctx, from))
		if err != nil {
			return found, err
		}
		if key != nil {
			found = append(found, key)
		}
	}
	return found, nil
}

func pickOf(ctx context.Context, n int) int { return min(n-1, int(store.Chance(ctx)*float64(n))) }

const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// mutate returns a path that differs from one in a random place of one id.
func mutate(ctx context.Context, path []string) []string {
	at := 2*pickOf(ctx, len(path)/2) + 1
	out := append([]string(nil), path[:at+1]...)
	id := path[at]
	if digits, ok := strings.CutPrefix(id, "#"); ok {
		n, _ := strconv.ParseInt(digits, 10, 64)
		out[at] = "#" + strconv.FormatInt(1+int64(store.Chance(ctx)*2*float64(min(n, 1<<61))), 10)
		return out
	}
	// Only ASCII is replaced: half of another character would not be UTF-8.
	end := 0
	for end < len(id) && id[end] < 0x80 && id[end] != '%' {
		end++
	}
	i := pickOf(ctx, end+1)
	out[at] = id[:min(i, end)] + string(letters[pickOf(ctx, len(letters))]) + string(letters[pickOf(ctx, len(letters))])
	return out
}
