// Package zpages serves the pages of a component about itself: /statusz (KEP-4827) and /flagz (KEP-4828), as text or as
// an object of config.k8s.io/v1beta1, /configz, and the metric kubernetes_build_info.
package zpages

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"
)

// Component is a running component. It is read-only.
type Component struct {
	Name    string // as in Kubernetes, such as kube-apiserver
	Version version.Info
	Start   time.Time
	Paths   []string // all paths of the component, sorted
	Flags   map[string]string
}

const (
	group   = "config.k8s.io"
	stable  = "v1beta1"
	warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility " +
		"guarantees and is for debugging purposes only.\n"
)

type statusz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion"`
	BinaryVersion     string      `json:"binaryVersion"`
	EmulationVersion  string      `json:"emulationVersion,omitempty"`
	Paths             []string    `json:"paths"`
}

type flagz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Flags             map[string]string `json:"flags"`
}

// Statusz answers with the component's version and the time since its start.
func (c *Component) Statusz(w http.ResponseWriter, r *http.Request) {
	up := time.Since(c.Start)
	emulated := strings.TrimSuffix(c.Version.EmulationMajor+"."+c.Version.EmulationMinor, ".")
	write(w, r, "Statusz", func(meta metav1.TypeMeta) any {
		return statusz{TypeMeta: meta, ObjectMeta: metav1.ObjectMeta{Name: c.Name}, StartTime: metav1.NewTime(c.Start),
			UptimeSeconds: int64(up.Seconds()), GoVersion: c.Version.GoVersion, BinaryVersion: c.Version.GitVersion,
			EmulationVersion: emulated, Paths: c.Paths}
	}, func(w io.Writer) {
		fmt.Fprintf(w, "\n%s statusz\n%s\n", c.Name, warning)
		fmt.Fprintf(w, "Started: %s\n", c.Start.UTC().Format(time.UnixDate))
		seconds := int(up.Seconds())
		fmt.Fprintf(w, "Up: %d hr %02d min %02d sec\n", seconds/3600, seconds/60%60, seconds%60)
		fmt.Fprintf(w, "Go version: %s\nBinary version: %s\n", c.Version.GoVersion, c.Version.GitVersion)
		fmt.Fprintf(w, "Emulation version: %s\nPaths: %s\n", emulated, strings.Join(c.Paths, " "))
	})
}

// Flagz answers with the component's flags and their values.
func (c *Component) Flagz(w http.ResponseWriter, r *http.Request) {
	write(w, r, "Flagz", func(meta metav1.TypeMeta) any {
		return flagz{TypeMeta: meta, ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Flags: c.Flags}
	}, func(w io.Writer) {
		fmt.Fprintf(w, "\n%s flagz\n%s\n", c.Name, warning)
		for _, name := range slices.Sorted(maps.Keys(c.Flags)) {
			fmt.Fprintf(w, "%s=%s\n", name, c.Flags[name])
		}
	})
}

// write answers in the format that the client accepts: text, or an object of the kind as JSON or YAML.
func write(w http.ResponseWriter, r *http.Request, kind string, object func(metav1.TypeMeta) any,
	text func(io.Writer)) {
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		switch media := clause.Type + "/" + clause.SubType; media {
		case "*/*", "text/*", "text/plain":
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			text(w)
			return
		case "application/json", "application/yaml":
			v, ofKind := clause.Params["v"], clause.Params["g"] == group && clause.Params["as"] == kind
			if !ofKind || v != stable && v != "v1alpha1" {
				continue
			}
			if v != stable {
				w.Header().Set("Warning", `299 - "This version of the `+kind+
					` endpoint is deprecated. Please use a newer version."`)
			}
			writeObject(w, media, object(metav1.TypeMeta{Kind: kind, APIVersion: group + "/" + v}))
			return
		}
	}
	http.Error(w, fmt.Sprintf("only these media types are acceptable: text/plain, application/json;g=%s;v=%s;as=%s, "+
		"application/yaml;g=%s;v=%s;as=%s", group, stable, kind, group, stable, kind), http.StatusNotAcceptable)
}

func writeObject(w http.ResponseWriter, media string, object any) {
	body, err := json.Marshal(object)
	if err == nil && media == "application/yaml" {
		body, err = yaml.JSONToYAML(body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", media)
	_, _ = w.Write(body)
}

// Flags returns the values of all flags, hidden ones included. It returns none for nil.
func Flags(fs *pflag.FlagSet) map[string]string {
	all := map[string]string{}
	if fs == nil {
		return all
	}
	fs.VisitAll(func(f *pflag.Flag) { all[f.Name] = f.Value.String() })
	return all
}

// BuildInfo returns the metric kubernetes_build_info.
func BuildInfo(v version.Info) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubernetes_build_info",
		Help: "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, " +
			"build date, Go version, and compiler from which Kubernetes was built, and platform on which it is " +
			"running.",
		ConstLabels: prometheus.Labels{"major": v.Major, "minor": v.Minor, "git_version": v.GitVersion,
			"git_commit": v.GitCommit, "git_tree_state": v.GitTreeState, "build_date": v.BuildDate,
			"go_version": v.GoVersion, "compiler": v.Compiler, "platform": v.Platform}}, func() float64 { return 1 })
}

// Configz returns the handler of /configz, which answers with the component's configuration under its name. config
// returns an object with kind and apiVersion.
func Configz(name string, config func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeObject(w, "application/json", map[string]any{name: config()})
	})
}
