package kubectllite

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/cmd/annotate"
	"k8s.io/kubectl/pkg/cmd/auth"
	"k8s.io/kubectl/pkg/cmd/completion"
	kubectlconfig "k8s.io/kubectl/pkg/cmd/config"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/explain"
	"k8s.io/kubectl/pkg/cmd/kustomize"
	"k8s.io/kubectl/pkg/cmd/options"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/run"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coxswain-dev/coxswain/internal/limits"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// mounted is the constructor of a kubectl command.
type mounted func(cmdutil.Factory, genericiooptions.IOStreams) *cobra.Command

// mount makes a verb from a kubectl command. The command gets the session's connection, with its limits and warnings.
// Except for documents its output is made visible. Its help says kubectl-lite.
func mount(build mounted) func(*session.Session) *cobra.Command {
	return func(s *session.Session) *cobra.Command {
		out := &formattedWriter{people: s.Out, programs: s.Verbatim.Out}
		cmd := build(s.Factory, genericiooptions.IOStreams{In: s.Verbatim.In, Out: out, ErrOut: s.ErrOut})
		adapt(cmd, out)
		return cmd
	}
}

// mountGetter mounts a command that only needs the factory's part for REST clients.
func mountGetter(build func(genericclioptions.RESTClientGetter, genericiooptions.IOStreams) *cobra.Command) func(
	*session.Session) *cobra.Command {
	return mount(func(f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
		return build(f, streams)
	})
}

// mountNamed mounts a command with a constructor that takes the name of the program.
func mountNamed(build func(string, cmdutil.Factory, genericiooptions.IOStreams) *cobra.Command) func(
	*session.Session) *cobra.Command {
	return mount(func(f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
		return build(Name, f, streams)
	})
}

// mountRemote mounts a command that connects this terminal to a container. It gets the unfiltered streams, because it
// needs to find a terminal behind them.
func mountRemote(build mounted) func(*session.Session) *cobra.Command {
	return func(s *session.Session) *cobra.Command {
		streams := s.Verbatim
		streams.ErrOut = &remoteErrors{people: s.ErrOut, container: streams.ErrOut}
		cmd := build(s.Factory, streams)
		adapt(cmd, nil)
		return cmd
	}
}

// adapt gives a mounted command and its subcommands this program's name, checks of files and quantities, and output.
func adapt(cmd *cobra.Command, out *formattedWriter) {
	for _, text := range []*string{&cmd.Long, &cmd.Example} {
		*text = strings.ReplaceAll(*text, "kubectl ", Name+" ")
	}
	if run := cmd.Run; run != nil {
		cmd.Run, cmd.RunE = nil, func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(checkFilesOf(cmd), checkQuantitiesOf(cmd)); err != nil {
				return err
			}
			out.follow(cmd)
			if readsDocuments(cmd) {
				return session.LimitStdin(func() { run(cmd, args) })
			}
			run(cmd, args)
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		adapt(sub, out)
	}
}

// checkFilesOf limits the manifests of -f, like Session.WithFiles for our own commands: the size of files with YAML
// aliases, and of URLs.
func checkFilesOf(cmd *cobra.Command) error {
	names, err := cmd.Flags().GetStringSlice("filename")
	if err != nil {
		return nil //nolint:nilerr // the command has no such flag
	}
	if slices.ContainsFunc(names, session.IsURL) {
		session.BoundDownloads()
	}
	recursive, _ := cmd.Flags().GetBool("recursive")
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "-" || session.IsURL(name) })
	return session.CheckFiles(names, recursive)
}

// readsDocuments reports whether the command reads documents from standard input (-f -). --raw sends a file unchanged.
func readsDocuments(cmd *cobra.Command) bool {
	names, err := cmd.Flags().GetStringSlice("filename")
	raw := cmd.Flags().Lookup("raw")
	return err == nil && slices.Contains(names, "-") && (raw == nil || raw.Value.String() == "")
}

// quantityFlags are the flags of kubectl's commands with quantities, or lists of names and quantities.
var quantityFlags = []string{"hard", "limits", "requests", "cpu", "memory"}

// checkQuantitiesOf rejects quantities that would take the command forever to parse, or that it would send with another
// value.
func checkQuantitiesOf(cmd *cobra.Command) error {
	for _, name := range quantityFlags {
		flag := cmd.Flags().Lookup(name)
		if flag == nil || flag.Value.Type() != "string" {
			continue
		}
		for item := range strings.SplitSeq(flag.Value.String(), ",") {
			text := item[strings.LastIndex(item, "=")+1:]
			if err := limits.CheckWritable(text); err != nil {
				return fmt.Errorf("invalid argument %q for --%s: %w", item, name, err)
			}
		}
	}
	return nil
}

// formattedWriter is the output of a mounted command. Documents are for programs and unfiltered, all other output is
// for people.
type formattedWriter struct {
	people, programs io.Writer
	document         bool
}

