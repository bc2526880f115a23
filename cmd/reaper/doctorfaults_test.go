package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dsdk "cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"

	"github.com/reaper-ttl/reaper/cursor"
	"github.com/reaper-ttl/reaper/generation"
	"github.com/reaper-ttl/reaper/history"
	"github.com/reaper-ttl/reaper/internal/doctor"
	"github.com/reaper-ttl/reaper/internal/doctor/repair"
	"github.com/reaper-ttl/reaper/internal/emulator"
	"github.com/reaper-ttl/reaper/internal/nightly"
	"github.com/reaper-ttl/reaper/metrics"
	"github.com/reaper-ttl/reaper/store"
)

// A patientFault is one thing that is wrong, what shows it, and what mends it.
type patientFault struct {
	id    string                             // of the finding, as id@target
	also  []string                           // what else the fault shows
	name  string                             // if one finding has several faults
	only  emulator.Mode                      // of the emulator that has such a fault; empty for both
	file  func(string) string                // the targets file of the healthy setup, if it is another one
	cloud bool                               // it needs what an emulator does not have
	seed  func(p *patient)                   // makes it wrong
	mend  func(p *patient, f doctor.Finding) // follows the advice
	left  []string                           // what is found afterwards, with an advice of its own
}

// TestDoctorFaults: of each fault, seeded into a healthy setup on each emulator, doctor tells the finding and no
// other, and what it advises mends it.
func TestDoctorFaults(t *testing.T) {
	noRaces(t)
	for _, mode := range []emulator.Mode{emulator.Datastore, emulator.Native} {
		t.Run(string(mode), func(t *testing.T) {
			faults := slices.DeleteFunc(patientFaults(), func(f patientFault) bool { return f.only != "" && f.only != mode })
			if len(faults) < 30 {
				t.Errorf("only %d faults", len(faults))
			}
			n := nightly.Size(t, len(faults), 4)
			first := time.Now().YearDay() * n
			for i := range n {
				f := faults[(first+i)%len(faults)]
				t.Run(strings.ReplaceAll(f.id, "@", " of ")+f.name, func(t *testing.T) { f.test(t, mode) })
			}
		})
	}
}

// TestEachFindingHasAPatient: no finding is without a fault that is seeded on an emulator.
func TestEachFindingHasAPatient(t *testing.T) {
	seeded := map[string]bool{}
	for _, f := range patientFaults() {
		id, _, _ := strings.Cut(f.id, "@")
		seeded[id] = true
	}
	for id := range doctor.IDs() {
		if !seeded[id] {
			t.Errorf("no fault shows %s", id)
		}
	}
	for id := range seeded {
		if _, ok := doctor.IDs()[id]; !ok {
			t.Errorf("there is no finding %s", id)
		}
	}
}

func (f patientFault) test(t *testing.T, mode emulator.Mode) {
	file := patientTarget
	if f.file != nil {
		file = f.file(file)
	}
	p := newPatient(t, mode, file, f.cloud)
	f.seed(p)
	id, _, _ := strings.Cut(f.id, "@")
	sick, ids := p.examine(id)
	wantFound(t, sick, ids, append([]string{f.id}, f.also...)...)
	i := slices.IndexFunc(sick.Findings, func(found doctor.Finding) bool { return found.ID == id })
	if i < 0 {
		return
	}
	t.Logf("%s -> %s", sick.Findings[i].What, sick.Findings[i].Mend)
	f.mend(p, sick.Findings[i])
	r, ids := p.examine(id)
	wantFound(t, r, ids, f.left...)
	t.Logf("found in %.1f s, mended in %.1f s", sick.Duration, r.Duration)
	switch {
	case p.cloud == nil:
		wantOnlyEmulatorsSilence(t, r)
	case len(r.Unchecked) > 0:
		t.Errorf("%+v", r.Unchecked)
	}
	if took := max(sick.Duration, r.Duration); took > doctor.DefaultWithin.Seconds()+1 {
		t.Logf("an examination took %.1f s: the machine is slow", took)
	}
}

const day = 24 * time.Hour

// orders is a line of the targets file: another target, which nobody has swept.
const orders = "  - {name: orders, kind: Order, shards: 4, breaker: off}\n"

func withOrders(file string) string { return file + orders }

// withBreaker switches the breaker of sessions on.
func withBreaker(settings string) func(string) string {
	return func(file string) string { return strings.Replace(file, "breaker: off", "breaker: {"+settings+"}", 1) }
}

// with adds settings to sessions.
func with(settings string) func(string) string {
	return func(file string) string { return file + "    " + settings + "\n" }
}

