package page_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/reaper-ttl/reaper/internal/page"
	"github.com/reaper-ttl/reaper/sweep"
)

// A process that collects shows what it knows by itself without any read from the store.
func ExampleServe() {
	ctx, stop := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ended := make(chan error)
	go func() {
		ended <- page.Serve(ctx, l, page.Config{Store: "embedded:data", Mode: page.Deletes, Now: time.Now,
			States: func() []sweep.State { return []sweep.State{{Target: "sessions", Deleted: 1234567}} },
			Log:    slog.New(slog.DiscardHandler)})
	}()
	for _, host := range []string{l.Addr().String(), "evil.example"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String()+"/index.json", nil)
		if err != nil {
			panic(err)
		}
		req.Host = host
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			panic(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		fmt.Println(res.StatusCode)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// 200
	// 421
	// <nil>
}
