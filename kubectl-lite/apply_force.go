package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// deletion has the options with which apply deletes: with --force an object that cannot be changed, with --prune an
// object that is in no document any more.
type deletion struct {
	cascade string
	grace   int
	force   bool
	timeout time.Duration

	propagation metav1.DeletionPropagation
}

func (d *deletion) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&d.cascade, "cascade", "background",
		`Must be "background", "orphan", or "foreground". Selects the deletion cascading strategy for the dependents `+
			`(e.g. Pods created by a ReplicationController). Defaults to background.`)
	flags.Lookup("cascade").NoOptDefVal = "background"
	flags.IntVar(&d.grace, "grace-period", -1, "Period of time in seconds given to the resource to terminate "+
		"gracefully. Ignored if negative. Set to 1 for immediate shutdown. Can only be set to 0 when --force is "+
		"true (force deletion).")
	flags.BoolVar(&d.force, "force", false, "If true, immediately remove resources from API and bypass graceful "+
		"deletion. Note that immediate deletion of some resources may result in inconsistency or data loss and "+
		"requires confirmation.")
	// As in kubectl, --force always waits, since it creates the object again.
	flags.Bool("wait", false, "If true, wait for resources to be gone before returning. This waits for finalizers.")
	flags.DurationVar(&d.timeout, "timeout", 0, "The length of time to wait before giving up on a delete, zero "+
		"means determine a timeout from the size of the object")
}

func (d *deletion) complete() error {
	switch d.cascade {
	case "background", "true":
		d.propagation = metav1.DeletePropagationBackground
	case "foreground":
		d.propagation = metav1.DeletePropagationForeground
	case "orphan", "false":
		d.propagation = metav1.DeletePropagationOrphan
	default:
		return fmt.Errorf(`invalid cascade value (%v). Must be "background", "foreground", or "orphan"`, d.cascade)
	}
	return nil
}

func (d *deletion) options() *metav1.DeleteOptions {
	options := &metav1.DeleteOptions{PropagationPolicy: &d.propagation}
	if d.grace >= 0 {
		seconds := int64(d.grace)
		options.GracePeriodSeconds = &seconds
	}
	return options
}

// remove deletes an object and waits until it is gone. Another object may take its name meanwhile; the UID
// distinguishes them.
func (d *deletion) remove(ctx context.Context, s *session.Session, info *resource.Info) error {
	answer, err := resource.NewHelper(info.Client, info.Mapping).DeleteWithOptions(info.Namespace,
		info.Name, d.options())
	if err != nil {
		return err
	}
	client, err := objectClient(s, info)
	if err != nil {
		return err
	}
	uid := uidOf(answer)
	ctx, cancel := withOptionalTimeout(ctx, d.timeout)
	defer cancel()
	err = observe(ctx, client, info.Name, func(obj *unstructured.Unstructured) (bool, error) {
		return obj == nil || uid != "" && obj.GetUID() != uid, nil
	})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsMethodNotSupported(err), apierrors.IsNotFound(err):
		return nil // the user may delete, but not watch
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("timed out waiting for the condition on %s/%s", info.Mapping.Resource.Resource, info.Name)
	}
	return err
}

// uidOf reads the UID from the answer to a delete: a Status with details, or the object while it is terminating.
func uidOf(answer runtime.Object) types.UID {
	switch answer := answer.(type) {
	case *metav1.Status:
		if answer.Details != nil {
			return answer.Details.UID
		}
	case *unstructured.Unstructured:
		if answer.GetKind() == "Status" {
			uid, _, _ := unstructured.NestedString(answer.Object, "details", "uid")
			return types.UID(uid)
		}
		return answer.GetUID()
	}
	return ""
}
