package apiserver

import (
	"compress/gzip"
	"io"
	"net/http"
	"sync"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// gzipThreshold is the size from which on compression pays for the CPU that it costs, and
// gzipLevel the one that costs the least: both as in kube-apiserver (KEP-156).
const (
	gzipThreshold = 128 << 10
	gzipLevel     = gzip.BestSpeed
)

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzipLevel)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// compressed returns the writer for a body of the size: w itself, or a compressor in front of it
// if the client accepts that and the body is large, with the headers set. done ends the body.
func compressed(w http.ResponseWriter, out encoding.Output, size int) (body io.Writer, done func()) {
	if !out.Gzip || size <= gzipThreshold {
		return w, func() {}
	}
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	z := gzipWriters.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func() {
		_ = z.Close() // the client has gone; there is nobody to tell
		z.Reset(nil)
		gzipWriters.Put(z)
	}
}
