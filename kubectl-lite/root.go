package kubectllite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/cmd/apiresources"
	"k8s.io/kubectl/pkg/cmd/attach"
	"k8s.io/kubectl/pkg/cmd/autoscale"
	"k8s.io/kubectl/pkg/cmd/certificates"
	"k8s.io/kubectl/pkg/cmd/clusterinfo"
	"k8s.io/kubectl/pkg/cmd/cp"
	"k8s.io/kubectl/pkg/cmd/create"
	"k8s.io/kubectl/pkg/cmd/debug"
	kubectldelete "k8s.io/kubectl/pkg/cmd/delete"
	"k8s.io/kubectl/pkg/cmd/diff"
	"k8s.io/kubectl/pkg/cmd/drain"
	"k8s.io/kubectl/pkg/cmd/edit"
	"k8s.io/kubectl/pkg/cmd/events"
	"k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/cmd/expose"
	"k8s.io/kubectl/pkg/cmd/label"
	"k8s.io/kubectl/pkg/cmd/patch"
	"k8s.io/kubectl/pkg/cmd/portforward"
	"k8s.io/kubectl/pkg/cmd/proxy"
	"k8s.io/kubectl/pkg/cmd/replace"
	"k8s.io/kubectl/pkg/cmd/scale"
	"k8s.io/kubectl/pkg/cmd/set"
	"k8s.io/kubectl/pkg/cmd/taint"
	"k8s.io/kubectl/pkg/cmd/top"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coxswain-dev/coxswain/kubectl-lite/audit"
	"github.com/coxswain-dev/coxswain/kubectl-lite/history"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/kubectl-lite/terminal"
	_ "github.com/coxswain-dev/coxswain/kubectl-lite/untranslated" // before kubectl's commands
	"github.com/coxswain-dev/coxswain/kubectl-lite/why"
)

// Name is the name of the binary, for usage texts and completion scripts.
const Name = "kubectl-lite"

// group is one heading of the help page and the verbs below it.
type group struct {
	title string
	verbs []verb
}

// verb is a command and its name. A command is built only if its name is among the arguments.
type verb struct {
	name  string
	build func(*session.Session) *cobra.Command
}

// groups returns all verbs in the order of the help page. The ones with mount are kubectl's. To add a verb, add it
// here.
func groups() []group {
	return []group{
		{"Read", []verb{{"get", newGet}, {"describe", newDescribe}, {"tree", newTree}, {"why", why.NewCommand},
			{"timeline", history.NewTimeline}, {"events", mountGetter(events.NewCmdEvents)}, {"explain", newExplain},
			{"diff", mount(diff.NewCmdDiff)}, {"wait", newWait}}},
		{"Change", []verb{{"apply", newApply}, {"create", mount(create.NewCmdCreate)},
			{"replace", mount(replace.NewCmdReplace)}, {"edit", mount(edit.NewCmdEdit)},
			{"patch", mount(patch.NewCmdPatch)}, {"set", mount(set.NewCmdSet)}, {"label", mount(label.NewCmdLabel)},
			{"annotate", newAnnotate}, {"expose", mount(expose.NewCmdExposeService)}, {"ttl", newTTL},
			{"delete", mount(kubectldelete.NewCmdDelete)}}},
		{"Run", []verb{{"run", newRun}, {"scale", mount(scale.NewCmdScale)},
			{"autoscale", mount(autoscale.NewCmdAutoscale)}, {"rollout", newRollout}, {"logs", newLogs},
			{"exec", mountRemote(exec.NewCmdExec)}, {"attach", mountRemote(attach.NewCmdAttach)},
			{"debug", mountRemote(func(f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
				return debug.NewCmdDebug(f, streams)
			})},
			{"port-forward", mount(portforward.NewCmdPortForward)}, {"cp", mount(cp.NewCmdCp)}}},
		{"Nodes", []verb{{"cordon", mount(drain.NewCmdCordon)}, {"uncordon", mount(drain.NewCmdUncordon)},
			{"drain", mount(drain.NewCmdDrain)}, {"taint", mount(taint.NewCmdTaint)}}},
		{"The cluster", []verb{{"cluster-info", mountGetter(clusterinfo.NewCmdClusterInfo)},
			{"top", mount(top.NewCmdTop)}, {"audit", audit.NewCommand}, {"clock", newClock},
			{"api-resources", mountGetter(apiresources.NewCmdAPIResources)},
			{"api-versions", mountGetter(apiresources.NewCmdAPIVersions)}, {"auth", newAuth},
			{"certificate", mountGetter(certificates.NewCmdCertificate)}, {"proxy", mount(proxy.NewCmdProxy)}}},
		{"This tool", []verb{{"config", newConfig}, {"kuberc", newKuberc}, {"kustomize", newKustomize},
			{"options", newOptions}, {"plugin", newPlugin}, {"completion", newCompletion}, {"version", newVersion}}},
	}
}

