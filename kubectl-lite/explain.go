package kubectllite

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubectl/pkg/explain"
	explainv2 "k8s.io/kubectl/pkg/explain/v2"
)

type explainOptions struct {
	*session
	apiVersion string
	recursive  bool
	maxDepth   int
	output     string
}

func newExplain(s *session) *cobra.Command {
	o := &explainOptions{session: s}
	cmd := &cobra.Command{
		Use: "explain TYPE [--recursive=FALSE|TRUE] [--api-version=api-version-group] [-o|--output=plaintext]", Short: "Get documentation for a resource",
		Example: `  kubectl-lite explain pods.spec.containers
  kubectl-lite explain deployments --recursive`,
		DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return fmt.Errorf("You must specify the type of resource to explain. Use %q for a complete list of supported resources.", Name+" api-resources")
			case len(args) > 1:
				return errors.New("We accept only this format: explain RESOURCE\n") //nolint:staticcheck // kubectl's words
			}
			return o.run(args[0])
		},
	}
	cmd.Flags().IntVar(&o.maxDepth, "max-depth", 0, "Maximum recursion depth when printing nested fields with --recursive. 0 means no limit.")
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "R", false, "When true, print the name of all the fields recursively. Otherwise, print the available fields with their description.")
	cmd.Flags().StringVar(&o.apiVersion, "api-version", "", "Use given api-version (group/version) of the resource.")
	cmd.Flags().StringVarP(&o.output, "output", "o", "plaintext", "Format in which to render the schema. Valid values are: (plaintext).")
	return cmd
}

func (o *explainOptions) run(what string) error {
	mapper, err := o.ToRESTMapper()
	if err != nil {
		return err
	}
	split := explain.SplitAndParseResourceRequestWithMatchingPrefix
	if o.apiVersion != "" {
		split = explain.SplitAndParseResourceRequest
	}
	resource, path, err := split(what, mapper)
	if err != nil {
		return err
	}
	if o.apiVersion != "" {
		version, err := schema.ParseGroupVersion(o.apiVersion)
		if err != nil {
			return err
		}
		resource.Group, resource.Version = version.Group, version.Version
	}
	client, err := o.OpenAPIV3Client()
	if err != nil {
		return err
	}
	return explainv2.PrintModelDescription(path, o.Out, client, resource, o.recursive, o.maxDepth, o.output)
}
