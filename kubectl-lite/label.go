package kubectllite

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// stringMap is one of the two maps of strings in an object's metadata, and how kubectl speaks of changing it.
type stringMap struct {
	verb, noun, manager string
	get                 func(metav1.Object) map[string]string
	set                 func(metav1.Object, map[string]string)
	// outcome names what a change came to.
	outcome func(before, after []byte, overwrite bool) string
}

var labelMap = stringMap{
	verb: "label", noun: "label", manager: "kubectl-label",
	get: metav1.Object.GetLabels, set: metav1.Object.SetLabels,
	outcome: func(before, after []byte, overwrite bool) string {
		switch {
		case reflect.DeepEqual(before, after):
			return "not labeled"
		case !overwrite && len(after) < len(before):
			return "unlabeled"
		}
		return "labeled"
	},
}

var annotationMap = stringMap{
	verb: "annotate", noun: "annotation", manager: "kubectl-annotate",
	get: metav1.Object.GetAnnotations, set: metav1.Object.SetAnnotations,
	outcome: func([]byte, []byte, bool) string { return "annotated" },
}

type labelOptions struct {
	*session
	writing
	stringMap
	files           resource.FilenameOptions
	selector        string
	fieldSelector   string
	all             bool
	allNamespaces   bool
	overwrite       bool
	local           bool
	list            bool
	resourceVersion string
	// single is set where one object was named, so that its map needs no heading.
	single bool

	values  map[string]string
	removed []string
}

func newLabel(s *session) *cobra.Command {
	return newStringMap(s, labelMap, "Update the labels on a resource", `  kubectl-lite label pods/web tier=front
  kubectl-lite label --overwrite nodes -l zone=a drained=yes
  kubectl-lite label pod web tier-`)
}

func newAnnotate(s *session) *cobra.Command {
	return newStringMap(s, annotationMap, "Update the annotations on a resource", `  kubectl-lite annotate deploy/web note='handle with care'
  kubectl-lite annotate deploy/web note-`)
}

func newStringMap(s *session, kind stringMap, short, example string) *cobra.Command {
	o := &labelOptions{session: s, stringMap: kind}
	cmd := &cobra.Command{
		Use:   kind.verb + " [--overwrite] (-f FILENAME | TYPE NAME) KEY_1=VAL_1 ... KEY_N=VAL_N [--resource-version=version]",
		Short: short, Example: example, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(args)
		},
	}
	o.addFlags(cmd, kind.manager)
	flags := cmd.Flags()
	flags.BoolVar(&o.overwrite, "overwrite", false, "If true, allow "+kind.noun+"s to be overwritten, otherwise reject "+kind.noun+" updates that overwrite existing "+kind.noun+"s.")
	flags.BoolVar(&o.list, "list", false, "If true, display the "+kind.noun+"s for a given resource.")
	flags.BoolVar(&o.local, "local", false, "If true, "+kind.verb+" will NOT contact api-server but run locally.")
	flags.StringVar(&o.fieldSelector, "field-selector", "", "Selector (field query) to filter on, supports '=', '==', and '!='.")
	flags.BoolVar(&o.all, "all", false, "Select all resources, in the namespace of the specified resource types")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If true, check the specified action in all namespaces.")
	flags.StringVar(&o.resourceVersion, "resource-version", "", "If non-empty, the update will only succeed if this is the current resource-version for the object. Only valid when specifying a single resource.")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource to update")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	return cmd
}

func (o *labelOptions) run(args []string) error {
	resources, pairs, err := cmdutil.GetResourcesAndPairs(args, o.noun)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		if o.noun == labelMap.noun && strings.Count(pair, "=") > 1 {
			return fmt.Errorf("invalid label spec: %v", pair)
		}
	}
	if o.values, o.removed, err = cmdutil.ParsePairs(pairs, o.noun, true); err != nil {
		return err
	}
	if err := o.validate(resources); err != nil {
		return err
	}
	namespace, explicit, err := o.namespace()
	if err != nil {
		return err
	}
	b := o.withFiles(o.NewBuilder().Unstructured().LocalParam(o.local).ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace(), explicit, &o.files).Flatten()
	if !o.local {
		b = b.LabelSelectorParam(o.selector).FieldSelectorParam(o.fieldSelector).
			AllNamespaces(o.allNamespaces).ResourceTypeOrNameArgs(o.all, resources...).Latest()
	}
	found := b.Do().IntoSingleItemImplied(&o.single)
	if err := found.Err(); err != nil {
		return err
	}
	if o.resourceVersion != "" {
		if infos, err := found.Infos(); err != nil {
			return err
		} else if len(infos) > 1 {
			return errors.New("--resource-version may only be used with a single resource")
		}
	}
	return found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		return o.update(info)
	})
}