// patientFaults are the faults: at least one of each finding. What needs an administration, credentials, an index
// definition or another clock is shown by a cloud in front of the emulator. Nothing waits for time to pass: instants in
// records are edited, for what is found for being old, and for what is mended by a day on which it does not happen
// again. Those edits, and new heartbeats of processes that are not there, stand for what people do to other programs.
func patientFaults() []patientFault {
	return slices.Concat(accessFaults, databaseFaults, configurationFaults, indexFaults, clockFaults, heldFaults,
		processFaults, entityFaults, recordFaults)
}

var accessFaults = []patientFault{
	{id: "access-denied@", cloud: true,
		seed: func(p *patient) { p.cloud.change(func() { p.cloud.isDenied = true }) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "check the credentials and their role")
			p.cloud.change(func() { p.cloud.isDenied = false })
		}},
	{id: "credentials-missing@", cloud: true,
		seed: func(p *patient) { p.set("GOOGLE_APPLICATION_CREDENTIALS", "missing.json") },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "set GOOGLE_APPLICATION_CREDENTIALS")
			p.set("GOOGLE_APPLICATION_CREDENTIALS", "key.json")
		}},
	{id: "emulator-accidental@", cloud: true,
		seed: func(p *patient) { p.set(p.variable(), p.emulator) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "unset "+p.variable())
			p.set(p.variable(), "")
		}},
	{id: "emulator-unused@", cloud: true,
		seed: func(p *patient) { p.set(p.otherVariable(), "127.0.0.1:1") },
		mend: func(p *patient, f doctor.Finding) { p.set(p.advised(f, `unset (\w+)`), "") }},
	{id: "permission-missing@", cloud: true,
		seed: func(p *patient) {
			p.cloud.change(func() { p.cloud.lacking = []string{"datastore.entities.delete", "datastore.entities.list"} })
		},
		mend: (*patient).gcloud},
	{id: "store-unreachable@", cloud: true,
		seed: func(p *patient) { p.cloud.change(func() { p.cloud.refuse = refuseAll(codes.Unavailable) }) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "check that the endpoint can be reached from here")
			p.cloud.change(func() { p.cloud.refuse = nil })
		}},
	{id: "store-unusable@", cloud: true,
		seed: func(p *patient) {
			p.cloud.change(func() { p.cloud.refuse, p.cloud.message = refuseAll(codes.Unknown), "call the support" })
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "follow the message of the store")
			if !strings.Contains(strings.Join(f.Evidence, " "), "call the support") {
				p.t.Errorf("the evidence lacks the message: %q", f.Evidence)
			}
			p.cloud.change(func() { p.cloud.refuse = nil })
		}},
	{id: "store-unreachable@", name: ", where no emulator is",
		seed: func(p *patient) { p.set(p.variable(), "127.0.0.1:1") },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "*_EMULATOR_HOST")
			p.set(p.variable(), p.emulator)
		}},
}

func refuseAll(code codes.Code) func(string, []byte) codes.Code {
	return func(string, []byte) codes.Code { return code }
}

// describe changes what the administration says of the database.
func describe(field, value string) func(p *patient) {
	return func(p *patient) { p.cloud.change(func() { p.cloud.databases["(default)"][field] = value }) }
}

// policy gives a field of sessions a TTL policy.
func policy(field string) func(p *patient) {
	return func(p *patient) {
		p.cloud.change(func() { p.cloud.fields = []*fakeField{{kind: "Session", name: field, ttl: true}} })
	}
}

var databaseFaults = []patientFault{
	{id: "concurrency-mode@", cloud: true, only: emulator.Datastore,
		seed: describe("concurrencyMode", "OPTIMISTIC_WITH_ENTITY_GROUPS"),
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "change the concurrency mode to optimistic")
			describe("concurrencyMode", "OPTIMISTIC")(p)
		}},
	{id: "database-deleted@", cloud: true,
		seed: describe("deleteTime", "2026-11-01T00:00:00Z"),
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "restore this one from a backup")
			p.cloud.change(func() { delete(p.cloud.databases["(default)"], "deleteTime") })
		}},
	{id: "database-edition@", cloud: true,
		seed: describe("databaseEdition", "ENTERPRISE"),
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "use a database of the Standard edition")
			p.cloud.change(func() { p.cloud.databases["second"] = p.cloud.healthyDatabase() })
			p.set("REAPER_STORE", p.driver()+":"+p.project+"/second")
			p.healthy()
		}},
	{id: "database-missing@", cloud: true,
		seed: func(p *patient) { p.set("REAPER_STORE", p.driver()+":"+p.project+"/sessoins") },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "check the project and the database in --store")
			p.set("REAPER_STORE", p.driver()+":"+p.project)
		}},
	{id: "database-mode@", cloud: true, also: []string{"database-missing@"},
		seed: func(p *patient) { p.set("REAPER_STORE", p.otherDriver()+":"+p.project) },
		mend: func(p *patient, f doctor.Finding) { p.set("REAPER_STORE", p.advised(f, `write --store (\S+)`)) }},
	{id: "protection-off@", cloud: true,
		seed: describe("deleteProtectionState", "DELETE_PROTECTION_DISABLED"), mend: (*patient).gcloud},
	{id: "recovery-off@", cloud: true,
		seed: describe("pointInTimeRecoveryEnablement", "POINT_IN_TIME_RECOVERY_DISABLED"), mend: (*patient).gcloud},
	{id: "ttl-policy@sessions", cloud: true, seed: policy("expiry_key"), mend: (*patient).gcloud},
	{id: "ttl-policy-nearby@sessions", cloud: true, seed: policy("deleted_at"), mend: (*patient).gcloud},
}

