package faultrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// A Proxy forwards calls to a server that speaks gRPC without encryption. It is for other
// processes, which take no interceptor. All methods are safe for concurrent use.
type Proxy struct {
	addr   string
	conn   *grpc.ClientConn
	server *grpc.Server
	fail   atomic.Pointer[func(method string) error]
	served chan struct{}
}

// maxMessage is above what any test sends.
const maxMessage = 64 << 20

// NewProxy starts a proxy for the server at host:port.
func NewProxy(server string) (*Proxy, error) {
	conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", server, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for clients of %s: %w", server, err), conn.Close())
	}
	p := &Proxy{addr: l.Addr().String(), conn: conn, served: make(chan struct{})}
	p.server = grpc.NewServer(grpc.UnknownServiceHandler(p.forward), grpc.ForceServerCodec(rawCodec{}),
		grpc.MaxRecvMsgSize(maxMessage))
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l) // it ends with Close
	}()
	return p, nil
}

// Addr returns the host:port at which the proxy listens.
func (p *Proxy) Addr() string { return p.addr }

// Fail lets each call end with what fail returns for the last part of its method's name,
// before the server sees the call. If that is nil the call is forwarded, as it is if fail is.
func (p *Proxy) Fail(fail func(method string) error) { p.fail.Store(&fail) }

// Close ends all calls. It returns when no goroutine is left.
func (p *Proxy) Close() {
	p.server.Stop()
	<-p.served
	_ = p.conn.Close() // nothing is under way any more
}

// forward handles one call of any method.
func (p *Proxy) forward(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	if fail := p.fail.Load(); fail != nil && *fail != nil {
		if err := (*fail)(method[strings.LastIndexByte(method, '/')+1:]); err != nil {
			return err
		}
	}
	header, _ := metadata.FromIncomingContext(in.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(in.Context(), header))
	defer cancel()
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // it ends with the call, because the contexts of both streams do
		if err := copyMessages(out, in); errors.Is(err, io.EOF) {
			_ = out.CloseSend() // its failure shows in the answer
		}
	}()
	if err := copyMessages(in, out); !errors.Is(err, io.EOF) {
		return err
	}
	in.SetTrailer(out.Trailer())
	return nil
}

// A messenger is one end of a call.
type messenger interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// copyMessages forwards messages until one end fails, or has no more.
func copyMessages(to, from messenger) error {
	for {
		var m []byte
		if err := from.RecvMsg(&m); err != nil {
			return err
		}
		if err := to.SendMsg(&m); err != nil {
			return err
		}
	}
}

// A rawCodec leaves messages as they are.
type rawCodec struct{}

// Marshal implements [encoding.Codec].
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal implements [encoding.Codec].
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// Name implements [encoding.Codec]. It is that of the codec of clients and servers.
func (rawCodec) Name() string { return "proto" }
