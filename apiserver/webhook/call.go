package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// maxHeader limits the headers of an answer, maxKept the body of an unsuccessful answer, and maxQuoted the part
	// of that body quoted in an error.
	maxHeader = 64 << 10
	maxKept   = 4 << 10
	maxQuoted = 256
)

// ErrTooLarge is returned if an answer exceeds the caller's limit.
var ErrTooLarge = errors.New("the answer is too large")

// Answer is a server's answer to a call.
type Answer struct {
	Code        int
	ContentType string
	// Body is the content of the answer, or its beginning if the code is not 2xx.
	Body []byte
}

// Call posts a JSON document to a target and returns the document it answers, of at most limit bytes. If the
// answer's code is not 2xx, Call returns a *CodeError.
func (c *Client) Call(ctx context.Context, to Target, body []byte, limit int) ([]byte, error) {
	answer, err := c.Ask(ctx, to, body, limit)
	if err != nil {
		return nil, err
	}
	return answer.content()
}

// Ask does the same as Call, but returns an answer with any code.
func (c *Client) Ask(ctx context.Context, to Target, body []byte, limit int) (*Answer, error) {
	within, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	target, host, through, err := c.address(within, to)
	var unresolved *ResolveError
	if err != nil && !errors.As(err, &unresolved) {
		return nil, &ConfigError{err}
	}
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: through, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	req, err := http.NewRequestWithContext(within, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = host
	if to.UserAgent != "" {
		req.Header.Set("User-Agent", to.UserAgent)
	}
	answer, err := post(client, req, limit)
	c.refused.Count(err)
	var failed *url.Error
	if errors.As(err, &failed) { // it names the resolved address, not the service
		failed.URL = to.Name()
	}
	return answer, err
}

// Host returns the name or address of the target's server.
func (to Target) Host() string {
	if to.Service != nil {
		return to.Service.serverName()
	}
	if parsed, err := url.Parse(to.URL); err == nil {
		return parsed.Hostname()
	}
	return ""
}

// Name returns the target's address as configured.
func (to Target) Name() string {
	name := to.URL
	if s := to.Service; s != nil {
		name = fmt.Sprintf("https://%s:%d%s", s.serverName(), s.port(), s.Path)
	}
	if to.Query != "" {
		name += "?" + to.Query
	}
	return name
}

// Post posts a JSON document and returns the document in the answer, of at most limit bytes. host overrides the
// server's name in the request unless it is "". If the answer's code is not 2xx, Post returns a *CodeError.
func Post(ctx context.Context, client *http.Client, address, host string, body []byte, limit int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = host
	answer, err := post(client, req, limit)
	if err != nil {
		return nil, err
	}
	return answer.content()
}

func post(client *http.Client, req *http.Request, limit int) (*Answer, error) {
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer := &Answer{Code: res.StatusCode, ContentType: res.Header.Get("Content-Type")}
	if res.StatusCode/100 != 2 {
		answer.Body, _ = io.ReadAll(io.LimitReader(res.Body, maxKept))
		return answer, nil
	}
	if answer.Body, err = io.ReadAll(io.LimitReader(res.Body, int64(limit)+1)); err != nil {
		return nil, &ReadError{err}
	}
	if len(answer.Body) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return answer, nil
}

func (a *Answer) content() ([]byte, error) {
	if a.Code/100 != 2 {
		return nil, &CodeError{Code: a.Code, Body: string(a.Body[:min(len(a.Body), maxQuoted)])}
	}
	return a.Body, nil
}

// ReadError is returned if an answer ends too early.
type ReadError struct{ Err error }

func (e *ReadError) Error() string { return "reading the answer: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// ResolveError is returned if no address is found for a service.
type ResolveError struct{ Err error }

func (e *ResolveError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ResolveError) Unwrap() error { return e.Err }

// ConfigError is returned if a target cannot be called because of its configuration.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// CodeError is returned for an unsuccessful answer.
type CodeError struct {
	Code int
	Body string // the beginning of the body
}

// Error returns the message of Kubernetes' clients for the code, followed by the server's if that is not part of
// it.
func (e *CodeError) Error() string {
	said := strings.TrimSpace(e.Body)
	text := apierrors.NewGenericServerResponse(e.Code, http.MethodPost, schema.GroupResource{}, "",
		cmp.Or(said, "unknown"), 0, true).ErrStatus.Message
	if quoted := strconv.Quote(said); said != "" && text != said && !strings.Contains(text, quoted) {
		text += ": " + quoted
	}
	return text
}
