package snapshots

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coxswain-dev/coxswain/storage"
)

// A file has the header as a line of JSON, the documents in the order of paths, and the SHA-256 of all bytes before.
// Each document has its path, the seconds that it had left to live (0 for ever) and its value; lengths and numbers are
// uvarints.
const (
	format = 1
	suffix = ".snapshot"
	// unfinished begins the name of a file that is not complete.
	unfinished = ".saving-"
	// maxHeader bounds the header, in bytes.
	maxHeader = 4 << 10
)

type header struct {
	Format   int       `json:"coxswainSnapshot"`
	Version  string    `json:"version"`
	Cluster  string    `json:"cluster"`
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"`
	Objects  int       `json:"objects"`
	Bytes    int64     `json:"bytes"`
}

// write writes the file, readable by its owner only, in place of an earlier one. A crash leaves the earlier one.
func (s *snapshot) write(dir, name string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	removeUnfinished(dir)
	f, err := os.CreateTemp(dir, unfinished+"*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(s.encode(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name+suffix)); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// removeUnfinished removes the files of operations that a crash has ended.
func removeUnfinished(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, unfinished+"*")) // the pattern is well-formed, or finds nothing
	for _, path := range left {
		_ = os.Remove(path)
	}
}

func (s *snapshot) encode(f io.Writer) error {
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 64<<10)
	line, err := json.Marshal(s.header)
	if err != nil {
		return err
	}
	_, _ = w.Write(append(line, '\n')) // Flush returns the first error
	var number []byte
	put := func(n int) {
		number = binary.AppendUvarint(number[:0], uint64(n))
		_, _ = w.Write(number)
	}
	for _, kv := range s.documents {
		put(len(kv.Path))
		_, _ = w.WriteString(kv.Path)
		put(int(kv.TTL / time.Second))
		put(len(kv.Value))
		_, _ = w.Write(kv.Value)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = f.Write(sum.Sum(nil))
	return err
}

var errDamaged = errors.New("the file is not a complete snapshot")

// readFile reads a whole file and checks it.
func readFile(path string) (*snapshot, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rest, sum := content[:max(len(content)-sha256.Size, 0)], content[max(len(content)-sha256.Size, 0):]
	if want := sha256.Sum256(rest); !bytes.Equal(sum, want[:]) {
		return nil, fmt.Errorf("%w: its checksum is wrong", errDamaged)
	}
	line, rest, _ := bytes.Cut(rest, []byte("\n"))
	h, err := parseHeader(line)
	if err != nil {
		return nil, err
	}
	s := &snapshot{header: *h}
	failed := false
	number := func() int {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(1)<<40 {
			failed, size = true, 0
		}
		rest = rest[size:]
		return int(n)
	}
	field := func() []byte {
		n := number()
		if failed || n > len(rest) {
			failed = true
			return nil
		}
		value := rest[:n:n]
		rest = rest[n:]
		return value
	}
	for len(rest) > 0 && !failed {
		kv := storage.KV{Path: string(field()), Revision: h.Revision}
		kv.TTL = time.Duration(number()) * time.Second
		kv.Value = field()
		s.documents = append(s.documents, kv)
	}
	if failed || len(s.documents) != h.Objects {
		return nil, errDamaged
	}
	return s, nil
}

// readHeader reads the beginning of a file.
func readHeader(path string) (*header, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(io.LimitReader(f, maxHeader), maxHeader).ReadString('\n')
	if err != nil {
		return nil, errDamaged
	}
	return parseHeader([]byte(strings.TrimSuffix(line, "\n")))
}

func parseHeader(line []byte) (*header, error) {
	h := &header{}
	if err := json.Unmarshal(line, h); err != nil || h.Format == 0 {
		return nil, errDamaged
	}
	if h.Format != format {
		return nil, fmt.Errorf("it has format %d, and this version reads format %d", h.Format, format)
	}
	return h, nil
}
