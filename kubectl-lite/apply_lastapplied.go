package kubectllite

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"sigs.k8s.io/yaml"
)

// lastAppliedPatch writes what the next apply compares with, and touches nothing else.
func lastAppliedPatch(document []byte) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{corev1.LastAppliedConfigAnnotation: string(document)},
	}})
}

type setLastAppliedOptions struct {
	*session
	writing
	files  resource.FilenameOptions
	create bool
}

func newSetLastApplied(s *session) *cobra.Command {
	o := &setLastAppliedOptions{session: s}
	cmd := &cobra.Command{
		Use: "set-last-applied -f FILENAME", DisableFlagsInUseLine: true,
		Short: "Set the last-applied-configuration annotation on a live object to match the contents of a file",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run()
		},
	}
	o.addPrintFlags(cmd)
	cmdutil.AddDryRunFlag(cmd)
	cmd.Flags().BoolVar(&o.create, "create-annotation", false, "Will create 'last-applied-configuration' annotations if current objects doesn't have one")
	cmdutil.AddJsonFilenameFlag(cmd.Flags(), &o.files.Filenames, "Filename, directory, or URL to files that contains the last-applied-configuration annotations")
	return cmd
}

// run looks at all objects before it changes the first.
func (o *setLastAppliedOptions) run() error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	type change struct {
		info     *resource.Info
		document []byte
	}
	var changes []change
	err = o.withFiles(o.NewBuilder().Unstructured().NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).Flatten().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			document, err := runtime.Encode(unstructured.UnstructuredJSONScheme, info.Object)
			if err != nil {
				return err
			}
			if err := info.Get(); err != nil {
				return err
			}
			before, err := kubectlutil.GetOriginalConfiguration(info.Object)
			switch {
			case err != nil:
				return err
			case before == nil && !o.create:
				return fmt.Errorf("no last-applied-configuration annotation found on resource: %s, to create the annotation, run the command with --create-annotation", info.Name)
			case bytes.Equal(cmdutil.StripComments(before), cmdutil.StripComments(document)):
				fmt.Fprintf(o.Out, "set-last-applied %s: no changes required.\n", info.Name)
				return nil
			}
			changes = append(changes, change{info, document})
			return nil
		})
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := o.set(c.info, c.document); err != nil {
			return err
		}
	}
	return nil
}

func (o *setLastAppliedOptions) set(info *resource.Info, document []byte) error {
	obj := info.Object
	if !o.onlyPretend() {
		patch, err := lastAppliedPatch(document)
		if err != nil {
			return err
		}
		if obj, err = o.helper(info).Patch(info.Namespace, info.Name, types.MergePatchType, patch, nil); err != nil {
			return err
		}
	}
	return o.show(o.session, obj, "configured")
}

func newEditLastApplied(s *session) *cobra.Command {
	o := &editOptions{session: s, subject: lastAppliedDocument}
	cmd := &cobra.Command{
		Use: "edit-last-applied (RESOURCE/NAME | -f FILENAME)", Short: "Edit latest last-applied-configuration annotations of a resource/object",
		DisableFlagsInUseLine: true,
		RunE:                  o.start,
	}
	o.addPrintFlags(cmd)
	cmdutil.AddValidateFlags(cmd)
	cmdutil.AddFieldManagerFlagVar(cmd, &o.fieldManager, clientSideManager)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "to use to edit the resource")
	return cmd
}

// lastAppliedDocument is what edit-last-applied opens: the annotation as a document of its own.
var lastAppliedDocument = editSubject{
	open: func(info *resource.Info) ([]byte, error) {
		document, err := kubectlutil.GetOriginalConfiguration(info.Object)
		if err != nil {
			return nil, err
		}
		if document == nil {
			return nil, fmt.Errorf("no last-applied-configuration annotation found on resources, to create the annotation, use command `%s apply set-last-applied --create-annotation`", Name)
		}
		return yaml.JSONToYAML(document)
	},
	save: func(_ context.Context, o *editOptions, info *resource.Info, edited []byte) (runtime.Object, error) {
		document, err := toJSON(edited)
		if err != nil {
			return nil, fmt.Errorf("the edited file had a syntax error: %w", err)
		}
		patch, err := lastAppliedPatch(append(document, '\n'))
		if err != nil {
			return nil, err
		}
		return o.helper(info).Patch(info.Namespace, info.Name, types.MergePatchType, patch, nil)
	},
}