// ordersNow writes a live order.
func ordersNow(p *patient, kind string) {
	p.put(kind, store.Entity{Name: "a", Expiry: p.key(0, 0, time.Hour)},
		store.Entity{Name: "b", Expiry: p.key(0, 1, time.Hour)})
}

// twoProperties gives some sessions a second expiry, and has another target delete by it.
func twoProperties(p *patient) {
	expiry, other := p.key(0, 1, time.Hour), p.key(0, 1, 2*time.Hour).Text
	for _, name := range []string{"a-0", "a-1"} {
		if p.client == nil {
			p.put("Session", store.Entity{Name: name, Expiry: expiry, Data: fmt.Appendf(nil, `{"key": %q}`, other)})
			continue
		}
		list := &dsdk.PropertyList{{Name: "expiry_key", Value: expiry.Text}, {Name: "key", Value: other}}
		if _, err := p.client.Put(p.t.Context(), dsdk.NameKey("Session", name, nil), list); err != nil {
			p.t.Fatal(err)
		}
	}
	p.configure(p.file + "  - {name: other, kind: Session, property: key, shards: 4, breaker: off}\n")
}

var configurationFaults = []patientFault{
	{id: "kind-empty@orders", cloud: true, // whose emulator lists no kinds
		seed: func(p *patient) {
			ordersNow(p, "Purchase")
			p.cloud.change(func() { p.cloud.listed = map[string][]string{"__kind__": {"Purchase", "ReaperTarget", "Session"}} })
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "check kind and namespaces in the targets file")
			p.replace("kind: Order", "kind: Purchase")
		}},
	{id: "kind-misspelt@orders", cloud: true,
		seed: func(p *patient) {
			ordersNow(p, "Orders")
			p.cloud.change(func() { p.cloud.listed = map[string][]string{"__kind__": {"Orders", "ReaperTarget", "Session"}} })
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.replace("kind: Order", p.advised(f, "write (kind: \\w+) in the targets file"))
		}},
	{id: "namespace-left-out@orders", cloud: true, only: emulator.Datastore,
		seed: func(p *patient) {
			p.putAs(store.Target{Name: "any", Kind: "Order", Property: "expiry_key", Type: store.Text}, "eu",
				store.Entity{Name: "a", Expiry: p.key(0, 0, time.Hour)})
			p.cloud.change(func() { p.cloud.listed = map[string][]string{"__namespace__": {"", "eu"}} })
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.replace("kind: Order", "kind: Order, "+p.advised(f, `write (namespaces: \["\*"\])`))
		}},
	{id: "property-missing@orders",
		seed: func(p *patient) {
			p.putAs(store.Target{Name: "any", Kind: "Order", Property: "expirykey", Type: store.Text}, "",
				store.Entity{Name: "a", Expiry: p.key(0, 0, time.Hour)}, store.Entity{Name: "b"})
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "correct property in the targets file")
			p.replace("kind: Order", "kind: Order, property: expirykey")
		}},
	{id: "property-type@orders", also: []string{"outside@orders"},
		seed: func(p *patient) {
			p.put("Order", store.Entity{Name: "a", Expiry: store.InstantValue(time.Now().Add(time.Hour))})
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "set layout and property in the targets file to what the entities have")
			p.replace("kind: Order, shards: 4", "kind: Order, layout: timestamp, property: expiry_key")
		}},
	{id: "record-differs@sessions", also: []string{"config-drift@sessions"},
		seed: func(p *patient) {
			ordersNow(p, "Order")
			p.replace("kind: Session", "kind: Order")
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "correct the targets file")
			p.replace("kind: Order", "kind: Session")
		}},
	{id: "shards-few@sessions",
		seed: func(p *patient) { // 4 shards take 2,000 a second; half of this falls into one hour of the clock
			p.ran("serve", 2*time.Hour, history.Done, metrics.Counts{Deleted: 5000 * 3600})
		},
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, p.advised(f, `^(reaper generation advance --shards \d+ --target sessions), and`))
			p.replace("shards: 4", p.advised(f, `(shards: \d+) in the targets file`))
			p.deploy()
		}},
	{id: "target-renamed@sessions",
		seed: func(p *patient) { p.oldRecord("Session") },
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper doctor --repair target-renamed --name old")
			p.heed(f, "with --apply removes it")
			p.obey(f, "reaper doctor --repair target-renamed --name old", "--apply")
		}},
	{id: "target-renamed@renamed", name: " by mistake",
		seed: func(p *patient) { p.replace("name: sessions", "name: renamed") },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "give it its old name")
			p.replace("name: renamed", "name: sessions")
		}},
	{id: "target-superseded@sessions", also: []string{"targets-overlap@other"},
		seed: func(p *patient) {
			twoProperties(p)
			p.edit(store.AdoptRecord, "other", "other", func(f store.Fields) {
				maps.Copy(f, store.Fields{"schema": int64(1), "kind": "Session", "property": "key", "phase": "finished",
					"rule": "property expiry_key", "rule_property": "expiry_key", "began": store.FormatTime(time.Now()),
					"rounds": []store.Fields{{"number": int64(1), "began": store.FormatTime(time.Now()), "percent": 100.0}},
					"parts":  []store.Fields{{"namespace": "", "until": ""}}})
			})
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "remove sessions from the targets file")
			p.configure(strings.Replace(p.file, strings.TrimPrefix(patientTarget, "targets:\n"), "", 1))
		},
		left: []string{"target-unconfigured@sessions"}},
	{id: "target-swept-twice@sessions",
		seed: func(p *patient) {
			p.oldRecord("Session")
			p.beat("old", "host/1", "v1", "", 0, long)
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "configure it once")
			p.bury("old", "host/1") // its process ends
		},
		left: []string{"target-renamed@sessions"}},
	{id: "target-unconfigured@old",
		seed: func(p *patient) { p.oldRecord("Order") },
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper doctor --repair target-unconfigured --name old")
			p.heed(f, "with --apply removes it")
			p.obey(f, "reaper doctor --repair target-unconfigured --name old", "--apply")
		}},
	{id: "target-unconfigured@sessions", name: " by mistake",
		seed: func(p *patient) {
			ordersNow(p, "Order")
			p.configure("targets:\n" + orders)
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "add the target again")
			p.configure(withOrders(patientTarget))
		}},
	{id: "targets-overlap@other", seed: twoProperties,
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "remove one of them from the targets file")
			p.configure(patientTarget)
		}},
}

