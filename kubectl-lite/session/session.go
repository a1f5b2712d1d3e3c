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

// Session holds the streams and the connection of one invocation. The factory opens clients on first use, so a command
// that needs no server never looks for one.
type Session struct {
	cmdutil.Factory
	// IOStreams are for people: no character that is printed to Out and ErrOut controls a terminal (terminal.Writer).
	genericiooptions.IOStreams
	// Verbatim are the same streams, unfiltered: for the documents of -o, logs, the output of programs in
	// containers, plugins and editors, and this program's own control sequences.
	Verbatim genericiooptions.IOStreams
	Flags    *genericclioptions.ConfigFlags
	Args     []string // the command line; it is not parsed yet while the commands are built

	// WarningsAsErrors makes a command fail when the server warned about something.
	WarningsAsErrors bool
	warnings         rest.WarningHandler
	warningOut       *heldWriter             // the stream for warnings; it waits while a live view has the terminal
	bodies           *bodies                 // limits the size of the server's answers
	painter          func() terminal.Painter // makes the painter of output for people; nil without colours
	Finish           func()                  // flushes the streams at the end: the start of a character may be pending
}

// heldWriter passes writes on, and buffers them while a live view has the terminal.
type heldWriter struct {
	mu      sync.Mutex
	out     io.Writer
	holding bool
	pending bytes.Buffer // written while holding is true
}

func (h *heldWriter) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holding {
		return h.pending.Write(p)
	}
	return h.out.Write(p)
}

// hold begins to buffer writes, or ends it and writes the buffer.
func (h *heldWriter) hold(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holding = on
	if !on {
		_, _ = h.pending.WriteTo(h.out) // there is no other stream for warnings
	}
}

// serverWarnings prints the Warning headers of a server.
type serverWarnings struct {
	handler interface {
		rest.WarningHandler
		WarningCount() int
	}
	mu       sync.Mutex
	received int
}

// maxWarnings is how many warnings of a server are handled. The handler remembers each different one, and a session
// may last for days.
const maxWarnings = 1000

// maxWarningLength is how many characters of a warning are shown. kube-apiserver's warnings are never longer.
const maxWarningLength = 4096

func (w *serverWarnings) HandleWarningHeader(code int, agent, text string) {
	w.mu.Lock()
	w.received++
	tooMany := w.received > maxWarnings
	w.mu.Unlock()
	if !tooMany {
		w.handler.HandleWarningHeader(code, agent, terminal.OneLine(terminal.Cut(text, maxWarningLength)))
	}
}

func (w *serverWarnings) WarningCount() int { return w.handler.WarningCount() }

// onceWriter drops repeated writes. A command may resolve a short name several times, and cli-runtime warns each time
// that the name is ambiguous.
type onceWriter struct {
	mu   sync.Mutex
	out  io.Writer
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
	return w.out.Write(p)
}

const (
	requestsPerSecond = 50
	requestBurst      = 300
)

// New returns a session on the given streams. The caller calls Finish when all output is written.
func New(streams genericiooptions.IOStreams) *Session {
	out, errOut := terminal.NewWriter(streams.Out), terminal.NewWriter(streams.ErrOut)
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(requestBurst).WithDiscoveryQPS(requestsPerSecond).
		WithWarningPrinter(genericiooptions.IOStreams{ErrOut: &onceWriter{out: errOut}})
	s := &Session{
		IOStreams: genericiooptions.IOStreams{In: streams.In, Out: out, ErrOut: errOut},
		Verbatim:  streams,
		Flags:     flags,
		bodies:    &bodies{},
		Finish:    func() { out.Finish(); errOut.Finish() },
	}
	s.warningOut = &heldWriter{out: streams.ErrOut}
	flags.WrapConfigFn = s.configure
	s.Factory = cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(flags))
	return s
}

// configure prints the server's warnings on the error stream, each once, limits the size of answers, and raises the
// client's default rate of five requests a second. That default is meant for daemons, while discovery, tree and why
// read every kind.
func (s *Session) configure(config *rest.Config) *rest.Config {
	if s.warnings == nil {
		s.warnings = &serverWarnings{handler: rest.NewWarningWriter(s.warningOut, rest.WarningWriterOptions{
			Deduplicate: true,
			Color:       s.colorful(),
		})}
	}
	config.WarningHandler = s.warnings
	s.bodies.bound(config)
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	return config
}

// colorful reports whether the error stream is a terminal, and NO_COLOR is not set.
func (s *Session) colorful() bool { return printers.AllowsColorOutput(s.Verbatim.ErrOut) }

// Namespace returns the namespace that a command works in. explicit is true if it comes from -n: then a document with
// another namespace is an error.
func (s *Session) Namespace() (name string, explicit bool, err error) {
	return s.ToRawKubeConfigLoader().Namespace()
}

// Typed returns a builder that decodes objects into the client's Go types.
func (s *Session) Typed() *resource.Builder {
	return s.NewBuilder().WithScheme(scheme.Scheme, scheme.Scheme.PrioritizedVersionsAllGroups()...)
}

// ResourceName returns the name that kubectl's messages use for a kind: "pods", "deployments.apps".
func ResourceName(mapping *meta.RESTMapping) string { return mapping.Resource.GroupResource().String() }

// WithFiles makes a builder read the documents of -f and -k. "-" is the session's standard input.
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
	for _, name := range files.Filenames { // in their order; openManifest limits the size of URLs
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

// MappingFor resolves a name of a type, such as "po", "pods", "pod" or "deployments.v1.apps".
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

// OneObject reads the one object that the arguments name.
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

// OneName returns the kind and name that the arguments give. The object need not exist.
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
