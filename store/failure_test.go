package store

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// All that is known of an error comes from one table, so an error that is missing there would
// be retried by nobody, and be "other" in metrics.
func TestEachErrorHasARow(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "failure.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Err") {
			declared = append(declared, spec.Names[0].Name)
		}
		return true
	})
	var ours []string
	for _, f := range failures {
		if f.label == "" || f.label == LabelOther {
			t.Errorf("%v has the label %q", f.err, f.label)
		}
		if f.traits&foreign != 0 {
			continue
		}
		if slices.Contains(ours, f.label) {
			t.Errorf("two errors have the label %s", f.label)
		}
		ours = append(ours, f.label)
	}
	if len(declared) < 10 || len(declared) != len(ours) {
		t.Errorf("errors: %v\nrows: %v", declared, ours)
	}
}

func TestTraitsOfErrors(t *testing.T) {
	type traits struct{ transient, late, unsure, ofOne, mapped bool }
	for _, c := range []struct {
		err   error
		label string
		want  traits
	}{
		{ErrPushback, "pushback", traits{transient: true, mapped: true}},
		{ErrUnavailable, "unavailable", traits{transient: true, unsure: true, mapped: true}},
		{ErrDeadline, "deadline", traits{transient: true, late: true, unsure: true, mapped: true}},
		{context.DeadlineExceeded, "deadline", traits{transient: true, late: true, unsure: true}},
		{ErrContention, "contention", traits{transient: true, mapped: true}},
		{ErrTooLarge, "too_large", traits{ofOne: true, mapped: true}},
		{ErrDenied, "denied", traits{mapped: true}},
		{ErrUnsupported, "unsupported", traits{mapped: true}},
		{ErrInvalid, "invalid", traits{ofOne: true, mapped: true}},
		{ErrFailed, "failed", traits{ofOne: true, mapped: true}},
		{context.Canceled, LabelOther, traits{}},
		{fmt.Errorf("%w: %w", ErrFailed, ErrPushback), "pushback", traits{transient: true, ofOne: true, mapped: true}},
		{nil, LabelOther, traits{}},
	} {
		err := c.err
		if err != nil {
			err = WithHint(fmt.Errorf("scan: %w", err), "think")
		}
		got := traits{Transient(err), TookTooLong(err), MayHaveHappened(err), MayBeOfOneEntity(err), IsMapped(err)}
		if got != c.want || Label(err) != c.label {
			t.Errorf("%v: %s %+v, want %s %+v", err, Label(err), got, c.label, c.want)
		}
	}
}

// Advice is apart from what happened: no text holds it, and each one is given once.
func TestHints(t *testing.T) {
	denied := fmt.Errorf("target a: %w", ErrDenied)
	own := fmt.Errorf("target b: %w", WithHint(fmt.Errorf("scan: %w", ErrMissingIndex), "index it"))
	for _, c := range []struct {
		name string
		err  error
		want []string
	}{
		{"nothing", nil, nil},
		{"none is known", errors.New("lost"), nil},
		{"none is needed", ErrConflict, nil},
		{"of the kind", denied, []string{hintRole}},
		{"given with the error", own, []string{"index it"}},
		{"of several", errors.Join(denied, own, denied), []string{hintRole, "index it"}},
		{"of a context", context.DeadlineExceeded, []string{hintNetwork}},
	} {
		if got := Hints(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if own.Error() != "target b: scan: a query needs an index" {
		t.Errorf("the text is %q", own)
	}
	if WithHint(nil, "think") != nil {
		t.Error("advice made an error of success")
	}
}