// byShard is a target that needs a composite index.
const byShard = "  - {name: orders, kind: Order, layout: sharded-timestamp, property: expires, shard_values: [1, 2], " +
	"breaker: off}\n"

var indexFaults = []patientFault{
	{id: "index-empty@orders", also: []string{"property-unindexed@orders"}, only: emulator.Datastore,
		seed: func(p *patient) {
			p.unindexed(true)
			p.configure(withOrders(p.file))
			p.deploy() // which looks around
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "check property, layout and namespaces of the target, and that writers do not exclude the property")
			p.unindexed(false)
			p.deploy()
		}},
	{id: "index-empty@sessions", name: " was found",
		seed: func(p *patient) { p.record(func(r *generation.Record) { r.EmptyIndex = true }) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "check property, layout and namespaces of the target") // nothing is wrong with them any more
			p.deploy()
		}},
	{id: "index-exempt@sessions", cloud: true, only: emulator.Native,
		seed: func(p *patient) {
			p.cloud.change(func() {
				p.cloud.fields = []*fakeField{{kind: "Session", name: "expiry_key", own: true, orders: []string{"DESCENDING"}}}
			})
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "prints the definition; deploy it")
			p.cloud.deploy(p.obey(f, "reaper indexes --target sessions").out)
		}},
	{id: "index-missing@orders", cloud: true,
		seed: func(p *patient) {
			t := store.Target{Name: "any", Kind: "Order", Property: "expires", Type: store.Instant, ShardProperty: "shard"}
			p.putAs(t, "", store.Entity{Name: "a", Expiry: store.InstantValue(time.Now().Add(time.Hour)),
				Shard: store.IntegerValue(1)})
			p.cloud.needsIndex("Order", "shard", "expires")
			p.configure(p.file + byShard)
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "prints the definition; deploy it and wait until it is built")
			p.cloud.deploy(p.obey(f, "reaper indexes --target orders").out)
		}},
	{id: "property-unindexed@orders", only: emulator.Datastore,
		seed: func(p *patient) {
			p.unindexed(true)
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "do not exclude it when writing")
			p.heed(f, "write the entities again")
			p.unindexed(false)
		}},
}

// shifted has the store's clock differ from this machine's, until somebody synchronises it.
func shifted(by time.Duration) func(p *patient) {
	return func(p *patient) { p.cloud.change(func() { p.cloud.offset = by }) }
}

func synchronise(p *patient, f doctor.Finding) {
	p.heed(f, "synchronise this machine's clock (NTP)")
	shifted(0)(p)
}

