// Package health is the text of /livez, /readyz and /healthz, in the form of kube-apiserver. Checks come in, and a code
// and a text go out. It knows neither HTTP handlers nor the server.
package health

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// timeout is how long the checks of one request may take together.
const timeout = 5 * time.Second

// Check is one named part of an endpoint. Run returns nil if the part is healthy. It may be called concurrently.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Ping is the check that an answer arrives at all.
var Ping = Check{"ping", func(context.Context) error { return nil }}

// Report runs the checks of an endpoint, one after the other, and returns the code and the text of the answer: "ok", or
// one line per check if one has failed or the client asks for ?verbose. Checks that the client names by ?exclude are
// not run. The log gets the errors, which clients do not see: the endpoints are open to everyone.
func Report(ctx context.Context, query url.Values, endpoint string, checks []Check, log *slog.Logger) (int, []byte) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	excluded := query["exclude"]
	var lines bytes.Buffer
	failed := false
	for _, c := range checks {
		if slices.Contains(excluded, c.Name) {
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		if err := c.Run(ctx); err != nil {
			failed = true
			log.Warn("failed to pass a health check", "endpoint", endpoint, "check", c.Name, "err", err)
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", c.Name)
			continue
		}
		fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
	}
	switch {
	case failed:
		fmt.Fprintf(&lines, "%s check failed\n", endpoint)
		return http.StatusInternalServerError, lines.Bytes()
	case !query.Has("verbose"):
		return http.StatusOK, []byte("ok")
	}
	fmt.Fprintf(&lines, "%s check passed\n", endpoint)
	return http.StatusOK, lines.Bytes()
}