func (w *formattedWriter) Write(p []byte) (int, error) {
	if w.document {
		return w.programs.Write(p)
	}
	return w.people.Write(p)
}

// follow sets the writer to the -o of the command that will run next. -o name is for people.
func (w *formattedWriter) follow(cmd *cobra.Command) {
	if w == nil {
		return
	}
	value := func(flag string) string {
		if f := cmd.Flags().Lookup(flag); f != nil {
			return f.Value.String()
		}
		return ""
	}
	w.document = session.IsDocument(value("output"), value("template")) && value("output") != "name"
}

// remoteErrors is the error stream of a command that runs in a container. The container's output passes unchanged.
// kubectl's own notice, which contains names from the server, is made visible.
type remoteErrors struct{ people, container io.Writer }

func (w *remoteErrors) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("Defaulted container ")) {
		return w.people.Write(p)
	}
	return w.container.Write(p)
}

func newAnnotate(s *session.Session) *cobra.Command { return mountNamed(annotate.NewCmdAnnotate)(s) }
func newDescribe(s *session.Session) *cobra.Command { return mountNamed(describe.NewCmdDescribe)(s) }
func newExplain(s *session.Session) *cobra.Command  { return mountNamed(explain.NewCmdExplain)(s) }

// newAuth mounts auth, except two subcommands. kubectl's can-i ends the process if the answer is no, and reconcile of
// kubectl 1.37 crashes on a binding without a namespace.
func newAuth(s *session.Session) *cobra.Command {
	return mount(func(f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
		cmd := auth.NewCmdAuth(f, streams)
		for _, sub := range cmd.Commands() {
			switch sub.Name() {
			case "can-i":
				sub.Run = func(cmd *cobra.Command, args []string) { canI(cmd, f, streams, args) }
			case "reconcile":
				cmd.RemoveCommand(sub)
			}
		}
		cmd.AddCommand(newReconcile(s))
		return cmd
	})(s)
}

// canI runs auth can-i, without ending the process.
func canI(cmd *cobra.Command, f cmdutil.Factory, streams genericiooptions.IOStreams, args []string) {
	o := &auth.CanIOptions{IOStreams: streams}
	o.AllNamespaces = cmdutil.GetFlagBool(cmd, "all-namespaces")
	o.Quiet = cmdutil.GetFlagBool(cmd, "quiet")
	o.List = cmdutil.GetFlagBool(cmd, "list")
	o.NoHeaders = cmdutil.GetFlagBool(cmd, "no-headers")
	o.Subresource = cmdutil.GetFlagString(cmd, "subresource")
	cmdutil.CheckErr(o.Complete(f, args))
	cmdutil.CheckErr(o.Validate())
	if o.List {
		cmdutil.CheckErr(o.RunAccessList())
		return
	}
	allowed, err := o.RunAccessCheck()
	cmdutil.CheckErr(err)
	if !allowed {
		cmdutil.CheckErr(cmdutil.ErrExit)
	}
}

func newCompletion(s *session.Session) *cobra.Command {
	cmd := completion.NewCmdCompletion(s.Verbatim.Out, "")
	adapt(cmd, nil)
	return cmd
}

func newConfig(s *session.Session) *cobra.Command {
	return mount(func(f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
		return kubectlconfig.NewCmdConfig(f, clientcmd.NewDefaultPathOptions(), streams)
	})(s)
}

func newKustomize(s *session.Session) *cobra.Command {
	cmd := kustomize.NewCmdKustomize(s.Verbatim)
	adapt(cmd, nil)
	return cmd
}

func newOptions(s *session.Session) *cobra.Command {
	cmd := options.NewCmdOptions(s.Out)
	adapt(cmd, nil)
	return cmd
}

// pluginNames makes the command plugin list find the plugins that findPlugin runs.
var pluginNames = sync.OnceFunc(func() { plugin.ValidPluginFilenamePrefixes = pluginPrefixes })

func newPlugin(s *session.Session) *cobra.Command {
	pluginNames()
	return mount(func(_ cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
		return plugin.NewCmdPlugin(streams)
	})(s)
}

// newRun mounts run. With -i, -t or --attach it connects the streams to the container.
func newRun(s *session.Session) *cobra.Command {
	if asksForSession(s) {
		return mountRemote(run.NewCmdRun)(s)
	}
	return mount(run.NewCmdRun)(s)
}

// asksForSession reports whether the arguments or the kuberc may have one of run's flags -i, -t, --stdin, --tty and
// --attach.
func asksForSession(s *session.Session) bool {
	return slices.ContainsFunc(append(preferredArgs(s.Args, "run"), s.Args...), func(arg string) bool {
		long := slices.ContainsFunc([]string{"--stdin", "--tty", "--attach"}, func(flag string) bool {
			return strings.HasPrefix(arg, flag)
		})
		short := strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.ContainsAny(arg, "it")
		return long || short
	})
}
