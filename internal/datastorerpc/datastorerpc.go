// Package datastorerpc knows the calls of the Datastore API, for tests: which of them
// belong to a transaction, and what a database of the mode optimistic with entity
// groups refuses. Tests outside the driver need not know its SDK.
//
// The invariant is that refusals have the service's own codes and words, as users
// have reported them.
//
// Limits: entities stand for entity groups, so none of a batch may share one.
package datastorerpc

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/reaper-ttl/reaper/internal/faultrpc"
)

// MostGroups is how many groups a transaction takes in that mode.
const MostGroups = 25

// What the service says.
const (
	TooManyGroups = "operating on too many entity groups in a single transaction."
	NeedAncestors = "queries inside transactions must have ancestors"
	Contention    = "too much contention on these datastore entities. please try again."
)

// AsService returns the options with which a client takes an emulator for the service
// itself. The client needs the emulator's host as its endpoint, too.
func AsService() []option.ClientOption {
	return []option.ClientOption{option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

// IsQuery reports whether a request is a query's within a transaction.
func IsQuery(req any) bool {
	r, ok := req.(*pb.RunQueryRequest)
	return ok && r.GetReadOptions().GetTransaction() != nil
}

// LookedUp returns how many entities of a kind, or of any if that is empty, a request
// looks up within a transaction.
func LookedUp(req any, kind string) (n int) {
	r, ok := req.(*pb.LookupRequest)
	if !ok || r.GetReadOptions().GetTransaction() == nil {
		return 0
	}
	for _, key := range r.GetKeys() {
		if path := key.GetPath(); kind == "" || path[len(path)-1].GetKind() == kind {
			n++
		}
	}
	return n
}

// Written returns how many entities a request writes in a transaction.
func Written(req any) int {
	if r, ok := req.(*pb.CommitRequest); ok && r.GetTransaction() != nil {
		return len(r.GetMutations())
	}
	return 0
}

// EntityGroups are the refusals of a database of that mode.
func EntityGroups() []faultrpc.Fault {
	return []faultrpc.Fault{
		{Method: "RunQuery", Times: -1, Match: IsQuery, Code: codes.InvalidArgument, Message: NeedAncestors},
		{Times: -1, Code: codes.InvalidArgument, Message: TooManyGroups,
			Match: func(req any) bool { return LookedUp(req, "") > MostGroups || Written(req) > MostGroups }},
	}
}

// Contended is a query within a transaction that loses against a writer, so many times.
func Contended(times int) faultrpc.Fault {
	return faultrpc.Fault{Method: "RunQuery", Times: times, Match: IsQuery, Code: codes.Aborted, Message: Contention}
}
