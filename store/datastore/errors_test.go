package datastore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
	"github.com/reaper-ttl/reaper/store"
)

// TestErrorTable sends real codes with the service's real words through the
// client: each must come out as one sentinel, after exactly one call.
func TestErrorTable(t *testing.T) {
	sentinels := []error{store.ErrPushback, store.ErrUnavailable, store.ErrDeadline, store.ErrContention, store.ErrTooLarge,
		store.ErrDenied, store.ErrNotFound, store.ErrMissingIndex, store.ErrUnsupported, store.ErrInvalid, store.ErrConflict, store.ErrCorrupt, store.ErrFailed}
	for _, c := range []struct {
		code    codes.Code
		message string
		want    error
	}{
		{codes.ResourceExhausted, "Quota exceeded.", store.ErrPushback},
		{codes.ResourceExhausted, "grpc: received message larger than max (70000000 vs. 67108864)", store.ErrTooLarge},
		{codes.Unavailable, "The service is currently unavailable.", store.ErrUnavailable},
		{codes.Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR", store.ErrUnavailable},
		{codes.Canceled, "The operation was cancelled.", store.ErrUnavailable},
		{codes.DeadlineExceeded, "The datastore operation timed out.", store.ErrDeadline},
		{codes.Aborted, "too much contention on these datastore entities. please try again.", store.ErrContention},
		{codes.InvalidArgument, "The referenced transaction has expired or is no longer valid.", store.ErrContention},
		{codes.InvalidArgument, "Transaction is invalid or closed.", store.ErrContention},
		{codes.InvalidArgument, "Invalid transaction.", store.ErrContention},
		{codes.PermissionDenied, "Missing or insufficient permissions.", store.ErrDenied},
		{codes.Unauthenticated, "Request had invalid authentication credentials.", store.ErrDenied},
		{codes.Unauthenticated, "transport: per-RPC creds failed due to error: cannot fetch token", store.ErrUnavailable},
		{codes.NotFound, "The project p does not exist or it does not contain an active Cloud Datastore database.", store.ErrNotFound},
		{codes.FailedPrecondition, "The Cloud Datastore API is not available for Firestore in Native Mode database projects/p/databases/(default).", store.ErrNotFound},
		{codes.FailedPrecondition, "no matching index found. recommended index is: ...", store.ErrMissingIndex},
		{codes.FailedPrecondition, "something else", store.ErrInvalid},
		{codes.AlreadyExists, "entity already exists", store.ErrConflict},
		{codes.InvalidArgument, "datastore transaction or write too big.", store.ErrTooLarge},
		{codes.InvalidArgument, "Request payload size exceeds the limit: 10485760 bytes.", store.ErrTooLarge},
		{codes.InvalidArgument, "cannot write more than 500 entities in a single call", store.ErrTooLarge},
		{codes.InvalidArgument, "operating on too many entity groups in a single transaction.", store.ErrTooLarge},
		{codes.InvalidArgument, "queries inside transactions must have ancestors", store.ErrUnsupported},
		{codes.InvalidArgument, "Only ancestor queries are allowed inside transactions.", store.ErrUnsupported},
		{codes.Unavailable, "Only ancestor queries are allowed inside transactions.", store.ErrUnavailable}, // not what it says
		{codes.InvalidArgument, "Cannot use projection on a property with an equality filter.", store.ErrInvalid},
		{codes.Unimplemented, "unknown method", store.ErrInvalid},
		{codes.OutOfRange, "?", store.ErrInvalid},
		{codes.DataLoss, "?", store.ErrFailed},
		{codes.Unknown, "?", store.ErrFailed},
	} {
		var faults faultrpc.Injector
		db := openAt(t, "127.0.0.1:1", &faults) // nothing gets that far
		calls := map[string]func() error{
			"BeginTransaction": func() error {
				_, err := db.Settle(t.Context(), store.Query{Target: target(store.GuardLookup)}, store.Entry{Key: "Session/a"}, nil)
				return err
			},
			"RunQuery": func() error {
				return db.Scan(t.Context(), query(store.GuardLookup, "a", "z"), &store.Page{})
			},
			"Lookup": func() error {
				_, err := db.Load(t.Context(), store.RecordQuery{Sort: store.TargetRecord, Target: "sessions", Keys: []string{"sessions"}})
				return err
			},
			"Commit": func() error {
				return db.Dispose(t.Context(), &store.Batch{Query: query(store.GuardLookup, "a", "z"),
					Ops: []store.Op{{Entry: store.Entry{Key: "Session/a", Value: store.TextValue("c")}}}})
			},
			"RunAggregationQuery": func() error { _, err := db.Count(t.Context(), target(""), "", store.Span{}, 0); return err },
		}
		for method, do := range calls {
			faults.Reset()
			faults.Add(faultrpc.Fault{Method: method, Code: c.code, Message: c.message, Times: -1})
			if method == "Commit" { // the calls before it go well
				answer(&faults)
			}
			err := do()
			for _, s := range sentinels {
				if errors.Is(err, s) != (s == c.want) {
					t.Errorf("%s: %v %q: errors.Is(%v, %q) is %v", method, c.code, c.message, err, s, !(s == c.want))
				}
			}
			for _, part := range []string{c.message, "127.0.0.1:1 (emulator)", method} {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %q does not say %q", method, err, part)
				}
			}
			if status.Code(err) != c.code {
				t.Errorf("%s: the code %v is lost in %v", method, c.code, err)
			}
			if n := len(faults.Calls(method)); n != 1 {
				t.Errorf("%s: %d calls after %v, want 1: somebody retries", method, n, c.code)
			}
		}
	}
}