var clockFaults = []patientFault{
	{id: "clock-drift@", cloud: true, file: with("max_clock_skew: 10m"), seed: shifted(7 * time.Minute),
		mend: synchronise},
	{id: "clock-drift@", name: ", ahead", cloud: true, file: with("max_clock_skew: 10m"), seed: shifted(-7 * time.Minute),
		mend: synchronise},
	{id: "clock-skew@", cloud: true, file: with("max_clock_skew: 10m"), seed: shifted(20 * time.Minute),
		mend: synchronise},
	{id: "store-slow@", cloud: true,
		seed: func(p *patient) { p.cloud.change(func() { p.cloud.delay = 1500 * time.Millisecond }) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "check the network")
			p.cloud.change(func() { p.cloud.delay = 0 })
		}},
}

var heldFaults = []patientFault{
	{id: "breaker-blind@sessions", file: withBreaker("fraction: 100%"),
		seed: func(*patient) {}, // the setup has it
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "see docs/breaker.md for fraction and window")
			p.replace("fraction: 100%", "fraction: 25%")
			p.deploy()
		}},
	{id: "breaker-open@sessions", also: []string{"behind-cursors@sessions"}, file: withBreaker("floor: 20"),
		seed: func(p *patient) {
			shard := shardOf(p.t, p.cursors()[0])
			var late []store.Entity
			for i := range 100 {
				late = append(late, store.Entity{Name: fmt.Sprintf("late-%d", i), Expiry: p.key(1, shard, -time.Hour)})
			}
			p.put("Session", late...)
			if r := p.run(nil, "sweep", "--apply", "--from-start"); r.code != exitBreaker {
				p.t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
			}
		},
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper breaker show sessions")
			p.heed(f, p.breaker().Trip+" --reason TEXT")
			p.obey(f, "reaper breaker approve sessions "+p.breaker().Trip+" --reason", "they are old")
			p.must(nil, "sweep", "--apply", "--from-start") // as the advice for the other finding is
		}},
	{id: "breaker-uncounted@sessions", file: withBreaker("floor: 20"),
		seed: func(p *patient) {
			var live []store.Entity // of so many, 40 are not unusual
			for i := range 400 {
				live = append(live, store.Entity{Name: fmt.Sprintf("live-%d", i), Expiry: p.key(1, i%4, day)})
			}
			p.put("Session", live...)
			p.edit(store.BudgetRecord, "sessions", "sessions", func(f store.Fields) { f["uncounted"] = "it was slow" })
		},
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper breaker show sessions")
			p.due(40) // more than the floor, so they are counted
			p.deploy()
		}},
	{id: "gate-closed@sessions", file: with("pace: {gate: ./hold}"),
		seed: func(p *patient) { p.write("hold", "closed for the night") },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "ask those who operate the gate; pace.gate in the targets file names it")
			if err := os.Remove(filepath.Join(p.dir, "hold")); err != nil {
				p.t.Error(err)
			}
		}},
	{id: "limit-used-up@sessions", file: with("limits: {per_day: 6}"),
		seed: func(*patient) {}, // the setup has deleted as many
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "raise limits in the targets file")
			p.replace("per_day: 6", "per_day: 600")
			p.deploy()
		}},
	{id: "paused@sessions",
		seed: func(p *patient) { p.must(nil, "pause", "--reason", "looking") },
		mend: func(p *patient, f doctor.Finding) { p.obey(f, "reaper resume --target sessions") }},
	{id: "pushed-back@sessions",
		seed: func(p *patient) {
			list := p.cursors()
			if len(list) < 2 {
				p.t.Fatalf("only one range was swept: %+v", list)
			}
			for _, c := range list {
				p.put("Session", store.Entity{Name: "due-" + c.Key, Expiry: p.key(1, shardOf(p.t, c), -time.Second)})
				p.edit(store.CursorRecord, "sessions", c.Key, func(f store.Fields) { f["throttled_by"] = "pushback" })
			}
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "reaper pace --max N --target sessions")
			p.must(nil, "pace", "--max", "50", "--target", "sessions")
			p.deploy()
		}},
}

