// Package faultrpc makes gRPC calls fail, for tests. An [Injector] is a client
// interceptor that answers chosen calls with real status codes, either instead
// of the call or after it took effect (a lost reply), runs hooks around calls,
// and remembers what was called. A [Proxy] makes calls of other processes fail.
//
// The invariant is that a call which no [Fault] matches goes through
// unchanged, and that faults fire in the order in which they were added, each
// as often as it says.
//
// Limits: unary calls, and streams that begin with one request, such as queries.
// A stream's hook sees no reply.
package faultrpc

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exhausted is the code of a service that pushes back.
const Exhausted = codes.ResourceExhausted

// A Fault is something that happens to a call.
type Fault struct {
	Method string             // the last part of the method's name, such as "Commit"; empty means any
	Match  func(req any) bool // nil means any request
	Skip   int                // so many matching calls go through first
	Times  int                // how often it happens; 0 means once, negative for ever

	Code    codes.Code // what the call fails with; OK leaves it alone, for the hook's sake
	Message string     // of the status
	After   bool       // the call takes effect first, so that only the reply is lost
	Instead bool       // the call is not made at all: Hook fills in the reply
	Loses   int        // so many of a stream's first answers are left out, as if they did not belong to it

	// Hook runs before the call or, with After, after it. It may be nil. The
	// call that it belongs to waits for it.
	Hook func(ctx context.Context, req, reply any)
}

// A Call is one that was made.
type Call struct {
	Method string
	Req    any
	Code   codes.Code // what the caller saw
}

// An Injector has faults and a record of calls. The zero value is ready, and it
// is safe for concurrent use.
type Injector struct {
	mu     sync.Mutex
	faults []*pending
	calls  []Call
}

type pending struct {
	Fault
	seen, fired int
}

// Add adds a fault. Its count of calls to skip begins now.
func (i *Injector) Add(f Fault) {
	if f.Times == 0 {
		f.Times = 1
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = append(i.faults, &pending{Fault: f})
}

// Reset forgets all faults and calls.
func (i *Injector) Reset() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults, i.calls = nil, nil
}

// Calls returns the finished calls of a method ("" means all), oldest first.
func (i *Injector) Calls(method string) []Call {
	i.mu.Lock()
	defer i.mu.Unlock()
	var out []Call
	for _, c := range i.calls {
		if method == "" || c.Method == method {
			out = append(out, c)
		}
	}
	return out
}

// Methods returns the names of all finished calls, oldest first.
func (i *Injector) Methods() []string {
	calls := i.Calls("")
	out := make([]string, len(calls))
	for n, c := range calls {
		out[n] = c.Method
	}
	return out
}

// Intercept is the interceptor.
func (i *Injector) Intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	f := i.next(name, req)
	err := f.around(ctx, req, reply, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
	i.record(name, req, status.Code(err))
	return err
}

func (i *Injector) record(method string, req any, code codes.Code) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls = append(i.calls, Call{method, req, code})
}

// InterceptStream is the interceptor of streams.
func (i *Injector) InterceptStream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	return &stream{ClientStream: s, injector: i, method: method[strings.LastIndexByte(method, '/')+1:]}, err
}

// A stream fails, if it does, with its first answer.
type stream struct {
	grpc.ClientStream
	injector *Injector
	method   string
	fault    *Fault
	lost     int // answers so far that were left out
}

// SendMsg implements [grpc.ClientStream].
func (s *stream) SendMsg(req any) error {
	f := s.injector.next(s.method, req)
	code := codes.OK
	if f != nil {
		s.fault, code = f, f.Code
		if f.Hook != nil {
			f.Hook(s.Context(), req, nil)
		}
	}
	s.injector.record(s.method, req, code)
	return s.ClientStream.SendMsg(req)
}

// RecvMsg implements [grpc.ClientStream].
func (s *stream) RecvMsg(reply any) error {
	err := s.ClientStream.RecvMsg(reply)
	for err == nil && s.fault != nil && s.lost < s.fault.Loses {
		s.lost++
		err = s.ClientStream.RecvMsg(reply)
	}
	if s.fault != nil && s.fault.Code != codes.OK {
		return status.Error(s.fault.Code, s.fault.Message)
	}
	return err
}

// next returns the first fault that is to happen to the call, or nil.
func (i *Injector) next(method string, req any) *Fault {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range i.faults {
		if p.Method != "" && p.Method != method || p.Match != nil && !p.Match(req) {
			continue
		}
		p.seen++
		if p.seen <= p.Skip || p.Times > 0 && p.fired == p.Times {
			continue
		}
		p.fired++
		return &p.Fault
	}
	return nil
}

func (f *Fault) around(ctx context.Context, req, reply any, call func() error) error {
	if f == nil {
		return call()
	}
	if f.After {
		if err := call(); err != nil {
			return err
		}
	}
	if f.Hook != nil {
		f.Hook(ctx, req, reply)
	}
	if f.Code != codes.OK {
		return status.Error(f.Code, f.Message)
	}
	if f.After || f.Instead {
		return nil
	}
	return call()
}
