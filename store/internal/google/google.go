// Package google is what the drivers for Google's two services share: how to
// connect, without the clients' own retries, and what a status means.
//
// The invariant is that a call is sent once: a caller that paces itself must see
// each refusal.
// Limits: a connection carries 100 calls at once, so a client opens four.
package google

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/reaper-ttl/reaper/store"
)

// Options say which database to open. Only Project is required.
type Options struct {
	Project  string
	Database string // empty or "(default)" for the default database

	// Emulator is host:port of an emulator; empty means what the service's
	// variable says: DATASTORE_EMULATOR_HOST or FIRESTORE_EMULATOR_HOST.
	Emulator string
	// Endpoint is host:port of the service if it is not the public one.
	// It has no effect if an emulator is used.
	Endpoint string
	// ClientOptions are passed on to Google's client, for credentials. They
	// have no effect if an emulator is used.
	ClientOptions []option.ClientOption
	// Interceptors see every call as it goes to the service and every reply as
	// it comes from there, before the driver interprets it. Those of streams see
	// the queries of Firestore in native mode.
	Interceptors       []grpc.UnaryClientInterceptor
	StreamInterceptors []grpc.StreamClientInterceptor
}

// A Service is one of the two.
type Service struct {
	Name        string // as in endpoints and in errors
	EmulatorEnv string
	Method      string // of gRPC, before the method's own name

	// Intercept is the driver's own and the outermost; it may be nil.
	Intercept grpc.UnaryClientInterceptor
}

const (
	universeEnv = "GOOGLE_CLOUD_UNIVERSE_DOMAIN"

	// connections in the pool: each carries 100 calls at once.
	connections = 4
	// maxReply is far above what the service sends; gRPC's own limit of 4 MiB
	// is below it.
	maxReply = 64 << 20

	// serviceConfig replaces the client's, which retries refused calls and
	// waits, silently, for a connection. The time limit of a call is the
	// service's own.
	serviceConfig = `{"methodConfig": [{"name": [{"service": %q}], "timeout": "60s"}]}`
)

var schemes = regexp.MustCompile(`^(http://|https://|passthrough:///)`)

// IsEmulated reports whether calls go to an emulator: only where somebody said so.
func (s Service) IsEmulated(o Options) bool { return s.emulator(o) != "" }

func (s Service) emulator(o Options) string { return cmp.Or(o.Emulator, os.Getenv(s.EmulatorEnv)) }

// Connect returns what a client of the service needs, and where it will send its
// calls, for people: host and port, and a note where that is an emulator. It
// sends nothing.
func (s Service) Connect(o Options) (opts []option.ClientOption, endpoint string, err error) {
	if o.Project == "" {
		return nil, "", fmt.Errorf("open %s: no project: %w", s.Name, store.ErrInvalid)
	}
	unary := o.Interceptors
	if s.Intercept != nil {
		unary = append([]grpc.UnaryClientInterceptor{s.Intercept}, unary...)
	}
	dial := []grpc.DialOption{
		grpc.WithDisableRetry(),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(serviceConfig, s.Method)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		grpc.WithChainUnaryInterceptor(unary...),
		grpc.WithChainStreamInterceptor(o.StreamInterceptors...),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: 20 * time.Second,
			PermitWithoutStream: true}),
	}
	if emulator := s.emulator(o); emulator != "" {
		endpoint = emulator + " (emulator)"
		if !strings.Contains(emulator, "://") || strings.HasPrefix(emulator, "http") {
			emulator = "passthrough:///" + schemes.ReplaceAllString(emulator, "")
		}
		conn, err := grpc.NewClient(emulator, append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return nil, endpoint, fmt.Errorf("open %s at emulator %s: %w: %w", s.Name, emulator, store.ErrInvalid, err)
		}
		return []option.ClientOption{option.WithGRPCConn(conn), option.WithoutAuthentication()}, endpoint, nil
	}
	endpoint = cmp.Or(o.Endpoint, s.Name+"."+cmp.Or(os.Getenv(universeEnv), "googleapis.com")+":443")
	opts = append(opts, option.WithGRPCConnectionPool(connections))
	for _, d := range dial {
		opts = append(opts, option.WithGRPCDialOption(d))
	}
	if o.Endpoint != "" {
		opts = append(opts, option.WithEndpoint(o.Endpoint))
	}
	return append(opts, o.ClientOptions...), endpoint, nil
}

// Sentinel maps a status of the service to an error of the contract.
func Sentinel(s *status.Status) error {
	if hasNoToken(s) {
		return store.ErrUnavailable
	}
	text := strings.ToLower(s.Message())
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch s.Code() {
	case codes.ResourceExhausted:
		if has("larger than max") { // gRPC's own, about the size of a message
			return store.ErrTooLarge
		}
		return store.ErrPushback
	case codes.Unavailable, codes.Internal, codes.Canceled:
		// Also for Internal, and for calls that the other side cancelled: it
		// may have happened, and it may succeed when repeated.
		return store.ErrUnavailable
	case codes.DeadlineExceeded:
		return store.ErrDeadline
	case codes.Aborted:
		return store.ErrContention
	case codes.PermissionDenied, codes.Unauthenticated:
		return store.ErrDenied
	case codes.NotFound:
		return store.ErrNotFound
	case codes.AlreadyExists:
		return store.ErrConflict
	case codes.FailedPrecondition:
		switch {
		case has("index"):
			return store.ErrMissingIndex
		case has("datastore mode", "native mode", "does not contain", "not available for"):
			return store.ErrNotFound
		}
		return store.ErrInvalid
	case codes.InvalidArgument:
		switch {
		case has("transaction") && has("expired", "no longer valid", "has already been"),
			has("invalid transaction", "transaction is invalid"):
			return store.ErrContention // it took too long; nothing was written
		case has("too large", "too big", "exceeds the limit", "exceeds the maximum", "larger than the maximum",
			"cannot write more than", "cannot get more than"):
			return store.ErrTooLarge
		}
		return store.ErrInvalid
	case codes.OutOfRange, codes.Unimplemented:
		return store.ErrInvalid
	default:
		return store.ErrFailed
	}
}

// hasNoToken reports whether the credentials gave no token. That is gRPC's own error: nothing was sent,
// and there may be a token a moment later.
func hasNoToken(s *status.Status) bool {
	return s.Code() == codes.Unauthenticated && strings.Contains(s.Message(), "per-RPC creds failed")
}

// Explain returns the error of the contract for a call that ended with a status of this kind
// ([Sentinel]). If the caller's own context ended the call, the context's error takes the
// kind's place or, if it is a deadline, comes with [store.ErrDeadline].
func Explain(ctx context.Context, kind error, s *status.Status) error {
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		if ctxErr := ctx.Err(); errors.Is(ctxErr, context.Canceled) {
			return store.InDoubt(fmt.Errorf("%w: %w", ctxErr, s.Err())) // the call was under way
		} else if ctxErr != nil {
			return fmt.Errorf("%w: %w: %w", store.ErrDeadline, ctxErr, s.Err())
		}
	}
	err := fmt.Errorf("%w: %w", kind, s.Err())
	if hasNoToken(s) {
		return store.WithHint(err, "if it lasts, the credentials give no token: "+Credentials)
	}
	if s.Code() == codes.Unknown || s.Code() == codes.DataLoss { // of a proxy, or after a commit
		return store.InDoubt(err)
	}
	return err
}

// Credentials is what to do where the client finds no credentials.
const Credentials = "set GOOGLE_APPLICATION_CREDENTIALS, run gcloud auth application-default login, " +
	"or attach a service account"
