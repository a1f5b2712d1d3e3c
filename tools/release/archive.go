package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// member is a file of an archive.
type member struct {
	name string // path in the archive
	file string // path of the content
	mode int64
}

// archive writes the members in the given order, without any data of the machine that built them.
func (r *release) archive(name string, members []member) (err error) {
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	compressed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	tape := tar.NewWriter(compressed)
	for _, m := range members {
		if err := r.add(tape, m); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return errors.Join(tape.Close(), compressed.Close())
}

func (r *release) add(tape *tar.Writer, m member) error {
	in, err := os.Open(m.file)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Name: m.name, Mode: m.mode, Size: info.Size(), ModTime: r.time, Typeflag: tar.TypeReg,
		Format: tar.FormatUSTAR}
	if err := tape.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(tape, in)
	return err
}

// sum writes the index of setup-envtest and the checksums of all files.
func (r *release) sum() error {
	files, err := filepath.Glob(filepath.Join(r.out, "*"))
	if err != nil {
		return err
	}
	index := fmt.Sprintf("releases:\n  %s:\n", r.kubernetes)
	for _, file := range files {
		name := filepath.Base(file)
		if !strings.HasPrefix(name, "envtest-") {
			continue
		}
		digest, err := digestOf(file, sha512.New())
		if err != nil {
			return err
		}
		index += fmt.Sprintf("    %s:\n      hash: %s\n      selfLink: %s\n", name, digest, r.link(name))
	}
	file := filepath.Join(r.out, "envtest-releases.yaml")
	if err := os.WriteFile(file, []byte(index), 0o644); err != nil {
		return err
	}
	files = append(files, file)
	return errors.Join(r.writeSums("SHA256SUMS", files, sha256.New), r.writeSums("SHA512SUMS", files, sha512.New))
}

func (r *release) link(name string) string {
	if r.url == "" {
		return name
	}
	return strings.TrimSuffix(r.url, "/") + "/" + name
}

// writeSums writes checksums in the format of sha256sum --check and similar programs.
func (r *release) writeSums(name string, files []string, newHash func() hash.Hash) error {
	var sums strings.Builder
	for _, file := range files {
		digest, err := digestOf(file, newHash())
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", digest, filepath.Base(file))
	}
	return os.WriteFile(filepath.Join(r.out, name), []byte(sums.String()), 0o644)
}

func digestOf(file string, h hash.Hash) (string, error) {
	in, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	if _, err := io.Copy(h, in); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
