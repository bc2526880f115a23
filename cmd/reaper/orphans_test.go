package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dsdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/internal/nodewriter"
	"github.com/reaper-ttl/reaper/internal/orphans"
	"github.com/reaper-ttl/reaper/store/datastore"
)

// orphanTargets are a target, and one whose entities lie below those of the first.
const orphanTargets = `targets:
  - {name: users, kind: u, pace: {max: unlimited}}
  - {name: tags, kind: tags, layout: timestamp, property: expires, pace: {max: unlimited}%s}
`

// A client is the plain client of a service. A path is the same in both: kinds and names in turn.
type client interface {
	// put writes entities, with the expiry of tags if their path ends with a plus sign.
	put(paths ...string)
	remove(path string)
	// all returns everything but the reaper's own records.
	all() map[string]string
}

type plainDatastore struct {
	t *testing.T
	c *dsdk.Client
}

func (p plainDatastore) put(paths ...string) {
	for page := range slices.Chunk(paths, 400) {
		var keys []*dsdk.Key
		var lists []dsdk.PropertyList
		for _, path := range page {
			path, own := strings.CutSuffix(path, "+")
			key, err := datastore.ParseKey("", path)
			if err != nil {
				p.t.Fatal(err)
			}
			ps := dsdk.PropertyList{{Name: "text", Value: path}}
			if own {
				ps = append(ps, dsdk.Property{Name: "expires", Value: time.Now().Add(time.Hour)})
			}
			keys, lists = append(keys, key), append(lists, ps)
		}
		if _, err := p.c.PutMulti(p.t.Context(), keys, lists); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p plainDatastore) remove(path string) {
	key, err := datastore.ParseKey("", path)
	if err == nil {
		err = p.c.Delete(p.t.Context(), key)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p plainDatastore) all() map[string]string {
	var lists []dsdk.PropertyList
	keys, err := p.c.GetAll(p.t.Context(), dsdk.NewQuery(""), &lists)
	if err != nil {
		p.t.Fatal(err)
	}
	all := map[string]string{}
	for i, k := range keys {
		if !strings.HasPrefix(k.Kind, "Reaper") {
			slices.SortFunc(lists[i], func(a, b dsdk.Property) int { return strings.Compare(a.Name, b.Name) })
			all[datastore.FormatKey(k)] = fmt.Sprintf("%+v", lists[i])
		}
	}
	return all
}

type plainNative struct {
	oldNative
	host, project string
}

func (p plainNative) put(paths ...string) {
	for page := range slices.Chunk(paths, 400) {
		var writes []*pb.Write
		for _, path := range page {
			path, own := strings.CutSuffix(path, "+")
			fields := map[string]*pb.Value{"text": {ValueType: &pb.Value_StringValue{StringValue: path}}}
			if own {
				fields["expires"] = &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(time.Now().Add(time.Hour))}}
			}
			writes = append(writes, &pb.Write{Operation: &pb.Write_Update{Update: &pb.Document{Name: p.root + "/documents/" + path, Fields: fields}}})
		}
		if _, err := p.client.Commit(p.t.Context(), &pb.CommitRequest{Database: p.root, Writes: writes}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p plainNative) remove(path string) {
	if err := p.client.DeleteDocument(p.t.Context(), &pb.DeleteDocumentRequest{Name: p.root + "/documents/" + path}); err != nil {
		p.t.Fatal(err)
	}
}

func (p plainNative) all() map[string]string {
	all := nodewriter.Snapshot(p.t, p.host, p.project)
	maps.DeleteFunc(all, func(path, _ string) bool { return strings.HasPrefix(path, "Reaper") })
	return all
}

// onBoth runs a test on both services.
func onBoth(t *testing.T, test func(t *testing.T, b *workdir, c client)) {
	t.Run("datastore", func(t *testing.T) {
		b, e, project := newDatastore(t, fmt.Sprintf(orphanTargets, ""))
		test(t, b, plainDatastore{t, datastoreClient(t, e, project)})
	})
	t.Run("native", func(t *testing.T) {
		b, e, project := newFirestore(t, fmt.Sprintf(orphanTargets, ", group: true"))
		test(t, b, plainNative{newOldNative(t, e, project), e.Host, project})
	})
}

// orphans looks for orphans, and returns the document that it prints.
func (b *workdir) orphans(code int, args ...string) (res orphansResult) {
	b.t.Helper()
	r := b.run(nil, append([]string{"orphans", "users", "--json"}, args...)...)
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&res); err != nil || d.More() || r.code != code {
		b.t.Fatalf("reaper orphans %q: exit code %d, %v\n%s%s", args, r.code, err, r.out, r.log)
	}
	return res
}

// bury deletes users as firebase-tools does, the parent first and what lies below it after, and is killed
// before it is done with any of them. It returns everything that is left but the orphans.
func bury(t *testing.T, c client) (want map[string]string, left int) {
	t.Helper()
	alive, dead := []string{"p2", "p!", "p～", "q"}, []string{"p", "p~", "p😀", "P", "p-", "r", "never"}
	var paths []string
	for i, u := range append(slices.Clone(alive), dead...) {
		if u != "never" {
			paths = append(paths, "u/"+u)
		}
		paths = append(paths, "u/"+u+"/tags/own+", "u/"+u+"/tags/own/x/1", "u/"+u+"/tags/plain")
		for j := range 20 + i {
			paths = append(paths, fmt.Sprintf("u/%s/n/%02d", u, j), fmt.Sprintf("u/%s/n/%02d/m/a", u, j))
		}
	}
	for i := range 600 {
		paths = append(paths, fmt.Sprintf("u/r/n/00/m/%04d", i))
	}
	paths = append(paths, "u!/p/n/1", "u2/p/n/1", "t/p/n/1")
	c.put(paths...)
	for i, u := range dead {
		c.remove("u/" + u)
		for j := range i {
			c.remove(fmt.Sprintf("u/%s/n/%02d", u, j)) // its children are orphans of depth two
		}
	}
	want = c.all()
	maps.DeleteFunc(want, func(path, _ string) bool {
		for _, u := range dead {
			if strings.HasPrefix(path, "u/"+u+"/") && !strings.HasPrefix(path, "u/"+u+"/tags/own") {
				left++
				return true
			}
		}
		return false
	})
	return want, left
}

// What a deleter left behind that took parents first and was killed is found and deleted, and nothing
// else, also by runs that are killed themselves.
func TestOrphans(t *testing.T) {
	noRaces(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, b *workdir, c client) {
		want, left := bury(t, c)
		before := c.all()
		dry := b.orphans(exitDone)
		if int(dry.Orphans) != left || dry.Missing != 7 || dry.Owned != 14 || dry.Entities != 4 || dry.Apply || !dry.Complete ||
			dry.Deleted != 0 || dry.Operations.Deletes+dry.Operations.Writes != 0 || len(dry.Samples) != 3 || dry.Cost == nil ||
			dry.Cost.Deletes != dry.Orphans {
			t.Errorf("%d orphans: %+v", left, dry)
		}
		_, native := c.(plainNative)
		if native != (dry.Written != nil) {
			t.Errorf("written: %+v", dry.Written)
		}
		if !maps.Equal(c.all(), before) {
			t.Error("a dry run changes something")
		}
		text := b.must(nil, "orphans", "users").out
		for _, has := range []string{fmt.Sprintf("users: %s orphans below 7 entities that do not exist\n", grouped(int64(left))),
			"tags, and 7 that stay", "14 entities stay", "nothing was changed: delete with --apply"} {
			if !strings.Contains(text, has) {
				t.Errorf("no %q in\n%s", has, text)
			}
		}
		if native == strings.Contains(text, "is not known") {
			t.Error(text)
		}
		t.Log(text)
		if res := b.orphans(exitFailed, "--apply", "--max", "20"); res.Deleted != 20 || res.Complete {
			t.Errorf("max: %+v", res)
		}
		deleted := 20 + b.killOrphans(50)
		if now := len(c.all()); now == len(want) || now > len(before)-deleted {
			t.Errorf("%d of %d are left after a run that was killed", now, len(before))
		}
		res := b.orphans(exitDone, "--apply", "--rate", "unlimited")
		if !res.Complete || res.Deleted == 0 || res.Deleted != res.Orphans || int(res.Deleted) > left-deleted || res.Owned != 14 {
			t.Errorf("%+v", res)
		}
		after := c.all()
		for path := range after {
			if _, ok := want[path]; !ok {
				t.Errorf("%s is left", path)
			}
		}
		if !maps.Equal(after, want) {
			t.Errorf("%d entities are left, not %d", len(after), len(want))
		}
		if res := b.orphans(exitDone, "--apply"); res.Orphans != 0 || res.Deleted != 0 || res.Owned != 14 {
			t.Errorf("again: %+v", res)
		}
		if r := b.must(nil, "history", "--target", "users", "--actions"); strings.Count(r.out, "orphans end") != 2 {
			t.Errorf("history:\n%s", r.out)
		}
		b.must(nil, "sweep", "--apply", "--target", "users") // a pause needs the target's record
		b.must(nil, "pause", "--target", "users", "--reason", "a test")
		c.put("u/late/n/1")
		targets, err := os.ReadFile(filepath.Join(b.dir, "reaper.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		b.write("reaper.yaml", strings.Replace(string(targets), "kind: u,", "kind: u, lease: 5s,", 1))
		if res := b.orphans(exitDone, "--apply"); res.Deleted != 0 || res.Complete || res.Held != "paused a test" {
			t.Errorf("paused: %+v", res)
		}
	})
}

// killOrphans begins to delete orphans, and kills the process once it has deleted so many. It returns how
// many those were.
func (b *workdir) killOrphans(most int) (deleted int) {
	b.t.Helper()
	cmd, _, _ := b.command(nil, "orphans", "users", "--apply", "--log-level", "debug", "--log-format", "json", "--rate", "100")
	lines := bufio.NewScanner(b.start(cmd))
	for deleted < most && lines.Scan() {
		var line struct {
			Message  string `json:"message"`
			Entities int    `json:"entities"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "orphans deleted" {
			deleted += line.Entities
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return deleted
}

// Orders that cannot be carried out are errors of usage.
func TestOrphansUsage(t *testing.T) {
	noRaces(t)
	b := newWorkdir(t, `targets:
  - {name: users, kind: u, pace: {max: unlimited}}
  - {name: tags, kind: tags, pace: {max: unlimited}}
`)
	b.env = []string{"REAPER_STORE=embedded:db"}
	for _, c := range []struct{ args, want string }{
		{"users", "has no descendants"}, {"", "name it"}, {"nobody", "nobody"},
	} {
		r := b.run(nil, append([]string{"orphans"}, strings.Fields(c.args)...)...)
		if r.code != exitUsage || !strings.Contains(r.log, c.want) {
			t.Errorf("%q: exit code %d\n%s", c.args, r.code, r.log)
		}
	}
	onBoth(t, func(t *testing.T, b *workdir, c client) {
		c.put("u/p/n/1")
		for args, want := range map[string]string{
			"users --max 0": "--max", "users --rate 0": "--rate", "users --from v/x": "v/x", "users --from u": `"u"`,
			"users --from-namespace eu": "namespace",
		} {
			r := b.run(nil, append([]string{"orphans"}, strings.Fields(args)...)...)
			if r.code != exitUsage || !strings.Contains(r.log, want) || r.out != "" {
				t.Errorf("%q: exit code %d\n%s%s", args, r.code, r.out, r.log)
			}
		}
	})
}

// That an order cannot be carried out may show when something was deleted already: then that is told, and the exit code
// does not say that nothing was done.
func TestOrphansUnfitLate(t *testing.T) {
	for deleted, want := range map[int64]int{0: exitUsage, 3: exitFailed} {
		var out bytes.Buffer
		s := &session{console: &console{stdout: &out}}
		res := orphans.Result{Target: "users", Apply: true, Counts: orphans.Counts{Deleted: deleted}}
		err := reportOrphans(s, orphans.Config{}, res, fmt.Errorf("%w: u/p", orphans.ErrMidst))
		code, text := exitOf(failed(err))
		if code != want || !strings.Contains(text, "u/p") || strings.Contains(out.String(), "3 orphans were deleted") != (deleted > 0) {
			t.Errorf("%d were deleted: exit code %d, %s\n%s", deleted, code, text, &out)
		}
	}
}

// The documents of a group, and entities with ancestors, are found wherever they are.
func TestOrphansEverywhere(t *testing.T) {
	noRaces(t)
	onBoth(t, func(t *testing.T, b *workdir, c client) {
		c.put("a/1/tags/x", "a/1/tags/x/n/1", "a/1/tags/y/n/1", "a/1/n/1", "b/1/c/2/tags/z/n/1/m/1", "tags/t/n/1", "u/p/n/1")
		want := c.all()
		for _, path := range []string{"a/1/tags/y/n/1", "b/1/c/2/tags/z/n/1/m/1", "tags/t/n/1"} {
			delete(want, path)
		}
		var args []string
		if _, native := c.(plainNative); native {
			r := b.run(nil, "orphans", "tags")
			if r.code != exitUsage || !strings.Contains(r.log, "--everywhere") {
				t.Errorf("exit code %d\n%s", r.code, r.log)
			}
			args = []string{"--everywhere"}
		}
		b.must(nil, append([]string{"orphans", "--target", "tags", "--apply"}, args...)...)
		if after := c.all(); !maps.Equal(after, want) {
			t.Errorf("left: %q", slices.Sorted(maps.Keys(after)))
		}
	})
}
