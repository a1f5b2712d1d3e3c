package kubectllite

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"sigs.k8s.io/yaml"
)

type viewLastAppliedOptions struct {
	*session
	files    resource.FilenameOptions
	selector string
	all      bool
	output   string
}

func newViewLastApplied(s *session) *cobra.Command {
	o := &viewLastAppliedOptions{session: s}
	cmd := &cobra.Command{
		Use:                   "view-last-applied (TYPE [NAME | -l label] | TYPE/NAME | -f FILENAME)",
		Short:                 "View the latest last-applied-configuration annotations of a resource/object",
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output != "yaml" && o.output != "json" {
				return usageErrorf(cmd, "Unexpected -o output mode: %s, the flag 'output' must be one of yaml|json", o.output)
			}
			return o.run(args)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "yaml", "Output format. Must be one of (yaml, json)")
	cmd.Flags().BoolVar(&o.all, "all", false, "Select all resources in the namespace of the specified resource types")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "that contains the last-applied-configuration annotations")
	return cmd
}

func (o *viewLastAppliedOptions) run(args []string) error {
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	return o.withFiles(o.NewBuilder().Unstructured().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).
		LabelSelectorParam(o.selector).
		ResourceTypeOrNameArgs(o.all, args...).
		Latest().Flatten().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			document, err := kubectlutil.GetOriginalConfiguration(info.Object)
			if err != nil {
				return err
			}
			if document == nil {
				return fmt.Errorf("no last-applied-configuration annotation found on resource: %s", info.Name)
			}
			return o.print(document)
		})
}

func (o *viewLastAppliedOptions) print(document []byte) error {
	if o.output == "json" {
		var indented bytes.Buffer
		if err := json.Indent(&indented, bytes.TrimSpace(document), "", "  "); err != nil {
			return err
		}
		_, err := fmt.Fprintln(o.verbatim.Out, indented.String())
		return err
	}
	text, err := yaml.JSONToYAML(document)
	if err != nil {
		return err
	}
	_, err = o.verbatim.Out.Write(text)
	return err
}
