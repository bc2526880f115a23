package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/internal/doctor/facts"
	"github.com/reaper-ttl/reaper/store"
)

// The variables by which Google's clients find an emulator.
const (
	datastoreEmulator = "DATASTORE_EMULATOR_HOST"
	firestoreEmulator = "FIRESTORE_EMULATOR_HOST"
)

// inCloud are variables that a process has where it runs for real, or that name real credentials.
var inCloud = []string{
	"KUBERNETES_SERVICE_HOST", "K_SERVICE", "CLOUD_RUN_JOB", "GAE_ENV", "GOOGLE_APPLICATION_CREDENTIALS",
}

// checkEmulator looks for emulator variables that somebody has set by accident.
func (x *exam) checkEmulator() {
	own, other := "", []string{datastoreEmulator, firestoreEmulator}
	switch x.Mode {
	case facts.DatastoreMode:
		own, other = datastoreEmulator, other[1:]
	case facts.NativeMode:
		own, other = firestoreEmulator, other[:1]
	}
	host := ""
	if own != "" {
		host = x.Getenv(own)
	}
	for _, name := range other {
		if value := x.Getenv(name); value != "" && host == "" {
			x.find(Finding{ID: "emulator-unused",
				What:     fmt.Sprintf("%s is set, and the store %s does not use it.", name, x.Spec),
				Evidence: []string{fmt.Sprintf("%s=%s", name, value), "calls go to " + orElse(x.Endpoint, "the embedded store")},
				Mend:     fmt.Sprintf("unset %s, or name the store that is meant in --store", name)})
		}
	}
	if host == "" {
		return
	}
	for _, name := range inCloud {
		if value := x.Getenv(name); value != "" {
			x.find(Finding{ID: "emulator-accidental",
				What:     fmt.Sprintf("%s sends all calls to an emulator, though this process seems to run for real.", own),
				Evidence: []string{fmt.Sprintf("%s=%s", own, host), fmt.Sprintf("%s=%s", name, value)},
				Mend:     "unset " + own})
			return
		}
	}
}

// probes is how often the store is asked for its time: the fastest answer tells most.
const probes = 3

// reach asks the store for one record, and reports whether it answers. Answers tell the store's
// time and latency, too.
func (x *exam) reach() (ok bool) {
	made := x.perform("clock", "", func(ctx context.Context) error {
		var best answer
		q := store.RecordQuery{Sort: store.TargetRecord, Target: "doctor", Keys: []string{"doctor"}}
		if len(x.Sweep.Targets) > 0 {
			q.Target = x.Sweep.Targets[0].Name
			q.Keys[0] = q.Target
		}
		for i := range probes {
			a, err := x.ask(ctx, q)
			if i == 0 && errors.Is(err, store.ErrCorrupt) {
				// That record may be the fault, which another check finds. A store that cannot read one
				// that does not exist either is damaged as a whole.
				q = store.RecordQuery{Sort: store.WorkerRecord, Target: "doctor", Keys: []string{"doctor"}}
				a, err = x.ask(ctx, q)
			}
			if errors.Is(err, context.Canceled) {
				return err
			}
			if err != nil && i == 0 {
				x.findUnusable("", err)
				return nil
			}
			if err == nil && (i == 0 || a.took() < best.took()) {
				best = a
			}
		}
		ok = true
		x.judgeClock(best)
		return nil
	})
	return made && ok
}

// ask asks the store for records, and returns when it has answered.
func (x *exam) ask(ctx context.Context, q store.RecordQuery) (a answer, err error) {
	a.before = x.Sweep.Now()
	got, err := x.Sweep.Store.Load(ctx, q)
	a.after, a.now = x.Sweep.Now(), got.Now
	return a, err
}

// findUnusable notes why the store cannot be used at all, or why that is so for a target.
func (x *exam) findUnusable(target string, err error) {
	f := Finding{Target: target, Evidence: []string{oneLine(err.Error())}, Mend: strings.Join(store.Hints(err), "; ")}
	switch {
	case errors.Is(err, fs.ErrNotExist) && x.Mode == "": // else a file with credentials does not
		f.ID, f.What = "database-missing", "The store "+x.Spec+" does not exist."
		f.Mend = "check --store: " + orElse(f.Mend, "it names no directory that exists")
	case errors.Is(err, store.ErrDenied) && x.OpenErr != nil && x.Mode != "":
		f.ID, f.What = "credentials-missing", "There are no credentials for "+x.Spec+"."
	case errors.Is(err, store.ErrDenied):
		f.ID, f.What = "access-denied", "The credentials may not read "+x.Spec+"."
		f.Mend = orElse(f.Mend, "give this user access to the store's directory")
	case errors.Is(err, store.ErrNotFound):
		f.ID, f.What = "database-missing", "The database "+x.Spec+" does not exist, or is in the other mode."
	case store.Transient(err):
		f.ID, f.What = "store-unreachable", "The store "+x.Spec+" does not answer."
	default:
		f.ID, f.What = "store-unusable", "The store "+x.Spec+" cannot be used."
		f.Mend = orElse(f.Mend, "follow the message of the store")
	}
	x.find(f)
}

// A permissionTester is a store whose project tells which permissions the credentials have.
type permissionTester interface {
	Permitted(ctx context.Context, permissions []string) ([]string, error)
}

// needs says which commands need which permissions.
var needs = []struct{ permission, commands string }{
	{"datastore.databases.get", "every command"},
	{"datastore.entities.get", "every command"},
	{"datastore.entities.list", "every command"},
	{"datastore.entities.create", "sweep --apply and adopt --apply, for their records"},
	{"datastore.entities.update", "sweep --apply and adopt --apply"},
	{"datastore.entities.delete", "sweep --apply"},
}

// needsOfNamespaces are needed in addition for namespaces: ["*"].
var needsOfNamespaces = []string{"datastore.namespaces.get", "datastore.namespaces.list"}

func (x *exam) checkPermissions(ctx context.Context, tester permissionTester) error {
	wanted := map[string]string{}
	for _, n := range needs {
		wanted[n.permission] = n.commands
	}
	for _, t := range x.Sweep.Targets {
		if slices.Contains(t.Namespaces, "*") {
			for _, p := range needsOfNamespaces {
				wanted[p] = `namespaces: ["*"]`
			}
		}
	}
	names := sortedKeys(wanted)
	got, err := tester.Permitted(ctx, names)
	if err != nil {
		return err
	}
	var missing, evidence []string
	for _, name := range names {
		if !slices.Contains(got, name) {
			missing = append(missing, name)
			evidence = append(evidence, fmt.Sprintf("%s: needed by %s", name, wanted[name]))
		}
	}
	if len(missing) > 0 {
		x.find(Finding{ID: "permission-missing", What: "The credentials lack permissions on the project.", Evidence: evidence,
			Mend: "gcloud iam roles update ROLE --project PROJECT --add-permissions=" + strings.Join(missing, ",")})
	}
	return nil
}

// An answer is what the store said of its time, between two instants of this process's clock.
type answer struct{ before, after, now time.Time }

func (a answer) took() time.Duration { return a.after.Sub(a.before) }
