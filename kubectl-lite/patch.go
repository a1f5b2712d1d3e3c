package kubectllite

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"
)

var patchTypes = map[string]types.PatchType{
	"json":      types.JSONPatchType,
	"merge":     types.MergePatchType,
	"strategic": types.StrategicMergePatchType,
}

type patchOptions struct {
	*session
	writing
	files       resource.FilenameOptions
	patch       string
	patchFile   string
	kind        string
	subresource string
	local       bool
}

func newPatch(s *session) *cobra.Command {
	o := &patchOptions{session: s}
	cmd := &cobra.Command{
		Use:   "patch (-f FILENAME | TYPE NAME) [-p PATCH|--patch-file FILE]",
		Short: "Update fields of a resource",
		Example: `  kubectl-lite patch node node-0 -p '{"spec":{"unschedulable":true}}'
  kubectl-lite patch deploy web --type=json -p '[{"op":"replace","path":"/spec/replicas","value":2}]'`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(args)
		},
	}
	o.addFlags(cmd, "kubectl-patch")
	cmd.Flags().StringVarP(&o.patch, "patch", "p", "", "The patch to be applied to the resource JSON file.")
	cmd.Flags().StringVar(&o.patchFile, "patch-file", "", "A file containing a patch to be applied to the resource.")
	cmd.Flags().StringVar(&o.kind, "type", "strategic", fmt.Sprintf("The type of patch being provided; one of %v", slices.Sorted(maps.Keys(patchTypes))))
	cmd.Flags().BoolVar(&o.local, "local", false, "If true, patch will operate on the content of the file, not the server-side resource.")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to update")
	addSubresourceFlag(cmd, &o.subresource, "If specified, patch will operate on the subresource of the requested object.")
	return cmd
}

// read returns the patch as JSON and its type.
func (o *patchOptions) read() ([]byte, types.PatchType, error) {
	switch {
	case o.patch != "" && o.patchFile != "":
		return nil, "", errors.New("cannot specify --patch and --patch-file together")
	case o.patch == "" && o.patchFile == "":
		return nil, "", errors.New("must specify --patch or --patch-file containing the contents of the patch")
	case o.local && len(o.files.Filenames) == 0:
		return nil, "", errors.New("--local requires --filename")
	}
	kind, known := patchTypes[strings.ToLower(o.kind)]
	if !known {
		return nil, "", fmt.Errorf("--type must be one of %v, not %q", slices.Sorted(maps.Keys(patchTypes)), o.kind)
	}
	text := []byte(o.patch)
	if o.patchFile != "" {
		var err error
		if text, err = os.ReadFile(o.patchFile); err != nil {
			return nil, "", fmt.Errorf("unable to read patch file: %v", err)
		}
	}
	patch, err := toJSON(text)
	if err != nil {
		return nil, "", fmt.Errorf("unable to parse %q: %v", text, err)
	}
	return patch, kind, nil
}

func (o *patchOptions) run(args []string) error {
	patch, kind, err := o.read()
	if err != nil {
		return err
	}
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	b := o.withFiles(o.NewBuilder().Unstructured().ContinueOnError().LocalParam(o.local).
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).Subresource(o.subresource).Flatten()
	if !o.local {
		b = b.ResourceTypeOrNameArgs(false, args...)
	}
	count := 0
	err = b.Do().Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		count++
		if o.local || o.onlyPretend() {
			return o.pretend(info, kind, patch)
		}
		obj, err := o.helper(info).WithSubresource(o.subresource).Patch(info.Namespace, info.Name, kind, patch, nil)
		if err != nil {
			return err
		}
		return o.show(o.session, obj, patchOutcome(info.Object, obj))
	})
	if err == nil && count == 0 {
		return errors.New("no objects passed to patch")
	}
	return err
}

func (o *patchOptions) pretend(info *resource.Info, kind types.PatchType, patch []byte) error {
	before, err := runtime.Encode(unstructured.UnstructuredJSONScheme, info.Object)
	if err != nil {
		return err
	}
	after, err := patchLocally(info, kind, before, patch)
	if err != nil {
		return err
	}
	obj, err := runtime.Decode(unstructured.UnstructuredJSONScheme, after)
	if err != nil {
		return err
	}
	return o.show(o.session, obj, patchOutcome(info.Object, obj))
}

func patchLocally(info *resource.Info, kind types.PatchType, before, patch []byte) ([]byte, error) {
	switch kind {
	case types.JSONPatchType:
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return operations.Apply(before)
	case types.MergePatchType:
		return jsonpatch.MergePatch(before, patch)
	}
	typed, err := scheme.Scheme.New(info.Mapping.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	return strategicpatch.StrategicMergePatch(before, patch, typed)
}

// patchOutcome tells a patch that changed something from one that did not.
func patchOutcome(before, after runtime.Object) string {
	if reflect.DeepEqual(before, after) {
		return "patched (no change)"
	}
	return "patched"
}
