package session

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
)

// Session is what one invocation's commands share: the streams and the connection. The factory opens clients on
// first use, so a command that needs no server never looks for one.
type Session struct {
	cmdutil.Factory
	// IOStreams are for people: no character that is printed to them controls a terminal (visible.go).
	genericiooptions.IOStreams
	// Verbatim are the same streams, unfiltered: for the documents of -o, logs, the output of programs in
	// containers, plugins and editors, and this program's own control sequences.
	Verbatim genericiooptions.IOStreams
	Flags    *genericclioptions.ConfigFlags
	Args     []string // the command line, which is not parsed yet where a command is built

	// WarningsAsErrors makes a command fail when the server warned about something.
	WarningsAsErrors bool
	warnings         rest.WarningHandler
	held             *heldWriter
	Bodies           *bodies
	painter          func() terminal.Painter // begins to colour what is printed for people; nil where nothing does
	Finish           func()                  // writes the last bytes, where they are no whole character
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
		w.to.HandleWarningHeader(code, agent, terminal.OneLine(terminal.Cut(text, longestWarning)))
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

func New(streams genericiooptions.IOStreams) *Session {
	out, errOut := terminal.NewWriter(streams.Out), terminal.NewWriter(streams.ErrOut)
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(requestBurst).WithDiscoveryQPS(requestsPerSecond).
		WithWarningPrinter(genericiooptions.IOStreams{ErrOut: &onceWriter{to: errOut}})
	s := &Session{
		IOStreams: genericiooptions.IOStreams{In: streams.In, Out: out, ErrOut: errOut},
		Verbatim:  streams,
		Flags:     flags,
		Bodies:    &bodies{},
		Finish:    func() { out.Finish(); errOut.Finish() },
	}
	s.held = &heldWriter{to: streams.ErrOut}
	flags.WrapConfigFn = s.configure
	s.Factory = cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(flags))
	return s
}

// configure makes warnings of the server appear on the error stream, each once, and lifts the client's default of five
// requests a second, which is made for daemons: discovery, tree and why read every kind.
func (s *Session) configure(config *rest.Config) *rest.Config {
	if s.warnings == nil {
		s.warnings = &serverWarnings{to: rest.NewWarningWriter(s.held, rest.WarningWriterOptions{
			Deduplicate: true,
			Color:       s.colorful(),
		})}
	}
	config.WarningHandler = s.warnings
	s.Bodies.bound(config)
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	return config
}

// colorful reports whether the error stream is a terminal that may be sent colours (NO_COLOR unset).
func (s *Session) colorful() bool { return printers.AllowsColorOutput(s.Verbatim.ErrOut) }

// Namespace is the namespace that a command works in; explicit is set where -n gave it, which documents in files must
// then not contradict.
func (s *Session) Namespace() (name string, explicit bool, err error) {
	return s.ToRawKubeConfigLoader().Namespace()
}

// Typed is a builder that yields the client's own Go types.
func (s *Session) Typed() *resource.Builder {
	return s.NewBuilder().WithScheme(scheme.Scheme, scheme.Scheme.PrioritizedVersionsAllGroups()...)
}

// ResourceName is how kubectl speaks of a kind in prose: "pods", "deployments.apps".
func ResourceName(mapping *meta.RESTMapping) string { return mapping.Resource.GroupResource().String() }

// WithFiles adds the documents that -f names to what a builder reads; "-" is this session's standard input.
func (s *Session) WithFiles(b *resource.Builder, enforceNamespace bool,
	files *resource.FilenameOptions) *resource.Builder {
	if files.Kustomize != "" || !slices.ContainsFunc(files.Filenames, IsURL) {
		named := *files
		named.Filenames = slices.DeleteFunc(slices.Clone(files.Filenames), func(name string) bool {
			return name == "-"
		})
		if err := CheckFiles(named.Filenames, named.Recursive); err != nil {
			b = b.AddError(err)
		}
		b = b.FilenameParam(enforceNamespace, &named)
		if len(named.Filenames) < len(files.Filenames) {
			b = b.StdinInUse().Stream(newDocuments(s.In), "STDIN")
		}
		return b
	}
	for _, name := range files.Filenames { // in their order; what URLs have is bounded here
		if !IsURL(name) {
			b = s.WithFiles(b, enforceNamespace, &resource.FilenameOptions{Filenames: []string{name},
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

// MappingFor finds what the user calls "po", "pods", "pod" or "deployments.v1.apps".
func (s *Session) MappingFor(name string) (*meta.RESTMapping, error) {
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

// OneObject is the one object that the arguments name.
func (s *Session) OneObject(args []string) (*unstructured.Unstructured, error) {
	namespace, _, err := s.Namespace()
	if err != nil {
		return nil, err
	}
	infos, err := s.NewBuilder().Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceTypeOrNameArgs(false, args...).Latest().Flatten().Do().Infos()
	if err != nil {
		return nil, err
	}
	if len(infos) != 1 {
		return nil, errors.New("exactly one object is required")
	}
	obj, ok := infos[0].Object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("unexpected type %T", infos[0].Object)
	}
	return obj, nil
}

// OneName is the kind and name that the arguments give. Nothing by that name has to exist.
func (s *Session) OneName(cmd *cobra.Command, args []string) (*meta.RESTMapping, string, error) {
	kind, name := "", ""
	switch {
	case len(args) == 1:
		kind, name, _ = strings.Cut(args[0], "/")
	case len(args) == 2:
		kind, name = args[0], args[1]
	}
	if kind == "" || name == "" || strings.ContainsAny(name, "/,") {
		return nil, "", UsageErrorf(cmd, "exactly one object is required")
	}
	mapper, err := s.ToRESTMapper()
	if err != nil {
		return nil, "", err
	}
	full, group := schema.ParseResourceArg(kind)
	if full == nil {
		full = ptr.To(group.WithVersion(""))
	}
	resource, err := mapper.KindFor(*full)
	if meta.IsNoMatchError(err) {
		resource, err = mapper.KindFor(group.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return nil, "", fmt.Errorf("the server doesn't have a resource type %q", kind)
	}
	if err != nil {
		return nil, "", err
	}
	mapping, err := mapper.RESTMapping(resource.GroupKind(), resource.Version)
	return mapping, name, err
}

// CheckWarnings returns the error of --warnings-as-errors.
func (s *Session) CheckWarnings() error {
	counter, ok := s.warnings.(interface{ WarningCount() int })
	if !s.WarningsAsErrors || !ok {
		return nil
	}
	switch n := counter.WarningCount(); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%d warning received", n)
	default:
		return fmt.Errorf("%d warnings received", n)
	}
}
