package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

const (
	// maxHeader bounds an answer's headers, maxQuoted what an error quotes of an answer.
	maxHeader = 64 << 10
	maxQuoted = 256
)

// ErrTooLarge is the error of an answer that is longer than the caller takes.
var ErrTooLarge = errors.New("the answer is too large")

// Call posts a JSON document to a target and returns the document that it answers, of at most so many bytes.
func (c *Client) Call(ctx context.Context, to Target, body []byte, most int) ([]byte, error) {
	within, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	at, host, through, err := c.address(within, to)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: through, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	answer, err := Post(within, client, at.String(), host, body, most)
	var failed *url.Error
	if errors.As(err, &failed) { // which names the address, not the service
		failed.URL = to.Name()
	}
	return answer, err
}

// Name is the target's address as its configuration has it.
func (to Target) Name() string {
	if s := to.Service; s != nil {
		return fmt.Sprintf("https://%s:%d%s", s.serverName(), s.port(), s.Path)
	}
	return to.URL
}

// Post posts a JSON document and returns the document in the answer, of at most so many bytes. host is the name of the
// server in the request, "" for that in the address. An answer with another code than 2xx is a *CodeError.
func Post(ctx context.Context, client *http.Client, address, host string, body []byte, most int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		quoted, _ := io.ReadAll(io.LimitReader(res.Body, maxQuoted))
		return nil, &CodeError{Code: res.StatusCode, Body: string(quoted)}
	}
	content, err := io.ReadAll(io.LimitReader(res.Body, int64(most)+1))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	if len(content) > most {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)
	}
	return content, nil
}

// CodeError is an answer that is no success.
type CodeError struct {
	Code int
	Body string // its beginning
}

func (e *CodeError) Error() string {
	text := fmt.Sprintf("the server answered %d %s", e.Code, http.StatusText(e.Code))
	if e.Body != "" {
		text += fmt.Sprintf(": %q", e.Body)
	}
	return text
}
