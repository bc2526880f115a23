package faultrpc_test

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
)

func TestFaults(t *testing.T) {
	var i faultrpc.Injector
	made := 0
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		made++
		return nil
	}
	call := func(method string, req any) codes.Code {
		return status.Code(i.Intercept(t.Context(), "/svc/"+method, req, nil, nil, invoke))
	}
	hooked := 0
	i.Add(faultrpc.Fault{Method: "Commit", Skip: 1, Times: 2, Code: codes.Aborted})
	i.Add(faultrpc.Fault{Method: "Commit", After: true, Code: codes.Unavailable})
	i.Add(faultrpc.Fault{Match: func(req any) bool { return req == "odd" }, Instead: true, Hook: func(context.Context, any, any) { hooked++ }})
	for n, want := range []struct {
		code codes.Code
		made int
	}{
		{codes.Unavailable, 1}, // the first fault lets it through, the second loses the reply
		{codes.Aborted, 1},
		{codes.Aborted, 1},
		{codes.OK, 2},
	} {
		if code := call("Commit", "even"); code != want.code || made != want.made {
			t.Errorf("commit %d: %v after %d calls that were made, want %v after %d", n, code, made, want.code, want.made)
		}
	}
	if code := call("Lookup", "odd"); code != codes.OK || made != 2 || hooked != 1 {
		t.Errorf("lookup: %v, %d calls made, %d hooks run, want it answered by the hook alone", code, made, hooked)
	}
	if got, want := i.Methods(), []string{"Commit", "Commit", "Commit", "Commit", "Lookup"}; !slices.Equal(got, want) {
		t.Errorf("methods: %v, want %v", got, want)
	}
	if calls := i.Calls("Lookup"); len(calls) != 1 || calls[0].Req != "odd" {
		t.Errorf("lookups: %+v", calls)
	}
	i.Reset()
	if code := call("Commit", "even"); code != codes.OK || len(i.Calls("")) != 1 {
		t.Errorf("after a reset: %v, %d calls", code, len(i.Calls("")))
	}
}
