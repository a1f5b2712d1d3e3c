package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// bill is a software bill of materials in the format of CycloneDX 1.6. It lists the modules that are linked into the
// programs, as recorded in their build information.
type bill struct {
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Version  int    `json:"version"`
	Metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	} `json:"metadata"`
	Components []component `json:"components"`
}

type component struct {
	Type    string   `json:"type"`
	Ref     string   `json:"bom-ref"`
	Name    string   `json:"name"`
	Version string   `json:"version"`
	URL     string   `json:"purl,omitempty"`
	Hashes  []digest `json:"hashes,omitempty"`
}

// digest is a module's checksum of go.sum in hexadecimal.
type digest struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

func (r *release) writeBill(name string, programs ...string) error {
	var b bill
	b.Format, b.Spec, b.Version = "CycloneDX", "1.6", 1
	b.Metadata.Timestamp = r.time.Format(time.RFC3339)
	b.Metadata.Component = component{Type: "application", Ref: "coxswain", Name: "coxswain", Version: r.version}
	modules := map[string]component{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return err
		}
		if err := addLinked(info, modules); err != nil {
			return err
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		b.Components = append(b.Components, modules[ref])
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, name), append(text, '\n'), 0o644)
}

// addLinked adds the modules of a program and Go's standard library to components.
func addLinked(info *debug.BuildInfo, components map[string]component) error {
	add := func(path, version, sum string) error {
		ref := fmt.Sprintf("pkg:golang/%s@%s", path, version)
		c := component{Type: "library", Ref: ref, Name: path, Version: version, URL: ref}
		if h1, ok := strings.CutPrefix(sum, "h1:"); ok {
			raw, err := base64.StdEncoding.DecodeString(h1)
			if err != nil {
				return fmt.Errorf("decode the checksum of %s: %w", path, err)
			}
			c.Hashes = []digest{{"SHA-256", fmt.Sprintf("%x", raw)}}
		}
		components[ref] = c
		return nil
	}
	if err := add("std", strings.TrimPrefix(info.GoVersion, "go"), ""); err != nil {
		return err
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if err := add(m.Path, m.Version, m.Sum); err != nil {
			return err
		}
	}
	return nil
}
