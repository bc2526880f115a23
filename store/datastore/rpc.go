package datastore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	sdk "cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/reaper-ttl/reaper/store"
)

// A call carries, by way of the context, requests and replies that the public client
// cannot express. It serves one operation, whose calls follow one another.
type call struct {
	mask   string   // lookups transfer this property only; empty means all
	walk   bool     // queries transfer the masked properties only, too
	also   string   // a second property of the mask; may be empty
	others []string // more properties of the mask
	single bool     // a second batch of a query is refused with errStopped
	upTo   int64    // counts stop there; zero or less means no bound
	raw    *rawCall // what is sent in place of the client's call

	written map[string]time.Time                // when what was looked up was last written, by its path
	created map[string]time.Time                // by FormatKey, of the entities that a walk or a restamp read
	updated map[string]time.Time                // likewise: when each was last written
	now     time.Time                           // the store's time, from the last reply that told it
	tx      []byte                              // the transaction that began
	batches int                                 // queries answered so far
	more    pb.QueryResultBatch_MoreResultsType // of the last batch
	cursor  []byte                              // where the last batch ended
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// A rawCall is a call that the public client cannot express.
type rawCall struct {
	method     string
	req, reply any
}

// errSent ends the client's call in whose place another one was sent.
var errSent = errors.New("another call was sent")

// send makes a call that the public client cannot express. The client contributes connections and headers: it
// makes some call, and the interceptor replaces it. A lookup has no mask but its own.
func (d *DB) send(ctx context.Context, method string, req, reply any) error {
	ctx = withCall(ctx, &call{raw: &rawCall{"/" + rpcService + "/" + method, req, reply}})
	if err := d.client.Get(ctx, sdk.NameKey("raw", "call", nil), &cell{}); !errors.Is(err, errSent) {
		return err
	}
	return nil
}

// end returns where the last batch ended, as a cursor of the client.
func (c *call) end() (sdk.Cursor, error) {
	return sdk.DecodeCursor(base64.URLEncoding.EncodeToString(c.cursor))
}

// rollbackTimeout bounds a rollback, which runs after its context is done.
const rollbackTimeout = 2 * time.Second

// An rpcError hides the service's status from the client, which would otherwise repeat
// calls by itself, and replace messages by its own. So it must not unwrap to anything
// that has a GRPCStatus method. fail restores the status.
type rpcError struct {
	method string
	status *status.Status
}

func (e *rpcError) Error() string { return e.method + ": " + e.status.String() }

// intercept sees every call between the client and the service.
func (d *DB) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil {
		c = &call{} // nobody reads it
	}
	if c.raw != nil {
		method, req, reply = c.raw.method, c.raw.req, c.raw.reply
	}
	switch r := req.(type) {
	case *pb.LookupRequest:
		if c.mask != "" {
			r.PropertyMask = c.propertyMask()
		}
	case *pb.RunQueryRequest:
		if c.walk {
			r.PropertyMask = c.propertyMask()
		}
		if c.single && c.batches > 0 {
			return errStopped
		}
	case *pb.RunAggregationQueryRequest:
		if c.upTo > 0 {
			stopCounts(r, c.upTo)
		}
	case *pb.RollbackRequest:
		// A transaction is rolled back just when its context is done, too.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
	}
	askToExplain(ctx, req)
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil && lacksBatch(reply) {
		err = status.Error(codes.Unavailable, "the reply holds no result")
	}
	if err != nil {
		return &rpcError{method[strings.LastIndexByte(method, '/')+1:], status.Convert(err)}
	}
	store.Bill(ctx, billed(req, reply))
	c.note(reply)
	noteExplained(ctx, reply)
	if c.raw != nil {
		return errSent
	}
	return nil
}

func (c *call) propertyMask() *pb.PropertyMask {
	mask := &pb.PropertyMask{Paths: []string{maskPath(c.mask)}}
	if c.also != "" {
		mask.Paths = append(mask.Paths, maskPath(c.also))
	}
	for _, name := range c.others {
		mask.Paths = append(mask.Paths, maskPath(name))
	}
	return mask
}

// lacksBatch reports whether a reply lacks what the client reads of it unseen: it would panic.
func lacksBatch(reply any) bool {
	switch r := reply.(type) {
	case *pb.RunQueryResponse:
		return r.GetBatch() == nil
	case *pb.RunAggregationQueryResponse:
		return len(r.GetBatch().GetAggregationResults()) == 0
	}
	return false
}

