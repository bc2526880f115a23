package pace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"
)

// gateTimeout bounds one question to a gate.
const gateTimeout = 5 * time.Second

// OpenGate returns the gate that a target's configuration names. An HTTP or HTTPS URL
// allows deletes while it answers 200. The path of a file allows them while the file does
// not exist. The gate returns why deletes are not allowed; a gate that cannot be reached
// counts as closed. For an empty text OpenGate returns nil.
func OpenGate(spec string) func(context.Context) error {
	switch {
	case spec == "":
		return nil
	case strings.HasPrefix(spec, "http://"), strings.HasPrefix(spec, "https://"):
		// A redirect does not allow deletes: it may lead to a login page, which answers 200.
		client := &http.Client{Timeout: gateTimeout, CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}}
		return func(ctx context.Context) error { return askURL(ctx, client, spec) }
	}
	return func(context.Context) error { return askFile(spec) }
}

func askURL(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection can be used again
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("gate %s says %s", req.URL.Redacted(), res.Status)
	}
	return nil
}

func askFile(name string) error {
	_, err := os.Stat(name)
	switch {
	case err == nil:
		return fmt.Errorf("gate: the file %s exists", name)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("gate: it cannot be told whether the file exists: %w", err)
}
