package session

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// IsURL reports whether a name of -f is a URL.
func IsURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// openManifest opens a URL of -f. Like kubectl it tries three times, a second apart, if the server cannot be reached or
// answers with a server error.
func openManifest(address string) (io.Reader, error) {
	if _, err := url.Parse(address); err != nil {
		return nil, fmt.Errorf("the URL passed to filename %q is not valid: %v", address, err)
	}
	const attempts = 3
	for i := 1; ; i++ {
		res, err := (&http.Client{}).Get(address) // not the default client, which BoundDownloads changes
		if err == nil && res.StatusCode == http.StatusOK {
			return &limitedBody{ReadCloser: res.Body, limit: longestManifest, left: longestManifest}, nil
		}
		again := err != nil
		if err == nil {
			res.Body.Close() //nolint:errcheck // it is not read
			again = res.StatusCode >= http.StatusInternalServerError
			err = fmt.Errorf("unable to read URL %q, server reported %s, status code=%d", address, res.Status,
				res.StatusCode)
		}
		if !again || i == attempts {
			return nil, err
		}
		time.Sleep(time.Second)
	}
}

// BoundDownloads limits the size of the URLs of -f that cli-runtime reads, and of their documents when the aliases are
// expanded. cli-runtime uses the default client of net/http.
var BoundDownloads = sync.OnceFunc(func() {
	http.DefaultClient = &http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
		res, err := http.DefaultTransport.RoundTrip(r)
		if err == nil {
			body := &limitedBody{ReadCloser: res.Body, limit: longestManifest, left: longestManifest}
			res.Body = downloaded{newDocuments(body), body}
		}
		return res, err
	})}
})

// downloaded is a body with limited documents.
type downloaded struct {
	io.Reader
	io.Closer
}
