package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/health"
	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/internal/zpages"
)

// Version is the version of the server. The build may append to its metadata.
var Version = kubeversion.Coxswain

// path returns the handler of a path that is not a resource. It authorizes the request and calls h, whose error is the
// answer.
func (s *Server) path(h func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		a := authz.Attributes{User: authn.UserFrom(hr.Context()), Verb: strings.ToLower(hr.Method), Path: hr.URL.Path}
		if a.Verb == "head" {
			a.Verb = "get" // HEAD discloses a part of the same answer
		}
		var err error
		if !isLongPath(hr.URL.Path) {
			err = s.takeSeat(w, hr, &a, 1)
		}
		if err == nil {
			err = s.authorizeFor(hr.Context(), a, exchangeOf(hr.Context()).Audit())
		}
		if err == nil {
			err = h(w, hr)
		}
		if err != nil {
			s.writeError(w, hr, err)
		}
	}
}

func (s *Server) serveNotFound(http.ResponseWriter, *http.Request) error { return notFoundPath() }

func (s *Server) serveMethodNotAllowed(_ http.ResponseWriter, r *http.Request) error {
	return apierrors.NewMethodNotSupported(schema.GroupResource{Resource: r.URL.Path}, strings.ToLower(r.Method))
}

// ownPaths are the paths without objects that each server has, sorted.
var ownPaths = []string{"/api", "/apis", "/flagz", "/healthz", "/livez", "/metrics", "/metrics/slis", "/openapi/v2",
	"/openapi/v3", "/readyz", "/statusz", "/version"}

// servePaths lists the paths that are served.
func (s *Server) servePaths(w http.ResponseWriter, r *http.Request) error {
	paths := slices.Clone(ownPaths)
	for _, res := range s.Registry.Snapshot().Resources {
		if p := "/api/" + res.Version; res.Group == "" {
			paths = append(paths, p)
		} else {
			paths = append(paths, "/apis/"+res.Group, "/apis/"+res.Group+"/"+res.Version)
		}
	}
	if elsewhere := s.aggregation.Registrations(); elsewhere != nil {
		for gv := range elsewhere.External {
			paths = append(paths, "/apis/"+gv.Group, "/apis/"+gv.String())
		}
	}
	slices.Sort(paths)
	return s.writeJSON(w, r, metav1.RootPaths{Paths: slices.Compact(paths)})
}

func (s *Server) serveVersion(w http.ResponseWriter, r *http.Request) error {
	return s.writeJSON(w, r, VersionInfo())
}

// VersionInfo returns the answer to a GET of /version. The commit is known if the program was built in its repository.
func VersionInfo() version.Info { return versionInfo() }

var versionInfo = sync.OnceValue(func() version.Info {
	v := version.Info{
		Major: kubeversion.Major, Minor: kubeversion.Minor, GitVersion: Version, GitTreeState: "clean",
		EmulationMajor: kubeversion.Major, EmulationMinor: kubeversion.Minor,
		MinCompatibilityMajor: kubeversion.Major, MinCompatibilityMinor: kubeversion.PreviousMinor,
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.GitCommit = setting.Value
		case "vcs.time":
			v.BuildDate = setting.Value // of the commit, so that builds are reproducible
		case "vcs.modified":
			if setting.Value == "true" {
				v.GitTreeState = "dirty"
			}
		}
	}
	return v
})

// zpages returns this server as /statusz and /flagz show it.
func (s *Server) zpages() *zpages.Component {
	return &zpages.Component{Name: "kube-apiserver", Version: VersionInfo(), Start: s.start, Paths: ownPaths,
		Flags: s.Flags}
}

// ReadyCheck is a part of /readyz that is not about the server itself.
type ReadyCheck = health.Check

// serveLivez reports whether the process answers at all.
func (s *Server) serveLivez(w http.ResponseWriter, r *http.Request) error {
	return s.writeHealth(w, r, "livez", []health.Check{health.Ping})
}

// serveReadyz reports whether requests can be served: etcd answers, memory is in step with it, and the server is not
// about to stop.
func (s *Server) serveReadyz(w http.ResponseWriter, r *http.Request) error {
	endpoint, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	checks := slices.Concat([]health.Check{health.Ping, {Name: "etcd", Run: s.Store.Ready}}, s.ReadyChecks,
		[]health.Check{{Name: "shutdown", Run: s.notLeaving}})
	return s.writeHealth(w, r, endpoint, checks)
}

func (s *Server) notLeaving(context.Context) error {
	if s.leaving.Load() {
		return errors.New("the server is shutting down")
	}
	return nil
}

// writeHealth answers with the result of the checks, or of the one that the path names.
func (s *Server) writeHealth(w http.ResponseWriter, r *http.Request, endpoint string, checks []health.Check) error {
	if name := chi.URLParam(r, "check"); name != "" {
		checks = slices.DeleteFunc(checks, func(c health.Check) bool { return c.Name != name })
		if len(checks) == 0 {
			return notFoundPath()
		}
	}
	code, text := s.health.Report(r.Context(), r.URL.Query(), endpoint, checks)
	return s.writeBody(w, r, encoding.Output{Media: "text/plain; charset=utf-8"}, code, text)
}

func (s *Server) serveProfile(w http.ResponseWriter, r *http.Request) error {
	switch strings.TrimPrefix(r.URL.Path, "/debug/pprof/") {
	case "cmdline":
		pprof.Cmdline(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
	return nil
}
