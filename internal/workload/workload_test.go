package workload

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/reaper-ttl/reaper/internal/forecast"
)

func TestParsers(t *testing.T) {
	number := func(parse func(string) (float64, error)) func(string) (any, error) {
		return func(s string) (any, error) { return parse(s) }
	}
	for _, c := range []struct {
		parse func(string) (any, error)
		text  string
		want  any
	}{
		{number(Rate), "20000/s", 20000.0}, {number(Rate), "300/m", 5.0}, {number(Rate), "20k/s", 20000.0}, {number(Rate), "5M/d", 5e6 / 86400},
		{number(Count), "500M", 5e8}, {number(Count), "1.5G", 1.5e9}, {number(Count), "10000000000", 1e10}, {number(Count), "0", 0.0},
		{number(Size), "2KiB", 2048.0}, {number(Size), "300B", 300.0}, {number(Size), "1.5KB", 1500.0},
	} {
		if got, err := c.parse(c.text); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.text, got, err)
		}
	}
	lives, err := Lives("1h:80%, 30d:20%")
	if err != nil || len(lives) != 2 || lives[1].For != 30*24*time.Hour || math.Abs(lives[0].Share-0.8) > 1e-12 {
		t.Errorf("%v, %v", lives, err)
	}
	if text := Text(lives); text != "1h:80%,30d:20%" {
		t.Error(text)
	}
	if lives, err := Lives("30d"); err != nil || lives[0].Share != 1 {
		t.Errorf("%v, %v", lives, err)
	}
	prices, err := Prices("reads=0.03, deletes=0.01", "2026-11-26")
	if err != nil || prices[forecast.Reads].Dollars != 0.03 || prices[forecast.Deletes].Date != "2026-11-26" || len(prices) != 2 {
		t.Errorf("%v, %v", prices, err)
	}
	if p, err := Location("nam5"); err != nil || p.List[forecast.Reads].Dollars != 0.06 {
		t.Errorf("%v, %v", p, err)
	}
}

// What makes no sense is refused, and the error says what to write.
func TestBadInput(t *testing.T) {
	refused := func(what, text, want string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %q: %v, want %s", what, text, err, want)
		}
	}
	for text, want := range map[string]string{"20000": "has no unit", "": "has no unit", "20000/y": "not per s", "-1/s": "not a valid rate",
		"NaN/s": "not a valid rate", "Inf/s": "not a valid rate", "1e9/s": "not a valid rate", "2G/s": "more than", "0/s": "leave it out", "/s": "not a valid rate"} {
		_, err := Rate(text)
		refused("rate", text, want, err)
	}
	for text, want := range map[string]string{"5x": "not a number of entities", "-5": "not a number", "1.2.3M": "plain decimal", "9999999999T": "more than",
		"1e9": "not a number", "99999999999999999999999": "plain decimal", "": "plain decimal", "\x1b[2J": "not a number"} {
		_, err := Count(text)
		refused("count", text, want, err)
	}
	for text, want := range map[string]string{"2048": "no unit of size", "2GiB": "no unit", "2MiB": "not between", "0B": "not between", "-1B": "no unit"} {
		_, err := Size(text)
		refused("size", text, want, err)
	}
	for text, want := range map[string]string{"1h:80%": "add up to 80%", "1h:80%,30d:30%": "add up to 110%", "1h,30d": "has no share", "3600": "no unit",
		"1h:0.8": "not a share with %", "1h:-80%,2h:180%": "plain decimal", "0s": "not a life above 0", "40000d": "not a life", "1h:0%,2h:100%": "no share",
		"": "is empty", "1h:NaN%": "plain decimal", "999999d": "longest duration", strings.Repeat("1h:1%,", 200): "more than 100 lives"} {
		_, err := Lives(text)
		refused("lives", text, want, err)
	}
	for text, want := range map[string]string{"reads": "has no =", "read=1": "not the name of a price", "reads=1,reads=2": "twice", "reads=-1": "plain decimal",
		"reads=NaN": "plain decimal", "reads=0": "less than", "reads=5000": "more than 100", "": "has no ="} {
		_, err := Prices(text, "2026-11-26")
		refused("prices", text, want, err)
	}
	for _, location := range []string{"eur3", "us-east1", "", "us-centrall1"} {
		_, err := Location(location)
		refused("location", location, "--price", err)
	}
}

// No input panics, and what is accepted is finite and in bounds.
func FuzzParsers(f *testing.F) {
	for _, s := range []string{"20000/s", "1h:80%,30d:20%", "2KiB", "500M", "reads=0.03,deletes=0.01", "NaN/s", "1e400", "\xff/s", "9d9d:9%", "=,=", "%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		check := func(what string, n, most float64, err error) {
			if err == nil && (math.IsNaN(n) || n < 0 || n > most) {
				t.Errorf("%s of %q is %v", what, s, n)
			}
		}
		n, err := Rate(s)
		check("rate", n, forecast.MostWrites, err)
		n, err = Count(s)
		check("count", n, forecast.MostEntities, err)
		n, err = Size(s)
		check("size", n, forecast.MostBytes, err)
		if lives, err := Lives(s); err == nil {
			if err := (forecast.Workload{Lives: lives}).Check(); err != nil {
				t.Errorf("lives of %q: %v", s, err)
			}
		}
		if prices, err := Prices(s, ""); err == nil {
			for name, p := range prices {
				check(string(name), p.Dollars, mostPrice, nil)
			}
		}
	})
}
