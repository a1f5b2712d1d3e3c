package kubectllite

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"
)

// session is what one invocation's commands share: the streams and the connection. The factory opens clients on
// first use, so a command that needs no server never looks for one.
type session struct {
	cmdutil.Factory
	// IOStreams are for people: no character that is printed to them controls a terminal (visible.go).
	genericiooptions.IOStreams
	// verbatim are the same streams, unfiltered: for the documents of -o, logs, the output of programs in
	// containers, plugins and editors, and this program's own control sequences.
	verbatim genericiooptions.IOStreams
	flags    *genericclioptions.ConfigFlags
	args     []string // the command line, which is not parsed yet where a command is built

	// warningsAsErrors makes a command fail when the server warned about something.
	warningsAsErrors bool
	warnings         rest.WarningHandler
	held             *heldWriter
	bodies           *bodies
	painter          func() painter // begins to colour what is printed for people; nil where nothing does
	finish           func()         // writes the last bytes, where they are no whole character
}

// heldWriter buffers what is written to it while a live view has the terminal.
type heldWriter struct {
	mu      sync.Mutex
	to      io.Writer
	holding bool
	kept    bytes.Buffer
}

func (h *heldWriter) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holding {
		return h.kept.Write(p)
	}
	return h.to.Write(p)
}

// hold begins or ends the keeping back; at its end all is written.
func (h *heldWriter) hold(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holding = on
	if !on {
		_, _ = h.kept.WriteTo(h.to) // warnings have nowhere else to go
	}
}

// serverWarnings prints the Warning headers of a server.
type serverWarnings struct {
	to interface {
		rest.WarningHandler
		WarningCount() int
	}
	mu  sync.Mutex
	got int
}

// mostWarnings is how many warnings of a server are handled. Each different one is remembered, and a session may
// last.
const mostWarnings = 1000

// longestWarning is how many characters of a warning are shown: kube-apiserver sends no longer ones.
const longestWarning = 4096

func (w *serverWarnings) HandleWarningHeader(code int, agent, text string) {
	w.mu.Lock()
	w.got++
	tooMany := w.got > mostWarnings
	w.mu.Unlock()
	if !tooMany {
		w.to.HandleWarningHeader(code, agent, oneLine(cut(text, longestWarning)))
	}
}

func (w *serverWarnings) WarningCount() int { return w.to.WarningCount() }

// onceWriter drops repeated writes. A command resolves a short name more than once, and is warned of its other
// meanings each time.
type onceWriter struct {
	mu   sync.Mutex
	to   io.Writer
	seen map[string]bool
}

func (w *onceWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[string(p)] {
		return len(p), nil
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[string(p)] = true
	return w.to.Write(p)
}

const (
	requestsPerSecond = 50
	requestBurst      = 300
)

func newSession(streams genericiooptions.IOStreams) *session {
	out, errOut := &visibleWriter{to: streams.Out}, &visibleWriter{to: streams.ErrOut}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(requestBurst).WithDiscoveryQPS(requestsPerSecond).
		WithWarningPrinter(genericiooptions.IOStreams{ErrOut: &onceWriter{to: errOut}})
	s := &session{
		IOStreams: genericiooptions.IOStreams{In: streams.In, Out: out, ErrOut: errOut},
		verbatim:  streams,
		flags:     flags,
		bodies:    &bodies{},
		finish:    func() { out.finish(); errOut.finish() },
	}
	s.held = &heldWriter{to: streams.ErrOut}
	flags.WrapConfigFn = s.configure
	s.Factory = cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(flags))
	return s
}

// configure makes warnings of the server appear on the error stream, each once, and lifts the client's default of five
// requests a second, which is made for daemons: discovery, tree and why read every kind.
func (s *session) configure(config *rest.Config) *rest.Config {
	if s.warnings == nil {
		s.warnings = &serverWarnings{to: rest.NewWarningWriter(s.held, rest.WarningWriterOptions{
			Deduplicate: true,
			Color:       s.colorful(),
		})}
	}
	config.WarningHandler = s.warnings
	s.bodies.bound(config)
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	return config
}

// colorful reports whether the error stream is a terminal that may be sent colours (NO_COLOR unset).
func (s *session) colorful() bool { return printers.AllowsColorOutput(s.verbatim.ErrOut) }

// namespace is the namespace that a command works in; explicit is set where -n gave it, which documents in files must
// then not contradict.
func (s *session) namespace() (name string, explicit bool, err error) {
	return s.ToRawKubeConfigLoader().Namespace()
}

// typed is a builder that yields the client's own Go types.
func (s *session) typed() *resource.Builder {
	return s.NewBuilder().WithScheme(scheme.Scheme, scheme.Scheme.PrioritizedVersionsAllGroups()...)
}

// resourceName is how kubectl speaks of a kind in prose: "pods", "deployments.apps".
func resourceName(mapping *meta.RESTMapping) string { return mapping.Resource.GroupResource().String() }

// withFiles adds the documents that -f names to what a builder reads; "-" is this session's standard input.
func (s *session) withFiles(b *resource.Builder, enforceNamespace bool,
	files *resource.FilenameOptions) *resource.Builder {
	if files.Kustomize != "" || !slices.ContainsFunc(files.Filenames, isURL) {
		named := *files
		named.Filenames = slices.DeleteFunc(slices.Clone(files.Filenames), func(name string) bool {
			return name == "-"
		})
		if err := checkFiles(named.Filenames, named.Recursive); err != nil {
			b = b.AddError(err)
		}
		b = b.FilenameParam(enforceNamespace, &named)
		if len(named.Filenames) < len(files.Filenames) {
			b = b.StdinInUse().Stream(newDocuments(s.In), "STDIN")
		}
		return b
	}
	for _, name := range files.Filenames { // in their order; what URLs have is bounded here
		if !isURL(name) {
			b = s.withFiles(b, enforceNamespace, &resource.FilenameOptions{Filenames: []string{name},
				Recursive: files.Recursive})
			continue
		}
		manifest, err := openManifest(name)
		if err != nil {
			return b.AddError(err)
		}
		b = b.Stream(newDocuments(manifest), name)
	}
	if enforceNamespace {
		b = b.RequireNamespace()
	}
	return b
}

// mappingFor finds what the user calls "po", "pods", "pod" or "deployments.v1.apps".
func (s *session) mappingFor(name string) (*meta.RESTMapping, error) {
	mapper, err := s.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	full, group := schema.ParseResourceArg(name)
	if full != nil {
		if kind, err := mapper.KindFor(*full); err == nil {
			return mapper.RESTMapping(kind.GroupKind(), kind.Version)
		}
	}
	kind, err := mapper.KindFor(group.WithVersion(""))
	if err != nil {
		if meta.IsNoMatchError(err) {
			return nil, fmt.Errorf("the server doesn't have a resource type %q", name)
		}
		return nil, err
	}
	return mapper.RESTMapping(kind.GroupKind(), kind.Version)
}