var processFaults = []patientFault{
	{id: "config-drift@sessions",
		seed: func(p *patient) { p.configure(p.file + "    page: 70\n") },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "deploy one targets file to all processes")
			p.deploy()
		}},
	{id: "heartbeat-malformed@sessions",
		seed: func(p *patient) {
			p.beat("sessions", "host/1", "v1", "", 0, long)
			p.edit(store.WorkerRecord, "sessions", cursor.HeartbeatKey("sessions", "host/1"),
				func(f store.Fields) { f["epoch"] = "one" })
		},
		mend: func(p *patient, f doctor.Finding) {
			p.drop(string(store.WorkerRecord), p.advised(f, `remove the ReaperWorker record (\S+), if`))
		}},
	{id: "never-applied@orders",
		seed: func(p *patient) {
			p.put("Order", store.Entity{Name: "a", Expiry: p.key(0, 0, -time.Hour)})
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper sweep --target orders")
			p.heed(f, "then add --apply")
			p.obey(f, "reaper sweep --target orders", "--apply")
			ordersNow(p, "Order")
		}},
	{id: "never-complete@sessions",
		seed: func(p *patient) {
			p.forgetRuns()
			for i, end := range []history.End{history.Deadline, history.Signal, history.Lost} {
				p.ran("sweep", time.Duration(3-i)*time.Hour, end, metrics.Counts{Deleted: 1})
			}
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "give sweeps more time (--max-duration, ")
			p.must(nil, "sweep", "--apply", "--max-duration", "10m")
		}},
	{id: "not-swept@sessions",
		seed: func(p *patient) {
			p.backdate(3 * time.Hour)
			p.put("Session", store.Entity{Name: "due", Expiry: p.key(1, 0, -time.Hour)})
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "look at the job or daemon that should")
			p.deploy() // it is there again
		}},
	{id: "sweeps-failing@sessions",
		seed: func(p *patient) {
			p.forgetRuns()
			p.ran("sweep", 2*time.Hour, history.Done, metrics.Counts{Deleted: 1})
			p.ran("sweep", time.Hour, history.Failed, metrics.Counts{})
		},
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper history --target sessions")
			p.heed(f, "do what the error says") // the disk has room again
			p.deploy()
		}},
	{id: "sweeps-late@sessions",
		seed: func(p *patient) {
			p.backdate(3 * time.Hour)
			p.put("Session", store.Entity{Name: "due", Expiry: p.key(1, 0, -time.Hour)})
			p.beat("sessions", "host/1", "v1", "", 0, long)
		},
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper status --target sessions")
			p.bury("sessions", "host/1")
			p.deploy()
		}},
	{id: "version-drift@sessions",
		seed: func(p *patient) {
			p.beat("sessions", "host/1", "v1", "", 0, long)
			p.beat("sessions", "host/2", "v2", "", 0, long)
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "roll out one version to all")
			p.bury("sessions", "host/1")
			p.beat("sessions", "host/3", "v2", "", 0, long)
		}},
	{id: "worker-dead@sessions",
		seed: func(p *patient) { p.beat("sessions", "host/1", "v1", "", 20*time.Minute, 30*time.Second) },
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper doctor --repair worker-dead --target sessions --older-than 10m --apply")
		}},
	{id: "worker-dead@sessions", name: " for a few minutes",
		seed: func(p *patient) { p.beat("sessions", "host/1", "v1", "", 5*time.Minute, 30*time.Second) },
		mend: func(p *patient, f doctor.Finding) {
			from, err := time.Parse(time.RFC3339, p.advised(f, `removes the records from (\S+) on`))
			if in := time.Until(from); err != nil || in > 5*time.Minute+time.Second {
				p.t.Errorf("in %v, %v", in, err)
			}
			p.beat("sessions", "host/1", "v1", "", 10*time.Minute+time.Second, 30*time.Second) // it is that late
			p.obey(f, "reaper doctor --repair worker-dead --target sessions --older-than 10m --apply")
		}},
	{id: "worker-dead@sessions", name: ", which a daemon sees",
		file: with("lease: 3s\n    pace: {start: 1, max: 5}"),
		seed: func(p *patient) { p.beat("sessions", "host/1", "v1", "", 5*time.Minute, 3*time.Second) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "a daemon, or a sweep that works for more than two leases, does so by itself")
			// It works for a while: with nothing to do it reads heartbeats every five minutes.
			p.work(-time.Second)
			d := p.serve("--apply")
			d.until("the removal of a dead process's heartbeat", func() bool {
				return p.load(store.WorkerRecord, "sessions", cursor.HeartbeatKey("sessions", "host/1")).Revision == ""
			})
			d.stop()
			p.work(time.Hour)
		}},
	{id: "worker-fault@sessions",
		seed: func(p *patient) { p.beat("sessions", "host/1", "v1", "cannot write a cursor", 0, long) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "look at the log of that process; most often its credentials lack a permission")
			p.beat("sessions", "host/1", "v1", "", 0, long) // its next one, with that permission
		}},
}

