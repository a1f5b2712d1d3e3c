package responsewriter

import (
	"compress/gzip"
	"io"
	"net/http"
	"sync"
)

// gzipThreshold is the least size that is worth the processor time of compression, and gzipLevel the level that takes
// the least of it: both as in kube-apiserver (KEP-156). gzipMemory is the memory of a compressor.
const (
	gzipThreshold = 128 << 10
	gzipLevel     = gzip.BestSpeed
	gzipMemory    = 1 << 20
)

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzipLevel)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// compressed returns the writer for a body of the size: w itself or, if compress permits it and the body is long, a
// compressor in front of it, with the headers set. finish ends the body.
func compressed(w http.ResponseWriter, compress bool, size int) (body io.Writer, finish func()) {
	if !compress || size <= gzipThreshold {
		return w, func() {}
	}
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	z := gzipWriters.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func() {
		_ = z.Close() // an error means that the client has gone
		z.Reset(nil)
		gzipWriters.Put(z)
	}
}