// answer answers the calls of a transaction that come before its commit, as if
// there were an entity that expires at c.
func answer(faults *faultrpc.Injector) {
	instead := func(method string, reply func(req, reply any)) {
		faults.Add(faultrpc.Fault{Method: method, Times: -1, Instead: true,
			Hook: func(_ context.Context, req, to any) { reply(req, to) }})
	}
	instead("BeginTransaction", func(_, reply any) { reply.(*pb.BeginTransactionResponse).Transaction = []byte("tx") })
	instead("Rollback", func(_, _ any) {})
	instead("Lookup", func(req, reply any) {
		for _, key := range req.(*pb.LookupRequest).GetKeys() {
			reply.(*pb.LookupResponse).Found = append(reply.(*pb.LookupResponse).Found, &pb.EntityResult{Entity: &pb.Entity{
				Key: key, Properties: map[string]*pb.Value{property: {ValueType: &pb.Value_StringValue{StringValue: "c"}}}}})
		}
	})
}

func TestUnreachable(t *testing.T) {
	db := openAt(t, "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := db.Load(ctx, store.RecordQuery{Sort: store.TargetRecord, Target: "sessions", Keys: []string{"sessions"}})
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Load at a closed port: %v, want ErrUnavailable that names it", err)
	}
	if ctx.Err() != nil {
		t.Error("the refused connection took as long as the deadline")
	}
}

func TestContextErrorsStayVisible(t *testing.T) {
	db := openAt(t, "127.0.0.1:1")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := db.Load(done, store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"}); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("with a cancelled context: %v, want context.Canceled alone", err)
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := db.Load(late, store.RecordQuery{Sort: store.CursorRecord, Target: "sessions"}); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrDeadline) {
		t.Errorf("after the deadline: %v, want context.DeadlineExceeded and ErrDeadline", err)
	}
}

func TestNoCredentials(t *testing.T) {
	t.Setenv("DATASTORE_EMULATOR_HOST", "")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", t.TempDir()+"/none.json")
	_, err := Open(t.Context(), Options{Project: "p"})
	if !errors.Is(err, store.ErrDenied) || !strings.Contains(strings.Join(store.Hints(err), ""), "GOOGLE_APPLICATION_CREDENTIALS") || !strings.Contains(err.Error(), "datastore.googleapis.com:443") {
		t.Errorf("Open without credentials: %v, want ErrDenied with advice", err)
	}
}

func TestOpen(t *testing.T) {
	if _, err := Open(t.Context(), Options{}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("Open without a project: %v, want ErrInvalid", err)
	}
	t.Setenv("DATASTORE_EMULATOR_HOST", "http://127.0.0.1:1")
	db, err := Open(t.Context(), Options{Project: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if got := db.Endpoint(); !strings.Contains(got, "127.0.0.1:1 (emulator)") {
		t.Errorf("Endpoint() = %q, want the variable's", got)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestClientRefusals: what the client itself refuses is nobody else's fault.
func TestClientRefusals(t *testing.T) {
	db := openAt(t, "127.0.0.1:1")
	long := strings.Repeat("x", 1501)
	q := query("", "a", "z")
	q.Lo = store.TextValue(long)
	q.Hi = store.TextValue("z")
	if err := db.Scan(t.Context(), q, &store.Page{}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("Scan from a bound of 1501 bytes: %v, want ErrInvalid", err)
	}
	var multi error = sdk.MultiError{nil, sdk.ErrInvalidKey}
	if err := db.fail(t.Context(), "op", multi); !errors.Is(err, store.ErrInvalid) || !errors.Is(err, sdk.ErrInvalidKey) {
		t.Errorf("an invalid key: %v", err)
	}
}