// stopCounts sets the bound of each count in a request: the service then reads,
// and bills, no more of the index.
func stopCounts(r *pb.RunAggregationQueryRequest, upTo int64) {
	for _, a := range r.GetAggregationQuery().GetAggregations() {
		if _, ok := a.GetOperator().(*pb.AggregationQuery_Aggregation_Count_); ok {
			a.Operator = &pb.AggregationQuery_Aggregation_Count_{
				Count: &pb.AggregationQuery_Aggregation_Count{UpTo: wrapperspb.Int64(upTo)}}
		}
	}
}

func (c *call) note(reply any) {
	switch r := reply.(type) {
	case *pb.BeginTransactionResponse:
		c.tx = r.GetTransaction()
	case *pb.LookupResponse:
		c.noteCreated(r.GetFound())
		if t := r.GetReadTime(); t != nil {
			c.now = t.AsTime()
		}
		c.noteWritten(r)
	case *pb.RunQueryResponse:
		c.batches++
		c.noteCreated(r.GetBatch().GetEntityResults())
		c.more, c.cursor = r.GetBatch().GetMoreResults(), r.GetBatch().GetEndCursor()
		if t := r.GetBatch().GetReadTime(); t != nil {
			c.now = t.AsTime()
		}
	case *pb.CommitResponse:
		if t := r.GetCommitTime(); t != nil {
			c.now = t.AsTime()
		}
	}
}

// noteCreated keeps the times of creation and of the last write, which the client does not show.
func (c *call) noteCreated(found []*pb.EntityResult) {
	if !c.walk {
		return
	}
	if c.created == nil {
		c.created, c.updated = make(map[string]time.Time, len(found)), make(map[string]time.Time, len(found))
	}
	for _, r := range found {
		key := clientKey(r.GetEntity().GetKey())
		if at := r.GetCreateTime(); at != nil {
			c.created[FormatKey(key)] = at.AsTime()
		}
		if at := r.GetUpdateTime(); at != nil {
			c.updated[FormatKey(key)] = at.AsTime()
		}
	}
}

var simplePath = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z_0-9]*$`)

// noteWritten keeps when each entity was last written.
func (c *call) noteWritten(r *pb.LookupResponse) {
	if c.written == nil {
		c.written = map[string]time.Time{}
	}
	for _, e := range r.GetFound() {
		if at := e.GetUpdateTime(); at != nil {
			var path strings.Builder
			for _, p := range e.GetEntity().GetKey().GetPath() {
				fmt.Fprintf(&path, "%q %q %d\n", p.GetKind(), p.GetName(), p.GetId())
			}
			c.written[path.String()] = at.AsTime()
		}
	}
}

// writtenAt returns when an entity that was looked up was last written; zero if the service did
// not say.
func writtenAt(ctx context.Context, key *sdk.Key) time.Time {
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil {
		return time.Time{}
	}
	path := ""
	for k := key; k != nil; k = k.Parent {
		path = fmt.Sprintf("%q %q %d\n", k.Kind, k.Name, k.ID) + path
	}
	return c.written[path]
}

// maskPath returns a property's name as a path, which is what masks take. Unlike
// elsewhere, a name that is not a simple identifier is quoted.
func maskPath(property string) string {
	if simplePath.MatchString(property) {
		return property
	}
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(property) + "`"
}

// billed returns what the service charges for a call that it answered.
func billed(req, reply any) (o store.Operations) {
	switch q := req.(type) {
	case *pb.LookupRequest:
		r := reply.(*pb.LookupResponse)
		o.Reads = int64(len(r.GetFound()) + len(r.GetMissing()))
	case *pb.RunQueryRequest:
		o.Reads = 1 // for a projection or keys only, and at least
		if len(q.GetQuery().GetProjection()) == 0 {
			o.Reads = max(1, int64(len(reply.(*pb.RunQueryResponse).GetBatch().GetEntityResults())))
		}
	case *pb.RunAggregationQueryRequest:
		var counted int64
		for _, a := range reply.(*pb.RunAggregationQueryResponse).GetBatch().GetAggregationResults() {
			for _, v := range a.GetAggregateProperties() {
				counted = max(counted, v.GetIntegerValue())
			}
		}
		o.Reads = max(1, (counted+999)/1000)
	case *pb.CommitRequest:
		for _, m := range q.GetMutations() {
			if m.GetDelete() != nil {
				o.Deletes++
			} else {
				o.Writes++
			}
		}
	}
	return o
}
