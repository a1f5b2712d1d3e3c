package kubectllite

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"
	"sigs.k8s.io/yaml"
)

type editOptions struct {
	*session
	writing
	files       resource.FilenameOptions
	subresource string
	subject     editSubject
}

// editSubject is what of an object the editor shows, as YAML, and how what was saved gets to the server.
type editSubject struct {
	open func(*resource.Info) ([]byte, error)
	save func(context.Context, *editOptions, *resource.Info, []byte) (runtime.Object, error)
	// done is what happened where it is not "edited"; new, that also what was left as it was is to be saved.
	done string
	new  bool
}

// wholeObject is what edit opens.
var wholeObject = editSubject{
	open: func(info *resource.Info) ([]byte, error) {
		if accessor, err := meta.Accessor(info.Object); err == nil {
			accessor.SetManagedFields(nil)
		}
		return yaml.Marshal(info.Object)
	},
	save: func(_ context.Context, o *editOptions, info *resource.Info, edited []byte) (runtime.Object, error) {
		return o.save(info, edited)
	},
}

func newEdit(s *session) *cobra.Command {
	o := &editOptions{session: s, subject: wholeObject}
	cmd := &cobra.Command{
		Use:   "edit (RESOURCE/NAME | -f FILENAME)",
		Short: "Edit a resource on the server",
		Long: `Edit a resource from the default editor: the one that KUBE_EDITOR or EDITOR names, or 'vi'. Saving sends the difference
as a patch; where the server refuses it, the editor opens again with the reason on top. Leaving without a change, or with
an empty file, changes nothing.`,
		DisableFlagsInUseLine: true,
		RunE:                  o.start,
	}
	o.addPrintFlags(cmd)
	cmdutil.AddValidateFlags(cmd)
	cmdutil.AddFieldManagerFlagVar(cmd, &o.fieldManager, "kubectl-edit")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "to use to edit the resource")
	addSubresourceFlag(cmd, &o.subresource, "If specified, edit will operate on the subresource of the requested object.")
	return cmd
}

func (o *editOptions) complete(cmd *cobra.Command) (err error) {
	o.validation, err = cmdutil.GetValidationDirective(cmd)
	return err
}

// start is both commands. The editor is in the terminal's foreground and answers Ctrl-C itself; this process must
// live to tidy up.
func (o *editOptions) start(cmd *cobra.Command, args []string) error {
	if err := o.complete(cmd); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(contextOf(cmd), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return o.run(ctx, args)
}

func (o *editOptions) run(ctx context.Context, args []string) error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	infos, err := o.withFiles(o.NewBuilder().Unstructured().NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		Subresource(o.subresource).ResourceTypeOrNameArgs(true, args...).ContinueOnError().Latest().Flatten().Do().Infos()
	if err != nil {
		return err
	}
	if len(infos) == 0 {
		return errors.New("edit cancelled, no objects found")
	}
	errs := newErrorSet(nil)
	for _, info := range infos {
		errs.add(o.edit(ctx, info))
	}
	return errs.err()
}

// editHeader explains the file to who sees it.
const editHeader = `# Please edit the object below. Lines beginning with a '#' will be ignored,
# and an empty file will abort the edit. If an error occurs while saving this file will be
# reopened with the relevant failures.
#
`

// edit opens one object in the editor until it was saved, given up, or could not be opened.
func (o *editOptions) edit(ctx context.Context, info *resource.Info) error {
	original, err := o.subject.open(info)
	if err != nil {
		return err
	}
	text, reasons := original, ""
	for {
		edited, path, err := openEditor(ctx, o.verbatim, editHeader+reasons, text)
		if err != nil {
			return err
		}
		discard := func() { os.Remove(path) } //nolint:errcheck // a file left in the temporary folder does no harm
		edited = cmdutil.StripComments(edited)
		switch {
		case len(bytes.TrimSpace(edited)) == 0:
			discard()
			fmt.Fprintln(o.ErrOut, "Edit cancelled, saved file was empty.")
			return nil
		case !o.subject.new && bytes.Equal(cmdutil.StripComments(original), edited):
			discard()
			fmt.Fprintln(o.ErrOut, "Edit cancelled, no changes made.")
			return nil
		case reasons != "" && bytes.Equal(cmdutil.StripComments(text), edited):
			// The same text would be refused again. What was written is kept.
			return fmt.Errorf("Edit cancelled, no valid changes were saved.\nA copy of your changes has been stored to %q", path) //nolint:staticcheck // kubectl's words
		}
		obj, err := o.subject.save(ctx, o, info, edited)
		if err == nil {
			discard()
			return o.show(o.session, obj, cmp.Or(o.subject.done, "edited"))
		}
		if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%w\nA copy of your changes has been stored to %q", err, path)
		}
		discard()
		text, reasons = edited, commented(err)
	}
}

func commented(err error) string {
	message, _ := explainError(err)
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(message), "\n") {
		b.WriteString("# " + line + "\n")
	}
	return b.String() + "#\n"
}

// openEditor lets the user change text and returns what was saved, in the file at path.
func openEditor(ctx context.Context, streams genericiooptions.IOStreams, header string, text []byte) (edited []byte, path string, err error) {
	file, err := os.CreateTemp("", "kubectl-lite-edit-*.yaml")
	if err != nil {
		return nil, "", err
	}
	path = file.Name()
	_, err = file.Write(append([]byte(header), text...))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, "", errors.Join(err, os.Remove(path))
	}
	editor := os.Getenv("KUBE_EDITOR")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		editor = "vi"
	}
	command := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", path)
	command.Stdin, command.Stdout, command.Stderr = streams.In, streams.Out, streams.ErrOut
	if err := command.Run(); err != nil {
		return nil, "", errors.Join(fmt.Errorf("there was a problem with the editor %q: %w", editor, err), os.Remove(path))
	}
	edited, err = os.ReadFile(path)
	return edited, path, err
}

// save sends the difference between the object that was opened and the text that was saved.
func (o *editOptions) save(info *resource.Info, edited []byte) (runtime.Object, error) {
	before, err := runtime.Encode(unstructured.UnstructuredJSONScheme, info.Object)
	if err != nil {
		return nil, err
	}
	after, err := toJSON(edited)
	if err != nil {
		return nil, fmt.Errorf("the edited file had a syntax error: %w", err)
	}
	unchanged := []mergepatch.PreconditionFunc{
		mergepatch.RequireKeyUnchanged("apiVersion"), mergepatch.RequireKeyUnchanged("kind"),
		mergepatch.RequireMetadataKeyUnchanged("name"), mergepatch.RequireKeyUnchanged("managedFields"),
	}
	kind := types.StrategicMergePatchType
	var patch []byte
	typed, err := scheme.Scheme.New(info.Mapping.GroupVersionKind)
	if err == nil {
		patch, err = strategicpatch.CreateTwoWayMergePatch(before, after, typed, unchanged...)
	} else {
		kind = types.MergePatchType
		patch, err = jsonmergepatch.CreateThreeWayJSONMergePatch(before, after, before, unchanged...)
	}
	if mergepatch.IsPreconditionFailed(err) {
		return nil, errors.New("At least one of apiVersion, kind and name was changed") //nolint:staticcheck // kubectl's words
	}
	if err != nil {
		return nil, err
	}
	return o.helper(info).WithSubresource(o.subresource).Patch(info.Namespace, info.Name, kind, patch, nil)
}
