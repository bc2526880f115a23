package history

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/store"
)

// Settings returns the text that a record has of a target's settings, and its hash. Lists of
// shard values may be longer than any record: of a line that is too long, the text has the
// beginning and a hash.
func Settings(lines []string) (text, hash string) {
	short := make([]string, len(lines))
	for i, line := range lines {
		if short[i] = cut(line); short[i] != line {
			short[i] += " " + hashOf(line)
		}
	}
	return strings.Join(short, "\n"), hashOf(strings.Join(lines, "\n"))
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// LoadState reads the state of a target; found is false if it has none.
func LoadState(ctx context.Context, s store.Loader, target string) (st State, found bool, err error) {
	got, err := s.Load(ctx, store.RecordQuery{Sort: store.SweepRecord, Target: target, Keys: []string{stateKey(target)}})
	if err != nil || len(got.List) == 0 {
		return State{}, false, err
	}
	st, err = decodeState(got.List[0])
	return st, true, err
}

// observeTries is how often Observe tries to write the state.
const observeTries = 5

// Observe compares the version and the settings of a process with those of the one before,
// and returns a record for each difference. The state of the target says what they are from
// now on: if two processes begin at once, one of them has the records. Base notes what the
// cursor records and the budget count as deleted, for a target that has no state yet.
func Observe(
	ctx context.Context, s store.Store, target string, by Origin, settings string, base func(*State) error, now time.Time,
) (list []Record, err error) {
	var was, is State
	for try := 1; ; try++ {
		var found bool
		was, found, err = LoadState(ctx, s, target)
		if err != nil && (!found || errors.Is(err, ErrNewer)) {
			return nil, fmt.Errorf("load the state of the history of %s: %w", target, err)
		}
		if err != nil { // it makes no sense: this process begins a new one
			was = State{Target: target, Revision: was.Revision}
		}
		is = was
		is.Target, is.Version, is.Config, is.Settings = target, by.Version, by.Config, settings
		if !found || err != nil {
			is.Since = now.UTC().Truncate(time.Microsecond)
			if err := base(&is); err != nil {
				return nil, fmt.Errorf("begin the history of %s: %w", target, err)
			}
		} else if was.Version == is.Version && was.Config == is.Config {
			return nil, nil
		}
		is.Revision = store.NewRevision(was.Revision)
		switch err = s.Save(ctx, is.encode(), was.Revision); {
		case errors.Is(err, store.ErrConflict) && try < observeTries:
			continue // another process has just begun, or has removed records
		case err != nil:
			return nil, fmt.Errorf("save the state of the history of %s: %w", target, err)
		case !found:
			return nil, nil
		}
		break
	}
	if was.Version != is.Version {
		list = append(list, NewChange(target, KindVersion, by, now,
			Change{What: "version", Before: was.Version, After: is.Version}))
	}
	if was.Config != is.Config {
		before, after := differences(was.Settings, is.Settings)
		list = append(list, NewChange(target, KindConfig, by, now,
			Change{What: "configuration", Before: before, After: after}))
	}
	return list, nil
}

// differences returns the settings that differ, as they were and as they are.
func differences(was, is string) (before, after string) {
	return missingIn(was, is), missingIn(is, was)
}

// missingIn returns the lines of a text that another one does not have.
func missingIn(text, other string) string {
	known := map[string]bool{}
	for line := range strings.SplitSeq(other, "\n") {
		known[line] = true
	}
	var list []string
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && !known[line] {
			list = append(list, line)
		}
	}
	return strings.Join(list, "; ")
}

// GenerationChanges returns what happened to generations between two versions of a target
// record. Deleted returns how many entities the cursor records of one count as deleted.
func GenerationChanges(was, is generation.Record, deleted func(number int) int64) (list []Change) {
	before := map[int]generation.Generation{}
	for _, g := range was.Generations {
		before[g.Number] = g
	}
	for _, g := range is.Generations {
		old, known := before[g.Number]
		delete(before, g.Number)
		if !known {
			old = generation.Generation{}
			list = append(list, Change{What: "opened", Generation: g.Number, After: fmt.Sprintf("%d shards", g.Shards)})
		}
		if old.Closed.IsZero() && !g.Closed.IsZero() {
			list = append(list, Change{What: "sealed", Generation: g.Number,
				After: "closed, sealed " + g.Closed.Add(g.Staleness+g.Slack).UTC().Format(time.RFC3339)})
		}
		if old.Draining.IsZero() && !g.Draining.IsZero() {
			list = append(list, Change{What: "draining", Generation: g.Number})
		}
	}
	for _, g := range was.Generations {
		if _, gone := before[g.Number]; gone {
			list = append(list, Change{What: Retired, Generation: g.Number, Before: fmt.Sprintf("%d shards", g.Shards),
				Deleted: deleted(g.Number)})
		}
	}
	return list
}
