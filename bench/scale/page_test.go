package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("update", false, "write the tables and plots of docs/scale.md")

const docs = "../../docs"

// The page shows what the program prints: `go test ./scale -update`, or `go run ./scale`.
func TestPageShowsTheTables(t *testing.T) {
	s := newStudy()
	s.run()
	tables := s.tables()
	file := filepath.Join(docs, "scale.md")
	if *rewrite {
		if err := s.draw(filepath.Join(docs, "plots")); err != nil {
			t.Fatal(err)
		}
		if err := update(file, tables); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := filled(string(page), tables)
	if err != nil {
		t.Fatal(err)
	}
	is, wants := strings.Split(string(page), "\n"), strings.Split(want, "\n")
	for i := range min(len(is), len(wants)) {
		if is[i] != wants[i] {
			t.Fatalf("line %d of docs/scale.md is\n%s\nand the program prints\n%s\n(-update writes it)", i+1, is[i], wants[i])
		}
	}
	if len(is) != len(wants) {
		t.Fatalf("docs/scale.md has %d lines, and would have %d (-update writes it)", len(is), len(wants))
	}
	drawn(t, s, string(page))
}

// drawn checks that all plots can be drawn, and that the page and the repository have them.
func drawn(t *testing.T, s *study, page string) {
	t.Helper()
	dir := t.TempDir()
	if err := s.draw(dir); err != nil {
		t.Fatal(err)
	}
	plots, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil || len(plots) != 4 {
		t.Fatalf("%d plots: %v", len(plots), err)
	}
	for _, file := range plots {
		name := filepath.Base(file)
		if _, err := os.Stat(filepath.Join(docs, "plots", name)); err != nil || !strings.Contains(page, "(plots/"+name+")") {
			t.Errorf("docs/scale.md does not show %s: %v", name, err)
		}
	}
}

// The demands are those that a reader gets by hand.
func TestDemandsByHand(t *testing.T) {
	k, n := demandOf(kind), demandOf(tenants)
	near(t, "shards", k.shardsNeeded(), 800, 0)
	near(t, "ramp", k.rampNeeded(), 73.9, 0.001)
	near(t, "pages", k.pagesPerTick(), 800*(1.5+(75000-500)/250.0), 1e-9)
	near(t, "processes", k.processes(linear), 5, 0)
	near(t, "look", n.lookTime(), 20000*0.0175/16, 1e-9)
	near(t, "tick", n.tickTime(), (10000*0.0175+10000*0.075+20000*0.0575)/16, 1e-9)
	near(t, "claims", n.claims(), 2*10000*8640, 1e-9)
	near(t, "records", n.records(), 90000, 0)
	if p := n.processes(linear); p != 1 {
		t.Errorf("%v processes for 10,000 tenants", p)
	}
}

// The formulas and the model agree on what a month costs, and on how many processes it takes.
func TestDemandsAgreeWithTheModel(t *testing.T) {
	o, d := daemon(1, tenants).run(tenants, day/4).monthly(), demandOf(tenants)
	near(t, "writes", o.writes, d.claims()*1.05, 0.05)
	near(t, "reads", o.reads, tenants.rate*month+d.claims()*1.5+d.idleQueries(), 0.05)
	few, enough := daemon(4, kind).run(kind, 7200), daemon(6, kind).run(kind, 7200)
	if fewer := few.last().backlog; fewer < 3*enough.last().backlog {
		t.Errorf("four processes have a backlog of %v, six one of %v", fewer, enough.last().backlog)
	}
}

func TestNumbers(t *testing.T) {
	for want, f := range map[string]float64{"0": 0, "200,000": 200_000, "1,070": 1066.7, "518 G": 518.4e9, "0.27": 0.27,
		"1.84 M": 1.843e6, "73.9": 73.92, "999": 999.4} {
		if got := number(f); got != want {
			t.Errorf("%v is %q, not %q", f, got, want)
		}
	}
	for want, s := range map[string]string{"150 s": duration(150), "18.2 ms": duration(0.01817), "40 min": duration(2400),
		"24 h": duration(86400), "99.8 %": percent(0.9975), "$1,310": money(1308)} {
		if s != want {
			t.Errorf("%q, not %q", s, want)
		}
	}
	if _, err := filled("no marks", map[string]string{"kind": ""}); err == nil {
		t.Error("a page without marks was filled")
	}
}
