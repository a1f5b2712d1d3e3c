package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// conn is one client: a persistent TLS connection with HTTP/1.1, one request at a time. It is not safe for concurrent
// use.
type conn struct {
	raw    *tls.Conn
	in     *bufio.Reader
	out    []byte // buffer of the request, reused
	header []byte // fields of every request
	body   bytes.Buffer
	stop   func() bool
}

func (t *Target) dial(ctx context.Context) (*conn, error) {
	raw, err := t.dialer.DialContext(ctx, "tcp", t.url.Host)
	if err != nil {
		return nil, err
	}
	c := &conn{raw: tls.Client(raw, t.tls)}
	if err := c.raw.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	c.in = bufio.NewReaderSize(c.raw, 64<<10)
	c.header = fmt.Appendf(nil, " HTTP/1.1\r\nHost: %s\r\nUser-Agent: coxswain-bench\r\nAccept: application/json\r\n",
		t.url.Host)
	if t.config.BearerToken != "" {
		c.header = fmt.Appendf(c.header, "Authorization: Bearer %s\r\n", t.config.BearerToken)
	}
	c.stop = context.AfterFunc(ctx, func() { _ = raw.Close() }) // interrupts reads
	return c, nil
}

func (c *conn) close() {
	c.stop()
	_ = c.raw.Close()
}

// do makes a request and reads the response, which must have the given status code. The body is valid until the next
// request.
func (c *conn) do(method, path, contentType string, body []byte, want int) ([]byte, error) {
	response, err := c.send(method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	c.body.Reset()
	_, err = c.body.ReadFrom(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s: %.300s", method, path, response.Status, c.body.Bytes())
	}
	return c.body.Bytes(), nil
}

// drop gets a document, discards the body of the response, and returns its size.
func (c *conn) drop(path string) (int64, error) {
	response, err := c.send(http.MethodGet, path, "", nil)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, response.Status)
	}
	return n, err
}

// send writes a request, in one piece, and reads the response's status line and header.
func (c *conn) send(method, path, contentType string, body []byte) (*http.Response, error) {
	c.out = append(append(append(append(c.out[:0], method...), ' '), path...), c.header...)
	if body != nil {
		c.out = append(append(append(c.out, "Content-Type: "...), contentType...), "\r\nContent-Length: "...)
		c.out = append(strconv.AppendInt(c.out, int64(len(body)), 10), "\r\n"...)
	}
	c.out = append(append(c.out, "\r\n"...), body...)
	if _, err := c.raw.Write(c.out); err != nil {
		return nil, err
	}
	return http.ReadResponse(c.in, nil)
}
