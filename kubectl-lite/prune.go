package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/dynamic"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// prunable are the kinds that apply --prune deletes by default, in the form of --prune-allowlist.
var prunable = []string{
	"core/v1/ConfigMap", "core/v1/Endpoints", "core/v1/PersistentVolumeClaim", "core/v1/Pod",
	"core/v1/ReplicationController",
	"core/v1/Secret", "core/v1/Service", "batch/v1/Job", "batch/v1/CronJob", "networking.k8s.io/v1/Ingress",
	"apps/v1/DaemonSet", "apps/v1/Deployment", "apps/v1/ReplicaSet", "apps/v1/StatefulSet",
	"core/v1/Namespace", "core/v1/PersistentVolume",
}

// pruning implements apply --prune: it deletes an object that was applied before, matches the selector and is in no
// document.
type pruning struct {
	enabled   bool
	all       bool
	allowlist []string
}

func (p *pruning) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&p.enabled, "prune", false, "Automatically delete resource objects, that do not appear in the "+
		"configs and are created by either apply or create --save-config. Should be used with either -l or --all.")
	flags.BoolVar(&p.all, "all", false, "Select all resources in the namespace of the specified resource types.")
	flags.StringArrayVar(&p.allowlist, "prune-allowlist", nil,
		"Overwrite the default allowlist with <group/version/kind> for --prune")
}

func (p *pruning) validate(selector string, serverSide bool) error {
	switch {
	case p.all && selector != "":
		return errors.New("cannot set --all and --selector at the same time")
	case p.enabled && !p.all && selector == "":
		return errors.New("all resources selected for prune without explicitly passing --all. To prune all " +
			"resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector")
	case p.enabled && serverSide:
		return errors.New("--prune is in alpha and doesn't currently work on objects created by server-side apply")
	}
	return nil
}

// appliedSet records the objects that an apply touched, which prune must keep, and the namespaces to search.
type appliedSet struct {
	uids       sets.Set[types.UID]
	namespaces sets.Set[string]
}

func newAppliedSet(namespace string) *appliedSet {
	s := &appliedSet{uids: sets.New[types.UID](), namespaces: sets.New[string]()}
	if namespace != "" {
		s.namespaces.Insert(namespace)
	}
	return s
}

func (s *appliedSet) add(info *resource.Info) {
	if accessor, err := meta.Accessor(info.Object); err == nil {
		s.uids.Insert(accessor.GetUID())
	}
	if info.Namespaced() {
		s.namespaces.Insert(info.Namespace)
	}
}

// run deletes the objects to prune, of all kinds and in all namespaces of the applied objects.
func (p *pruning) run(ctx context.Context, o *applyOptions, applied *appliedSet) error {
	if !p.enabled {
		return nil
	}
	mappings, err := p.mappings(o)
	if err != nil {
		return err
	}
	client, err := o.DynamicClient()
	if err != nil {
		return err
	}
	for _, mapping := range mappings {
		if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
			if err := pruneIn(ctx, o, mapping, client.Resource(mapping.Resource), applied); err != nil {
				return fmt.Errorf("error pruning nonNamespaced object %v: %v", mapping.GroupVersionKind, err)
			}
			continue
		}
		for _, namespace := range sets.List(applied.namespaces) {
			if err := pruneIn(ctx, o, mapping, client.Resource(mapping.Resource).Namespace(namespace),
				applied); err != nil {
				return fmt.Errorf("error pruning namespaced object %v: %v", mapping.GroupVersionKind, err)
			}
		}
	}
	return nil
}

// mappings returns the kinds to prune. A kind that the server does not have is an error only if the user named it.
func (p *pruning) mappings(o *applyOptions) ([]*meta.RESTMapping, error) {
	mapper, err := o.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	kinds := p.allowlist
	if len(kinds) == 0 {
		kinds = prunable
	}
	var mappings []*meta.RESTMapping
	for _, kind := range kinds {
		parts := strings.Split(kind, "/")
		if len(parts) != 3 {
			return nil, fmt.Errorf("invalid GroupVersionKind format: %v, please follow <group/version/kind>", kind)
		}
		group := parts[0]
		if group == "core" {
			group = ""
		}
		mapping, err := mapper.RESTMapping(schema.GroupKind{Group: group, Kind: parts[2]}, parts[1])
		if meta.IsNoMatchError(err) && len(p.allowlist) == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		mappings = append(mappings, mapping)
	}
	return mappings, nil
}

// pruneIn deletes the objects to prune of one kind in one namespace.
func pruneIn(ctx context.Context, o *applyOptions, mapping *meta.RESTMapping, client dynamic.ResourceInterface,
	applied *appliedSet) error {
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: o.selector})
	if err != nil {
		return err
	}
	for i := range list.Items {
		obj := &list.Items[i]
		if _, ours := obj.GetAnnotations()[lastApplied]; !ours || applied.uids.Has(obj.GetUID()) {
			continue
		}
		if !o.onlyPretend() {
			options := o.deletion.options()
			if o.dryRun == cmdutil.DryRunServer {
				options.DryRun = []string{metav1.DryRunAll}
			}
			if err := client.Delete(ctx, obj.GetName(), *options); err != nil {
				return err
			}
		}
		obj.SetGroupVersionKind(mapping.GroupVersionKind)
		if err := o.show(o.Session, obj, "pruned"); err != nil {
			return err
		}
	}
	return nil
}
