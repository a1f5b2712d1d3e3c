// Command release builds the archives of a release: for each platform the programs, the same programs under envtest's
// names with an index for setup-envtest, checksums, and a bill of materials. Two runs on the same commit with the same
// Go version produce identical files.
//
//	go run ./tools/release -out dist -version v0.4.0
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

// platform is a pair of GOOS and GOARCH.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "-" + p.arch }

// platforms lists the platforms of a release. Windows is not among them: the server could not lock its data directory.
var platforms = []platform{{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}}

// release has the parameters of a release.
type release struct {
	version    string    // version of Coxswain
	kubernetes string    // version of Kubernetes' API
	time       time.Time // modification time of all files in archives
	url        string    // address of the archives' folder, for the index
	out        string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var r release
	var only string
	flag.StringVar(&r.out, "out", "dist", "folder for the archives; its content is replaced")
	flag.StringVar(&r.version, "version", "", "version of the release; git describe if empty")
	flag.StringVar(&r.kubernetes, "kubernetes", kubeversion.Release, "version of Kubernetes' API")
	flag.StringVar(&r.url, "url", "", "address of the archives' folder, for the index; only file names if empty")
	flag.StringVar(&only, "platforms", "", "platforms to build, such as linux-amd64,darwin-arm64; all if empty")
	flag.Parse()
	if err := run(ctx, r, only); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, r release, only string) error {
	if err := r.readCommit(ctx); err != nil {
		return err
	}
	selected := platforms
	if only != "" {
		selected = slices.DeleteFunc(slices.Clone(platforms), func(p platform) bool {
			return !slices.Contains(strings.Split(only, ","), p.String())
		})
	}
	if len(selected) == 0 {
		return fmt.Errorf("-platforms: none of %v", platforms)
	}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	for _, p := range selected {
		if err := r.build(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return r.sum()
}

// readCommit sets the version and the time from the checked-out commit.
func (r *release) readCommit(ctx context.Context) error {
	seconds, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct").Output()
	if err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	unix, err := strconv.ParseInt(strings.TrimSpace(string(seconds)), 10, 64)
	if err != nil {
		return err
	}
	r.time = time.Unix(unix, 0).UTC()
	if r.version != "" {
		return nil
	}
	description, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return fmt.Errorf("git describe: %w", err)
	}
	r.version = strings.TrimSpace(string(description))
	return nil
}

// build compiles the programs for a platform and writes their archives and their bill of materials.
func (r *release) build(ctx context.Context, p platform) error {
	bin, err := os.MkdirTemp("", "coxswain-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	version := fmt.Sprintf("-s -w -X github.com/coxswain-dev/coxswain/apiserver.Version=%s+coxswain.%s", r.kubernetes,
		r.version)
	compile := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", version, "-o",
		bin+string(filepath.Separator), "./cmd/coxswain", "./cmd/kubectl-lite")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch)
	compile.Stderr = os.Stderr
	if err := compile.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	server, client := filepath.Join(bin, "coxswain"), filepath.Join(bin, "kubectl-lite")
	name := fmt.Sprintf("coxswain-%s-%s", r.version, p)
	if err := r.archive(name+".tar.gz", []member{
		{name + "/LICENSE", "LICENSE", 0o644}, {name + "/README.md", "README.md", 0o644},
		{name + "/coxswain", server, 0o755}, {name + "/kubectl-lite", client, 0o755},
	}); err != nil {
		return err
	}
	// The archive has two copies of the server, since setup-envtest extracts only regular files, not links.
	const folder = "controller-tools/envtest/"
	if err := r.archive(r.assets(p), []member{{folder + "etcd", server, 0o755},
		{folder + "kube-apiserver", server, 0o755}, {folder + "kubectl", client, 0o755}}); err != nil {
		return err
	}
	return r.writeBill(name+".cdx.json", server, client)
}

// assets returns the name of a platform's archive for setup-envtest.
func (r *release) assets(p platform) string {
	return fmt.Sprintf("envtest-%s-%s.tar.gz", r.kubernetes, p)
}
