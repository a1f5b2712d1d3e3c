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
	// maxHeader bounds an answer's headers, maxKept what is read of one that is no success, and maxQuoted what an error
	// quotes of it.
	maxHeader = 64 << 10
	maxKept   = 4 << 10
	maxQuoted = 256
)

// ErrTooLarge is the error of an answer that is longer than the caller takes.
var ErrTooLarge = errors.New("the answer is too large")

// Answer is what a server answers to a call.
type Answer struct {
	Code        int
	ContentType string
	// Body is the answer's content or, if the code is not 2xx, its beginning.
	Body []byte
}

// Call posts a JSON document to a target and returns the document that it answers, of at most so many bytes. An answer
// with another code than 2xx is a *CodeError.
func (c *Client) Call(ctx context.Context, to Target, body []byte, most int) ([]byte, error) {
	answer, err := c.Ask(ctx, to, body, most)
	if err != nil {
		return nil, err
	}
	return answer.content()
}

// Ask is Call, except that it returns an answer with any code.
func (c *Client) Ask(ctx context.Context, to Target, body []byte, most int) (*Answer, error) {
	within, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	at, host, through, err := c.address(within, to)
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
	req, err := http.NewRequestWithContext(within, http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = host
	if to.UserAgent != "" {
		req.Header.Set("User-Agent", to.UserAgent)
	}
	answer, err := post(client, req, most)
	c.refused.Count(err)
	var failed *url.Error
	if errors.As(err, &failed) { // which names the address, not the service
		failed.URL = to.Name()
	}
	return answer, err
}

// Host is the name or the address of the target's server.
func (to Target) Host() string {
	if to.Service != nil {
		return to.Service.serverName()
	}
	if at, err := url.Parse(to.URL); err == nil {
		return at.Hostname()
	}
	return ""
}

// Name is the target's address as its configuration has it.
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

// Post posts a JSON document and returns the document in the answer, of at most so many bytes. host is the name of the
// server in the request, "" for that in the address. An answer with another code than 2xx is a *CodeError.
func Post(ctx context.Context, client *http.Client, address, host string, body []byte, most int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = host
	answer, err := post(client, req, most)
	if err != nil {
		return nil, err
	}
	return answer.content()
}

func post(client *http.Client, req *http.Request, most int) (*Answer, error) {
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
	if answer.Body, err = io.ReadAll(io.LimitReader(res.Body, int64(most)+1)); err != nil {
		return nil, &ReadError{err}
	}
	if len(answer.Body) > most {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)
	}
	return answer, nil
}

func (a *Answer) content() ([]byte, error) {
	if a.Code/100 != 2 {
		return nil, &CodeError{Code: a.Code, Body: string(a.Body[:min(len(a.Body), maxQuoted)])}
	}
	return a.Body, nil
}

// ReadError is an answer that has ended too early.
type ReadError struct{ Err error }

func (e *ReadError) Error() string { return "reading the answer: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *ReadError) Unwrap() error { return e.Err }

// ResolveError is a service that leads nowhere.
type ResolveError struct{ Err error }

func (e *ResolveError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ResolveError) Unwrap() error { return e.Err }

// ConfigError is a target that cannot be called as it is configured.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ConfigError) Unwrap() error { return e.Err }

// CodeError is an answer that is no success.
type CodeError struct {
	Code int
	Body string // its beginning
}

// Error is the sentence that Kubernetes' clients have for the code, with what the server said.
func (e *CodeError) Error() string {
	said := strings.TrimSpace(e.Body)
	text := apierrors.NewGenericServerResponse(e.Code, http.MethodPost, schema.GroupResource{}, "",
		cmp.Or(said, "unknown"), 0, true).ErrStatus.Message
	if quoted := strconv.Quote(said); said != "" && text != said && !strings.Contains(text, quoted) {
		text += ": " + quoted
	}
	return text
}
