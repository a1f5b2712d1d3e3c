package apiserver

import (
	"compress/gzip"
	"io"
	"net/http"
	"sync"
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

// compressed returns where to write a body of the size: w itself, or a compressor before
// it if the client understands that and the body is large. It sets the headers that say
// so. done ends the body.
func compressed(w http.ResponseWriter, out output, size int) (body io.Writer, done func()) {
	if !out.gzip || size <= gzipThreshold {
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