// namedVerbs returns the verbs that may be among the arguments: every argument that is a name of a verb. nil stands for
// all verbs. That is the result if the first argument is neither a verb nor a flag, and for plugin, which compares
// plugins with all verbs. Building a verb takes a tenth of a millisecond, and there are fifty.
func namedVerbs(args []string) map[string]bool {
	verbs := map[string]bool{}
	for _, g := range groups() {
		for _, v := range g.verbs {
			verbs[v.name] = true
		}
	}
	if len(args) == 0 || args[0] == "plugin" || !verbs[args[0]] && !strings.HasPrefix(args[0], "-") {
		return nil
	}
	var named map[string]bool
	for _, arg := range args {
		if !verbs[arg] {
			continue
		}
		if named == nil {
			named = map[string]bool{}
		}
		named[arg] = true
	}
	return named
}

const rootLong = `kubectl-lite speaks to any Kubernetes API server, with kubectl's names, flags and output.

Objects    TYPE NAME, TYPE/NAME, several of them, or -f FILE|FOLDER|URL|- and -k FOLDER. Types have short names
           (po, deploy, svc, …: 'api-resources' lists them, 'explain TYPE' documents them field by field).
Which      -n NAMESPACE or -A for all; -l app=web,tier!=db by label; --field-selector status.phase=Running by field.
Output     -o wide|json|yaml|name|jsonpath='{.status.phase}'|custom-columns=N:.metadata.name|go-template=…;
           -w keeps on watching. Tables for people, everything else for programs.
Trying     --dry-run=server lets the server check and change nothing; 'diff -f' shows what 'apply -f' would do.
Server     the kubeconfig's current context ($KUBECONFIG, ~/.kube/config, --kubeconfig, --context), or --server and
           --token; --as NAME acts as another user; --request-timeout 10s gives up; -v 6 shows the requests.
Trouble    'why TYPE/NAME' explains why an object is not ready; 'tree' shows the objects that it owns, 'timeline' its
           past revisions, 'get --at 5m' its earlier state, 'events --for', 'logs', 'describe', 'exec -it' the rest.
Exit code  0 done; 1 failed, or the answer is no; that of the command with exec and run; 130 after Ctrl-C.`

const rootExample = `  kubectl-lite get pods -A -o wide
  kubectl-lite apply -f shop.yaml && kubectl-lite rollout status deploy/web
  kubectl-lite why deploy/web
  kubectl-lite exec -it deploy/web -- sh`

// New returns the command tree on the given streams. A tree is for one invocation: it must not be executed twice,
// because the flags of the first run would still be set.
func New(streams genericiooptions.IOStreams) *cobra.Command {
	root, _ := newRoot(streams, nil, nil)
	return root
}

// newRoot returns the root command with the given verbs, or all if verbs is nil.
func newRoot(streams genericiooptions.IOStreams, args []string, verbs map[string]bool) (
	*cobra.Command, *session.Session) {
	session.CatchFatal()
	s := session.New(streams)
	s.Args = args
	root := &cobra.Command{
		Use:           Name,
		Short:         "A small kubectl for any Kubernetes API server",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		// newCompletion makes a command of that name.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(streams.In)
	root.SetOut(s.Out)
	root.SetErr(s.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help' for usage.", err, cmd.CommandPath())
	})
	s.Flags.AddFlags(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&s.WarningsAsErrors, "warnings-as-errors", false,
		"Treat warnings received from the server as errors and exit with a non-zero exit code")
	addVerbosity(root)
	addKuberc(root)
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, v := range g.verbs {
			if verbs != nil && !verbs[v.name] {
				continue
			}
			cmd := v.build(s)
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	if verbs == nil {
		addCompletions(root, s)
	}
	root.SetHelpCommandGroupID("This tool")
	return root, s
}

// addVerbosity declares -v, which makes client-go log requests (6) and answers (8).
func addVerbosity(root *cobra.Command) {
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	root.PersistentFlags().AddGoFlag(logging.Lookup("v"))
}

// logVisibly filters client-go's log too: it contains errors and, with -v=8, whole answers of the server.
var logVisibly = sync.OnceFunc(func() {
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	klog.SetOutput(terminal.NewWriter(os.Stderr))
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true",
		"stderrthreshold": "FATAL"} {
		if err := logging.Set(name, value); err != nil {
			panic(err) // klog does not have the flag
		}
	}
})

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "\n\nDid you mean this?\n\t" + strings.Join(near, "\n\t") + "\n"
	}
	return errors.New(text)
}

// Main runs one invocation and returns the exit code of the process. It does not handle signals: verbs that must clean
// up listen for them, all others may be ended at any moment.
func Main(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	if streams.ErrOut == io.Writer(os.Stderr) {
		logVisibly()
	}
	verbs, preferences := namedVerbs(args), hasPreferences(args)
	if preferences {
		verbs = nil
	}
	root, s := newRoot(streams, args, verbs)
	defer s.Finish()
	if preferences {
		var err error
		if args, err = applyPreferences(root, s, args); err != nil {
			return session.Report(s.ErrOut, err)
		}
	}
	root.SetArgs(args)
	ran, err := runPlugin(ctx, s, root, args)
	if !ran {
		if ended := session.Caught(func() { err = root.ExecuteContext(ctx) }); ended != nil {
			err = ended
		}
	}
	if err == nil {
		err = s.CheckWarnings()
	}
	return session.Report(s.ErrOut, err)
}