var entityFaults = []patientFault{
	{id: "behind-cursors@sessions",
		seed: func(p *patient) { p.behind("late") },
		mend: func(p *patient, f doctor.Finding) { p.obey(f, "reaper sweep --apply --from-start --target sessions") }},
	{id: "breaker-would-trip@sessions", also: []string{"behind-cursors@sessions"}, file: withBreaker("floor: 20"),
		seed: func(p *patient) {
			p.behind("late")
			p.beat("sessions", "host/1", "v1", "", 0, long)
			p.edit(store.WorkerRecord, "sessions", cursor.HeartbeatKey("sessions", "host/1"), func(f store.Fields) {
				maps.Copy(f, store.Fields{"behind": int64(1), "behind_counted": store.FormatTime(time.Now()),
					"would_trip_late": int64(100), "would_trip_limit": int64(20)})
			})
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "reaper explain --target sessions ID shows one")
			p.must(nil, "explain", "--target", "sessions", "late")
			p.heed(f, "have the application write the right expiries")
			p.put("Session", store.Entity{Name: "late", Expiry: p.key(1, 0, time.Hour)})
			p.edit(store.WorkerRecord, "sessions", cursor.HeartbeatKey("sessions", "host/1"), func(f store.Fields) {
				f["behind"], f["would_trip_late"], f["would_trip_limit"] = int64(0), int64(0), int64(0) // it has counted again
			})
		}},
	{id: "ids-monotonic@orders",
		seed: func(p *patient) {
			for i := range int64(30) {
				p.put("Order", store.Entity{Number: 1000 + i, Expiry: p.key(0, 0, time.Hour)})
			}
			p.configure(withOrders(p.file))
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "begin each id with a hash")
			for i := range 30 {
				p.put("Order", store.Entity{Name: fmt.Sprintf("%x", (i+1)*7919), Expiry: p.key(0, 0, time.Hour)})
				p.dropNumber("Order", int64(1000+i))
			}
		}},
	{id: "descendants-left@sessions", only: emulator.Native,
		seed: func(p *patient) {
			for i := range 60 {
				p.put(fmt.Sprintf("Session/s-%x/posts", i*7919), store.Entity{Name: "post"})
			}
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "write descendants: {mode: delete} in the targets file")
			p.configure(with("descendants: {mode: delete}")(p.file))
			p.deploy()
		}},
	{id: "life-too-long@sessions",
		seed: func(p *patient) { p.put("Session", store.Entity{Name: "old", Expiry: p.key(1, 3, 33*day)}) },
		mend: func(p *patient, f doctor.Finding) {
			keep := p.advised(f, `write generations\.keep: (\d+) in the targets file`)
			p.configure(with("generations: {keep: " + keep + "}")(p.file))
			p.deploy()
		}},
	{id: "lives-halved@sessions", file: withBreaker("floor: 20"),
		seed: func(p *patient) { p.lives(day, time.Hour) },
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper pause --target sessions --reason lives-halved")
			p.heed(f, "look at what the writers stamp")
			p.lives(day, day) // they stamp a day again
			p.must(nil, "resume", "--target", "sessions")
		}},
	{id: "malformed@sessions",
		seed: func(p *patient) {
			p.put("Session", store.Entity{Name: "odd", Expiry: store.TextValue("00000001.0002.19991340T000000.000Z")})
		},
		mend: rewriteOdd("malformed")},
	{id: "mismatch@sessions", file: with("adopt: {from: {property: created}, rate: unlimited, spread: 0s}"),
		seed: func(p *patient) {
			p.must(nil, "adopt", "sessions", "--apply")
			p.ran("serve", 2*time.Hour, history.Done, metrics.Counts{Mismatch: 3})
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "reaper adopt verify sessions names some")
			if r := p.run(nil, "adopt", "verify", "sessions"); r.code != exitFailed || !strings.Contains(r.out, "mismatch") {
				p.t.Errorf("exit code %d: %s%s", r.code, r.out, r.log)
			}
			p.heed(f, "update the writer that extends entities without a key")
			p.forgetRuns() // as they are a day later
			p.ran("serve", 27*time.Hour, history.Done, metrics.Counts{Mismatch: 3})
		}},
	{id: "outside@sessions",
		seed: func(p *patient) { p.put("Session", store.Entity{Name: "odd", Expiry: store.TextValue("zzz")}) },
		mend: rewriteOdd("outside")},
	{id: "refused@sessions", also: []string{"behind-cursors@sessions"},
		seed: func(p *patient) {
			p.edit(store.CursorRecord, "sessions", p.behind("odd"), func(f store.Fields) { f["refused"] = true })
		},
		mend: func(p *patient, f doctor.Finding) {
			if out := p.obey(f, "reaper list --kept refused --target sessions").out; !strings.Contains(out, "odd") {
				p.t.Errorf("the list does not name it: %s", out)
			}
			p.heed(f, "delete or repair them by hand")
			p.drop("Session", "odd")
		}},
	{id: "strays@sessions",
		seed: func(p *patient) { p.ran("audit", 2*time.Hour, history.Done, metrics.Counts{Strays: 3}) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "update the writer that uses an old copy of the target record")
			p.obey(f, "reaper doctor --writers")
			p.forgetRuns() // as they are a day later
			p.ran("audit", 27*time.Hour, history.Done, metrics.Counts{Strays: 3})
		}},
	{id: "suspect@sessions",
		seed: func(p *patient) { p.put("Session", store.Entity{Name: "odd", Expiry: p.key(1, 2, -6*365*day)}) },
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "correct their expiry")
			rewriteOdd("suspect")(p, f)
		}},
}

