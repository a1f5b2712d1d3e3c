package kubectllite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"sigs.k8s.io/yaml"
)

type diffOptions struct {
	*session
	files             resource.FilenameOptions
	selector          string
	serverSide        bool
	forceConflicts    bool
	fieldManager      string
	showManagedFields bool
}

func newDiff(s *session) *cobra.Command {
	o := &diffOptions{session: s}
	cmd := &cobra.Command{
		Use:   "diff -f FILENAME",
		Short: "Diff the live version against a would-be applied version",
		Long: `Diff configurations specified by file name or stdin between the current online configuration, and the configuration as it
would be if applied. KUBECTL_EXTERNAL_DIFF selects the diff program; the default is "diff -u -N".

Exit code: 0 no differences, 1 differences were found, greater than 1 something failed.`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.complete(cmd, args)
			if err == nil {
				ctx, stop := signal.NotifyContext(contextOf(cmd), os.Interrupt, syscall.SIGTERM) // to remove the files
				defer stop()
				err = o.run(ctx)
			}
			var exit *exitError
			if err == nil || errors.As(err, &exit) {
				return err
			}
			return &exitError{code: 2, err: err} // 1 is taken by "there are differences"
		},
	}
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "contains the configuration to diff")
	cmdutil.AddServerSideApplyFlags(cmd)
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmdutil.AddFieldManagerFlagVar(cmd, &o.fieldManager, clientSideManager)
	cmd.Flags().BoolVar(&o.showManagedFields, "show-managed-fields", false, "If true, include managed fields in the diff.")
	return cmd
}

func (o *diffOptions) complete(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageErrorf(cmd, "Unexpected args: %v", args)
	}
	o.serverSide, o.forceConflicts = cmdutil.GetServerSideApplyFlag(cmd), cmdutil.GetForceConflictsFlag(cmd)
	if o.serverSide && !cmd.Flags().Changed("field-manager") {
		o.fieldManager = serverSideManager
	}
	if o.forceConflicts && !o.serverSide {
		return errors.New("--force-conflicts only works with --server-side")
	}
	return o.files.RequireFilenameOrKustomize()
}

func (o *diffOptions) run(ctx context.Context) error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	live, err := os.MkdirTemp("", "LIVE-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(live) //nolint:errcheck // nothing of use is left in it
	merged, err := os.MkdirTemp("", "MERGED-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(merged) //nolint:errcheck // nothing of use is left in it
	err = o.withFiles(o.NewBuilder().Unstructured().NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		LabelSelectorParam(o.selector).Flatten().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			return o.write(info, live, merged)
		})
	if err != nil {
		return err
	}
	return o.compare(ctx, live, merged)
}

// write puts the object as it is and as it would be into the two folders.
func (o *diffOptions) write(info *resource.Info, live, merged string) error {
	document := info.Object.DeepCopyObject()
	if err := info.Get(); apierrors.IsNotFound(err) {
		info.Object = nil
	} else if err != nil {
		return err
	}
	before := info.Object
	after, err := o.wouldBe(info, document)
	if err != nil {
		return err
	}
	if info.Mapping.GroupVersionKind.GroupKind().String() == "Secret" {
		before, after = maskSecrets(before, after)
	}
	kind := info.Mapping.GroupVersionKind
	name := strings.TrimPrefix(fmt.Sprintf("%s.%s.%s.%s.%s", kind.Group, kind.Version, kind.Kind, info.Namespace, info.Name), ".")
	name = strings.ReplaceAll(name, string(filepath.Separator), "_") // a name is no path
	if err := o.writeObject(filepath.Join(live, name), before); err != nil {
		return err
	}
	return o.writeObject(filepath.Join(merged, name), after)
}

// wouldBe asks the server, by a dry run, what an apply would make of the object.
func (o *diffOptions) wouldBe(info *resource.Info, document runtime.Object) (runtime.Object, error) {
	helper := resource.NewHelper(info.Client, info.Mapping).DryRun(true).WithFieldManager(o.fieldManager)
	if o.serverSide {
		text, err := runtime.Encode(unstructured.UnstructuredJSONScheme, document)
		if err != nil {
			return nil, err
		}
		return helper.Patch(info.Namespace, info.Name, types.ApplyPatchType, text, &metav1.PatchOptions{Force: &o.forceConflicts})
	}
	if info.Object == nil {
		return helper.Create(info.Namespace, true, document)
	}
	modified, err := kubectlutil.GetModifiedConfiguration(document, false, unstructured.UnstructuredJSONScheme)
	if err != nil {
		return nil, err
	}
	p := &applyPatch{helper: helper, info: info, modified: modified, overwrite: true}
	_, obj, err := p.send(false)
	return obj, err
}

func (o *diffOptions) writeObject(path string, obj runtime.Object) error {
	if obj == nil {
		return nil
	}
	if accessor, err := meta.Accessor(obj); err == nil && !o.showManagedFields {
		accessor.SetManagedFields(nil)
	}
	text, err := yaml.Marshal(obj)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// maskSecrets replaces the values of two versions of a secret, so that one sees that a value changed, but not which it is.
func maskSecrets(before, after runtime.Object) (runtime.Object, runtime.Object) {
	var old, now map[string]any
	b, _ := before.(*unstructured.Unstructured)
	a, _ := after.(*unstructured.Unstructured)
	if b != nil {
		b = b.DeepCopy()
		before = b
		old, _ = b.Object["data"].(map[string]any)
	}
	if a != nil {
		a = a.DeepCopy()
		after = a
		now, _ = a.Object["data"].(map[string]any)
	}
	for key, value := range now {
		if former, there := old[key]; there && former != value {
			old[key], now[key] = "*** (before)", "*** (after)"
			continue
		}
		now[key] = "***"
		if _, there := old[key]; there {
			old[key] = "***"
		}
	}
	for key := range old {
		if _, there := now[key]; !there {
			old[key] = "***"
		}
	}
	return before, after
}

// plainArgument is what may stand in KUBECTL_EXTERNAL_DIFF besides the program's name: it is run without a shell.
var plainArgument = regexp.MustCompile(`^[a-zA-Z0-9-=]+$`)

func (o *diffOptions) compare(ctx context.Context, live, merged string) error {
	command := []string{"diff", "-u", "-N"}
	chosen := strings.Fields(os.Getenv("KUBECTL_EXTERNAL_DIFF"))
	external := len(chosen) > 0
	if external {
		command = chosen[:1]
		for _, arg := range chosen[1:] {
			if plainArgument.MatchString(arg) {
				command = append(command, arg)
			}
		}
	}
	var out bytes.Buffer
	run := exec.CommandContext(ctx, command[0], append(command[1:], live, merged)...)
	run.Stdout, run.Stderr = &out, o.ErrOut
	err := run.Run()
	to := o.Out
	if external {
		to = o.verbatim.Out // it may have colours of its own
	}
	if _, writeErr := to.Write(out.Bytes()); writeErr != nil {
		return writeErr
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return &exitError{code: 1}
	}
	if err != nil {
		return fmt.Errorf("failed to run %q: %v", command[0], err)
	}
	return nil
}