func (o *labelOptions) validate(resources []string) error {
	switch {
	case o.all && o.selector != "":
		return errors.New("cannot set --all and --selector at the same time")
	case o.all && o.fieldSelector != "":
		return errors.New("cannot set --all and --field-selector at the same time")
	case len(resources) < 1 && cmdutil.IsFilenameSliceEmpty(o.files.Filenames, o.files.Kustomize):
		return errors.New("one or more resources must be specified as <resource> <name> or <resource>/<name>")
	case len(o.values) < 1 && len(o.removed) == 0 && !o.list:
		return fmt.Errorf("at least one %s update is required", o.noun)
	}
	both := slices.DeleteFunc(slices.Clone(o.removed), func(key string) bool { _, set := o.values[key]; return !set })
	switch {
	case len(both) == 0:
	case o.noun == labelMap.noun:
		return errors.New("can not both modify and remove a label in the same command")
	default:
		return fmt.Errorf("can not both modify and remove the following annotation(s) in the same command: %s", strings.Join(both, ", "))
	}
	if o.noun != labelMap.noun {
		return nil
	}
	for _, value := range o.values {
		if faults := validation.IsValidLabelValue(value); len(faults) > 0 {
			return fmt.Errorf("invalid label value: %q: %s", value, strings.Join(faults, "; "))
		}
	}
	return nil
}

func (o *labelOptions) update(info *resource.Info) error {
	obj := info.Object.(*unstructured.Unstructured)
	before, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	if err := o.change(obj); err != nil {
		return err
	}
	after, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	done := o.outcome(before, after, o.overwrite)
	if o.list {
		return o.showList(info, obj)
	}
	if o.local || o.onlyPretend() {
		return o.show(o.session, obj, done)
	}
	patch, err := jsonpatch.CreateMergePatch(before, after)
	if err != nil {
		return err
	}
	var result runtime.Object = obj
	if string(patch) != "{}" {
		if result, err = o.helper(info).Patch(info.Namespace, info.Name, types.MergePatchType, patch, nil); err != nil {
			return err
		}
	}
	return o.show(o.session, result, done)
}

// change edits the map in the object. Nothing that is there is overwritten unless the user said so.
func (o *labelOptions) change(obj *unstructured.Unstructured) error {
	current := maps.Clone(o.get(obj))
	if current == nil {
		current = map[string]string{}
	}
	if !o.overwrite {
		var taken []string
		for _, key := range slices.Sorted(maps.Keys(o.values)) {
			if value, there := current[key]; there && value != o.values[key] {
				taken = append(taken, fmt.Sprintf("'%s' already has a value (%s)", key, value))
			}
		}
		if len(taken) > 0 && o.noun == labelMap.noun {
			return fmt.Errorf("%s, and --overwrite is false", taken[0])
		}
		if len(taken) > 0 {
			return fmt.Errorf("--overwrite is false but found the following declared annotation(s): %s", strings.Join(taken, "; "))
		}
	}
	for _, key := range o.removed {
		if _, there := current[key]; !there && o.noun == labelMap.noun {
			fmt.Fprintf(o.Out, "label %q not found.\n", key)
		}
		delete(current, key)
	}
	maps.Copy(current, o.values)
	if len(current) > 0 || len(o.get(obj)) > 0 {
		o.set(obj, current)
	}
	if o.resourceVersion != "" {
		obj.SetResourceVersion(o.resourceVersion)
	}
	return nil
}

func (o *labelOptions) showList(info *resource.Info, obj *unstructured.Unstructured) error {
	indent := ""
	if !o.single {
		indent = " "
		kind := info.Mapping.GroupVersionKind
		fmt.Fprintf(o.Out, "Listing %ss for %s.%s/%s:\n", o.noun, kind.Kind, kind.Group, info.Name)
	}
	current := o.get(obj)
	for _, key := range slices.Sorted(maps.Keys(current)) {
		fmt.Fprintf(o.Out, "%s%s=%s\n", indent, key, current[key])
	}
	return nil
}