// rewriteOdd follows the advice to list what is kept for a reason, and to write it again.
func rewriteOdd(reason string) func(*patient, doctor.Finding) {
	return func(p *patient, f doctor.Finding) {
		out := p.obey(f, "reaper list --kept "+reason+" --target sessions").out
		if !strings.Contains(out, "odd") {
			p.t.Errorf("the list does not name it: %s", out)
		}
		p.put("Session", store.Entity{Name: "odd", Expiry: p.key(1, 2, time.Hour)})
	}
}

var recordFaults = []patientFault{
	{id: "record-lost@sessions",
		seed: func(p *patient) { p.drop(string(store.TargetRecord), "sessions") },
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper doctor --repair record-lost --target sessions")
			p.heed(f, "with --apply makes it now")
			p.obey(f, "reaper doctor --repair record-lost --target sessions", "--apply")
		}},
	{id: "record-malformed@sessions",
		seed: func(p *patient) {
			p.edit(store.TargetRecord, "sessions", "sessions", func(f store.Fields) { f["created"] = "yesterday" })
		},
		mend: func(p *patient, f doctor.Finding) {
			p.obey(f, "reaper doctor --repair record-malformed --target sessions")
			p.heed(f, "with --apply writes it")
			p.obey(f, "reaper doctor --repair record-malformed --target sessions", "--apply")
		}},
	{id: "record-malformed@sessions", name: " of a range",
		seed: func(p *patient) {
			p.edit(store.CursorRecord, "sessions", p.cursors()[0].Key, func(f store.Fields) { f["token"] = "one" })
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "for others see docs/records.md") // which says what is lost if it is removed: nothing but time
			m := regexp.MustCompile(`ReaperCursor "(\S+)"`).FindStringSubmatch(strings.Join(f.Evidence, " "))
			if m == nil {
				p.t.Fatalf("no record is named: %q", f.Evidence)
			}
			r := p.repair(exitFailed, "record-malformed")
			if !slices.ContainsFunc(r.Left, func(l repair.Left) bool { return l.Failed && strings.Contains(l.Why, m[1]) }) {
				p.t.Errorf("%+v", r)
			}
			p.drop(string(store.CursorRecord), m[1])
			p.deploy()
		}},
	{id: "record-malformed@sessions", name: " that the store cannot decode", only: emulator.Datastore,
		seed: func(p *patient) { p.spoil(string(store.TargetRecord), "sessions") },
		mend: func(p *patient, f doctor.Finding) {
			if evidence := strings.Join(f.Evidence, " "); !strings.Contains(evidence, "ReaperTarget sessions") {
				p.t.Errorf("no record is named: %s", evidence)
			}
			r := p.repair(exitFailed, "record-malformed", "--apply")
			if len(r.Left) != 1 || r.Left[0].Record != string(store.TargetRecord) || len(r.Changes) > 0 {
				p.t.Errorf("%+v", r)
			}
			p.heed(f, "remove it by hand")
			p.drop(string(store.TargetRecord), "sessions")
			p.deploy()
		}},
	{id: "record-newer@sessions",
		seed: func(p *patient) {
			p.edit(store.TargetRecord, "sessions", "sessions", func(f store.Fields) { f["schema"] = int64(99) })
		},
		mend: func(p *patient, f doctor.Finding) {
			p.heed(f, "update this program") // this one is the newest, so the record becomes one that it knows
			p.edit(store.TargetRecord, "sessions", "sessions", func(f store.Fields) { f["schema"] = int64(2) })
		}},
	{id: "record-old-copy@sessions",
		seed: func(p *patient) {
			old := p.load(store.TargetRecord, "sessions", "sessions")
			p.must(nil, "generation", "advance", "--target", "sessions")
			p.due(5)
			p.deploy()
			newer := p.load(store.TargetRecord, "sessions", "sessions")
			if err := p.db.Save(p.t.Context(), old, newer.Revision); err != nil {
				p.t.Fatal(err)
			}
		},
		mend: (*patient).afterRestore},
	{id: "records-mixed@sessions", also: []string{"outside@sessions"},
		seed: func(p *patient) { p.put("Session", store.Entity{Name: "later", Expiry: p.key(9, 0, time.Hour)}) },
		mend: (*patient).afterRestore},
}

// afterRestore follows the chapter of that name, for records that are older than the entities.
func (p *patient) afterRestore(f doctor.Finding) {
	p.t.Helper()
	p.heed(f, "follow the chapter After a restore of docs/operations.md")
	p.drop(string(store.TargetRecord), "sessions")
	p.must(nil, "sweep")
	p.must(nil, "sweep", "--apply")
}
