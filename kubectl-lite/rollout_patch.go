package kubectllite

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/kubectl/pkg/scheme"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// mutation changes a typed object and returns it encoded.
type mutation func(runtime.Object) ([]byte, error)

// rolloutChange is a rollout verb that patches the workload's own object.
type rolloutChange struct {
	verb, done, short string
	mutate            mutation
	// unchanged is printed if the object needs no change; "" if that is an error.
	unchanged string
}

var (
	pause = rolloutChange{verb: "pause", done: "paused", short: "Mark the provided resource as paused",
		mutate: mutation(polymorphichelpers.ObjectPauserFn), unchanged: "already paused"}
	resume = rolloutChange{verb: "resume", done: "resumed", short: "Resume a paused resource",
		mutate: mutation(polymorphichelpers.ObjectResumerFn), unchanged: "already resumed"}
	restart = rolloutChange{verb: "restart", done: "restarted", short: "Restart a resource",
		mutate: mutation(polymorphichelpers.ObjectRestarterFn)}
)

type rolloutPatchOptions struct {
	workloads
	writing
	change rolloutChange
}

func newRolloutPatch(s *session.Session, change rolloutChange) *cobra.Command {
	o := &rolloutPatchOptions{workloads: workloads{Session: s}, change: change}
	cmd := &cobra.Command{
		Use:   change.verb + " RESOURCE",
		Short: change.short,
		RunE:  func(_ *cobra.Command, args []string) error { return o.run(args) },
	}
	o.workloads.addFlags(cmd)
	o.addPrintFlags(cmd)
	cmdutil.AddFieldManagerFlagVar(cmd, &o.fieldManager, "kubectl-rollout")
	return cmd
}

func (o *rolloutPatchOptions) run(args []string) error {
	found, namespace, err := o.find(args)
	if err != nil {
		return err
	}
	infos, err := found.Infos()
	errs := []error{err}
	if len(infos) == 0 && err == nil {
		sayNothingFound(o.Session, namespace, true)
	}
	for _, info := range infos {
		errs = append(errs, o.patch(info))
	}
	return utilerrors.NewAggregate(errs)
}

func (o *rolloutPatchOptions) patch(info *resource.Info) error {
	patch, err := patchFor(info.Object, o.change.mutate)
	if err != nil {
		return fmt.Errorf("error: %s %q %v", session.ResourceName(info.Mapping), info.Name, err)
	}
	if patch == nil {
		if o.change.unchanged == "" {
			return fmt.Errorf("failed to create patch for %v: if restart has already been triggered within the "+
				"past second, please wait before attempting to trigger another", info.Name)
		}
		return o.show(o.Session, info.Object, o.change.unchanged)
	}
	obj, err := o.helper(info).Patch(info.Namespace, info.Name, types.StrategicMergePatchType, patch, nil)
	if err != nil {
		return fmt.Errorf("failed to patch: %v", err)
	}
	return o.show(o.Session, obj, o.change.done)
}

// patchFor returns a strategic merge patch for the change that mutate makes, or nil if there is none. It changes obj.
func patchFor(obj runtime.Object, mutate mutation) ([]byte, error) {
	before, err := runtime.Encode(scheme.DefaultJSONEncoder(), obj)
	if err != nil {
		return nil, err
	}
	after, err := mutate(obj)
	if err != nil || after == nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, obj)
	if err != nil || string(patch) == "{}" {
		return nil, err
	}
	return patch, nil
}
