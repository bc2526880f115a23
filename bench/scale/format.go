package main

import (
	"fmt"
	"math"
	"strings"
)

// number writes a number with three digits that count, and thousands apart.
func number(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f >= 1e9:
		return three(f/1e9) + " G"
	case f >= 1e6:
		return three(f/1e6) + " M"
	}
	return three(f)
}

func three(f float64) string {
	digits := 2 - int(math.Floor(math.Log10(math.Abs(f))))
	unit := math.Pow(10, float64(digits))
	text := fmt.Sprintf("%.*f", max(0, digits), math.Round(f*unit)/unit)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	for i := len(text) - 3; i > 0 && !strings.Contains(text, "."); i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// duration writes seconds as people do.
func duration(seconds float64) string {
	switch {
	case seconds < 1:
		return three(max(seconds, 1e-6)*1000) + " ms"
	case seconds < 600:
		return three(seconds) + " s"
	case seconds < 7200:
		return three(seconds/60) + " min"
	}
	return three(seconds/3600) + " h"
}

func money(dollars float64) string { return "$" + three(dollars) }

func percent(part float64) string {
	if part < 0.00005 {
		return "0 %"
	}
	return three(part*100) + " %"
}

// table writes rows as Markdown.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	line(strings.Split(strings.Repeat("--- ", len(head)-1)+"---", " "))
	for _, r := range rows {
		line(r)
	}
	return b.String()
}
